"""WIT: pictures of Wikipedia with what the page says about them (Srinivasan et al., SIGIR 2021).

Ten gzipped tables of 17 columns with tabs between them and a header, 37.6 million rows in 108 languages, 25 GB. Rows
name their picture by its address; a folder has those that were fetched, by name or by hash (`records.Pictures`).

Of a row REVEAL makes an item, and for the warm start a question too:

    item        hierarchical title, section, page, and the three captions; 5,233,186 of them in the paper
    question    describe the picture: the reference caption, else the alt text, else the attribution. Its gold item is
                the row's own, which for that must not hold the captions: `captions=False`

A field that has quotes around it may go on over several lines. A quote that never ends costs nothing else: the line
that has it is read as it is, or left out, and the next one begins anew. A carriage return alone ends no row. These
rules, which the published files need and `csv` alone does not have, are why this reader is written by hand.

Ids are the numbers of rows, of all languages and through all files, so they do not depend on which pictures there are.
"""

from __future__ import annotations

import collections
import csv
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from common.data.files import files_of
from common.data.text import open_text
from reveal.memory.items import Item
from reveal.sources.image_names import folder_of, is_among
from reveal.sources.records import Picture, Question, Skips, file_bytes

COLUMNS: tuple[str, ...] = (
    "language",
    "page_url",
    "image_url",
    "page_title",
    "section_title",
    "hierarchical_section_title",
    "caption_reference_description",
    "caption_attribution_description",
    "caption_alt_text_description",
    "mime_type",
    "original_height",
    "original_width",
    "is_main_image",
    "attribution_passes_lang_id",
    "page_changed_recently",
    "context_page_description",
    "context_section_description",
)
TEXTS = {
    "title": "hierarchical_section_title",
    "section": "context_section_description",
    "page": "context_page_description",
}
CAPTIONS = {
    "caption": "caption_reference_description",
    "alt": "caption_alt_text_description",
    "attribution": "caption_attribution_description",
}
LARGEST = 1 << 24  # bytes of a field; Python's own limit is 128 KiB, which pages exceed
MOST_LINES = 1000  # of a row
TABS = len(COLUMNS) - 1
LONE_RETURN = re.compile(r"\r(?!\n)")  # which `csv` takes for the end of a row


class Row(NamedTuple):
    """A row: its number, its name in messages, its texts by column, and its picture where the file holds that."""

    number: int
    where: str
    texts: dict[str, str]
    picture: bytes | None = None


def items(
    path: str | Path,
    images: str | Path | None = None,
    language: str = "en",
    captions: bool = True,
    source: str = "wit",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """Items.

    Args:
      path: a table, a folder of them, or a pattern.
      images: folder of the pictures; None: texts alone.
      language: of the rows.
      captions: False: only what the page says.
      source: name of the items' source.
      first_id: of row 0.
      without: addresses of pictures that must not be there.
      skips: where rows without picture, text or the right number of columns are counted.
    """
    skips = skips or Skips()
    yield from as_items(rows(path, language, without, skips), images, captions, source, first_id, skips)


def questions(
    path: str | Path,
    images: str | Path,
    language: str = "en",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Question]:
    """Pictures with the caption to write, and the id of the row's item as gold; arguments as for `items`."""
    skips = skips or Skips()
    yield from as_questions(rows(path, language, without, skips), images, first_id, skips)


def as_items(
    found: Iterable[Row], images: str | Path | None, captions: bool, source: str, first_id: int, skips: Skips
) -> Iterator[Item]:
    """An item of each row: of a table, or of the same data set as tfds prepares it."""
    pictures, names = folder_of(images), TEXTS | (CAPTIONS if captions else {})
    for row in found:
        fields = {name: row.texts[column].strip() for name, column in names.items() if row.texts[column].strip()}
        picture: Picture | None = row.picture if pictures is None else pictures.find(row.texts["image_url"])
        if pictures is not None and picture is None:
            skips.add("whose picture is not there", row.where)
        elif not fields:
            skips.add("without text", row.where)
        else:
            data = None if picture is None else file_bytes(picture, skips, row.where)
            if data is not None or picture is None:
                yield Item(source, fields, data, first_id + row.number)


def as_questions(found: Iterable[Row], images: str | Path | None, first_id: int, skips: Skips) -> Iterator[Question]:
    """A picture to describe of each row that has one and a caption."""
    pictures = folder_of(images)
    for row in found:
        caption = next((row.texts[column].strip() for column in CAPTIONS.values() if row.texts[column].strip()), "")
        picture: Picture | None = row.picture if pictures is None else pictures.find(row.texts["image_url"])
        if picture is None or not caption:
            skips.add("whose picture is not there" if picture is None else "without a caption", row.where)
        else:
            yield Question(first_id + row.number, picture, answers=(caption,), gold=first_id + row.number)


def rows(path: str | Path, language: str, without: Collection[str], skips: Skips) -> Iterator[Row]:
    """The rows in the language."""
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST))
    number = -1
    for file in files_of(path, ".tsv.gz", ".tsv"):
        with open_text(file) as lines:
            body = (row for row in cells(lines) if row[:2] != list(COLUMNS[:2]))
            for place, row in enumerate(body, 1):
                number, where = number + 1, f"{file} row {place}"
                if len(row) != len(COLUMNS):
                    skips.add(f"that have not {len(COLUMNS)} columns", where)
                    continue
                named = dict(zip(COLUMNS, row, strict=True))
                if named["language"] != language:
                    continue
                if is_among(named["image_url"], without):
                    skips.held_out()
                else:
                    yield Row(number, where, named)


def cells(lines: Iterable[str]) -> Iterator[list[str]]:
    """The rows of a table, a list of cells each; empty lines are none."""
    source, again = iter(lines), collections.deque[str]()
    while (line := again.popleft() if again else next(source, None)) is not None:
        if not line.strip("\r\n"):
            continue
        if line[0] != '"' and '\t"' not in line:  # no cell has quotes around it
            yield line.rstrip("\r\n").split("\t")
            continue
        block, row = [line], _parsed([line])
        while row is None and len(block) < MOST_LINES:
            following = again.popleft() if again else next(source, None)
            if following is None:
                break
            block.append(following)
            if following.count("\t") >= TABS:  # a row of its own
                break
            row = _parsed(block) if '"' in following else None
        if row is None or (len(block) > 1 and len(row) != len(COLUMNS)):
            row = line.rstrip("\r\n").split("\t")
            again.extendleft(reversed(block[1:]))
        yield row


def _parsed(block: list[str]) -> list[str] | None:
    """The cells of a row; None if a quoted one does not end in these lines, or is longer than any."""
    whole = True

    def joined() -> Iterator[str]:
        nonlocal whole
        yield from (LONE_RETURN.sub(" ", line) for line in block)
        whole = False  # the reader has asked for more

    try:
        row = next(csv.reader(joined(), delimiter="\t"))
    except csv.Error:
        return None
    return row if whole else None
