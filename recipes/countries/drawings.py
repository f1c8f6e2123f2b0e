"""Fetches flags as twelve icon sets of eleven packages draw them: what teaches a network that a flag is not its pixels.

    python -m recipes.countries.drawings data/flag_drawings

Sets are rectangles of several proportions, discs, rounded icons with gloss, and emoji. Nothing of the three that are
held out is ever shown to a network in training. A set is written as NAME.webp: all countries of `data/countries.json`
in its order, each cut to what is not transparent, stretched to 96 x 72 pixels, with alpha; `drawings.json` has the
aspect of each, 0 where the set has no such flag, and the origin of the files.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import tyro
from jaxtyping import Float, UInt8
from PIL import Image

from common import terminal
from common.io.files import atomic_folder, require_file
from recipes.captioned_pictures import emoji
from recipes.countries import fetch
from recipes.countries.facts import DATA
from recipes.downloads.archives import Package, read_packages
from recipes.downloads.svg import render

WIDTH, HEIGHT, COLUMNS, RENDERED = 96, 72, 10, 288
INDEX = "drawings.json"
FILES = r"drawings\.json|[a-z-]+\.webp"
OPAQUE = 24  # alpha from which a pixel counts as drawn
Pictures = UInt8[np.ndarray, "n 72 96 4"]


class IconSet(NamedTuple):
    """A set of drawings; `path` has the place of a country's code ({}), of its letters as emoji ({emoji}), or is the
    file of all icons (.json), in which `names` are looked up."""

    name: str
    package: Package
    path: str
    held_out: bool = False


def iconify(name: str, version: str, licence: str, sha256: str) -> Package:
    return Package("npm", f"@iconify-json/{name}", version, licence, sha256)


WIKIMEDIA = "2576650b4568c8ee1a2a6ddaa45c0246be16735f229bb40b1a0a6f40424e5213"
KIT = "b15e337fb169b637514e71f4bb1239313904a9a792408b04baec7d0cbe6ea4f3"
TEST = "0b003c0984b53e12a870f0b9a2ccd9821c588c505cf18d7938dabec3ae669808"
CIRCLE = "ee9a03f6a6fdd79cc6325bdcb7bb93b83d331e60b16e226188f154a64b6bb4a9"
PACK = "165ea189ef6ee00b8c10d66c0a2702a6afe1d89d7feafdc3a02a459d65580483"
COREUI = "804801450b77e3b2c9a2b716fb45b44ee2a97e702e21ac6bca6358d0f7eb13c8"
TWEMOJI = "19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7"
EMOJIONE = "26a14f44284407e8bcde91799388dca2bfd91dbcd55a97f425524a1c5b73610e"
OPENMOJI = "03181e2c156cab35cf4a62f1f7886bd971d59212e75ac3f189d5a4cae3930fc5"
ICONS, CHARACTERS = "package/icons.json", "package/chars.json"
NEVER_SEEN = Package("npm", "country-flag-icons", "1.6.20", "MIT", TEST)
OPEN = iconify("openmoji", "1.2.29", "CC-BY-SA-4.0 (OpenMoji)", OPENMOJI)
SETS = (
    IconSet("flag-icons", fetch.FLAGS, "package/flags/4x3/{}.svg"),
    IconSet("flag-icons-square", fetch.FLAGS, "package/flags/1x1/{}.svg"),
    IconSet("wikimedia", Package("npm", "svg-country-flags", "1.2.10", "PD", WIKIMEDIA), "package/svg/{}.svg"),
    IconSet("circle", iconify("circle-flags", "1.2.11", "MIT (HatScripts)", CIRCLE), ICONS),
    IconSet("flagpack", iconify("flagpack", "1.2.8", "MIT (Yummygum)", PACK), ICONS),
    IconSet("coreui", iconify("cif", "1.2.7", "CC0-1.0", COREUI), ICONS),
    IconSet("flagkit", Package("npm", "flagkit-web", "0.0.3", "MIT", KIT), "package/svgs/{upper}.svg"),
    IconSet("twemoji", iconify("twemoji", "1.2.5", "CC-BY-4.0 (Twitter and others)", TWEMOJI), ICONS),
    IconSet("emojione", iconify("emojione", "1.2.3", "CC-BY-4.0 (EmojiOne)", EMOJIONE), ICONS),
    IconSet("country-flag-icons", NEVER_SEEN, "package/3x2/{upper}.svg", held_out=True),
    IconSet("noto", emoji.NOTO, "package/img/google/64/{emoji}.png", held_out=True),
    IconSet("openmoji", OPEN, ICONS, held_out=True),
)


class Drawings(NamedTuple):
    """All drawings of a set: RGBA, and width by height of each; 0 where there is none."""

    pictures: Pictures
    aspects: Float[np.ndarray, " n"]


def fetch_drawings(folder: Path, archives: Path | None = None, overwrite: bool = False) -> dict[str, int]:
    """Writes all sets into `folder`; returns the number of flags of each. Raises as `recipes.countries.fetch`."""
    entries = json.loads(require_file(DATA / "countries.json").read_text("utf-8"))["countries"]
    codes = [entry["code"] for entry in entries]
    wanted: dict[Package, list[str]] = {}
    for icon_set in SETS:
        paths = [ICONS, CHARACTERS] if icon_set.path == ICONS else [place(icon_set.path, code) for code in codes]
        wanted.setdefault(icon_set.package, []).extend(paths)
    counts, index, origins, names = {}, {}, {}, {}
    with atomic_folder(folder, overwrite, FILES) as part:
        # OpenMoji comes first: it knows the names of emoji.
        for package, about, files in sorted(read_packages(wanted, archives), key=lambda entry: entry[0] != OPEN):
            origins[package.name] = about
            if package == OPEN:
                names = json.loads(files[CHARACTERS].content)
            contents = {path: file.content for path, file in files.items()}
            for icon_set in (icon_set for icon_set in SETS if icon_set.package == package):
                drawn, name = draw(icon_set, codes, contents, names), icon_set.name
                sheet = Image.fromarray(fetch.stack_flags(drawn.pictures, COLUMNS))
                sheet.save(part / f"{name}.webp", lossless=True, quality=40, method=4, exact=True)
                index[name] = [round(float(aspect), 3) for aspect in drawn.aspects]
                counts[name] = int((drawn.aspects > 0).sum())
        text = json.dumps({"codes": codes, "aspects": index, "packages": origins}, ensure_ascii=False)
        (part / INDEX).write_text(text, "utf-8")
    return counts


def place(path: str, code: str) -> str:
    """The path of a country's drawing."""
    return path.format(code.lower(), upper=code.upper(), emoji=emoji_of(code))


