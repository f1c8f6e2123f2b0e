"""The memory's own storage beside LanceDB, on what a memory has to do; search is measured in `memory_search.py`.

    pip install lancedb
    python -m benchmarks.memory_storage                   100,000 items; some minutes
    python -m benchmarks.memory_storage --items 10000     to try it out
    python -m benchmarks.memory_storage --clock cpu       processor time of all threads, beside other work

Both store the items of `memory_build`; LanceDB's table has the index that it offers for reading by id (BTREE).

| column | what is measured |
| --- | --- |
| build s, disk MB | from a stream of batches of 4,096 items, and the folder's size |
| open ms | opening in the same process, files in the system's cache |
| values ms, items ms | values, and texts, of 64 x 50 random ids |
| keys s | all keys as one NumPy array, in the order of their ids: what an engine begins with |
| add ms, edit ms, delete ms | one item, as a change that is there whole or not at all |
| after ms | `values ms` after all those changes |

Times are medians of `--repeats`, the two in turns. The program ends with an error where the two read different things.
"""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import lancedb
import numpy as np
import pyarrow as pa
import tyro
from lancedb.index import BTree

from benchmarks.measuring import MEGABYTE, file_bytes, heading, line, timed
from benchmarks.memory_build import BATCH, LAYOUT, Batch, batch
from common import terminal
from common.checked import Checked, Positive
from reveal.memory import Builder, Item, Memory

COLUMNS = {"storage": "", "items": ",", "build s": ".1f", "disk MB": ",.0f", "open ms": ".1f", "values ms": ",.1f"}
COLUMNS |= {"items ms": ",.1f", "keys s": ".2f", "add ms": ",.1f", "edit ms": ",.1f", "delete ms": ",.1f"}
COLUMNS |= {"after ms": ",.1f"}
QUERIES = 64 * 50  # ids that are read at once


@dataclass(frozen=True)
class Options(Checked):
    items: Positive = 100_000  # Of the memory
    repeats: Positive = 7  # Timed runs of everything but the build
    clock: Literal["wall", "cpu"] = "wall"  # What the times are of: the clock, or the processor, all threads together

    def rules(self):
        yield self.items >= 3 * self.repeats, "items is at least three times repeats"


class Ours:
    def __init__(self, folder: Path):
        self.folder = folder

    def build(self, batches: Iterator[Batch]) -> None:
        with Builder(self.folder, LAYOUT) as builder:
            for drawn in batches:
                builder.add(*drawn)

    def open(self) -> None:
        self.memory = Memory.load(self.folder)

    def values(self, ids: np.ndarray) -> np.ndarray:
        return self.memory.values(ids).view(np.uint16)

    def texts(self, ids: np.ndarray) -> list[str]:
        return [item.fields["text"] for item in self.memory.items(ids)]

    def keys(self) -> np.ndarray:
        rows = self.memory.rows()
        return rows.keys(0, len(rows))

    def add(self, number: int, drawn: Batch) -> None:
        self.memory.add(*_one(number, drawn))

    def edit(self, number: int, drawn: Batch) -> None:
        self.memory.edit(*_one(number, drawn))

    def delete(self, number: int) -> None:
        self.memory.delete([number])


