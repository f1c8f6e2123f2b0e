"""A reader with its arguments, chosen by name: how a config names what it reads.

    knowledge:
      - {_target_: reveal.sources.Items, reader: wit, path: data/wit, options: {images: data/wit_pictures}}
      - {_target_: reveal.sources.Items, reader: wikidata, path: data/triples.tsv, options: {first_id: 40000000}}

Each iteration begins anew, and logs at its end how many records were left out, and why.

A word of the command line names a source of knowledge too (`items_of`):

    birds/                                          a folder of pictures and texts, or one that holds items.jsonl
    items.jsonl                                     the general format
    wit:wit_v1.train.tsv.gz,images=pictures         a reader of the package's table, what it reads, its options
    vqa:questions.json,annotations=answers.json,leave_out=OpenEnded_mscoco_val2014_questions.json,strict=true

A comma begins an option only where a name and an equals sign follow, so paths may have commas. An option is read as
what its default is: a number, true or false, else a text. `leave_out` may be given several times.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from reveal.memory.items import Item
from reveal.sources import coco, evqa, folder, held_out, infoseek, jsonl, pairs, wikidata, wikidata_dump, wit, wit_tfds
from reveal.sources.image_names import all_names, contents, picture_hash
from reveal.sources.records import Question, Skips

log = logging.getLogger(__name__)
OPTION = re.compile(r",(?=[a-z_]+=)")
GENERAL = "items.jsonl"
SWITCH = {"true": True, "false": False}
GIVEN = ("path", "without", "skips")  # arguments that are no options


@dataclasses.dataclass(frozen=True)
class Reading:
    """What items and questions have in common.

    Attributes:
      reader: its name, one of the package's table.
      path: its first argument.
      options: its other arguments, such as `images` and `first_id`.
      leave_out: files of evaluation questions, whose pictures must not be read (`held_out.image_ids`), whatever file
        names them; and folders of pictures that no item may have, to the byte, whatever they are called.
      strict: a record that cannot be read is an error instead of being counted.
    """

    reader: str
    path: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    leave_out: Sequence[str] = ()
    strict: bool = False

    READERS: ClassVar[Mapping[str, Callable[..., Iterator[Any]]]] = {}

    def __post_init__(self) -> None:
        """Raises ValueError for a reader that there is not, and options that it has not or needs."""
        if self.reader not in self.READERS:
            raise ValueError(f"reader is {self.reader!r}: choose one of {', '.join(self.READERS)}")
        parameters = inspect.signature(self.READERS[self.reader]).parameters
        known = {name: one for name, one in parameters.items() if name not in GIVEN}
        wrong = [name for name in self.options if name not in known]
        needed = [name for name, one in known.items() if one.default is one.empty and name not in self.options]
        if wrong or needed:
            problem = f"{wrong[0]} is no option" if wrong else f"{needed[0]} is missing in options"
            raise ValueError(f"reader {self.reader}, {self.path}: {problem}; it has {', '.join(known)}")
        if self.leave_out and "without" not in parameters:
            raise ValueError(f"reader {self.reader} reads no pictures, so none can be left out: set leave_out=[]")

    def read(self, skips: Skips) -> Iterator[Any]:
        """The records; what is left out is counted in `skips`."""
        options = dict(self.options)
        if self.leave_out:
            files = [file for file in self.leave_out if not Path(file).is_dir()]
            names = frozenset[str]().union(*map(held_out.image_ids, files))
            options["without"] = frozenset[str]().union(*map(all_names, names))
        kept_out = contents([Path(place) for place in self.leave_out if Path(place).is_dir()])
        for record in self.READERS[self.reader](self.path, **options, skips=skips):
            if kept_out and picture_hash(record) in kept_out:
                skips.held_out()
            else:
                yield record

    def __iter__(self) -> Iterator[Any]:
        skips = Skips(self.strict)
        yield from self.read(skips)
        if skips.counts:
            log.warning("%s: %s", self.path, skips)


@dataclasses.dataclass(frozen=True)
class Items(Reading):
    """A source of knowledge."""

    READERS: ClassVar[Mapping[str, Callable[..., Iterator[Any]]]] = {
        "jsonl": jsonl.items,
        "folder": folder.items,
        "wit": wit.items,
        "wit_tfds": wit_tfds.items,
        "cc12m": pairs.table_items,
        "webdataset": pairs.tar_items,
        "wikidata": wikidata.items,
        "wikidata_dump": wikidata_dump.items,
        "vqa": coco.vqa_items,
        "coco": coco.caption_items,
        "karpathy": coco.karpathy_items,
    }

    def __iter__(self) -> Iterator[Item]:
        return super().__iter__()


@dataclasses.dataclass(frozen=True)
class Questions(Reading):
    """A source of questions."""

    READERS: ClassVar[Mapping[str, Callable[..., Iterator[Any]]]] = {
        "jsonl": jsonl.questions,
        "wit": wit.questions,
        "wit_tfds": wit_tfds.questions,
        "cc12m": pairs.table_questions,
        "webdataset": pairs.tar_questions,
        "vqa": coco.vqa_questions,
        "aokvqa": coco.aokvqa_questions,
        "coco": coco.captions,
        "nocaps": coco.captions,
        "karpathy": coco.karpathy,
        "evqa": evqa.questions,
        "infoseek": infoseek.questions,
    }

    def __iter__(self) -> Iterator[Question]:
        return super().__iter__()


def items_of(word: str, source: str | None = None) -> Items:
    """The source of a word; `source` is the name of its items' source, where the word gives none.

    Raises FileNotFoundError for a path that is not there; ValueError for a word that names no reader, and for options
    that the reader has not or needs."""
    reader, path, given = _parted(word)
    known = inspect.signature(Items.READERS[reader]).parameters
    options: dict[str, Any] = {} if source is None or "source" not in known else {"source": source}
    leave_out, strict = [], False
    for name, text in given:
        if name == "leave_out":
            leave_out.append(text)
        elif name == "strict":
            strict = bool(_value(name, text, False, word))
        else:
            default = known[name].default if name in known else None
            options[name] = _value(name, text, default, word)
    return Items(reader, path, options, tuple(leave_out), strict)


def _parted(word: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Reader, path, options."""
    before, colon, rest = word.partition(":")
    named = bool(colon) and before in Items.READERS
    path, *given = OPTION.split(rest if named else word)
    options = [(name, text) for name, _, text in (part.partition("=") for part in given)]
    if named:
        return before, path, options
    place = Path(path)
    if (place / GENERAL).is_file():
        return "jsonl", str(place / GENERAL), options
    if place.is_dir():
        return "folder", path, options
    if ".jsonl" in place.suffixes:
        return "jsonl", path, options
    if not place.exists():
        raise FileNotFoundError(f"{path} does not exist; give a folder, an {GENERAL}, or READER:PATH")
    raise ValueError(f"{path}: say what reads it, as in wit:{path}; readers are {', '.join(Items.READERS)}")


def _value(name: str, text: str, default: Any, word: str) -> Any:
    if isinstance(default, bool):
        if text not in SWITCH:
            raise ValueError(f"{word}: {name}={text}: give true or false")
        return SWITCH[text]
    if isinstance(default, int):
        if not text.isdigit():
            raise ValueError(f"{word}: {name}={text}: give a whole number from 0")
        return int(text)
    return text
