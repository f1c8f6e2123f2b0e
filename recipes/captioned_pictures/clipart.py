"""Open Clip Art 0.18: 8,121 drawings of many hands. Most of the work is to find out what they show.

The pixels are those of `openclipart-png`, the titles and keywords those in the drawings' SVG files (Dublin Core, in
`openclipart-svg`), joined by path. (Rendering the SVG files would spare a download of 131 MB; but every third has no
size that a renderer accepts.)

Left out by folder: 1,378 stars, icon themes, buttons, playing cards, flags, maps, road signs, patterns and the like
(`DROPPED`). Left out by words: titles that say nothing. Many are Italian, numbers of a collection, or the collection's
name for all its pieces. So a title counts when at least one of its words is `known`: it occurs in the names and tags of
the emoji, or is a keyword of several drawings. A title that many drawings share gives way to the file's name, under the
same rule. Drawings in black and white are so called in their captions.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from plugins.data.captioned import is_sided
from recipes.captioned_pictures.thumbnails import Picture, decode, is_colourless
from recipes.downloads.archives import Package, members

PIXELS = Package("deb", "openclipart-png", "", "public domain (Open Clip Art Library)")
TITLES = Package("deb", "openclipart-svg", "", "public domain (Open Clip Art Library)")
PNG_ROOT, SVG_ROOT = "usr/share/openclipart/png/", "usr/share/openclipart/svg/"
STYLE, COLOURLESS_STYLE = "clip art", "black and white clip art"

DROPPED = [
    "computer",
    "decorations",
    "geography",
    "people/clothing/pantyhose",
    "recreation/games/cards",
    "recreation/religion",
    "shapes",
    "signs_and_symbols",
    "special",
    "tools/weapons",
    "transportation/aiga-symbols",
    "transportation/roadsigns",
    "unsorted",
]
KEPT = ("computer/hardware/", "geography/astronomy/", "signs_and_symbols/weather/")
COLLECTION = 4  # drawings that share a title: then it names all of them and none
KEYWORD = 3  # drawings that share a keyword: then it is an English word rather than an artist's
NOISE = frozenset(
    re.findall(
        "[a-z]+",
        "a an and b w bw of the in on with for by no nr clipart cliparts clip art collection sibmission submission"
        " various illustration example svg png icon icons logo hash version symbol openclipart unsorted equipment"
        " musicstuff menu rules bn architetto francesco rollandin nicu buculei ganson jonadab lumen design",
    )
)
UNFIT = {"signs", "sexy", "stripper", "nude", "naked", "nazi", "swastika", "dead", "bullet", "gun"}


class Notes(NamedTuple):
    """What a drawing's SVG file says about it."""

    title: str
    keywords: tuple[str, ...]


def read_notes(archive: Path) -> dict[str, Notes]:
    """Path below the root, without suffix -> Notes, of the drawings whose folder is not left out."""
    notes = {}
    for path, content in members(archive, lambda path: _wanted(path, SVG_ROOT, ".svg")):
        text = content.decode("utf-8", "replace")
        title = re.search(r"<dc:title>([^<]*)</dc:title>", text)
        keywords = [html.unescape(word).strip().lower() for word in re.findall(r"<rdf:li>([^<]*)</rdf:li>", text)]
        stem = path.removeprefix(SVG_ROOT).removesuffix(".svg")
        notes[stem] = Notes(html.unescape(title[1]) if title else "", tuple(keywords))
    return notes


def known_words(notes: Mapping[str, Notes], vocabulary: Iterable[str]) -> set[str]:
    """The words of `vocabulary` (texts) and the keywords of at least KEYWORD drawings, without noise."""
    counts = Counter(word for note in notes.values() for word in set(note.keywords) if re.fullmatch("[a-z]{3,}", word))
    words = {word for text in vocabulary for word in re.findall("[a-z]{3,}", text.lower())}
    return (words | {word for word, count in counts.items() if count >= KEYWORD}) - NOISE


def labels(notes: Mapping[str, Notes], known: Collection[str]) -> dict[str, str]:
    """Path -> what the drawing shows; drawings of which that is not known are left out."""
    shared = Counter(clean(note.title) for note in notes.values())
    found = {}
    for stem, note in notes.items():
        title = clean(note.title)
        name = " ".join(word for word in clean(stem.rsplit("/", 1)[-1]).split() if word in known)
        choices = (name, title) if shared[title] >= COLLECTION else (title, name)
        label = next((choice for choice in choices if tells(choice, known)), "")
        if label and UNFIT.isdisjoint([*label.split(), *title.split()]):
            found[stem] = label
    return found


def tells(text: str, known: Collection[str]) -> bool:
    """Whether a text says what a drawing shows: at least one of its words is known."""
    return any(word in known for word in re.findall("[a-z]+", text))


def clean(title: str) -> str:
    """ "AfricanDrum_02 (B and W)" -> "african drum"."""
    title = re.sub(
        r"(?i)clip ?art by .* - |\(b ?and ?w\)|\([^)]*\bcolou?r\)|\s-\s+(clothing|body part)\b.*", " ", title
    )
    title = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", title)  # camel case
    title = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()  # without accents
    words = re.sub(r"[^a-z' ]", " ", re.sub(r"[_/-]", " ", title).lower()).split()
    words = [word.strip("'") for word in words]
    kept = [word for word in words if len(word) > 1]
    while kept and kept[-1] in NOISE:
        kept.pop()
    return " ".join(kept)


def pictures(archive: Path, notes: Mapping[str, Notes], known: Collection[str], size: int) -> Iterator[Picture]:
    """The drawings of which it is known what they show, in the archive's order."""
    named = labels(notes, known)

    def wanted(path: str) -> bool:
        return path.removeprefix(PNG_ROOT).removesuffix(".png") in named and _wanted(path, PNG_ROOT, ".png")

    for path, content in members(archive, wanted):
        image = decode(content, size, trim=True)
        if image is not None:
            stem = path.removeprefix(PNG_ROOT).removesuffix(".png")
            style = COLOURLESS_STYLE if is_colourless(image) else STYLE
            tags = tuple(word for word in dict.fromkeys(notes[stem].keywords) if word in known and word != named[stem])
            label = named[stem]
            yield Picture(image, label, style, tags, stem.split("/", 1)[0], PIXELS.name, not is_sided(label))


def _wanted(path: str, root: str, suffix: str) -> bool:
    if not (path.startswith(root) and path.endswith(suffix)):
        return False
    inside = path.removeprefix(root)
    return inside.startswith(KEPT) or not any(inside.startswith(f"{folder}/") for folder in DROPPED)
