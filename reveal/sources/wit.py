"""WIT: images of Wikipedia with what the page says about them (Srinivasan et al., SIGIR 2021).

Ten gzipped tables of 17 columns with tabs between them and a header, 37.6 million rows in 108 languages, 25 GB. Rows
name their image by its address; a folder has those that were fetched, by name or by hash (`images.ImageFolder`).

Of a row REVEAL makes an item, and for the warm start a question too:

    item        hierarchical title, section, page, and the three captions; 5,233,186 of them in the paper
    question    describe the image: the reference caption, else the alt text, else the attribution. Its gold item is
                the row's own, which for that must not hold the captions: `captions=False`

A field that has quotes around it may go on over several lines. A quote that never ends costs nothing else: the line
that has it is read as it is, or left out, and the next one begins anew. A carriage return alone ends no row. The
published files need these rules, which `csv` alone does not have.

Ids are the numbers of rows, of all languages and through all files, so they do not depend on which images there are.
"""

import collections
import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common.data.files import files_of
from common.data.text import open_text
from reveal.sources.records import Record, Skips

_HEADER = """
language page_url image_url page_title section_title hierarchical_section_title caption_reference_description
caption_attribution_description caption_alt_text_description mime_type original_height original_width is_main_image
attribution_passes_lang_id page_changed_recently context_page_description context_section_description
"""
COLUMNS: tuple[str, ...] = tuple(_HEADER.split())
TEXTS = {  # field of an item: column
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
LONE_RETURN = re.compile(r"\r(?!\n)")  # which `csv` takes for the end of a row


class Row(NamedTuple):
    """A row: its number, its name in messages, its texts by column, and its image where the file holds that."""

    number: int
    where: str
    texts: dict[str, str]
    image: bytes | None = None


def items(path: str | Path, language: str = "en", captions: bool = True, *, skips: Skips) -> Iterator[Record]:
    """Items of a table, a folder of them, or a pattern; without `captions`, of the texts of the page alone."""
    return as_items(rows(path, language, skips), captions)


def questions(path: str | Path, language: str = "en", *, skips: Skips) -> Iterator[Record]:
    """Images with the caption to write, and the row's item as gold."""
    return as_questions(rows(path, language, skips))


def as_items(found: Iterable[Row], captions: bool) -> Iterator[Record]:
    columns = TEXTS | (CAPTIONS if captions else {})
    for row in found:
        fields = {name: text for name, column in columns.items() if (text := row.texts[column].strip())}
        yield _record(row, fields=fields, fault="" if fields else "without text")


def as_questions(found: Iterable[Row]) -> Iterator[Record]:
    for row in found:
        texts = tuple(text for column in CAPTIONS.values() if (text := row.texts[column].strip()))
        yield _record(row, answers=texts[:1], fault="" if texts else "without a caption", gold=row.number)


def _record(row: Row, **record: Any) -> Record:
    address = row.texts["image_url"]
    return Record(row.number, row.where, row.image, (address,), (address,), **record)


def rows(path: str | Path, language: str, skips: Skips) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST))
    number = -1
    for file in files_of(path, ".tsv.gz", ".tsv"):
        with open_text(file) as lines:
            body = (row for row in cells(lines) if row[:2] != list(COLUMNS[:2]))
            for place, row in enumerate(body, 1):
                number, where = number + 1, f"{file} row {place}"
                if len(row) != len(COLUMNS):
                    skips.add(f"that have not {len(COLUMNS)} columns", where)
                elif (texts := dict(zip(COLUMNS, row, strict=True)))["language"] == language:
                    yield Row(number, where, texts)


def cells(lines: Iterable[str]) -> Iterator[list[str]]:
    """The rows of a table, a list of cells each; empty lines are none."""
    source, again = iter(lines), collections.deque[str]()

    def following() -> str | None:
        return again.popleft() if again else next(source, None)

    while (line := following()) is not None:
        if not (plain := line.rstrip("\r\n")):
            continue
        if plain[0] != '"' and '\t"' not in plain:  # no cell has quotes around it
            yield plain.split("\t")
            continue
        block, row = [line], _parsed([line])
        while row is None and len(block) < MOST_LINES and (another := following()) is not None:
            block.append(another)
            if another.count("\t") >= len(COLUMNS) - 1:  # a row of its own
                break
            row = _parsed(block) if '"' in another else None
        if row is None or (len(block) > 1 and len(row) != len(COLUMNS)):
            row = plain.split("\t")
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
