"""Get a hundred photographs for `recipes.film_small.moving_photographs` to move: 111 of them, 287 megapixels, 41 MB.

A film shows how things move, but no film that may be used freely shows as much as photographs do, and none tells the
flow between its frames. So training also moves photographs. They come from packages of Debian that carry desktops and
a teaching program (`recipes.film_small.photograph_list` says which, whose and on what terms), with apt-get as the only downloader:

    apt-get download NAME -> NAME_VERSION_all.deb > member                      Lomiri, Plasma, LXQt
                                                  > member.rcc > member         GCompris

Nothing is installed, and files are copied as they are, never encoded anew, into one flat folder:

    lomiri_*.jpg plasma_*.jpg lxqt_*.png lxqt_*.jpg gcompris_*.webp
    index.json   photographs: file, split (train, or held_out: never trained on), package, member, licence, author,
                 width and height (px, upright), sha256; packages: archive, its SHA-256, licences; missing: members
                 that this version of a package lacks

Debian keeps one version of a package per release, and the list was made with release 12. Where another release has
dropped some photographs the others are taken; `index.json` and a line on the screen tell which are missing.

    python -m recipes.film_small.photographs                        # data/photographs; downloads 191 MB
    python -m recipes.film_small.photographs --archives FOLDER      # looks there for the .deb files first
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tyro

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from common.io.images import image_size, verify_image
from recipes.downloads.archives import Package, about, members, obtain
from recipes.downloads.qt_resources import resources
from recipes.film_small.photograph_list import PHOTOGRAPHS, Photograph

INDEX, RCC = "index.json", ".rcc/"


def fetch_photographs(
    folder: str | Path = "data/photographs",
    archives: str | Path | None = None,
    photographs: Sequence[Photograph] = PHOTOGRAPHS,
) -> dict[str, Any]:
    """What `folder`/index.json says; the folder is made first if it is not there, and checked if it is.

    Raises FileExistsError (the folder holds something else), ConnectionError (a package cannot be got), ValueError (a
    damaged archive, one without any of these photographs, a photograph changed since)."""
    target = Path(folder)
    if (target / INDEX).is_file():
        return check_photographs(target)
    check_output_folder(target)  # now rather than after the downloads
    entries, packages, missing = [], {}, []
    with tempfile.TemporaryDirectory() as scratch, atomic_folder(target) as part:
        for package, rows in _by_package(photographs).items():
            archive = obtain(package, Path(scratch), Path(archives) if archives else None)
            packages[package.name] = about(package, archive)
            found = read_members(archive, {row.member for row in rows})
            if not found:
                raise ValueError(f"{archive} holds none of the {len(rows)} photographs of {package.name}")
            missing += [f"{package.name}: {row.member}" for row in rows if row.member not in found]
            entries += [_write(part, row, found[row.member]) for row in rows if row.member in found]
        index = dict(photographs=entries, packages=packages, missing=missing)
        _write_index(part / INDEX, index)
    return index


def read_members(archive: Path, wanted: set[str]) -> dict[str, bytes]:
    """The `wanted` members that the package has. Raises ValueError for a damaged archive."""
    outer = {_outer(path) for path in wanted}
    found = {}
    for path, content in members(archive, outer.__contains__):
        if path in wanted:
            found[path] = content
        else:
            inside = resources(content, f"{archive}: {path}", lambda name, path=path: f"{path}/{name}" in wanted)
            found |= {f"{path}/{name}": content for name, content in inside}
    return found


def check_photographs(folder: Path) -> dict[str, Any]:
    """What its index says. Raises ValueError unless every photograph in it is there as it was fetched."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text("utf-8"))
        expected = {entry["file"]: entry["sha256"] for entry in index["photographs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what this command writes: move {folder} and fetch anew") from error
    changed = [name for name, sha256 in expected.items() if _sha256(folder / name) != sha256]
    if changed:
        raise ValueError(f"{folder}: {changed[0]} is missing or not what was fetched: move the folder and fetch anew")
    return index


def _by_package(photographs: Iterable[Photograph]) -> dict[Package, list[Photograph]]:
    rows = defaultdict(list)
    for row in photographs:
        rows[row.package].append(row)
    return rows


def _outer(member: str) -> str:
    """The package's own member: the whole path, or where a resource file's begins."""
    head, inside, _ = member.partition(RCC)
    return head + inside.rstrip("/")


def _write(folder: Path, row: Photograph, content: bytes) -> dict[str, Any]:
    path = folder / row.name
    path.write_bytes(content)
    try:
        verify_image(path)
        width, height = image_size(path)
    except ValueError as error:
        raise ValueError(f"{row.package.name}: {row.member} is no whole picture") from error
    about_it = dict(package=row.package.name, member=row.member, licence=row.licence, author=row.author)
    sizes = dict(width=width, height=height, sha256=hashlib.sha256(content).hexdigest())
    return dict(file=row.name, split=row.split) | about_it | sizes


def _write_index(path: Path, index: dict[str, Any]) -> None:
    """One line per photograph, so that the file can be read and compared."""
    lines = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in index["photographs"])
    rest = json.dumps({name: index[name] for name in ("packages", "missing")}, indent=1, ensure_ascii=False)
    path.write_text('{\n "photographs": [\n  ' + lines + "\n ]," + rest.removeprefix("{") + "\n", "utf-8")


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(folder: tyro.conf.Positional[Path] = Path("data/photographs"), archives: Path | None = None) -> None:
    """Write free photographs to FOLDER, unless they are there; ARCHIVES is looked through before anything is
    downloaded (191 MB, needs apt-get)."""
    index = fetch_photographs(folder, archives)
    found = index["photographs"]
    held = sum(entry["split"] != "train" for entry in found)
    pixels = sum(entry["width"] * entry["height"] for entry in found)
    for member in index["missing"]:
        print(f"missing: {member}")
    print(f"{folder}: {len(found)} photographs, {pixels / 1e6:.0f} megapixels, {held} of them held out of training")


if __name__ == "__main__":
    terminal.program(main)
