"""How large a memory may be: built from a stream, opened, searched by each engine and changed, with what each takes of
time, of RAM and of disk.

    python -m benchmarks.memory_build                      2,000,000 items; 1.2 GB of disk, some 2.5 GB of RAM
    python -m benchmarks.memory_build --items 10000        to try it out
    python -m benchmarks.memory_build --folder memory      keeps the memory; else it is in a temporary folder that goes
    python -m benchmarks.memory_build --items 10000000 --engines faiss:flat faiss:ivfpq faiss:hnsw milvus

An item is a key of 128 numbers of float32 and unit length (`--data`: as in `memory_search`), a value of 1 x 8 numbers
of bfloat16, one of three sources, and a short text. Batches of 4,096 have seeds of their own: any can be drawn again.

- build: `builder s` in `add` and `finish`; `early MB`, `peak MB`: the most the process held beyond its start, when the
  first shard was written and at the end: the same, if RAM does not grow with the memory.
- open: `Memory.load`, the median of `--processes` fresh processes; imports are not counted.
- search: `first s`, which reads the keys, makes the index, and compiles (`CPU s`: of all threads); `ms`, the median of
  the later ones; `held MB` after them, beyond what was before `Memory.load`; `index MB`: FAISS' indexes as files have
  them, Milvus' file; `recall`: how many of the k items that the exact engine finds are found. The first search with
  ivfpq or hnsw saves its indexes. Two more programs find them: `saved` as they are, `1 behind` those of before an edit.
- change: one item edited, added, deleted, and the search after it. With the exact engine the second change of each kind
  counts, which compiles nothing; the others have one edit, which leaves the items as they are.

`--engines` are searched before the exact one. Those of `MOST` get a memory of as many items as that, and so does a
second row of the exact engine: a graph takes many minutes for a million items, and milvus-lite is made for trying out.

Before the changes 64 items are drawn again: each is to be the nearest to its own key, with its id, source, text and
value; else the program ends with an error. Each row is a process of its own, with files in the system's cache. Memory
is read from /proc (Linux); mapped pages of files count. Megabytes are 2^20 bytes.
"""

import dataclasses
import itertools
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import tyro

from benchmarks.measuring import MEGABYTE, file_bytes, forget_peak, heading, in_process, line, medians, memory, timed
from benchmarks.memory_search import CENTRES, held, index_bytes, recall, unit_keys
from common import terminal
from common.checked import Checked, Positive
from reveal.memory import Builder, ExactEngine, FaissEngine, Item, Layout, Memory, MilvusEngine
from reveal.memory.engines.engine import NOTHING, Engine, engine_of

LAYOUT = Layout("drawn", ("kg", "wit", "vqa"), key_dim=128, value_shape=(1, 8), value_dtype="bfloat16")
BATCH = 4096  # items of a seed
KNOWN = 64  # items that are looked for
# Columns and the formats of their numbers.
BUILD = {"items": ",", "builder s": ".1f", "items/s": ",.0f", "disk MB": ",.0f", "early MB": ",.1f", "peak MB": ",.1f"}
OPEN = {"items": ",", "open s": ".4f", "slowest s": ".4f", "held MB": ",.1f"}
SEARCH = {"engine": "", "items": ",", "first s": ".2f", "CPU s": ",.1f", "ms": ",.1f", "held MB": ",.0f"}
SEARCH |= {"peak MB": ",.0f", "index MB": ",.0f", "recall": ".4f"}
CHANGE = {"engine": "", "items": ",", "change": "", "s": ".2f", "next search s": ".2f"}
EXACT = "exact"
MOST = {"faiss:hnsw": 100_000, "milvus": 100_000}  # items of engines that take long
SAVED = {name: (name, f"{name}, saved", f"{name}, 1 behind") for name in ("faiss:ivfpq", "faiss:hnsw")}


@dataclass(frozen=True)
class Options(Checked):
    items: Positive = 2_000_000  # Of the memory
    folder: Path | None = None  # New or empty, for the memory, which stays there; None: a temporary one
    shard: Positive = 65536  # Rows of a shard
    processes: Positive = 5  # That open the memory
    k: Positive = 50  # Items asked for, by 64 queries
    repeats: Positive = 7  # Timed searches after the first; the median counts
    data: Literal["random", "clustered"] = "random"  # How keys lie
    engines: tuple[Literal["faiss:flat", "faiss:ivfpq", "faiss:hnsw", "milvus"], ...] = ()  # Beside the exact one


