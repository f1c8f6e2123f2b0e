"""Fetches pictures that show no flag: 200 for tests, and 243 to learn from and to calibrate by.

    python -m recipes.countries.scenery data/flag_scenery

| part | package (Debian 12) | pictures | licence |
| --- | --- | --- | --- |
| test | gcompris-qt-data | 113 of fishes, tools, energy, others | public domain, CC0-1.0, CC-BY-SA (per picture) |
| test | mate-backgrounds | 12 of nature | GPL-2+ |
| test | tuxpaint-stamps-default | 75 stamps, cut out, on white | GPL-2 |
| train, calibration | gcompris-qt-data | 127 details of buildings and paintings, 116 drawings | as above |

Each is a JPEG of at most 480 pixels a side, `PART_NUMBER.jpg`; the first 125 of tests are backgrounds for flags too.
The picture tower trains on two thirds of the last row, and doubt is calibrated by the others: how sure a tower is that
a picture shows no flag says little where it has learnt from that very picture.
"""

from pathlib import Path

import numpy as np
import tyro
from jaxtyping import UInt8

from common import terminal
from common.io.files import atomic_folder, require_file
from common.io.images import read_image, shrink, to_uint8, write_image
from recipes.captioned_pictures.stamps import STAMPS, pictures
from recipes.downloads.archives import Package, members, obtain
from recipes.downloads.qt_resources import resources

COUNT, BACKGROUNDS, LARGEST = 200, 125, 480
FILES = r"(train|calibration|test)_\d+\.jpg"
GCOMPRIS = Package("deb", "gcompris-qt-data", "", "public domain, CC0-1.0, CC-BY-SA")
MATE = Package("deb", "mate-backgrounds", "", "GPL-2+")
ACTIVITIES = "gcompris/src/activities/"
TEST = tuple(f"categorization/resource/images/{name}/" for name in ("fishes", "tools", "renewable", "others"))
LEARNT = ("details/resource/image/", "lang/resource/words_sample/")
CALIBRATION = 1 / 3  # share of each of `LEARNT` that is left to calibration
Picture = UInt8[np.ndarray, "h w 3"]


def load(folder: str | Path, part: str, largest: int | None = None) -> list[Picture]:
    """The pictures of a part, at most `largest` pixels a side. Raises FileNotFoundError for a folder without them."""
    require_file(Path(folder) / f"{part}_000.jpg")
    found = [read_image(path) for path in sorted(Path(folder).glob(f"{part}_*.jpg"))]
    return [to_uint8(picture if largest is None else shrink(picture, largest)) for picture in found]


def fetch(folder: Path, archives: Path | None = None, overwrite: bool = False) -> int:
    """Writes all into `folder`; returns how many. Raises ConnectionError; ValueError for other packages."""
    with atomic_folder(folder, overwrite, FILES) as part:
        photographs, *learnt = gcompris(obtain(GCOMPRIS, part, archives), TEST, *((place,) for place in LEARNT))
        sets = {"train": [], "calibration": [], "test": photographs + other_tests(part, archives)}
        if len(sets["test"]) < COUNT:
            raise ValueError(f"packages of {len(sets['test'])} photographs for tests, not {COUNT}: use Debian 12's")
        del sets["test"][COUNT:]
        for found in learnt:
            first = round(len(found) * (1 - CALIBRATION))
            sets["train"] += found[:first]
            sets["calibration"] += found[first:]
        for name, found in sets.items():
            for number, picture in enumerate(found):
                write_image(part / f"{name}_{number:03}.jpg", shrink(picture.astype(np.float32) / 255, LARGEST))
        for path in part.glob("*.deb"):
            path.unlink()
    return sum(map(len, sets.values()))


def gcompris(archive: Path, *groups: tuple[str, ...]) -> list[list[Picture]]:
    """The pictures of each group of folders below `ACTIVITIES`, by name. The file of an activity has its name."""
    found: list[dict[str, Picture]] = [{} for _ in groups]
    names = tuple(f"/{place.split('/')[0]}.rcc" for group in groups for place in group)
    for path, content in members(archive, lambda path: path.endswith(names)):
        for name, picture in resources(content, path, lambda name: name.endswith(".webp")):
            for pictures_of, group in zip(found, groups, strict=True):
                if name.removeprefix(ACTIVITIES).startswith(group):
                    pictures_of[name] = to_uint8(read_image(picture, name))
    return [[picture for _, picture in sorted(group.items())] for group in found]


def other_tests(scratch: Path, archives: Path | None) -> list[Picture]:
    """Photographs of nature, then stamps."""
    nature = members(obtain(MATE, scratch, archives), lambda path: "/nature/" in path and path.endswith(".jpg"))
    stamps = pictures(obtain(STAMPS, scratch, archives), 256)
    step = max(1, len(stamps) // (COUNT - BACKGROUNDS + 5))
    return [to_uint8(read_image(content, name)) for name, content in sorted(nature)] + [s.image for s in stamps[::step]]


def main(
    folder: tyro.conf.Positional[Path] = Path("data/flag_scenery"),
    archives: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write the pictures to FOLDER; archives in ARCHIVES are used instead of downloads (252 MB)."""
    terminal.say(f"{folder}: {fetch(folder, archives, overwrite)} pictures without a flag")


if __name__ == "__main__":
    terminal.program(main)
