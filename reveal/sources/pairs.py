"""Pictures of the web with the text that stood beside them: CC12M's table, and tars as img2dataset packs them.

The table (Changpinyo et al., CVPR 2021) is a line of address and caption, with a tab between them and no header:

    https://x.org/gull.jpg	a gull over the sea

Tars (WebDataset) hold members that share their name up to the first dot, one after the other:

    000000007.jpg    000000007.txt    000000007.json: {"caption": ..., "url": ..., "key": ...}

`common.data.tar` says why the reader of tars is our own. The caption is that of .txt, else of .json. A tar is read from
front to back; of a picture that only a question names, its place is kept, not its bytes. Both make items (the paper has
10,009,901 of CC12M) and pictures to describe."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from common.data.files import files_of
from common.data.stored import Member
from common.data.tar import IMAGES, key_and_suffix, members
from common.data.text import open_text, parse_json
from reveal.memory.items import Item
from reveal.sources.image_names import Pictures, is_among
from reveal.sources.records import Picture, Question, Skips, file_bytes


class Pair(NamedTuple):
    """A picture and its text, and what messages call them."""

    number: int
    image: Picture
    text: str
    where: str


def table_items(
    path: str | Path,
    images: str | Path,
    source: str = "cc12m",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """Items of a table whose pictures are in a folder, by name or hash of their address; `without` has addresses."""
    skips = skips or Skips()
    yield from _as_items(table(path, images, without, skips), source, first_id, skips)


def table_questions(
    path: str | Path, images: str | Path, without: Collection[str] = (), skips: Skips | None = None
) -> Iterator[Question]:
    """Pictures to describe; their ids are the numbers of the lines."""
    for pair in table(path, images, without, skips or Skips()):
        yield Question(pair.number, pair.image, answers=(pair.text,))


def tar_items(
    path: str | Path,
    source: str = "cc12m",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """Items of a tar, of all in a folder, or of a pattern; `without` has keys or addresses. Ids count samples."""
    skips = skips or Skips()
    yield from _as_items(tars(path, without, skips), source, first_id, skips)


def tar_questions(path: str | Path, without: Collection[str] = (), skips: Skips | None = None) -> Iterator[Question]:
    """Pictures to describe; arguments as for `tar_items`."""
    for pair in tars(path, without, skips or Skips()):
        yield Question(pair.number, pair.image, answers=(pair.text,))


def _as_items(pairs: Iterator[Pair], source: str, first_id: int, skips: Skips) -> Iterator[Item]:
    for number, image, text, where in pairs:
        if (data := file_bytes(image, skips, where)) is not None:
            yield Item(source, {"text": text}, data, first_id + number)


def table(path: str | Path, images: str | Path, without: Collection[str], skips: Skips) -> Iterator[Pair]:
    """The lines that have a picture and a caption."""
    pictures, number = Pictures(images), -1
    for file in files_of(path, ".tsv", ".tsv.gz"):
        with open_text(file) as lines:
            for place, line in enumerate(lines, 1):
                number, where = number + 1, f"{file} line {place}"
                address, _, text = line.strip("\r\n").partition("\t")
                if is_among(address, without):
                    skips.held_out()
                    continue
                picture = pictures.find(address)
                if picture is None or not text.strip():
                    skips.add("without caption" if picture else "whose picture is not there", where)
                else:
                    yield Pair(number, picture, text.strip(), where)


def tars(path: str | Path, without: Collection[str], skips: Skips) -> Iterator[Pair]:
    """The samples that have a picture and a caption. Raises ValueError for a tar that is compressed or cut short."""
    number = -1
    for file in files_of(path, ".tar"):
        for key, sample in groupby(members(file), key=lambda member: key_and_suffix(member.member)[0]):
            parts = {key_and_suffix(member.member)[1]: member for member in sample}
            number, where = number + 1, f"{file} sample {key}"
            picture = next((parts[suffix] for suffix in IMAGES if suffix in parts), None)
            about = _about(parts)
            text = about.get("caption")
            keys = (key, key.rpartition("/")[2])  # running numbers, which are not COCO's
            if any(name in without for name in keys) or is_among(str(about.get("url", "")), without):
                skips.held_out()
                continue
            if picture is None or not isinstance(text, str) or not text.strip():
                skips.add("without caption" if picture else "whose picture is not there", where)
            else:
                yield Pair(number, picture, text.strip(), where)


def _about(parts: dict[str, Member]) -> dict:
    """What .json says of a sample, its caption that of .txt if there is one."""
    about = {}
    if "json" in parts:
        text = parts["json"].read().decode("utf-8", "replace")
        try:
            about = parse_json(text)
        except ValueError:
            about = {}
    about = about if isinstance(about, dict) else {}
    if "txt" in parts:
        about["caption"] = parts["txt"].read().decode("utf-8-sig", "replace")
    return about
