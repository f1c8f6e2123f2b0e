"""From sources of knowledge to a memory, and into one that is there: a stream, in the RAM of a few batches.

    build("facts", [items_of("wit:wit.tsv.gz,images=folder")], assistant)

1. Items come from the readers and get their ids (`numbered`). In a build they rise, and they are the same when an
   interrupted build resumes. So items keep the ids of their source; a source whose ids begin below those before it is
   shifted behind them; VQA's and COCO's images, which lie in any order of their ids, are numbered as they come, and so
   is everything with `renumber`
2. Threads shrink images to the stored size, some hundred pixels for a person to see (`shrunk`), and make the network's
   input of those, so that encoding a memory again gives the same keys. What cannot be used is counted. Meanwhile
3. the network encodes the batch before
4. `memory.Builder` writes it

A build that was killed resumes after the last whole shard, and its result is the same to the byte. It refuses other
sources, another network or tokenizer, and data in which other items come, or another last one: of the items before it
only the ids are compared. What is added to a memory is one version more, or nothing.
"""

import collections
import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from common.data.stored import decode_picture
from common.io.images import from_uint8, image_size, shrink, to_uint8
from reveal.assistant import short
from reveal.memory.builder import Builder
from reveal.memory.items import MOST_IDS, Item, ids_of, pack
from reveal.memory.memory import Memory
from reveal.processing.processor import Row
from reveal.sources import Items, Skips
from reveal.sources.folder import TEXT, groups
from reveal.sources.jsonl import objects
from reveal.two_tower_assistant import AnyAssistant

BATCH = 64  # items that are encoded at a time
CHANGE = 4096  # items of a shard that is added to a memory
SHARD = 16384  # items that an interruption costs at most
SIDE = 256  # pixels of a stored image, or the network's if those are more
UNORDERED = ("vqa", "coco")
RISE = "in a build they rise: sort them, or number all anew with --renumber"
QUALITY = 90  # of JPEG
GROUP, AHEAD = 16, 16  # items that a thread prepares at a time, and such groups that wait
THREADS = min(8, os.cpu_count() or 1)
SHOWN = 3  # names of each reason in a report's text; JSON has all
Batch = tuple[list[Item], np.ndarray, np.ndarray]  # items as they are stored, keys, values


class Changed(ValueError):
    """The sources are not those of the interrupted build."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of a build, an addition or a refresh: counts of the run, and the state of the memory after it."""

    memory: str  # its folder
    items: int  # in the memory now
    counts: Mapping[str, int]  # of those, of each source
    version: int  # of the memory
    hash: str
    seconds: float  # of this run
    added: int = 0  # items that this run wrote
    edited: int = 0  # of those, in the place of others
    removed: int = 0  # items that this run deleted
    resumed: int = 0  # written by an interrupted run
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)  # or cut: records, by reason
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)  # of the first of those
    ids: tuple[int, int] | None = None  # the first and the last that were written; None if nothing was

    @classmethod
    def of(
        cls, memory: Memory, started: float, ids: Sequence[int] = (), skips: Skips | None = None, **counts: int
    ) -> "Report":
        """The report on a memory as it is now, of a run since `started` (`time.perf_counter`) that wrote items of these
        ids; `counts`: the fields from `added` on."""
        skips, written = skips or Skips(), (min(ids), max(ids)) if ids else None
        state = len(memory), memory.sources, memory.version, memory.manifest.hash(), time.perf_counter() - started
        return cls(str(memory.folder), *state, left_out=skips.counts, names=skips.names, ids=written, **counts)

    @property
    def rate(self) -> float:
        return self.added / max(self.seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "rate": self.rate}

    def __str__(self) -> str:
        ids = "" if self.ids is None else f", ids {self.ids[0]} to {self.ids[1]}"
        edited = f", {self.edited:,} replaced" if self.edited else ""
        items = "item" if self.added == 1 else "items"
        lines = [f"{self.added:,} {items} in {self.seconds:.1f} s, {self.rate:,.1f} per second{ids}{edited}"]
        lines += [f"{self.removed:,} removed"] if self.removed else []
        lines += [f"{self.resumed:,} were already written by an interrupted run"] if self.resumed else []
        for reason, count in self.left_out.items():
            names = [short(name) for name in self.names.get(reason, ())[:SHOWN]]
            rest = [f"{count - len(names):,} more"] if len(names) < count else []
            listed = f": {'; '.join(names + rest)}" if names else ""
            lines.append(f"{'cut' if 'cut' in reason else 'left out'}: {count:,} {reason}{listed}")
        counts = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        return "\n".join([*lines, f"{self.memory}: {self.items:,} items ({counts}), version {self.version}"])


