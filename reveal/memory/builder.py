"""Builds a memory of any size in the RAM of one batch.

    with Builder("memory", layout) as builder:
        for items in batches(source, start=builder.count):     # 0, or where an interrupted build goes on
            builder.add(items, *encode(items))

Rows go to the disk as they come. A shard appears when it is whole, and the manifest when all are: until then no program
takes the folder for a memory. After an interruption the same lines again keep the shards that are there; `count` says
how many items those hold, and the source has to begin after them. Shards end at fixed rows however the items were
batched, so that the result is the same to the byte, and its manifest has the same hash. One program at a time builds in
a folder (`lock.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from common.io.files import atomic_output
from reveal.memory.items import Item, ids_of, pack
from reveal.memory.lock import LOCK, Lock
from reveal.memory.manifest import NAME, Layout, Manifest, ShardInfo, write_manifest
from reveal.memory.shard_writer import ShardWriter, new_shard, read_info, stored
from reveal.memory.shards import Shard

SHARD = 65536  # rows
RECIPE = "build.json"


class Builder:
    """Writes a new memory.

    Args:
      folder: of the memory; new, empty, or begun by the same layout and shard.
      layout: what all items have in common.
      shard: rows of a shard.
      of: what it is built of, as JSON: another build does not go on here.

    Raises:
      FileExistsError: there is a memory already, one begun otherwise, or something else.
      Busy: another program is building here.
    """

    def __init__(self, folder: str | Path, layout: Layout, shard: int = SHARD, of: Mapping[str, Any] | None = None):
        if shard < 1:
            raise ValueError(f"shard is {shard}: give 1 row or more")
        self.folder, self.layout, self._shard = Path(folder), layout, shard
        recipe = {"layout": dataclasses.asdict(layout), "shard": shard}
        self._lock = _begin(self.folder, recipe if of is None else recipe | {"of": of})
        self._done: list[ShardInfo] = []
        while (self.folder / shard_name(1, len(self._done))).is_dir():
            self._done.append(read_info(self.folder / shard_name(1, len(self._done))))
        self._next = self._done[-1].last + 1 if self._done else 0
        self._open: tuple[contextlib.ExitStack, ShardWriter] | None = None

    @property
    def count(self) -> int:
        """Items written, those of an interrupted build included."""
        return sum(info.rows for info in self._done) + (self._open[1].rows if self._open else 0)

    @property
    def next_id(self) -> int:
        """What the next item without an id is called; those of an interrupted build have smaller ones."""
        return self._next

    def last(self) -> bytes | None:
        """The payload of the last item that an interrupted build has left; None where it left none."""
        if not self._done:
            return None
        return Shard(self.folder, self._done[-1], self.layout).payloads([self._done[-1].rows - 1])[0]

    def written(self) -> Iterator[int]:
        """The ids that an interrupted build has left, rising."""
        for info in self._done:
            yield from Shard(self.folder, info, self.layout).ids.tolist()

    def add(self, items: Sequence[Item], keys: np.ndarray, values: np.ndarray) -> None:
        """Appends items with their keys [n k] and values [n c d]. Ids, where items have them, rise.

        Raises ValueError for a source that is not in the layout, an id that does not rise, keys or values of another
        shape or not finite, and what `pack` refuses; then nothing of this call was written."""
        if not len(items) == len(keys) == len(values):
            raise ValueError(f"{len(items)} items, {len(keys)} keys, {len(values)} values: give one of each")
        if not items:
            return
        ids, payloads = self._numbered(items), [pack(item) for item in items]
        source = np.array([self.layout.number(item.source) for item in items])
        keys, values = stored(self.layout, ids, keys, values)
        at = 0
        while at < len(items):
            writer = self._writer()
            part = slice(at, at + self._shard - writer.rows)
            version = np.ones(len(ids[part]), np.int32)
            writer.append(ids[part], source[part], version, keys[part], values[part], payloads[part])
            self._next, at = int(ids[part][-1]) + 1, at + len(ids[part])
            if writer.rows == self._shard:
                self._close()

    def finish(self) -> Manifest:
        """Closes the last shard and writes the manifest; the builder is done with."""
        self._close()
        manifest = Manifest(self.layout, 1, self._next, tuple(self._done))
        write_manifest(self.folder, manifest)
        (self.folder / RECIPE).unlink()
        self._lock.remove()
        return manifest

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.finish()
            elif self._open is not None:
                stack, self._open = self._open[0], None
                stack.__exit__(kind, error, trace)  # the shard that was being written goes
        finally:
            self._lock.remove()

    def _numbered(self, items: Sequence[Item]) -> np.ndarray:
        ids, last = [], self._next - 1
        for item in items:
            number = last + 1 if item.id is None else item.id
            if number <= last:
                raise ValueError(f"id {number} comes after {last}: in a build ids rise; sort the items, or give none")
            ids.append(number)
            last = number
        return ids_of(ids)

    def _writer(self) -> ShardWriter:
        if self._open is None:
            stack = contextlib.ExitStack()
            name = shard_name(1, len(self._done))
            self._open = stack, stack.enter_context(new_shard(self.folder, name, self.layout))
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            stack, self._open = self._open[0], None
            stack.close()
            self._done.append(read_info(self.folder / shard_name(1, len(self._done))))


def shard_name(version: int, number: int) -> str:
    """Of the folder of a shard: by the version that wrote it."""
    return f"v{version:05d}-{number:05d}"


def remove_partial(folder: Path) -> None:
    """What a killed writer of shards left."""
    for left in folder.glob(".partial-*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _begin(folder: Path, recipe: dict) -> Lock:
    """The lock on a folder in which this recipe is begun."""
    path, text = folder / RECIPE, json.dumps(recipe, indent=1) + "\n"
    _refuse_memory(folder)
    if not path.is_file():
        if folder.is_dir() and any(entry.name != LOCK for entry in folder.iterdir()):
            raise FileExistsError(f"{folder} holds files that are no memory; give an empty or new folder")
        with atomic_output(path) as temporary:
            temporary.write_text(text, "utf-8")
    lock = Lock(folder, "building")
    try:
        _refuse_memory(folder)
        if path.read_text("utf-8") != text:
            raise FileExistsError(
                f"{folder} was begun with another layout, or of other sources or another tokenizer ({RECIPE} tells);"
                " give another folder"
            )
        remove_partial(folder)
    except BaseException:
        lock.remove()
        raise
    return lock


def _refuse_memory(folder: Path) -> None:
    if (folder / NAME).exists():
        raise FileExistsError(f"{folder} holds a memory already; add to it, or give another folder")