class Batch(NamedTuple):
    items: list[Item]
    keys: np.ndarray
    values: np.ndarray


def batch(number: int, count: int, data: str = "random") -> Batch:
    """Items `number * BATCH` and following, of a memory of `count`; the same at each call."""
    rng, first = np.random.default_rng(number), number * BATCH
    keys = unit_keys(rng, BATCH, LAYOUT.key_dim, centres() if data == "clustered" else None)
    values = rng.standard_normal((BATCH, *LAYOUT.value_shape), np.float32).astype(ml_dtypes.bfloat16)
    items = [
        Item(LAYOUT.sources[item % len(LAYOUT.sources)], {"text": f"what is known of thing {item}"}, id=item)
        for item in range(first, min(first + BATCH, count))
    ]
    return Batch(items, keys[: len(items)], values[: len(items)])


@cache
def centres() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((CENTRES, LAYOUT.key_dim), np.float32)


def build(folder: Path, count: int, shard: int, data: str = "random") -> dict[str, float]:
    batch(0, count, data)  # what drawing takes once is no part of the growth
    before, seconds, early = forget_peak(), 0.0, None
    with Builder(folder, LAYOUT, shard) as builder:
        for number in range(-(-count // BATCH)):
            drawn = batch(number, count, data)
            seconds += timed(lambda drawn=drawn: builder.add(*drawn))[1]
            if early is None and builder.count >= min(shard, count):
                early = memory("VmHWM") - before
        start = time.perf_counter()
    seconds += time.perf_counter() - start  # the last shard and the manifest
    row = {"items": count, "builder s": seconds, "items/s": count / seconds, "disk MB": file_bytes(folder) / MEGABYTE}
    return row | {"early MB": early, "peak MB": memory("VmHWM") - before}


def opened(folder: Path) -> dict[str, float]:
    before = held()
    memory, seconds, _ = timed(lambda: Memory.load(folder))
    return {"open s": seconds, "held MB": held() - before, "items": len(memory)}


def searched(
    name: str, folder: Path, count: int, k: int, repeats: int, data: str = "random"
) -> tuple[dict[str, Any], np.ndarray, list[dict[str, Any]]]:
    """Searches for known items with an engine, in this process, and changes some; the row, the ids that were found, and
    the rows of changes. Raises ValueError where an exact engine does not find an item, or finds another."""
    import jax

    from common.runtime import keep_freed_memory

    keep_freed_memory()
    jax.devices()  # starts the backend
    known, queries, values = drawn_again(np.unique(np.linspace(0, count - 1, KNOWN).astype(np.int64)), count, data)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "keys.db"
        kind = name.partition(",")[0]
        engine: Engine = MilvusEngine(str(file)) if kind == "milvus" else engine_of(kind, folder) or ExactEngine()
        held()
        before = forget_peak()
        stored = Memory.load(folder, engine)
        found, first, work = timed(lambda: stored.search(queries, min(k, count)))
        later = [timed(lambda: stored.search(queries, min(k, count)))[1] for _ in range(repeats)]
        row = {"engine": name, "items": count, "first s": first, "CPU s": work, "ms": 1000 * statistics.median(later)}
        row |= {"peak MB": memory("VmHWM") - before, "held MB": held() - before}
        if name != EXACT:
            row["index MB"] = (index_bytes(engine) if isinstance(engine, FaissEngine) else file_bytes(file)) / MEGABYTE
        else:
            check(stored, known, values, found)
        kinds = ("edit", "add", "delete") if name == EXACT else () if name in SAVED else ("edit",)
        changes = changed(stored, known, queries, values, kinds)
        return row, found.ids, [{"engine": name, "items": count} | change for change in changes]


def changed(
    stored: Memory, known: list[Item], keys: np.ndarray, values: np.ndarray, kinds: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Seconds of changes of one item, and of the search after each, which is to find what is there now."""

    def change(name: str, item: Item, key: np.ndarray, value: np.ndarray) -> Any:
        """The id that a search for the key is to find now."""
        if name == "add":
            return stored.add([dataclasses.replace(item, id=None)], key, value)[0]
        if name == "edit":
            stored.edit([item], key, value)
            return item.id
        stored.delete(np.array([item.id]))
        return NOTHING

    rows = []
    for name in kinds:
        row: dict[str, Any] = {"change": name}
        for number in (0, 1) if len(kinds) > 1 else (-1,):  # the last item leaves the order of files that of ids
            item, query = known[number], (-1 if name == "add" else 1) * keys[number][None]
            there, row["s"], _ = timed(partial(change, name, item, query, values[number][None]))
            found, row["next search s"], _ = timed(partial(stored.search, query, 1))
            if (found.ids[0, 0] == item.id) if name == "delete" else (found.ids[0, 0] != there):
                raise ValueError(f"after the change {name!r} item {found.ids[0, 0]} was found, not {there}")
        rows.append(row)
    return rows


def drawn_again(ids: np.ndarray, count: int, data: str = "random") -> Batch:
    drawn = (batch(number, count, data) for number in ids // BATCH)
    parts = [(one.items[at], one.keys[at], one.values[at]) for one, at in zip(drawn, ids % BATCH, strict=True)]
    items, keys, values = zip(*parts, strict=True)
    return Batch(list(items), np.stack(keys), np.stack(values))


def check(stored: Memory, known: list[Item], values: np.ndarray, found: Any) -> None:
    """Each known item is the best answer to its own key, and is what was put in. Raises ValueError."""
    ids = np.array([item.id for item in known])
    wrong = (found.ids[:, 0] != ids) | ~np.isclose(found.scores[:, 0], 1, atol=1e-5)
    wrong |= np.array([LAYOUT.sources[number] for number in found.sources[:, 0]]) != [item.source for item in known]
    wrong |= (stored.values(ids) != values).reshape(len(ids), -1).any(axis=1)
    for place, (item, wanted) in enumerate(zip(stored.items(ids), known, strict=True)):
        wrong[place] |= (item.id, item.source, item.fields) != (wanted.id, wanted.source, wanted.fields)
    if wrong.any():
        raise ValueError(f"{wrong.sum()} of {len(ids)} known items were not found as they were, {ids[wrong][0]} first")


def tables(options: Options, temporary: Path) -> None:
    """Measures and prints, the largest memory first."""
    sizes: dict[int, list[str]] = {options.items: []}
    for name in options.engines:
        sizes.setdefault(min(options.items, MOST.get(name, options.items)), []).append(name)
    folders = {count: temporary / str(count) for count in sizes}
    folders[options.items] = options.folder or folders[options.items]
    heading("build", BUILD)
    for count, folder in folders.items():
        line(BUILD, in_process(build, folder, count, options.shard, options.data))
    heading(f"\nopen, {options.processes} processes", OPEN)
    for count, folder in folders.items():
        rows = [in_process(opened, folder) for _ in range(options.processes)]
        line(OPEN, medians(rows) | {"items": count, "slowest s": max(row["open s"] for row in rows)})
    results = []
    for count, folder in folders.items():
        own, engines = [], itertools.chain.from_iterable(SAVED.get(name, (name,)) for name in sizes[count])
        for name in (*engines, EXACT):  # which changes items, the others do not
            own.append(in_process(searched, name, folder, count, options.k, options.repeats, options.data))
            print(*own[-1][::2], file=sys.stderr, flush=True)  # the tables need all of them
        exact = own[-1][1]
        results += [(row | {"recall": recall(ids, exact)}, changes) for row, ids, changes in (own[-1], *own[:-1])]
    heading(f"\nsearch, {KNOWN} queries, k = {options.k}, {options.data} keys", SEARCH)
    for row, _ in results:
        line(SEARCH, row)
    print("\nall known items were found by the exact engine, with their ids, sources, texts and values")
    heading("\none item changed", CHANGE)
    for _, changes in results:
        for change in changes:
            line(CHANGE, change)


def main(options: Annotated[Options, tyro.conf.arg(name="")] = Options()) -> None:
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        raise ValueError(f"--folder {options.folder} is not empty; give a new one")
    with tempfile.TemporaryDirectory() as temporary:
        tables(options, Path(temporary))


if __name__ == "__main__":
    terminal.program(main)
