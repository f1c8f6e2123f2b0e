"""Fetches the photographs of tests: 200 that show no flag, of which training sees none.

    python -m recipes.countries.test_photographs data/flag_tests

| package (Debian 12) | photographs | licence |
| --- | --- | --- |
| gcompris-qt-data | 113 of fishes, tools, energy, others | public domain, CC0-1.0, CC-BY-SA (per picture) |
| mate-backgrounds | 12 of nature | GPL-2+ |
| tuxpaint-stamps-default | 75, cut out, on white | GPL-2 |

Each is written as JPEG of at most 480 pixels a side, `NUMBER.jpg`; the first 125 are backgrounds for flags too.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro
from jaxtyping import UInt8

from common import terminal
from common.io.files import atomic_folder
from common.io.images import read_image, shrink, to_uint8, write_image
from recipes.captioned_pictures.stamps import STAMPS, pictures
from recipes.downloads.archives import Package, members, obtain
from recipes.downloads.qt_resources import resources

COUNT, BACKGROUNDS, LARGEST = 200, 125, 480
FILES = r"\d+\.jpg"
RESOURCE = "categorization.rcc"
GCOMPRIS = Package("deb", "gcompris-qt-data", "", "public domain, CC0-1.0, CC-BY-SA")
MATE = Package("deb", "mate-backgrounds", "", "GPL-2+")
CLASSES = ("fishes", "tools", "renewable", "others")


def fetch(folder: Path, archives: Path | None = None, overwrite: bool = False) -> int:
    """Writes them into `folder`. Raises ConnectionError, ValueError for packages with other contents."""
    with atomic_folder(folder, overwrite, FILES) as part:
        found = list(photographs(part, archives))
        if len(found) < COUNT:
            raise ValueError(f"the packages hold {len(found)} photographs, {COUNT} are needed: use those of Debian 12")
        for number, picture in enumerate(found[:COUNT]):
            write_image(part / f"{number:03}.jpg", shrink(picture.astype(np.float32) / 255, LARGEST))
        for path in part.glob("*.deb"):
            path.unlink()
    return COUNT


def photographs(scratch: Path, archives: Path | None) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """All of them, in a fixed order."""
    inner = "gcompris/src/activities/categorization/resource/images/"
    wanted = tuple(f"{inner}{name}/" for name in CLASSES)
    for path, content in members(obtain(GCOMPRIS, scratch, archives), lambda path: path.endswith(RESOURCE)):
        files = resources(content, path, lambda name: name.endswith(".webp") and name.startswith(wanted))
        for name, picture in sorted(files):
            yield to_uint8(read_image(picture, name))
    for name, picture in sorted(
        members(obtain(MATE, scratch, archives), lambda path: "/nature/" in path and path.endswith(".jpg"))
    ):
        yield to_uint8(read_image(picture, name))
    stamps = pictures(obtain(STAMPS, scratch, archives), 256)
    for stamp in stamps[:: max(1, len(stamps) // (COUNT - BACKGROUNDS + 5))]:
        yield stamp.image


def main(
    folder: tyro.conf.Positional[Path] = Path("data/flag_tests"), archives: Path | None = None, overwrite: bool = False
) -> None:
    """Write the photographs to FOLDER; archives in ARCHIVES are used instead of downloads (252 MB)."""
    terminal.say(f"{folder}: {fetch(folder, archives, overwrite)} photographs")


if __name__ == "__main__":
    terminal.program(main)
