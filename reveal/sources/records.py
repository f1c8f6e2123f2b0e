"""What all readers share: from the records of a file to items and questions, and the count of what was left out.

A reader is a generator of `Record`s that reads its file from beginning to end, holds one record, and opens no image:
a source may be larger than the RAM. For all of them `usable` looks up the images and leaves out those of evaluation
sets and what has a fault; `as_item` reads the image file; `as_question` keeps its path, or its place in a tar.

What cannot be read (a line that is no JSON, an image that is not there) is left out and counted in a `Skips`, or with
`Skips(strict=True)` raised. A file that is missing, or no file of that kind at all, is always raised.
"""

import collections
import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common.data.files import files_of
from common.data.stored import Picture, picture_bytes
from common.data.text import open_text
from reveal.memory.items import Item
from reveal.sources.images import ImageFolder, all_names

HELD_OUT = "whose picture is in an evaluation set"
MISSING = "whose picture is not there"
UNREADABLE = "whose picture cannot be read"
TEXT_STAYS = "and that stay as texts"
NAMED = 1000  # names that are kept of each reason
T = TypeVar("T")
NO_HANDLES = (errno.EMFILE, errno.ENFILE)  # too many open files: the file to be opened is not at fault


class Skips:
    """Counts records that are left out or cut, by reason, with the names of the first `NAMED` of each; `add` raises
    ValueError if `strict`."""

    def __init__(self, strict: bool = False):
        self.strict, self.counts = strict, collections.Counter[str]()
        self.names: dict[str, list[str]] = {}

    def add(self, reason: str, where: str) -> None:
        if self.strict:
            raise ValueError(f"{where}: {reason}; correct it, or set strict=false to leave it out")
        self.note(reason, where)

    def note(self, reason: str, where: str = "") -> None:
        """Counts what is no fault, such as a text that is cut: `strict` does not raise."""
        self.counts[reason] += 1
        if where and len(names := self.names.setdefault(reason, [])) < NAMED:
            names.append(where)

    def merge(self, others: "Skips") -> None:
        self.counts.update(others.counts)
        for reason, names in others.names.items():
            self.names[reason] = [*self.names.get(reason, ()), *names][:NAMED]

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.most_common())
        return f"{self.counts.total()} records left out" + (f" ({reasons})" if reasons else "")


class Question(NamedTuple):
    """A question about an image, or an image to describe."""

    id: int  # number in its source
    image: Picture
    text: str = ""  # "" for an image to describe
    answers: tuple[str, ...] = ()  # of all annotators, equal ones as often as they were given; or all captions
    group: str = ""  # scored by itself: a split, NoCaps' domain, "difficult" of A-OKVQA
    gold: int | None = None  # id of the item with the answer, if known
    negatives: tuple[int, ...] = ()  # ids of items that are easily mistaken for it


class Record(NamedTuple):
    """A record of a file, which may become an item, a question, or both."""

    number: int  # id in its source, before `first_id` is added
    where: str  # its name in messages
    image: Picture | None = None  # where the record has it or its path
    find: tuple[str | int, ...] = ()  # else names of the image in the folder of images, the likeliest first
    names: tuple[str, ...] = ()  # of the image, for the leak rule (`images.py`); (): those to find it by
    fault: str = ""  # why the record cannot be used although its image is there
    text_stays: bool = False  # an item without its image is still one
    fields: Mapping[str, Any] = {}  # of the item
    source: str = ""  # of the item; "": the reader's
    text: str = ""  # of the question, as all that follow
    answers: tuple[str, ...] = ()
    group: str = ""
    gold: int | None = None
    negatives: tuple[int, ...] = ()
    metadata: Mapping[str, Any] = {}  # what else an evaluation needs


def usable(
    records: Iterable[Record],
    images: str | Path | None,
    skips: Skips,
    without: Collection[str] = (),
    image_needed: bool = False,
) -> Iterator[Record]:
    """The records that can be used, with their images, sought in the folder `images`; the others are counted: those
    with an image called as in `without` (`images.all_names`), without one where `image_needed`, or with a fault."""
    folder = None if images is None else ImageFolder(images)
    for record in records:
        image = record.image
        if image is None and folder is not None:
            image = next((found for name in record.find if (found := folder.find(name))), None)
        names = record.names or map(str, record.find)
        if without and any(not all_names(name).isdisjoint(without) for name in names):
            skips.note(HELD_OUT)  # no fault
        elif image is None and record.text_stays:
            if folder is not None and record.find:
                skips.add(f"{MISSING} {TEXT_STAYS}", f"{record.where} ({record.find[0]})")
            yield record
        elif image is None and (image_needed or (folder is not None and record.find)):
            skips.add(MISSING, record.where)
        elif record.fault:
            skips.add(record.fault, record.where)
        else:
            yield record._replace(image=image)


def as_item(record: Record, source: str, first_id: int, skips: Skips) -> Item | None:
    """The item of a usable record; None, and counted, if its image cannot be read."""
    data = None
    if record.image is not None:
        reason = f"{UNREADABLE} {TEXT_STAYS}" if record.text_stays else UNREADABLE
        data = file_bytes(record.image, skips, record.where, reason)
        if data is None and not record.text_stays:
            return None
    return Item(record.source or source, record.fields, data, first_id + record.number)


def as_question(record: Record, first_id: int = 0) -> Question:
    assert record.image is not None
    gold = None if record.gold is None else first_id + record.gold
    texts = record.text, record.answers, record.group
    return Question(first_id + record.number, record.image, *texts, gold, record.negatives)


def numbered_lines(path: str | Path, *suffixes: str) -> Iterator[tuple[str, str]]:
    """(its name in messages, the line) of each line of a text file, of a folder's files or of those of a pattern."""
    for file in files_of(path, *suffixes):
        with open_text(file) as lines:
            for number, line in enumerate(lines, 1):
                yield f"{file} line {number}", line


def has(row: Mapping[str, Any], where: str, skips: Skips, **types: type) -> bool:
    """Whether a row has these entries, of these types; counted if not."""
    wrong = [name for name, kind in types.items() if not isinstance(row.get(name), kind)]
    if wrong:
        skips.add(f"without {wrong[0]}", where)
    return not wrong


def file_bytes(picture: Picture, skips: Skips, where: str, reason: str = UNREADABLE) -> bytes | None:
    """As `picture_bytes`; None, and counted, for a file that is empty or cannot be read."""
    return attempt(partial(picture_bytes, picture), skips, where, reason)


def attempt(read: Callable[[], T], skips: Skips, where: str, reason: str) -> T | None:
    """What `read` returns; None, and counted, for a file that cannot be read."""
    try:
        return read()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_HANDLES:
            raise
        skips.add(reason, f"{where} ({error})")
        return None
