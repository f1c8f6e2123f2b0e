"""How fast a memory's keys are searched: our exact search beside NumPy, FAISS and Milvus. One table, in one run.

    python -m benchmarks.memory_search                     1,000,000 keys of 128 numbers around 4,096 centres
    python -m benchmarks.memory_search --data random       evenly spread keys
    python -m benchmarks.memory_search --hnsw              a graph too, which takes long to build
    python -m benchmarks.memory_search --items 10000 --milvus-items 2000 --repeats 2      to try it out

Keys and queries have unit length; scores are inner products, float32. `random` keys are Gaussian: the hardest for
approximate indexes. `clustered` ones are a centre and half as much noise, nearer to what networks make. The engines are
those of `reveal/memory`, through `update` and `search`.

| row | what |
| --- | --- |
| in a program | `exact.search` in jit on one device: queries come from the device, results stay there, as in training |
| ExactEngine | the same from outside: NumPy arrays in and out |
| NumPy | a matrix product, then argpartition |
| late, 1 x 8, 8 x 8 | `LateInteractionEngine`, `--late-items` keys of 8 vectors: `--queries` of one, an eighth of 8 |
| NumPy, 1 x 8, 8 x 8 | the same by NumPy's product, maxima and sums of 4,096 keys at a time |
| FAISS flat, ivfpq, hnsw | `FaissEngine`; ivfpq is refined with the keys themselves |
| Milvus FLAT | `MilvusEngine` on a file (milvus-lite), with `--milvus-items` keys; a second row of ours has as many |

Each engine has a process of its own, held to `--threads` cores. They are asked in turns, with a tenth of a second
between two, in which threads that spin fall asleep.

- `build s`: from keys in a file to an index. `first s`: the first search, with what it compiles.
- `ms`: median of `--repeats` searches, after the first two. `to ours`: over that of `in a program`, as many keys.
- `recall`: how many of the k best, by products in float64, are among the k that were found.
- `key MB`: what is searched: arrays, the index as it would be written, the file. Megabytes are 2^20 bytes.
- `held MB`: what the process holds more after the build. `search MB`: the most that the second search held beyond that.
- `planned MB`: the temporaries of our compiled program, by XLA's account; of an accelerator the only number here.

Memory is read from /proc (Linux).
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from benchmarks.measuring import MEGABYTE, file_bytes, forget_peak, heading, line, memory, timed
from common import terminal
from common.checked import Checked, NotNegative, Positive

OURS, LATE = "in a program", "late"
VECTORS = 8  # of a key, and of a query at most, for late interaction
KEYS = "keys.float32"
CENTRES = 4096
NOISE = 0.5  # of clustered keys, over their centres
CHUNK = 65536  # keys drawn, or compared, at a time
REST = 0.1  # seconds before a measurement
EXTRAS = {"faiss": "faiss", "pymilvus": "milvus", "milvus_lite": "milvus"}  # package -> extra
# Columns and the formats of their numbers.
COLUMNS = {"": "", "items": ",", "build s": ".1f", "first s": ".2f", "ms": ",.1f", "to ours": ".2f", "recall": ".4f"}
COLUMNS |= {"key MB": ",.0f", "held MB": ",.0f", "search MB": ",.1f", "planned MB": ",.1f"}


@dataclass(frozen=True)
class Options(Checked):
    items: Positive = 1_000_000  # Keys
    data: Literal["random", "clustered"] = "clustered"  # How keys and queries lie
    queries: Positive = 64  # Of one search
    k: Positive = 50  # Items asked for
    width: Positive = 128  # Numbers of a key
    threads: Positive = 2  # Cores of each engine
    repeats: Positive = 7  # Timed searches per engine; the median counts
    hnsw: bool = False  # FAISS's graph too
    milvus_items: NotNegative = 100_000  # Keys for Milvus; 0 leaves it out
    late_items: NotNegative = 100_000  # Keys of 8 vectors for late interaction; 0 leaves it out

    def rules(self):
        counts = self.items, self.milvus_items or self.items, self.late_items or self.items
        yield self.k <= min(counts), "k is at most items, milvus_items and late_items"


class Task(NamedTuple):
    """The keys (`reveal.memory.Rows`), the search, and a folder for files."""

    rows: Any
    queries: np.ndarray
    k: int
    folder: Path


class Searcher(NamedTuple):
    """An engine with its keys: ids [b k]; bytes of what is searched; our program."""

    search: Callable[[], Any]
    size: Callable[[], int]
    lowered: Callable[[], Any] | None = None


Build = Callable[[Task], Searcher]


def in_a_program() -> Build:
    """As all that return a `Build`: imports and starts what is needed first, so that it counts nowhere."""
    import jax

    from common.training.mesh import make_mesh
    from reveal.memory.engines import exact

    mesh = make_mesh(1)

    def build(task: Task) -> Searcher:
        index = jax.block_until_ready(exact.place(task.rows, 1, mesh))
        asked = jax.device_put((task.queries, np.zeros((len(task.queries), 1), np.float32)))
        program = jax.jit(lambda index, queries, gate: exact.search(index, queries, task.k, gate, mesh))
        search = lambda: jax.block_until_ready(program(index, *asked)).rows  # noqa: E731
        return Searcher(search, lambda: index.keys.nbytes, lambda: program.lower(index, *asked))

    return build


def exact_engine(name: str = "ExactEngine") -> Build:
    import jax

    from common.training.mesh import make_mesh
    from reveal.memory.engines import exact

    engine = getattr(exact, name)(make_mesh(1))

    def build(task: Task) -> Searcher:
        engine.update(task.rows, 1, 1)
        jax.block_until_ready(engine.index)
        gate = np.zeros((len(task.queries), 1), np.float32)
        inputs = engine.index, task.queries, task.k, gate, engine.mesh
        search = lambda: engine.search(task.queries, task.k).ids  # noqa: E731
        return Searcher(search, lambda: engine.index.keys.nbytes, lambda: exact._jitted.lower(*inputs))

    return build


def with_numpy() -> Build:
    def build(task: Task) -> Searcher:
        keys = task.rows.keys(0, len(task.rows))

        def search() -> np.ndarray:
            if task.queries.ndim == 2:
                scores = task.queries @ keys.T
            else:
                parts = [maxsim(task.queries, keys[start : start + 4096]) for start in range(0, len(keys), 4096)]
                scores = np.concatenate(parts, axis=1)
            rows = np.argpartition(scores, -task.k, axis=1)[:, -task.k :]
            order = np.argsort(-np.take_along_axis(scores, rows, axis=1), axis=1, kind="stable")
            return np.take_along_axis(rows, order, axis=1)

        return Searcher(search, lambda: keys.nbytes)

    return build


def maxsim(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Scores [b n] of queries [b q d] and keys of some vectors [n k]."""
    (b, q, d), n = queries.shape, len(keys)
    return (queries.reshape(-1, d) @ keys.reshape(-1, d).T).reshape(b, q, n, -1).max(axis=3).sum(axis=1)


