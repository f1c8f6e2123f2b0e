"""A reader with its arguments, chosen by name: how a config names what it reads.

    knowledge:
      - {_target_: reveal.sources.Items, reader: wit, path: data/wit, options: {images: data/wit_images}}
      - {_target_: reveal.sources.Items, reader: wikidata, path: data/triples.tsv, options: {first_id: 40000000}}

`options` has the arguments of the reader's function and, where its `Format` says so, `images` (the folder of the images
that records name; None: without images), `source` (of items whose file names none) and `first_id` (added to the ids).
Each iteration begins anew, and logs at its end how many records were left out, and why.

A command-line argument names a source of knowledge too (`items_of`):

    birds/                                          a folder of images and texts, or one that holds items.jsonl
    items.jsonl                                     the general format
    wit:wit_v1.train.tsv.gz,images=folder           a reader, its path, its options
    vqa:questions.json,annotations=answers.json,leave_out=OpenEnded_mscoco_val2014_questions.json,strict=true

A comma begins an option only where a name and an equals sign follow, so paths may have commas. An option is read as
what its default is: a number, true or false, else a text. `leave_out` may be given several times.
"""

import dataclasses
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from reveal.memory.items import Item
from reveal.sources import coco, documents, evqa, folder, held_out, infoseek, jsonl, pairs, wikidata, wit
from reveal.sources.images import all_names
from reveal.sources.records import HELD_OUT, Question, Record, Skips, as_item, as_question, usable

log = logging.getLogger(__name__)
OPTION = re.compile(r",(?=[a-z_]+=)")
GENERAL = "items.jsonl"
SWITCH = {"true": True, "false": False}
REQUIRED = inspect.Parameter.empty


class Format(NamedTuple):
    """A format: the function that reads it, and which of the common options it has."""

    records: Callable[..., Iterator[Record]]  # (path, its own options, skips) -> records
    images: Literal["required", "optional", "own", "none"]  # the option `images`, or where else images are
    source: str | None = None  # default name of the items' source; None: of questions
    first_id: bool = True  # whether there is such an option

    def options(self) -> dict[str, Any]:
        """All options with their defaults, REQUIRED without one; those of the function first."""
        parameters = inspect.signature(self.records).parameters
        own = {name: one.default for name, one in parameters.items() if name not in ("path", "skips", "only")}
        images = {"required": {"images": REQUIRED}, "optional": {"images": None}}.get(self.images, {})
        source = {"source": self.source} if self.source else {}
        return own | images | source | ({"first_id": 0} if self.first_id else {})


@dataclasses.dataclass(frozen=True)
class Reading:
    reader: str  # its name in the package's table
    path: str  # a file, folder or pattern
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    leave_out: Sequence[str] = ()  # files of evaluation questions and folders of images to keep out (`held_out.py`)
    strict: bool = False  # a record that cannot be read is an error instead of being counted

    READERS: ClassVar[Mapping[str, Format]] = {}
    IMAGE_NEEDED: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.reader not in self.READERS:
            raise ValueError(f"reader is {self.reader!r}: choose one of {', '.join(self.READERS)}")
        known = self.READERS[self.reader].options()
        wrong = [name for name in self.options if name not in known]
        missing = [name for name, default in known.items() if default is REQUIRED and name not in self.options]
        if wrong or missing:
            problem = f"{wrong[0]} is no option" if wrong else f"{missing[0]} is missing in options"
            raise ValueError(f"reader {self.reader}, {self.path}: {problem}; it has {', '.join(known)}")
        if self.leave_out and self.READERS[self.reader].images == "none":
            raise ValueError(f"reader {self.reader} reads no pictures, so none can be left out: set leave_out=[]")

    def read(self, skips: Skips, **selected: Any) -> Iterator[Any]:
        """`selected`: `only` of `documents.records`."""
        read = self.READERS[self.reader].records
        options = {name: value for name, value in self.options.items() if name in inspect.signature(read).parameters}
        folders = [Path(place) for place in self.leave_out if Path(place).is_dir()]
        files = [file for file in self.leave_out if Path(file) not in folders]
        names = {name for file in files for one in held_out.image_ids(file) for name in all_names(one)}
        hashes = held_out.contents(folders)
        records = read(self.path, **options, **selected, skips=skips)
        for record in usable(records, self.options.get("images"), skips, names, self.IMAGE_NEEDED):
            made = self._made(record, self.options.get("first_id", 0), skips)
            if hashes and made is not None and held_out.image_hash(made) in hashes:
                skips.note(HELD_OUT)
            elif made is not None:
                yield made

    def _made(self, record: Record, first_id: int, skips: Skips) -> Item | Question | None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        skips = Skips(self.strict)
        yield from self.read(skips)
        if skips.counts:
            log.warning("%s: %s", self.path, skips)