class Lance:
    SCHEMA = pa.schema(
        [
            ("id", pa.int64()),
            ("source", pa.uint8()),
            ("text", pa.string()),
            ("key", pa.list_(pa.float32(), LAYOUT.key_dim)),
            ("value", pa.list_(pa.uint16(), int(np.prod(LAYOUT.value_shape)))),
        ]
    )

    def __init__(self, folder: Path):
        self.folder = folder

    def build(self, batches: Iterator[Batch]) -> None:
        table = lancedb.connect(self.folder).create_table("memory", map(self._rows, batches), schema=self.SCHEMA)
        table.create_index("id", config=BTree())

    def open(self) -> None:
        self.table = lancedb.connect(self.folder).open_table("memory")

    def values(self, ids: np.ndarray) -> np.ndarray:
        found = self._read(ids, "value")
        return np.array([found[number] for number in ids.tolist()], np.uint16).reshape(-1, *LAYOUT.value_shape)

    def texts(self, ids: np.ndarray) -> list[str]:
        found = self._read(ids, "text")
        return [found[number] for number in ids.tolist()]

    def keys(self) -> np.ndarray:
        rows = self.table.to_arrow().select(["id", "key"]).combine_chunks()
        keys = rows["key"].combine_chunks().flatten().to_numpy().reshape(-1, LAYOUT.key_dim)
        return keys[np.argsort(rows["id"].to_numpy(), kind="stable")]

    def add(self, number: int, drawn: Batch) -> None:
        self.table.add(self._rows(_one(number, drawn)))

    def edit(self, number: int, drawn: Batch) -> None:
        rows = pa.Table.from_batches([self._rows(_one(number, drawn))])
        self.table.merge_insert("id").when_matched_update_all().execute(rows)

    def delete(self, number: int) -> None:
        self.table.delete(f"id = {number}")

    def _read(self, ids: np.ndarray, column: str) -> dict[int, Any]:
        where = f"id IN ({', '.join(map(str, np.unique(ids).tolist()))})"
        rows = self.table.search().where(where).select(["id", column]).limit(len(ids)).to_arrow()
        return dict(zip(rows["id"].to_pylist(), rows[column].to_pylist(), strict=True))

    def _rows(self, drawn: Batch) -> pa.RecordBatch:
        items, keys, values = drawn
        columns = [
            pa.array([item.id for item in items], pa.int64()),
            pa.array([LAYOUT.number(item.source) for item in items], pa.uint8()),
            pa.array([item.fields["text"] for item in items]),
            pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), LAYOUT.key_dim),
            pa.FixedSizeListArray.from_arrays(
                pa.array(values.view(np.uint16).ravel()), int(np.prod(LAYOUT.value_shape))
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.SCHEMA)


def _one(number: int, drawn: Batch) -> Batch:
    """The first item of a batch, as item `number`."""
    item = Item(drawn.items[0].source, drawn.items[0].fields, id=number)
    return Batch([item], drawn.keys[:1], drawn.values[:1])


def measure(storages: dict[str, Ours | Lance], options: Options, folder: Path) -> dict[str, dict[str, Any]]:
    """A row of the table for each storage. Raises ValueError where they read different things."""
    rng, clock = np.random.default_rng(0), 1 if options.clock == "wall" else 2
    rows: dict[str, dict[str, Any]] = {}
    for name, storage in storages.items():
        batches = [batch(number, options.items) for number in range(-(-options.items // BATCH))]
        seconds = timed(lambda storage=storage, batches=batches: storage.build(iter(batches)))[clock]
        size = file_bytes(folder / name) / MEGABYTE
        rows[name] = {"storage": name, "items": options.items, "build s": seconds, "disk MB": size}
    times: dict[str, dict[str, list[float]]] = {name: {} for name in storages}

    def turn(column: str, call: Any) -> list[Any]:
        """One call of each storage; what they return."""
        results = []
        for name, storage in storages.items():
            measured = timed(lambda storage=storage: call(storage))
            times[name].setdefault(column, []).append(measured[clock] * (1 if column.endswith(" s") else 1000))
            results.append(measured[0])
        return results

    def same(results: list[Any]) -> None:
        if not all(np.array_equal(results[0], other) for other in results[1:]):
            raise ValueError("the storages read different things")

    for _ in range(options.repeats):
        turn("open ms", lambda storage: storage.open())
        ids = rng.integers(0, options.items, QUERIES)
        same(turn("values ms", lambda storage, ids=ids: storage.values(ids)))
        same(turn("items ms", lambda storage, ids=ids: storage.texts(ids)))
        same(turn("keys s", lambda storage: storage.keys()))
    for repeat in range(options.repeats):
        new, drawn = options.items + repeat, batch(options.items + repeat, 10**9)
        turn("add ms", lambda storage, new=new, drawn=drawn: storage.add(new, drawn))
        other = batch(options.items + options.repeats + repeat, 10**9)
        turn("edit ms", lambda storage, repeat=repeat, other=other: storage.edit(2 * repeat, other))
        turn("delete ms", lambda storage, repeat=repeat: storage.delete(2 * repeat + 1))
        same(turn("after ms", lambda storage: storage.values(np.arange(2 * options.repeats, options.items, 31))))
        same([storage.values(np.array([new, 2 * repeat])) for storage in storages.values()])
    medians = {name: {column: statistics.median(taken) for column, taken in times[name].items()} for name in storages}
    return {name: row | medians[name] for name, row in rows.items()}


def main(options: Annotated[Options, tyro.conf.arg(name="")] = Options()) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = measure({"ours": Ours(folder / "ours"), "LanceDB": Lance(folder / "LanceDB")}, options, folder)
        heading("storage", COLUMNS)
        for row in rows.values():
            line(COLUMNS, row)


if __name__ == "__main__":
    terminal.program(main)
