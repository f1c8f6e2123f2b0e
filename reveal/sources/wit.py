"""WIT: pictures of Wikipedia with what the page says about them (Srinivasan et al., SIGIR 2021).

Ten gzipped tables of 17 columns with tabs between them and a header, 37.6 million rows in 108 languages, 25 GB. Rows
name their picture by its address; a folder has those that were fetched, by name or by hash (`records.Pictures`).

Of a row REVEAL makes an item, and for the warm start a question too:

    item        hierarchical title, section, page, and the three captions; 5,233,186 of them in the paper
    question    describe the picture: the reference caption, else the alt text, else the attribution. Its gold item is
                the row's own, which for that must not hold the captions: `captions=False`

Ids are the numbers of rows, of all languages and through all files, so they do not depend on which pictures there are.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from pathlib import Path

from reveal.memory.items import Knowledge
from reveal.sources.records import Pictures, Question, Skips, files_of, folder_of, open_text, picture_bytes

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


def items(
    path: str | Path,
    images: str | Path | None = None,
    language: str = "en",
    captions: bool = True,
    source: str = "wit",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Knowledge]:
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
    skips, pictures = skips or Skips(), folder_of(images)
    names = TEXTS | (CAPTIONS if captions else {})
    for number, where, row in rows(path, language, without, skips):
        fields = {name: row[column].strip() for name, column in names.items() if row[column].strip()}
        picture = pictures and pictures.find(row["image_url"])
        if pictures is not None and picture is None:
            skips.add("whose picture is not there", where)
        elif not fields:
            skips.add("without text", where)
        else:
            yield Knowledge(source, fields, picture_bytes(picture) if picture else None, first_id + number)


def questions(
    path: str | Path,
    images: str | Path,
    language: str = "en",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Question]:
    """Pictures with the caption to write, and the id of the row's item as gold; arguments as for `items`."""
    skips, pictures = skips or Skips(), Pictures(images)
    for number, where, row in rows(path, language, without, skips):
        caption = next((row[column].strip() for column in CAPTIONS.values() if row[column].strip()), "")
        picture = pictures.find(row["image_url"])
        if picture is None or not caption:
            skips.add("whose picture is not there" if picture is None else "without a caption", where)
        else:
            yield Question(first_id + number, picture, answers=(caption,), gold=first_id + number)


def rows(
    path: str | Path, language: str, without: Collection[str], skips: Skips
) -> Iterator[tuple[int, str, dict[str, str]]]:
    """(number, what messages call it, columns by name) of each row in the language."""
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST))
    number = -1
    for file in files_of(path, ".tsv.gz", ".tsv"):
        with open_text(file) as lines:
            for row in csv.reader(lines, delimiter="\t"):
                if row[:2] == list(COLUMNS[:2]):
                    continue
                number, where = number + 1, f"{file} row {number + 2}"
                if len(row) != len(COLUMNS):
                    skips.add(f"that have not {len(COLUMNS)} columns", where)
                    continue
                named = dict(zip(COLUMNS, row, strict=True))
                if named["language"] == language and named["image_url"] not in without:
                    yield number, where, named
