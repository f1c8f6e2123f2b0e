"""Fetches the flags and facts of 250 countries and territories from two published packages:

    flag-icons 7.5.0       npm   MIT        package/flags/4x3/fr.svg      all flags, 4:3
    world-countries 5.1.0  npm   ODbL-1.0   package/dist/countries.json   names, capitals, languages, borders, ...

    python -m recipes.countries.fetch data/countries

Two files are written, equal to those in `recipes/countries/data`; this documents the source of every fact and pixel.

    countries.json   the sources, then one line per country, sorted by code
    flags.webp       all flags at 64 x 48 pixels, 16 per row, in the same order, lossless

Flags are rendered four times as large, on white where they are transparent (Nepal), and averaged down.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tyro
from jaxtyping import UInt8
from PIL import Image

from common import terminal
from common.io.files import atomic_folder
from recipes.downloads.archives import Package, about, obtain, read_files
from recipes.downloads.svg import render

FACTS_SHA256 = "329eb6ef4099ffb590219c9beb634bf489a5e4b10d8ab0ac52a58ebf7b9f8495"
FLAGS_SHA256 = "c0b80bf0e08006a60f56621d6bc49f8c7131f4d1fef6737a165a673431f4b518"
FACTS = Package("npm", "world-countries", "5.1.0", "ODbL-1.0 (Mohammed Le Doze and contributors)", FACTS_SHA256)
FLAGS = Package("npm", "flag-icons", "7.5.0", "MIT (Panayiotis Lipiridis)", FLAGS_SHA256)
TABLE, DRAWING = "package/dist/countries.json", "package/flags/4x3/{}.svg"
WIDTH, HEIGHT, COLUMNS, OVERSAMPLED = 64, 48, 16, 4
FILES = r"countries\.json|flags\.webp"
Flags = UInt8[np.ndarray, "n 48 64 3"]


def fetch(
    folder: Path,
    archives: Path | None = None,
    overwrite: bool = False,
    packages: tuple[Package, Package] = (FACTS, FLAGS),
) -> int:
    """Writes both files into `folder`; returns the number of countries. Raises ConnectionError (a package cannot be
    downloaded), ValueError (a package with other contents), FileExistsError."""
    with atomic_folder(folder, overwrite, FILES) as part, tempfile.TemporaryDirectory() as scratch:
        facts, drawings = (obtain(package, Path(scratch), archives) for package in packages)
        sources = [about(package, path) for package, path in zip(packages, (facts, drawings), strict=True)]
        countries = read_table(facts)
        flags = read_flags(drawings, [country["code"].lower() for country in countries])
        lines = ",\n  ".join(json.dumps(country, ensure_ascii=False) for country in countries)
        head = json.dumps(sources, indent=1)
        (part / "countries.json").write_text(f'{{"sources": {head},\n "countries": [\n  {lines}\n]}}\n', "utf-8")
        sheet = Image.fromarray(stack_flags(flags))
        sheet.save(part / "flags.webp", lossless=True, quality=100, method=6)  # quality is the effort here
    return len(countries)


def read_table(archive: Path) -> list[dict[str, Any]]:
    """The kept facts of every country, sorted by code."""
    table = json.loads(read_files(archive, [TABLE])[TABLE].content)
    names = {entry["cca3"]: entry["name"]["common"] for entry in table}
    return [kept(entry, names) for entry in sorted(table, key=lambda entry: entry["cca2"])]


def kept(entry: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The facts that questions are about: neighbours by name, None instead of "" and -1. An empty mapping is [] in the
    package, as PHP writes it."""
    currencies = dict(entry["currencies"] or {})
    return {
        "code": entry["cca2"],
        "name": entry["name"]["common"],
        "capital": [city for city in entry["capital"] if city],
        "region": entry["region"],
        "subregion": entry["subregion"] or None,
        "languages": list(dict(entry["languages"] or {}).values()),
        "currencies": [currency["name"] for currency in currencies.values()],
        "borders": [names[code] for code in entry["borders"]],
        "area": entry["area"] if entry["area"] > 0 else None,
        "latlng": entry["latlng"],
    }


def read_flags(archive: Path, codes: Sequence[str]) -> Flags:
    paths = [DRAWING.format(code) for code in codes]
    files = read_files(archive, paths)
    return np.stack([thumbnail(render(files[path].content, OVERSAMPLED * WIDTH)) for path in paths])


def thumbnail(png: bytes) -> UInt8[np.ndarray, "48 64 3"]:
    """A rendered flag on white, averaged down."""
    pixels: Any = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    alpha = pixels[..., 3:].astype(np.float32) / 255
    colours = pixels[..., 2::-1] * alpha + 255 * (1 - alpha)
    return np.rint(cv2.resize(colours, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)).astype(np.uint8)


def stack_flags(flags: UInt8[np.ndarray, "n h w c"], columns: int = COLUMNS) -> UInt8[np.ndarray, "h2 w2 c"]:
    """All flags in one picture; `unstack_flags` is the inverse."""
    count, height, width, channels = flags.shape
    grid = np.concatenate([flags, np.zeros((-count % columns, height, width, channels), np.uint8)])
    rows = grid.reshape(-1, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    return rows.reshape(-1, columns * width, channels)


def unstack_flags(
    sheet: UInt8[np.ndarray, "h2 w2 c"], count: int, size: tuple[int, int] = (WIDTH, HEIGHT), columns: int = COLUMNS
) -> UInt8[np.ndarray, "{count} h w c"]:
    """`count` flags of this (width, height). Raises ValueError for a picture of another size."""
    width, height = size
    grid = sheet.reshape(-(-count // columns), height, columns, width, sheet.shape[-1]).transpose(0, 2, 1, 3, 4)
    return grid.reshape(-1, height, width, sheet.shape[-1])[:count].copy()


def main(
    folder: tyro.conf.Positional[Path] = Path("data/countries"), archives: Path | None = None, overwrite: bool = False
) -> None:
    """Write facts and flags to FOLDER; archives in ARCHIVES are used instead of downloads (7 MB)."""
    terminal.say(f"{folder}: {fetch(folder, archives, overwrite)} countries")


if __name__ == "__main__":
    terminal.program(main)