def index_bytes(engine: Any) -> int:
    """What FAISS' indexes would take in files."""
    faiss, pieces = importlib.import_module("faiss"), []
    for part in engine._parts.values():
        faiss.write_index(part.index, faiss.PyCallbackIOWriter(lambda piece: pieces.append(len(piece))))
    return sum(pieces)


def faiss_engine(kind: str) -> Build:
    importlib.import_module("faiss")

    from reveal.memory import FaissEngine

    engine = FaissEngine(kind)

    def build(task: Task) -> Searcher:
        engine.update(task.rows, 1, 1)
        return Searcher(lambda: engine.search(task.queries, task.k).ids, lambda: index_bytes(engine))

    return build


def milvus_engine() -> Build:
    from reveal.memory import MilvusEngine

    importlib.import_module("pymilvus")

    def build(task: Task) -> Searcher:
        file = task.folder / "keys.db"
        engine = MilvusEngine(str(file))
        engine.update(task.rows, 1, 1)
        return Searcher(lambda: engine.search(task.queries, task.k).ids, lambda: file_bytes(file))

    return build


@dataclass(frozen=True)
class Case:
    """A row: what prepares the engine, with which arguments, and the packages it needs."""

    name: str
    items: int
    prepare: Callable[..., Build]
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    asked: int = 0  # vectors of a query of late interaction; 0: a key is one vector

    @property
    def vectors(self) -> int:
        return VECTORS if self.asked else 1

    def queries(self, vectors: np.ndarray) -> np.ndarray:
        """Those of this row, [b d] or [b q d]."""
        if not self.asked:
            return vectors
        return vectors[: len(vectors) // self.asked * self.asked].reshape(-1, self.asked, vectors.shape[1])

    def missing(self) -> str | None:
        """The extra to install, if any."""
        absent = [EXTRAS[name] for name in self.packages if importlib.util.find_spec(name) is None]
        return absent[0] if absent else None


def cases(options: Options) -> list[Case]:
    all_keys = options.items
    found = [Case(OURS, all_keys, in_a_program), Case("ExactEngine", all_keys, exact_engine)]
    found += [Case("NumPy", all_keys, with_numpy)]
    kinds = ("flat", "ivfpq", "hnsw") if options.hnsw else ("flat", "ivfpq")
    found += [Case(f"FAISS {kind}", all_keys, faiss_engine, (kind,), ("faiss",)) for kind in kinds]
    milvus = Case("Milvus FLAT", options.milvus_items, milvus_engine, (), ("pymilvus", "milvus_lite"))
    if milvus.items:
        alike = [Case(OURS, milvus.items, in_a_program)] if milvus.items != all_keys and not milvus.missing() else []
        found += [*alike, milvus]
    for asked in sorted({1, min(VECTORS, options.queries)}) if options.late_items else ():
        name = f", {asked} x {VECTORS}"
        found += [Case(LATE + name, options.late_items, exact_engine, ("LateInteractionEngine",), asked=asked)]
        found += [Case("NumPy" + name, options.late_items, with_numpy, asked=asked)]
    return found


_searcher: Searcher | None = None  # of this process


def prepare(case: Case, queries: np.ndarray, k: int, folder: Path) -> tuple[np.ndarray, dict[str, float]]:
    """Builds the engine of this process and searches twice; the ids that it finds, and its costs."""
    global _searcher
    from common.runtime import keep_freed_memory
    from reveal.memory import Rows

    keep_freed_memory()
    build = case.prepare(*case.arguments)
    numbers = np.arange(case.items), np.zeros(case.items, np.uint8), np.zeros(case.items, np.int32)
    width, queries = case.vectors * queries.shape[1], case.queries(queries)
    rows = Rows(*numbers, partial(read, folder / KEYS, width), width, key_vectors=case.vectors)
    before = held()
    _searcher, building, _ = timed(lambda: build(Task(rows, queries, k, folder)))
    row = {"build s": building, "held MB": held() - before, "first s": timed(_searcher.search)[1]}
    held()
    before = forget_peak()
    found = np.asarray(_searcher.search())
    row |= {"search MB": memory("VmHWM") - before, "key MB": _searcher.size() / MEGABYTE}
    if _searcher.lowered is not None:
        row["planned MB"] = _searcher.lowered().compile().memory_analysis().temp_size_in_bytes / MEGABYTE
    return found, row


def again() -> float:
    """Seconds of one more search."""
    assert _searcher is not None
    return timed(_searcher.search)[1]


def held() -> float:
    """Megabytes in use, after what is free has gone back to the kernel."""
    time.sleep(REST)  # JAX frees in other threads,
    gc.collect()  # and arrays that it has copied when Python collects
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return memory("VmRSS")


def unit_keys(rng: np.random.Generator, count: int, width: int, centres: np.ndarray | None) -> np.ndarray:
    """Keys of unit length, evenly spread, or around centres."""
    points = rng.standard_normal((count, width), np.float32)
    if centres is not None:
        points = centres[rng.integers(0, len(centres), count)] + np.float32(NOISE) * points
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def draw(path: Path, options: Options) -> np.ndarray:
    """Writes the keys, piece by piece; the queries."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CENTRES, options.width), np.float32) if options.data == "clustered" else None
    some = partial(unit_keys, rng, width=options.width, centres=centres)
    queries = some(options.queries)
    count = max(options.items, options.milvus_items, VECTORS * options.late_items)
    with path.open("wb") as file:
        for start in range(0, count, CHUNK):
            file.write(some(min(CHUNK, count - start)).data)
    return queries


def read(path: Path, width: int, start: int, stop: int) -> np.ndarray:
    """Keys of the file, not mapped: pages of it would count as memory."""
    numbers = np.fromfile(path, np.float32, (stop - start) * width, offset=4 * start * width)
    return numbers.reshape(-1, width)


def best(keys: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Rows [b k] of the best keys for queries [b d] or [b q d], by products in float64."""
    exact, chunk = queries.astype(np.float64).reshape(len(queries), -1, queries.shape[-1]), max(CHUNK // VECTORS, k)
    scores, rows = np.zeros((len(queries), 0)), np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(keys), chunk):
        more = maxsim(exact, keys[start : start + chunk].astype(np.float64))
        numbers = np.broadcast_to(np.arange(start, start + more.shape[1]), more.shape)
        scores, rows = np.concatenate([scores, more], axis=1), np.concatenate([rows, numbers], axis=1)
        at = np.argpartition(scores, -k, axis=1)[:, -k:]
        scores, rows = np.take_along_axis(scores, at, axis=1), np.take_along_axis(rows, at, axis=1)
    return rows


def recall(found: np.ndarray, wanted: np.ndarray) -> float:
    """The share of `wanted` [b k] that is in the same row of `found`."""
    return float(np.mean([np.isin(row, own).mean() for row, own in zip(wanted, found, strict=True)]))


@contextlib.contextmanager
def cores(count: int) -> Iterator[int]:
    """Holds this process, and what it starts, to so many cores; how many there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)


def measure(options: Options, chosen: list[Case], folder: Path) -> list[dict[str, Any]]:
    queries, rows = draw(folder / KEYS, options), []
    keys = np.memmap(folder / KEYS, np.float32, "r").reshape(-1, options.width)
    wanted: dict[tuple[int, int], np.ndarray] = {}
    for case in chosen:
        if (which := (case.items, case.asked)) not in wanted:
            own = keys[: case.items * case.vectors].reshape(case.items, -1)
            wanted[which] = best(own, case.queries(queries), options.k)
    with contextlib.ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        pools = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in chosen]
        for case, pool in zip(chosen, pools, strict=True):
            print(f"{case.name}, {case.items:,} keys ...", file=sys.stderr, flush=True)
            found, row = pool.submit(prepare, case, queries, options.k, folder).result()
            rows.append(
                row | {"": case.name, "items": case.items, "recall": recall(found, wanted[case.items, case.asked])}
            )
        seconds: list[list[float]] = [[] for _ in chosen]
        for _ in range(options.repeats):
            for pool, several in zip(pools, seconds, strict=True):
                time.sleep(REST)
                several.append(pool.submit(again).result())
    return compared(rows, seconds)


def compared(rows: list[dict[str, Any]], seconds: list[list[float]]) -> list[dict[str, Any]]:
    """The rows with their medians, and how often ours with as many keys fits into them."""
    timed = [row | {"ms": 1000 * statistics.median(several)} for row, several in zip(rows, seconds, strict=True)]
    alike = [(row["items"], row[""].partition(", ")[2]) for row in timed]
    pairs = list(zip(timed, alike, strict=True))
    ours = {of: row["ms"] for row, of in pairs if row[""].partition(", ")[0] in (OURS, LATE)}
    return [row | {"to ours": row["ms"] / ours[of]} for row, of in pairs]


def main(options: Annotated[Options, tyro.conf.arg(name="")] = Options()) -> None:
    wanted = cases(options)
    with tempfile.TemporaryDirectory() as folder, cores(options.threads) as count:
        rows = measure(options, [case for case in wanted if not case.missing()], Path(folder))
    asked = f"{options.queries} queries, k = {options.k}, {count} cores"
    heading(f"{options.items:,} {options.data} keys of {options.width} numbers, {asked}", COLUMNS)
    for row in rows:
        line(COLUMNS, row)
    print()
    for case in wanted:
        if extra := case.missing():
            print(f"{case.name} is not installed: pip install 'film-plugins-reveal[{extra}]'")


if __name__ == "__main__":
    terminal.program(main)