def build(
    folder: str | Path,
    sources: Sequence[Items],
    assistant: AnyAssistant,
    *,
    renumber: bool = False,
    side: int | None = None,
    shard: int = SHARD,
    progress: bool = False,
) -> Report:
    """A new memory, or the rest of one that the same call began.

    Args:
      renumber: number all items in the order in which they are read.
      side: pixels of the longer side of stored images; 0: files as they are; None: 256, or the network's.
      shard: items of a file.

    Raises as `Builder`; Changed; ValueError for ids that do not rise and a source that the network does not know, and
    what was built until then stays."""
    started = time.perf_counter()
    encoder = Encoder(assistant, Skips(any(source.strict for source in sources)), side, progress)
    counts = [expected(source, renumber) for source in sources]
    stream = numbered(sources, encoder.skips, renumber)
    recipe = {"sources": [dataclasses.asdict(source) for source in sources], "renumber": renumber, "side": encoder.side}
    recipe |= {"tokenizer": assistant.processor.tokenizer.digest, "item_length": assistant.processor.item_length}
    with Builder(folder, assistant.layout(), shard, recipe) as builder:
        resumed, ids = builder.count, []
        total = None if None in counts else sum(filter(None, counts))
        for items, keys, values in encoder.batches(_unwritten(builder, stream, encoder), total, resumed):
            builder.add(items, keys, values)
            ids += [items[0].id, items[-1].id]
        added = builder.count - resumed
        if not builder.count:
            raise ValueError(f"nothing that can be used in {', '.join(one.path for one in sources)} ({encoder.skips})")
    return Report.of(Memory(folder), started, ids, encoder.skips, added=added, resumed=resumed)


def add(
    memory: Memory,
    sources: Sequence[Items],
    assistant: AnyAssistant,
    *,
    edit: bool = False,
    renumber: bool = False,
    side: int | None = None,
    progress: bool = False,
) -> Report:
    """Items into a memory: all of them, or none if anything is wrong. Lines of .jsonl keep their ids unless `renumber`,
    and with `edit` replace the items of those ids; other items get new ones. Raises ValueError, before anything is
    encoded, for ids that are there, without `edit`, or twice in files."""
    started, existing = time.perf_counter(), memory.rows().ids
    encoder = Encoder(assistant, Skips(any(source.strict for source in sources)), side, progress)
    keep_ids = [source.reader == "jsonl" and not renumber for source in sources]
    first_free = _check_ids(memory, list(itertools.compress(sources, keep_ids)), existing, edit)
    read = ((keep, item) for keep, one in zip(keep_ids, sources, strict=True) for item in one.read(encoder.skips))
    stream = (item if keep else dataclasses.replace(item, id=None) for keep, item in read)
    edited, ids = 0, []
    with memory.changing() as change:
        change.reserve(first_free)
        for items, keys, values in encoder.shards(stream):
            old = np.isin([-1 if item.id is None else item.id for item in items], existing)
            changed, new = list(itertools.compress(items, old)), list(itertools.compress(items, ~old))
            change.edit(changed, keys[old], values[old])
            edited += len(changed)
            ids += [item.id for item in changed if item.id is not None] + change.add(new, keys[~old], values[~old])
    return Report.of(memory, started, ids, encoder.skips, added=len(ids), edited=edited)


