"""From sources of knowledge to a memory, and into one that is there: a stream, in the RAM of a few batches.

    build("facts", [items_of("wit:wit.tsv.gz,images=pictures")], assistant)

1. Items come from the readers and get their numbers (`stored_items.py`)
2. Images shrink to what is kept, and become what the network reads; what cannot be used is left out
   and counted. Threads do this for the next items, in their order, while
3. the network encodes this one
4. `memory.Builder` writes it

A build that was killed goes on where the last whole shard ends, and its result is the same to the byte. It refuses to
go on with other sources, another network or tokenizer, and with data in which other items come, or another last one: of
the items before it only the ids are compared. What is added to a memory is there whole, as one version more, or not at
all.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from reveal.assistant import Assistant
from reveal.build.report import Report
from reveal.build.stored_items import expected, kept, numbered
from reveal.memory.builder import Builder
from reveal.memory.items import MOST_IDS, Item, ids_of, pack
from reveal.memory.memory import Memory
from reveal.memory.store import Store
from reveal.processing.item_arrays import Row, row_of, stacked_input
from reveal.sources import Items, Skips
from reveal.sources.jsonl import objects

BATCH = 64  # items that are encoded at a time
CHANGE = 4096  # items of a shard that is added to a memory
SHARD = 16384  # items that an interruption costs at most
SIDE = 256  # pixels of a kept picture, or the network's if those are more
GROUP, AHEAD = 16, 16  # items that a thread prepares at a time, and such groups that wait
THREADS = min(8, os.cpu_count() or 1)
Batch = tuple[list[Item], list[Row]]


class Changed(ValueError):
    """The sources are not those that an interrupted build has read."""


def build(
    folder: str | Path,
    sources: Sequence[Items],
    assistant: Assistant,
    *,
    renumber: bool = False,
    side: int | None = None,
    shard: int = SHARD,
    progress: bool = False,
) -> Report:
    """A new memory, or the rest of one that was begun.

    Args:
      folder: new, empty, or begun by the same call.
      sources: of items, whose `source` is one that the network knows.
      assistant: whose network encodes.
      renumber: number all items as they come.
      side: pixels of the longer side of kept pictures; 0: files as they are; None: 256, or the network's.
      shard: items of a file.
      progress: show a bar.

    Raises:
      FileExistsError: as `Builder`.
      Changed: the data is not what an interrupted build has read.
      ValueError: ids that do not rise, a source that the network does not know; what was built until then stays.
    """
    started, side = time.perf_counter(), _side(assistant, side)
    counts = [expected(source, renumber) for source in sources]
    skips = Skips(any(source.strict for source in sources))
    stream = numbered(sources, skips, renumber)
    of = {"sources": [dataclasses.asdict(source) for source in sources], "renumber": renumber, "side": side}
    of |= {"tokenizer": assistant.processor.tokenizer.digest, "item_length": assistant.processor.item_length}
    with Builder(folder, assistant.layout(), shard, of) as builder:
        resumed, first, last = builder.count, None, None
        rest = _after(builder, stream, assistant, skips, side)
        total = sum(filter(None, counts)) if None not in counts else None
        for items, keys, values in encoded(rest, assistant, skips, side, total, resumed, progress):
            builder.add(items, keys, values)
            first, last = items[0].id if first is None else first, items[-1].id
        added = builder.count - resumed
        if not builder.count:
            raise ValueError(f"nothing that can be used in {', '.join(source.path for source in sources)} ({skips})")
    ids = None if first is None or last is None else (first, last)
    return Report.of(Store(folder), started, skips, added=added, resumed=resumed, ids=ids)


def add(
    memory: Memory,
    sources: Sequence[Items],
    assistant: Assistant,
    *,
    edit: bool = False,
    renumber: bool = False,
    side: int | None = None,
    progress: bool = False,
) -> Report:
    """Items into a memory: all of them, or none if anything is wrong.

    Args: as for `build`; lines of .jsonl keep their ids unless `renumber`, other items get new ones.
      edit: lines with an id that is there take that item's place.

    Raises ValueError, before anything is encoded, for ids that are there, without `edit`, and for an id that a file
    has twice."""
    started, side, there = time.perf_counter(), _side(assistant, side), memory.store.rows().ids
    skips = Skips(any(source.strict for source in sources))
    named = [source.reader == "jsonl" and not renumber for source in sources]
    behind = _check_ids(memory, [source for source, keeps in zip(sources, named, strict=True) if keeps], there, edit)
    streams = [
        (item if keeps else dataclasses.replace(item, id=None) for item in source.read(skips))
        for source, keeps in zip(sources, named, strict=True)
    ]
    whole = itertools.chain.from_iterable(streams)
    added, edited, ids = 0, 0, []
    batches = encoded(whole, assistant, skips, side, None, 0, progress)
    with memory.store.changing() as change:
        change.begin_at(behind)
        while group := list(itertools.islice(batches, CHANGE // BATCH)):
            items = [item for part, _, _ in group for item in part]
            keys, values = (np.concatenate(parts) for parts in list(zip(*group, strict=True))[1:])
            old = np.isin([-1 if item.id is None else item.id for item in items], there)
            changed = [item for item, known in zip(items, old, strict=True) if known]
            new = [item for item, known in zip(items, old, strict=True) if not known]
            change.edit(changed, keys[old], values[old])
            ids += [item.id for item in changed if item.id is not None]
            ids += change.add(new, keys[~old], values[~old])
            added, edited = added + len(items), edited + int(old.sum())
    written = (min(ids), max(ids)) if ids else None
    return Report.of(memory.store, started, skips, added=added, edited=edited, ids=written)


def add_one(memory: Memory, item: Item, assistant: Assistant, edit: bool, side: int | None = None) -> Report:
    """One item, in the place of the one with its id if `edit`. Raises ValueError for an id that is there, without, and
    for an item that cannot be used."""
    started, processor = time.perf_counter(), assistant.processor
    if item.id is not None and not edit and item.id in memory.store.rows().ids:
        raise ValueError(f"id {item.id} is in {memory.store.folder} already: --edit puts this item in its place")
    item = kept(item, _side(assistant, side))
    skips = Skips()
    if row_of(item, processor.tokenizer, processor.item_length, processor.image_size, skips) is None:
        raise ValueError(f"an item {next(iter(skips.counts))}: give it a text, or another picture")
    (memory.edit if edit else memory.add)([item], *assistant.encode([item]))
    last = memory.store.manifest.next_id - 1 if item.id is None else item.id
    return Report.of(memory.store, started, added=1, edited=int(edit), ids=(last, last))


def refresh(folder: str | Path, assistant: Assistant, progress: bool = False) -> Report:
    """Keys and values of all items anew, by this network, in one change. Raises ValueError if the memory has items of
    a source that the network does not know."""
    started, store, layout = time.perf_counter(), Store(folder), assistant.layout()
    reader = assistant.reader(BATCH)
    with tqdm(total=len(store), unit="item", disable=None if progress else True) as bar:

        def encode(items: list[Item]) -> tuple[np.ndarray, np.ndarray]:
            made = reader.encode(items)
            bar.update(len(items))
            return made

        shape = {"sources": layout.sources, "key_dim": layout.key_dim, "value_shape": layout.value_shape}
        store.refresh(encode, layout.encoder, **shape)
    return Report.of(store, started, added=len(store), edited=len(store))


def encoded(
    items: Iterable[Item],
    assistant: Assistant,
    skips: Skips,
    side: int,
    total: int | None,
    done: int,
    progress: bool,
) -> Iterator[tuple[list[Item], np.ndarray, np.ndarray]]:
    """Items as they are kept, with keys and values, a batch at a time; the next ones are read meanwhile.

    With some `done` the first batch begins where they end, for its place in a batch may decide how a row is rounded."""
    processor, reader = assistant.processor, assistant.reader(BATCH)
    lengths, before = (processor.item_length, processor.image_size), done % BATCH
    batches = _batches(_prepared(items, assistant, skips, side), BATCH - before)
    bar = tqdm(total=total, initial=done, unit="item", disable=None if progress else True)
    with bar, ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = pool.submit(next, batches, None)
            rows = [batch[1][0]] * before + batch[1]
            keys, values = reader.encode_rows(stacked_input(rows, *lengths))
            yield batch[0], keys[before:], values[before:]
            bar.update(len(batch[0]))
            before = 0


def _batches(prepared: Iterable[tuple[Item, Row]], first: int) -> Iterator[Batch]:
    """So many as are encoded at a time, in the first batch `first`."""
    stream, count = iter(prepared), first
    while batch := list(itertools.islice(stream, count)):
        yield [item for item, _ in batch], [row for _, row in batch]
        count = BATCH


def _prepared(items: Iterable[Item], assistant: Assistant, skips: Skips, side: int) -> Iterator[tuple[Item, Row]]:
    """Items that can be used, as they are kept, and what the network reads of them; in their order, `AHEAD` groups
    ahead."""

    def prepare(group: list[Item]) -> tuple[list[tuple[Item, Row]], Mapping[str, int]]:
        own = Skips(skips.strict)
        smaller = [kept(item, side) for item in group]
        rows = [row_of(item, processor.tokenizer, processor.item_length, processor.image_size, own) for item in smaller]
        return [(item, row) for item, row in zip(smaller, rows, strict=True) if row is not None], own.counts

    def done(future: Future) -> list[tuple[Item, Row]]:
        found, counts = future.result()
        skips.merge(counts)
        return found

    processor, stream = assistant.processor, _known(items, assistant.processor.sources)
    waiting = collections.deque[Future]()
    with ThreadPoolExecutor(THREADS) as pool:
        while group := list(itertools.islice(stream, GROUP)):
            waiting.append(pool.submit(prepare, group))
            if len(waiting) > AHEAD:
                yield from done(waiting.popleft())
        while waiting:
            yield from done(waiting.popleft())


def _known(items: Iterable[Item], sources: Sequence[str]) -> Iterator[Item]:
    """The items. Raises ValueError for a source that the network does not know."""
    for item in items:
        if item.source not in sources:
            raise ValueError(
                f"item {item.id} is of source {item.source!r}, this network knows {', '.join(sources)}: say which of"
                " these it is like, with --source or in the file"
            )
        yield item


def _after(builder: Builder, stream: Iterator[Item], assistant: Assistant, skips: Skips, side: int) -> Iterator[Item]:
    """What an interrupted build has not written yet; what it has left out is counted again. Raises `Changed` if what it
    has is not what comes now."""
    last, processor = builder.last(), assistant.processor
    for number in builder.written():
        for item in stream:
            if item.id is None or item.id >= number:
                break
            small = kept(item, side)
            if row_of(small, processor.tokenizer, processor.item_length, processor.image_size, skips) is not None:
                raise _changed(builder, item.id)
        else:
            raise _changed(builder, number)
        if item.id != number or (number == builder.next_id - 1 and pack(kept(item, side)) != last):
            raise _changed(builder, number)
    yield from stream


def _changed(builder: Builder, number: int) -> Changed:
    return Changed(
        f"{builder.folder}: the sources have changed since this build was interrupted (item {number} is another):"
        " --overwrite begins anew"
    )


def _check_ids(memory: Memory, sources: Sequence[Items], there: np.ndarray, edit: bool) -> int:
    """The number behind all ids of these .jsonl files. Raises ValueError for one that is in another of them, or, unless
    `edit`, in the memory."""
    seen = there[:0]
    for source in sources:
        given = [entry.get("id", number) for number, _, entry in objects(source.path, Skips())]
        ids = np.sort(ids_of([number for number in given if isinstance(number, int) and 0 <= number < MOST_IDS]))
        twice = np.union1d(ids[1:][np.diff(ids) == 0], np.intersect1d(ids, seen))
        if len(twice):
            raise ValueError(
                f"{len(twice)} ids of {source.path} are there twice in what is to be added, {twice[0]} first: give each"
                " item an id of its own, or --renumber gives them new ones"
            )
        known = np.intersect1d(ids, there)
        if len(known) and not edit:
            raise ValueError(
                f"{len(known)} ids of {source.path} are in {memory.store.folder} already, {known[0]} first: --edit puts"
                " these items in the place of those, --renumber gives them new ids"
            )
        seen = np.union1d(seen, ids)
    return int(seen.max(initial=-1)) + 1


def _side(assistant: Assistant, side: int | None) -> int:
    if side is not None and side < 0:
        raise ValueError(f"--picture-side {side}: give the pixels of the longer side, or 0 for files as they are")
    return max(SIDE, assistant.processor.image_size) if side is None else side
