"""WIT: images of Wikipedia with what the page says about them (Srinivasan et al., SIGIR 2021).

Ten gzipped tables of 17 columns with tabs between them and a header, 37.6 million rows in 108 languages, 25 GB; or what
tensorflow-datasets prepares (`wit`, `wit_kaggle`), read without TensorFlow:

    ~/tensorflow_datasets/wit/1.1.0/          wit-train.tfrecord-00000-of-00500 ...
    ~/tensorflow_datasets/wit_kaggle/train_with_extended_features/1.0.2/      wit_kaggle-train.array_record-00000-of-...

Of a row REVEAL makes an item, and for the warm start a question too:

    item        hierarchical title, section, page, and the three captions; 5,233,186 of them in the paper
    question    describe the image: the reference caption, else the alt text, else the attribution. Its gold item is
                the row's own, which for that must not hold the captions: `captions=False`

Rows name their image by its address; a folder has those that were fetched, by name or by hash (`images.ImageFolder`).
Ids are the numbers of rows, of all languages and through all files, so they do not depend on which images there are.

**The table.** A field that has quotes around it may go on over several lines. A quote that never ends costs nothing
else: the line that has it is read as it is, or left out, and the next one begins anew. A carriage return alone ends no
row. The published files need these rules, which `csv` alone does not have.

**Prepared files** are TFRecords (`common.io.tfrecord`) or ArrayRecords of `tf.train.Example`, with the table's columns
by name. `wit_kaggle` (5.4 million images in 100 languages) has its images in the records, a blank one of one pixel
where there is none, and for a caption "title [SEP] caption"; its questions hold their images' bytes, so name a split
that fits into the RAM. tfds' own `data_source` reads TFRecord only with TensorFlow, and without random access.
"""

import collections
import contextlib
import csv
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from natsort import natsorted

from common.data.files import files_of
from common.data.text import open_text
from common.io.files import require_file
from common.io.tfrecord import BROKEN, parse_example, read_record, scan
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
KINDS = (".tfrecord", ".array_record")
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
BOTH, SEPARATOR = "caption_title_and_reference_description", "[SEP]"  # of wit_kaggle
Row = tuple[Record, dict[str, str]]  # with its image or the address of it; texts by column
BLANK = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 1, 1)  # how the one pixel begins that stands for no image


def items(path: str | Path, language: str = "en", captions: bool = True, *, skips: Skips) -> Iterator[Record]:
    """Items of a table, a folder of them, or a pattern; without `captions`, of the texts of the page alone."""
    return as_items(rows(path, language, skips), captions)


def questions(path: str | Path, language: str = "en", *, skips: Skips) -> Iterator[Record]:
    """Images with the caption to write, and the row's item as gold."""
    return as_questions(rows(path, language, skips))


def as_items(found: Iterable[Row], captions: bool) -> Iterator[Record]:
    columns = TEXTS | (CAPTIONS if captions else {})
    for record, texts in found:
        fields = {name: text for name, column in columns.items() if (text := texts[column].strip())}
        yield record._replace(fields=fields, fault="" if fields else "without text")


def as_questions(found: Iterable[Row]) -> Iterator[Record]:
    for record, texts in found:
        captions = tuple(text for column in CAPTIONS.values() if (text := texts[column].strip()))
        fault = "" if captions else "without a caption"
        yield record._replace(answers=captions[:1], fault=fault, gold=record.number)


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
                    yield Record(number, where, None, (texts["image_url"],)), texts


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


def tfds_items(
    path: str | Path, split: str = "train", language: str = "en", captions: bool = True, *, skips: Skips
) -> Iterator[Record]:
    """Items of a split of the prepared folder, or of one file of it; `language`, `captions` as in `items`. Raises
    ValueError for a damaged file, and as `files`."""
    return as_items(tfds_rows(path, split, language, skips), captions)


def tfds_questions(path: str | Path, split: str = "train", language: str = "en", *, skips: Skips) -> Iterator[Record]:
    return as_questions(tfds_rows(path, split, language, skips))


def tfds_rows(path: str | Path, split: str, language: str, skips: Skips) -> Iterator[Row]:
    """The records of the split in that language; a damaged one is counted."""
    number = -1
    for file in files(path, split):
        for place, read in enumerate(records(file)):
            number, where = number + 1, f"{file} record {place}"
            reason = "that are damaged"
            try:
                data, reason = read(), "that are no tf.train.Example"
                features = parse_example(data)
            except ValueError:
                skips.add(reason, where)
                continue
            texts = {column: features.get(column, b"").decode("utf-8", "replace") for column in COLUMNS}
            reference = CAPTIONS["caption"]
            if not texts[reference] and BOTH in features:
                texts[reference] = features[BOTH].decode("utf-8", "replace").rpartition(SEPARATOR)[2].strip()
            if texts["language"] == language:
                image = features.get("image", b"")
                image = None if image.startswith(BLANK) else image or None
                yield Record(number, where, image, (texts["image_url"],)), texts


def files(path: str | Path, split: str = "train") -> list[Path]:
    """The files of a split, in order. Raises FileNotFoundError if there are none, or if one is missing."""
    path = Path(path)
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else ()
    kept = natsorted((one for one in found if any(f"-{split}{kind}" in one.name for kind in KINDS)), key=str)
    if not kept:
        raise FileNotFoundError(f"{path} has no files of split {split!r}; give the folder that has dataset_info.json")
    if match := SHARD.fullmatch(kept[0].name):
        name, _, count = match.groups()
        return [require_file(path / f"{name}-{number:05d}-of-{count}") for number in range(int(count))]
    return kept


def records(path: Path) -> Iterator[Callable[[], bytes]]:
    """A function for each record of a file that reads it, or raises ValueError for a damaged one."""
    if KINDS[1] not in path.name:
        for span in scan(require_file(path)):
            if span.length == BROKEN:
                read_record(span)  # raises
            yield partial(read_record, span)
        return

    from array_record.python.array_record_module import ArrayRecordReader

    def read(number: int) -> bytes:
        try:
            return reader.read([number])[0]
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"{path} record {number} is damaged ({error}); copy the file again") from error

    try:  # the table of records is at the file's end; whichever of these looks at it first raises
        with contextlib.closing(ArrayRecordReader(str(require_file(path)))) as reader:
            yield from (partial(read, number) for number in range(reader.num_records()))
    except RuntimeError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); copy it again") from error