def add_one(memory: Memory, item: Item, assistant: AnyAssistant, edit: bool, side: int | None = None) -> Report:
    """Adds an item, or with `edit` puts it in the place of the one with its id. Raises ValueError as `add`."""
    started = time.perf_counter()
    if item.id is not None and not edit and item.id in memory.rows().ids:
        raise ValueError(f"id {item.id} is in {memory.folder} already: --edit puts this item in its place")
    encoder = Encoder(assistant, Skips(), side)
    prepared = encoder.prepare(item, encoder.skips)
    if prepared is None:
        raise ValueError(f"an item {next(iter(encoder.skips.counts))}: give it a text, or another picture")
    (memory.edit if edit else memory.add)([prepared[0]], *assistant.encode([prepared[0]]))
    last = memory.manifest.next_id - 1 if item.id is None else item.id
    return Report.of(memory, started, [last], added=1, edited=int(edit))


def refresh(memory: Memory, assistant: AnyAssistant, progress: bool = False) -> Report:
    """Encodes all items anew with this network, in one change. Raises ValueError as `Memory.refresh`."""
    started, layout, reader = time.perf_counter(), assistant.layout(), assistant.reader(BATCH)
    shape = {name: getattr(layout, name) for name in ("sources", "key_dim", "value_shape", "key_vectors")}
    with tqdm(total=len(memory), unit="item", disable=None if progress else True) as bar:

        def encode(items: list[Item]) -> tuple[np.ndarray, np.ndarray]:
            bar.update(len(items))
            return reader.encode(items)

        memory.refresh(encode, layout.encoder, **shape)
    return Report.of(memory, started, added=len(memory), edited=len(memory))