@dataclasses.dataclass(frozen=True)
class Items(Reading):
    """A source of knowledge."""

    READERS: ClassVar[Mapping[str, Format]] = {
        "jsonl": Format(jsonl.items, "own", "own", first_id=False),
        "folder": Format(folder.records, "own", "own"),
        "documents": Format(documents.records, "own", "own"),
        "wit": Format(wit.items, "optional", "wit"),
        "wit_tfds": Format(wit.tfds_items, "optional", "wit"),
        "cc12m": Format(pairs.table, "required", "cc12m"),
        "webdataset": Format(pairs.tars, "own", "cc12m"),
        "wikidata": Format(wikidata.records, "none", "wikidata"),
        "wikidata_dump": Format(wikidata.dump_records, "optional", "wikidata"),
        "vqa": Format(coco.vqa_images, "optional", "vqa"),
        "coco": Format(coco.captions, "required", "coco"),
        "karpathy": Format(coco.karpathy_by_number, "required", "coco"),
    }

    @property
    def source(self) -> str:
        """Name of the items' source, where the data names none."""
        return str(self.options.get("source", self.READERS[self.reader].source))

    def _made(self, record: Record, first_id: int, skips: Skips) -> Item | None:
        return as_item(record, self.source, first_id, skips)


@dataclasses.dataclass(frozen=True)
class Questions(Reading):
    """A source of questions."""

    READERS: ClassVar[Mapping[str, Format]] = {
        "jsonl": Format(jsonl.questions, "own", first_id=False),
        "wit": Format(wit.questions, "required"),
        "wit_tfds": Format(wit.tfds_questions, "optional"),
        "cc12m": Format(pairs.table, "required"),
        "webdataset": Format(pairs.tars, "own"),
        "vqa": Format(coco.vqa, "required"),
        "aokvqa": Format(coco.aokvqa, "required"),
        "coco": Format(coco.captions, "required"),
        "nocaps": Format(coco.captions, "required"),
        "karpathy": Format(coco.karpathy, "required"),
        "evqa": Format(evqa.records, "required"),
        "infoseek": Format(infoseek.records, "required"),
    }
    IMAGE_NEEDED: ClassVar[bool] = True

    def _made(self, record: Record, first_id: int, skips: Skips) -> Question:
        return as_question(record, first_id)


def items_of(argument: str, source: str | None = None) -> Items:
    """The source of knowledge that a command-line argument names; `source` is its option where the argument gives none.
    Raises FileNotFoundError for a missing path, ValueError for an argument without a reader, and as `Items`."""
    before, colon, rest = argument.partition(":")
    named = bool(colon) and before in Items.READERS
    path, *given = OPTION.split(rest if named else argument)
    reader = before
    if not named:
        if (Path(path) / GENERAL).is_file():
            path = str(Path(path) / GENERAL)
        place = Path(path)
        reader = "folder" if place.is_dir() else "jsonl" if ".jsonl" in place.suffixes else ""
        if not reader and not place.exists():
            raise FileNotFoundError(f"{path} does not exist; give a folder, an {GENERAL}, or READER:PATH")
        if not reader:
            raise ValueError(f"{path}: name its reader, as in wit:{path}; readers are {', '.join(Items.READERS)}")
    defaults = Items.READERS[reader].options() | {"strict": False}
    pairs = [one.split("=", 1) for one in given]
    leave_out = tuple(text for name, text in pairs if name == "leave_out")
    options: dict[str, Any] = {} if source is None else {"source": source}
    options |= {name: _value(argument, name, text, defaults) for name, text in pairs if name != "leave_out"}
    strict = options.pop("strict", False)
    return Items(reader, path, options, leave_out, strict)


def _value(argument: str, name: str, text: str, defaults: Mapping[str, Any]) -> Any:
    """The value of an option, of the type that its default has."""
    if isinstance(default := defaults.get(name), bool):
        if text not in SWITCH:
            raise ValueError(f"{argument}: {name}={text}: give true or false")
        return SWITCH[text]
    if isinstance(default, int):
        if not text.isdigit():
            raise ValueError(f"{argument}: {name}={text}: give a whole number from 0")
        return int(text)
    return text
