"""Builds a memory of any size in the RAM of one batch.

    with Builder("memory", layout) as builder:
        for items in batches(source, start=builder.count):     # 0, or where an interrupted build resumes
            builder.add(items, *encode(items))

A shard appears when it is whole, and the manifest when all are: until then no program takes the folder for a memory.
After an interruption the same lines keep the shards that are there, which hold `count` items. Shards end at fixed rows
however the items were batched, so the result is the same to the byte. One program at a time builds in a folder.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Int

from common.io.files import atomic_output, remove_leftovers
from common.io.tensor_files import read_json
from reveal.memory.folder import LOCK, RECIPE, Lock, remove_partial, shard_name
from reveal.memory.items import Item, ids_of
from reveal.memory.manifest import NAME, Layout, Manifest, ShardInfo, stored_fields, write_manifest
from reveal.memory.shards import INFO, SHARD, Shard, ShardWriter, new_shard, stored_rows


class Builder:
    """Writes a new memory in shards of `shard` rows. The folder is new, empty, or begun with the same arguments; `of`,
    as JSON, is what the memory is built of: another build does not resume here.

    Raises FileExistsError for any other folder, and `Busy` while another program is building here."""

    def __init__(self, folder: str | Path, layout: Layout, shard: int = SHARD, of: Mapping[str, Any] | None = None):
        if shard < 1:
            raise ValueError(f"shard is {shard}: give 1 row or more")
        self.folder, self.layout, self._shard = Path(folder), layout, shard
        recipe = {"layout": stored_fields(layout), "shard": shard}
        self._lock = _begin(self.folder, recipe if of is None else recipe | {"of": of})
        self._done: list[ShardInfo] = []
        while (path := self.folder / shard_name(1, len(self._done)) / INFO).is_file():
            self._done.append(ShardInfo.from_json(read_json(path)))
        self.next_id = self._done[-1].last + 1 if self._done else 0  # of the next item without one
        self._writer: ShardWriter | None = None
        self._stack = contextlib.ExitStack()  # of that writer

    @property
    def count(self) -> int:
        """Items written, those of an interrupted build included."""
        return sum(info.rows for info in self._done) + (self._writer.rows if self._writer else 0)

    def last(self) -> bytes | None:
        """The payload of the last item of an interrupted build; None without one."""
        if not self._done:
            return None
        return Shard(self.folder, self._done[-1], self.layout).payloads([self._done[-1].rows - 1])[0]

    def written(self) -> Iterator[int]:
        """The ids of an interrupted build, rising."""
        for info in self._done:
            yield from Shard(self.folder, info, self.layout).array("ids").tolist()

    def add(self, items: Sequence[Item], keys: Any, values: Any) -> None:
        """Appends items with their keys [n k] and values [n c d], or nothing: raises ValueError as
        `shards.stored_rows`, and for an id that does not rise."""
        if not items:
            return
        rows = stored_rows(self.layout, items, self._numbered(items), 1, keys, values)
        start = 0
        while start < len(items):
            if self._writer is None:
                name = shard_name(1, len(self._done))
                self._writer = self._stack.enter_context(new_shard(self.folder, name, self.layout))
            stop = start + self._shard - self._writer.rows
            self._writer.append({name: column[start:stop] for name, column in rows.items()})
            start, self.next_id = min(stop, len(items)), int(rows["ids"][:stop][-1]) + 1
            if self._writer.rows == self._shard:
                self._close()

    def finish(self) -> Manifest:
        """Closes the last shard and writes the manifest; the builder cannot be used any more."""
        self._close()
        manifest = Manifest(self.layout, 1, self.next_id, tuple(self._done))
        write_manifest(self.folder, manifest)
        (self.folder / RECIPE).unlink()
        self._lock.remove()
        return manifest

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.finish()
            else:
                self._stack.__exit__(kind, error, trace)  # the shard that was being written goes
                if not self._done:  # nothing to resume: another build may begin here
                    (self.folder / RECIPE).unlink(missing_ok=True)
        finally:
            self._lock.remove()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _numbered(self, items: Sequence[Item]) -> Int[np.ndarray, " n"]:
        ids, last = [], self.next_id - 1
        for item in items:
            number = last + 1 if item.id is None else item.id
            if number <= last:
                raise ValueError(f"id {number} comes after {last}: in a build ids rise; sort the items, or give none")
            ids.append(number)
            last = number
        return ids_of(ids)

    def _close(self) -> None:
        if self._writer:
            writer, self._writer = self._writer, None
            self._stack.close()
            self._done.append(writer.info)


def _begin(folder: Path, recipe: dict) -> Lock:
    """The lock on a folder in which this recipe is begun."""
    path, text = folder / RECIPE, json.dumps(recipe, indent=1, default=str) + "\n"  # paths as texts

    def write() -> None:
        with atomic_output(path, overwrite=True, durable=True) as temporary:
            temporary.write_text(text, "utf-8")

    _refuse_memory(folder)
    if not path.is_file():
        if folder.is_dir():
            remove_leftovers(folder)  # of a build that was killed before its recipe was written
            if any(entry.name != LOCK for entry in folder.iterdir()):
                raise FileExistsError(f"{folder} holds files that are no memory; give an empty or new folder")
        write()
    lock = Lock(folder, "building")
    try:
        _refuse_memory(folder)
        if path.read_text("utf-8") != text:
            if (folder / shard_name(1, 0) / INFO).is_file():
                raise FileExistsError(f"{folder} was begun with another recipe ({RECIPE}); give another folder")
            write()  # a build that was killed before it had a shard leaves nothing to resume
        remove_partial(folder)
    except BaseException:
        lock.remove()
        raise
    return lock


def _refuse_memory(folder: Path) -> None:
    if (folder / NAME).exists():
        raise FileExistsError(f"{folder} holds a memory already; add to it, or give another folder")
