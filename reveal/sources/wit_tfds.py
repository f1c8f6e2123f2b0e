"""WIT as tensorflow-datasets prepares it (`wit`, `wit_kaggle`), read without TensorFlow.

    ~/tensorflow_datasets/wit/1.1.0/          wit-train.tfrecord-00000-of-00500 ...
    ~/tensorflow_datasets/wit_kaggle/train_with_extended_features/1.0.2/      wit_kaggle-train.array_record-00000-of-...

A file is a TFRecord (`common.io.tfrecord`) or an ArrayRecord; a record is a `tf.train.Example`, a map of names to
lists. The names are those of the table's columns (`wit.py`), so an item is the same; its id is its place in the split.

`wit` has no images: they come from a folder, as for the table. `wit_kaggle` (5.4 million images in 100 languages)
has them in its records, a blank one of one pixel where there is none, and for a caption "title [SEP] caption"; its
questions hold their images' bytes, so name a split that fits into the RAM.

tfds' own `data_source` has no random access to TFRecord, the format in which both are published, and reads that only
with TensorFlow.
"""

import contextlib
import functools
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from natsort import natsorted

from common.io.files import require_file
from common.io.tfrecord import BROKEN, parse_example, read_record, scan
from reveal.sources.records import Record, Skips
from reveal.sources.wit import CAPTIONS, COLUMNS, Row, as_items, as_questions

KINDS = (".tfrecord", ".array_record")
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
BOTH, SEPARATOR = "caption_title_and_reference_description", "[SEP]"  # of wit_kaggle
BLANK = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 1, 1)  # how the one pixel begins that stands for no image


def items(
    path: str | Path, split: str = "train", language: str = "en", captions: bool = True, *, skips: Skips
) -> Iterator[Record]:
    """Items of a split of the prepared folder, or of one file of it; `language`, `captions` as in `wit.items`. Raises
    ValueError for a damaged file, and as `files`."""
    return as_items(rows(path, split, language, skips), captions)


def questions(path: str | Path, split: str = "train", language: str = "en", *, skips: Skips) -> Iterator[Record]:
    """Images with the caption to write, and the row's item as gold."""
    return as_questions(rows(path, split, language, skips))


def rows(path: str | Path, split: str, language: str, skips: Skips) -> Iterator[Row]:
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
                yield Row(number, where, texts, None if not image or image.startswith(BLANK) else image)


def files(path: str | Path, split: str = "train") -> list[Path]:
    """The files of a split, in order. Raises FileNotFoundError if there are none, or if one is missing."""
    path = Path(path)
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else ()
    kept = natsorted((one for one in found if any(f"-{split}{kind}" in one.name for kind in KINDS)), key=str)
    if not kept:
        raise FileNotFoundError(
            f"{path}: no files of split {split!r} as tfds prepares them; give the folder that has dataset_info.json"
        )
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
            yield functools.partial(read_record, span)
        return

    from array_record.python.array_record_module import ArrayRecordReader

    def read(number: int) -> bytes:
        try:
            return reader.read([number])[0]
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"{path} record {number} is damaged ({error}); copy the file again") from error

    try:  # the table of records is at the file's end; whichever of these looks at it first raises
        with contextlib.closing(ArrayRecordReader(str(require_file(path)))) as reader:
            yield from (functools.partial(read, number) for number in range(reader.num_records()))
    except RuntimeError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); copy it again") from error