class Encoder:
    """Turns a stream of items into batches with keys and values; `side` and `progress` are those of `build`."""

    def __init__(self, assistant: AnyAssistant, skips: Skips, side: int | None, progress: bool = False):
        if side is not None and side < 0:
            raise ValueError(f"--picture-side {side}: give the pixels of the longer side, or 0 for files as they are")
        self.assistant, self.skips, self._progress = assistant, skips, progress
        self.side = max(SIDE, assistant.processor.image_size) if side is None else side

    def prepare(self, item: Item, skips: Skips) -> tuple[Item, Row] | None:
        """The item as it is stored, and the network's input; None, and counted, if it cannot be used. Raises ValueError
        for a source that the network does not know."""
        if item.source not in (sources := self.assistant.processor.sources):
            known = f"this network knows {', '.join(sources)}: give --source, or with --encoder all --names"
            raise ValueError(f"item {item.id} is of source {item.source!r}, {known}")
        item = shrunk(item, self.side)
        row = self.assistant.processor.row(item, skips)
        return None if row is None else (item, row)

    def batches(self, items: Iterable[Item], total: int | None = None, done: int = 0) -> Iterator[Batch]:
        """Of `BATCH` items each; the next one is prepared meanwhile. With some of `total` `done` the first batch begins
        where they end: a row's place in a batch may decide how it is rounded."""
        processor, reader = self.assistant.processor, self.assistant.reader(BATCH)
        prepared, before = self._prepared(items), done % BATCH

        def take(count: int) -> list[tuple[Item, Row]]:
            return list(itertools.islice(prepared, count))

        bar = tqdm(total=total, initial=done, unit="item", disable=None if self._progress else True)
        with bar, ThreadPoolExecutor(1) as pool:
            following = pool.submit(take, BATCH - before)
            while batch := following.result():
                following = pool.submit(take, BATCH)
                stored, rows = zip(*batch, strict=True)
                rows = [rows[0]] * before + list(rows)
                keys, values = reader.encode_rows(processor.batch(rows))
                yield list(stored), keys[before:], values[before:]
                bar.update(len(stored))
                before = 0

    def shards(self, items: Iterable[Item]) -> Iterator[Batch]:
        """`batches`, joined to the shards that are added to a memory."""
        batches = self.batches(items)
        while group := list(itertools.islice(batches, CHANGE // BATCH)):
            stored, keys, values = zip(*group, strict=True)
            yield list(itertools.chain(*stored)), np.concatenate(keys), np.concatenate(values)

    def _prepared(self, items: Iterable[Item]) -> Iterator[tuple[Item, Row]]:
        """The items that can be used, in their order, `AHEAD` groups ahead. Raises as `prepare`."""

        def prepare(group: list[Item]) -> tuple[list[tuple[Item, Row]], Skips]:
            skips = Skips(self.skips.strict)
            found = [self.prepare(item, skips) for item in group]
            return [one for one in found if one is not None], skips

        stream, waiting = iter(items), collections.deque[Future]()
        with ThreadPoolExecutor(THREADS) as pool:
            while (group := list(itertools.islice(stream, GROUP))) or waiting:
                if group:
                    waiting.append(pool.submit(prepare, group))
                if len(waiting) > AHEAD or not group:
                    found, skips = waiting.popleft().result()
                    self.skips.merge(skips)
                    yield from found


def _unwritten(builder: Builder, stream: Iterator[Item], encoder: Encoder) -> Iterator[Item]:
    """The items that an interrupted build has not written; what it has left out is counted again. Raises `Changed` if
    what it has written is not what comes now."""

    last = builder.last()
    for number in builder.written():
        item = next((one for one in stream if one.id == number or encoder.prepare(one, encoder.skips)), None)
        is_last = number == builder.next_id - 1
        if item is None or item.id != number or (is_last and pack(shrunk(item, encoder.side)) != last):
            what = f"the sources have changed since this build was interrupted (item {number} is another)"
            raise Changed(f"{builder.folder}: {what}: --overwrite begins anew")
    yield from stream


def _check_ids(memory: Memory, sources: Sequence[Items], existing: Int[np.ndarray, " n"], edit: bool) -> int:
    """The first id above all of these .jsonl files. Raises ValueError as `add`."""
    seen = existing[:0]
    for source in sources:
        numbers = [entry.get("id", number) for number, _, entry in objects(source.path, Skips())]
        ids = np.sort(ids_of([number for number in numbers if isinstance(number, int) and 0 <= number < MOST_IDS]))
        twice = np.union1d(ids[1:][np.diff(ids) == 0], np.intersect1d(ids, seen))
        taken = np.intersect1d(ids, [] if edit else existing)
        for wrong, where, way_out in (
            (twice, "there twice in what is to be added", "give each item an id of its own"),
            (taken, f"in {memory.folder} already", "--edit puts these items in the place of those"),
        ):
            if len(wrong):
                what = f"{len(wrong)} ids of {source.path} are {where}, {wrong[0]} first"
                raise ValueError(f"{what}: {way_out}, or --renumber gives them new ones")
        seen = np.union1d(seen, ids)
    return int(seen.max(initial=-1)) + 1


def numbered(sources: Sequence[Items], skips: Skips, renumber: bool = False) -> Iterator[Item]:
    """All items with their ids. Raises ValueError for a source whose ids do not rise."""
    last = -1
    for source in sources:
        shift = None
        for place, item in enumerate(source.read(skips)):
            own = place if renumber or source.reader in UNORDERED or item.id is None else item.id
            if shift is None:
                shift = 0 if own > last else last + 1
            if own + shift <= last:
                raise ValueError(f"{source.path}: id {own} comes after {last - shift}; {RISE}")
            last = own + shift
            yield dataclasses.replace(item, id=last)


def expected(source: Items, renumber: bool = False) -> int | None:
    """About how many items a source has; None where counting takes long. Raises ValueError for ids that do not rise."""
    if source.reader == "folder":
        return len(groups(Path(source.path), (TEXT,), Skips()))
    if source.reader != "jsonl":
        return None
    count, last = 0, -1
    for number, _, entry in objects(source.path, Skips()):
        own = entry.get("id", number)
        if not renumber and isinstance(own, int):
            if own <= last:
                raise ValueError(f"{source.path}: id {own} comes after {last}; {RISE}")
            last = own
        count += 1
    return count


def shrunk(item: Item, longest: int) -> Item:
    """The item with an image of at most `longest` pixels a side, if it can be read; 0: as it is."""
    if not isinstance(item.picture, bytes) or not longest:
        return item
    try:
        if max(image_size(item.picture)) <= longest:
            return item
        image = decode_picture(item.picture, f"item {item.id} of {item.source}")
    except (ValueError, OSError):
        return item
    small = to_uint8(shrink(from_uint8(image), longest))
    data = cv2.imencode(".jpg", small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
    return dataclasses.replace(item, picture=data)