def emoji_of(code: str) -> str:
    """Two regional indicators: "1f1eb-1f1f7" for FR."""
    return "-".join(f"{0x1F1E6 + ord(letter) - ord('A'):x}" for letter in code.upper())


def draw(icon_set: IconSet, codes: Sequence[str], files: Mapping[str, bytes], names: Mapping[str, str]) -> Drawings:
    """All drawings of a set that exist. `names` of emoji: "flag-france"."""
    if icon_set.name == "twemoji" and CHARACTERS in files:
        names = json.loads(files[CHARACTERS])
    icons = json.loads(files[ICONS]) if icon_set.path == ICONS else None
    pictures, aspects = np.zeros((len(codes), HEIGHT, WIDTH, 4), np.uint8), np.zeros(len(codes), np.float32)
    for number, code in enumerate(codes):
        name = code.lower() if icon_set.name in ("circle", "flagpack", "coreui") else names.get(emoji_of(code), "")
        if icon_set.name == "emojione":
            name = name.replace("flag-", "flag-for-", 1)
        content = files.get(place(icon_set.path, code)) if icons is None else icon(icons, name)
        if content:
            png = content if content.startswith(b"\x89PNG") else render(content, RENDERED)
            pictures[number], aspects[number] = cut(png)
    return Drawings(pictures, aspects)


def icon(icons: Mapping[str, Any], name: str) -> bytes | None:
    """The SVG file of an icon in Iconify's file of all."""
    if (found := icons["icons"].get(name)) is None:
        return None
    left, top, width, height = (found.get(key, icons.get(key, 0)) for key in ("left", "top", "width", "height"))
    width, height = width or 16, height or 16
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    box = f'viewBox="{left} {top} {width} {height}" width="{width}" height="{height}"'
    return f"{head} {box}>{found['body']}</svg>".encode()


def cut(png: bytes) -> tuple[UInt8[np.ndarray, "72 96 4"], float]:
    """What is not transparent, RGBA, and its aspect."""
    pixels: Any = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels.shape[-1] == 3:
        pixels = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    rows, columns = (np.flatnonzero((pixels[..., 3] > OPAQUE).any(axis)) for axis in (1, 0))
    pixels = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = pixels.shape[:2]
    alpha = pixels[..., 3:].astype(np.float32) / 255
    scaled = cv2.resize(np.dstack([pixels[..., 2::-1] * alpha, alpha]), (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    colours = scaled[..., :3] / np.maximum(scaled[..., 3:], 1 / 255)
    return np.rint(np.dstack([colours.clip(0, 255), 255 * scaled[..., 3:]])).astype(np.uint8), width / height


def load(folder: str | Path, name: str) -> Drawings:
    """A set that `fetch_drawings` wrote. Raises OSError."""
    aspects = np.array(json.loads(require_file(Path(folder) / INDEX).read_text("utf-8"))["aspects"][name], np.float32)
    with Image.open(require_file(Path(folder) / f"{name}.webp")) as image:
        pixels = np.asarray(image.convert("RGBA"))
    return Drawings(fetch.unstack_flags(pixels, len(aspects), (WIDTH, HEIGHT), COLUMNS), aspects)


def main(
    folder: tyro.conf.Positional[Path] = Path("data/flag_drawings"),
    archives: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write all drawings to FOLDER; archives in ARCHIVES are used instead of downloads (90 MB)."""
    counts = fetch_drawings(folder, archives, overwrite)
    terminal.say(f"{folder}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    terminal.program(main)
