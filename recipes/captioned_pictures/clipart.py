"""Open Clip Art 0.18: 8,121 drawings, labelled by their titles, keywords and file names.

The pixels are those of `openclipart-png`, titles and keywords those of the SVG files (`openclipart-svg`), of which
every third has no size that a renderer accepts. Left out by folder (`DROPPED`): 1,378 stars, icon themes, buttons,
playing cards, flags, maps, road signs, patterns and the like. Left out by label: drawings whose title and file name
have no known word: one of the names and tags of the emoji, or a keyword of several drawings. (Many titles are Italian,
numbers, or the name of a collection: if many drawings share one, the file name comes first.)
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from plugins.data.captioned import is_sided
from recipes.captioned_pictures.thumbnails import Picture, decode, is_colourless
from recipes.downloads.archives import Package, members

PIXELS = Package("deb", "openclipart-png", "", "public domain (Open Clip Art Library)")
TITLES = Package("deb", "openclipart-svg", "", "public domain (Open Clip Art Library)")
PNG_ROOT, SVG_ROOT = "usr/share/openclipart/png/", "usr/share/openclipart/svg/"
STYLE, COLOURLESS_STYLE = "clip art", "black and white clip art"

DROPPED = (
    *("computer/", "decorations/", "geography/", "people/clothing/pantyhose/", "recreation/games/cards/", "unsorted/"),
    *("recreation/religion/", "shapes/", "signs_and_symbols/", "special/", "tools/weapons/"),
    *("transportation/aiga-symbols/", "transportation/roadsigns/"),
)
KEPT = ("computer/hardware/", "geography/astronomy/", "signs_and_symbols/weather/")
COLLECTION = 4  # drawings with the same title: from here on it names the collection
KEYWORD = 3  # drawings with the same keyword: from here on it is an English word, not an artist's name
NOISE_WORDS = """a an and b w bw of the in on with for by no nr clipart cliparts clip art collection sibmission
    submission various illustration example svg png icon icons logo hash version symbol openclipart unsorted equipment
    musicstuff menu rules bn architetto francesco rollandin nicu buculei ganson jonadab lumen design"""
NOISE = frozenset(NOISE_WORDS.split())
UNFIT = {"signs", "sexy", "stripper", "nude", "naked", "nazi", "swastika", "dead", "bullet", "gun"}


class Metadata(NamedTuple):
    """Of a drawing's SVG file (Dublin Core)."""

    title: str
    keywords: tuple[str, ...]


def read_metadata(archive: Path) -> dict[str, Metadata]:
    """Path below the root, without suffix -> Metadata, of the drawings in kept folders."""
    metadata = {}
    for path, content in members(archive, lambda path: _wanted(path, SVG_ROOT, ".svg")):
        text = content.decode("utf-8", "replace")
        title = re.search(r"<dc:title>([^<]*)</dc:title>", text)
        keywords = [html.unescape(word).strip().lower() for word in re.findall(r"<rdf:li>([^<]*)</rdf:li>", text)]
        stem = path.removeprefix(SVG_ROOT).removesuffix(".svg")
        metadata[stem] = Metadata(html.unescape(title[1]) if title else "", tuple(keywords))
    return metadata


def known_words(metadata: Mapping[str, Metadata], vocabulary: Iterable[str]) -> set[str]:
    """The words of the texts `vocabulary` and the keywords of at least `KEYWORD` drawings, without `NOISE`."""
    keywords = (word for drawing in metadata.values() for word in set(drawing.keywords))
    counts = Counter(word for word in keywords if re.fullmatch("[a-z]{3,}", word))
    words = {word for text in vocabulary for word in re.findall("[a-z]{3,}", text.lower())}
    return (words | {word for word, count in counts.items() if count >= KEYWORD}) - NOISE


def labels(metadata: Mapping[str, Metadata], known: set[str]) -> dict[str, str]:
    """Path -> label; drawings without a known word are left out."""
    shared = Counter(clean(drawing.title) for drawing in metadata.values())
    found = {}
    for stem, drawing in metadata.items():
        title = clean(drawing.title)
        name = " ".join(word for word in clean(stem.rsplit("/", 1)[-1]).split() if word in known)
        choices = (name, title) if shared[title] >= COLLECTION else (title, name)
        label = next((text for text in choices if not known.isdisjoint(re.findall("[a-z]+", text))), "")
        if label and UNFIT.isdisjoint([*label.split(), *title.split()]):
            found[stem] = label
    return found


def clean(title: str) -> str:
    """ "AfricanDrum_02 (B and W)" -> "african drum"."""
    remarks = r"(?i)clip ?art by .* - |\(b ?and ?w\)|\([^)]*\bcolou?r\)|\s-\s+(clothing|body part)\b.*"
    title = re.sub(remarks, " ", title)
    title = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", title)  # camel case
    title = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()  # without accents
    words = re.sub(r"[^a-z' ]", " ", re.sub(r"[_/-]", " ", title).lower()).split()
    words = [word.strip("'") for word in words]
    kept = [word for word in words if len(word) > 1]
    while kept and kept[-1] in NOISE:
        kept.pop()
    return " ".join(kept)


def pictures(archive: Path, metadata: Mapping[str, Metadata], known: set[str], size: int) -> Iterator[Picture]:
    """The labelled drawings, in the archive's order."""
    named = labels(metadata, known)

    def wanted(path: str) -> bool:
        return path.removeprefix(PNG_ROOT).removesuffix(".png") in named and _wanted(path, PNG_ROOT, ".png")

    for path, content in members(archive, wanted):
        image = decode(content, size, trim=True)
        if image is not None:
            stem = path.removeprefix(PNG_ROOT).removesuffix(".png")
            label, style = named[stem], COLOURLESS_STYLE if is_colourless(image) else STYLE
            tags = tuple(word for word in dict.fromkeys(metadata[stem].keywords) if word in known and word != label)
            yield Picture(image, label, style, tags, stem.split("/", 1)[0], PIXELS.name, not is_sided(label))


def _wanted(path: str, root: str, suffix: str) -> bool:
    if not (path.startswith(root) and path.endswith(suffix)):
        return False
    inside = path.removeprefix(root)
    return inside.startswith(KEPT) or not inside.startswith(DROPPED)
