"""The memory: a folder on the disk that is opened in an instant, read where asked, searched, and changed in versions.

    memory = Memory.load("memory", encoder=fingerprint(params))
    result = memory.search(queries, k=10, log_gate=gate)     # ids, scores, sources, version
    values = memory.values(result.ids)                       # what the fusion reads
    memory.items(result.ids[0])                              # what a person is shown
    memory.add([Item("kg", {"text": "..."})], keys, values)  # no training; the next search finds it
    memory.delete([17])                                      # a bit in a bitmap

Each change is a new version (`manifest.py`): it is there whole, or not at all, and only one program changes a memory at
a time. Rows of deleted and edited items stay in their files until `compact` writes the live ones anew. The engine gets
the keys at the first search after a change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from common.io.files import atomic_folder
from reveal.memory.engines.engine import Engine, SearchResult
from reveal.memory.folder import PARTIAL, SHARD_NAME, Lock, remove, shard_name
from reveal.memory.items import Item
from reveal.memory.manifest import Layout, read_manifest, write_manifest
from reveal.memory.shards import SHARD, Shard, new_shard, stored_rows
from reveal.memory.versions import Change, Snapshot

Encode = Callable[[list[Item]], tuple[np.ndarray, np.ndarray]]  # -> keys [n k], values [n c d]
BATCH = 256  # items in RAM at a time where all are rewritten

_SEARCHED: weakref.WeakKeyDictionary[Engine, tuple[str, int]] = weakref.WeakKeyDictionary()


class Memory(Snapshot):
    """A memory's folder, to read, to search and to change.

    Args:
      folder, encoder: as `Snapshot`, and raises as it does.
      engine: that searches; None: `ExactEngine` over all devices. One that several memories have gets each one's keys
        anew when that is its turn.
    """

    def __init__(self, folder: str | Path, engine: Engine | None = None, encoder: str | None = None):
        super().__init__(folder, encoder)
        self.engine = engine

    @classmethod
    def create(cls, folder: str | Path, layout: Layout, engine: Engine | None = None) -> Memory:
        """An empty one in a new folder; for many items, see `Builder`. Raises FileExistsError."""
        from reveal.memory.builder import Builder

        Builder(folder, layout).finish()
        return cls(folder, engine)

    @classmethod
    def load(cls, folder: str | Path, engine: Engine | None = None, encoder: str | None = None) -> Memory:
        """Opens a folder; the same as the constructor."""
        return cls(folder, engine, encoder)

    def search(self, query: Any, k: int, sources: Sequence[str] | None = None, log_gate: Any = None) -> SearchResult:
        """The k best items of each query [b d], of all sources or of those named; `log_gate` [b s] is of all sources.
        Raises ValueError for shapes that do not fit and for a source that is not there."""
        numbers = None if sources is None else [self.layout.number(source) for source in sources]
        if self.engine is None:
            from reveal.memory.engines.exact import ExactEngine

            self.engine = ExactEngine()
        if _SEARCHED.get(self.engine) != (self._token, self.version):
            _SEARCHED.pop(self.engine, None)  # an update that fails leaves keys of neither
            self.engine.update(self.rows(), len(self.layout.sources), self.version)
            _SEARCHED[self.engine] = self._token, self.version
        return self.engine.search(query, k, sources=numbers, log_gate=log_gate)

    def add(self, items: Sequence[Item], keys: Any, values: Any) -> list[int]:
        """New items, one version more; their ids. Raises as `Change.add`."""
        with self.changing() as change:
            return change.add(items, keys, values)

    def edit(self, items: Sequence[Item], keys: Any, values: Any) -> None:
        """Items in the place of those with their ids, one version more. Raises as `Change.edit`."""
        with self.changing() as change:
            change.edit(items, keys, values)

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Deletes items, one version more. Raises as `Change.delete`."""
        with self.changing() as change:
            change.delete(ids)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Change]:
        """For many items: what the body adds, edits and deletes is one version more when it has ended well, and else
        nothing. Raises ValueError if another program has changed the memory, or is changing it."""
        with self._next_version() as version:
            change = Change(self, version)
            yield change
            if (finished := change.finish()) is not None:
                next_id, shards = finished
                self._commit(shards, version=version, next_id=next_id)

    def compact(self) -> None:
        """Writes the live items anew, in the order of their ids, and removes all other files; one version more. Other
        programs that have the memory open have to open it again."""
        self._renew(self.layout, None)

    def refresh(self, encode: Encode, encoder: str, **shape: Any) -> None:
        """Encodes every item again with a network of that fingerprint, one version more; as `compact` otherwise.

        `shape` has the fields of `Layout` that differ in that network. Raises ValueError, before anything is encoded,
        for `sources` that lack one of the items'."""
        layout = dataclasses.replace(self.layout, encoder=encoder, **shape)
        for source in (name for name, count in self.sources.items() if count):
            layout.number(source)
        self._renew(layout, encode)

    def save(self, folder: str | Path) -> None:
        """A compact copy of this version in a new folder."""
        with atomic_folder(folder) as temporary:
            shards = self._rewrite(temporary, self.layout, self.version, None)
            write_manifest(temporary, dataclasses.replace(self.manifest, shards=tuple(one.info for one in shards)))

    def _renew(self, layout: Layout, encode: Encode | None) -> None:
        """The next version from the live items alone; all other shards are removed."""
        with self._next_version() as version:
            shards = self._rewrite(self.folder, layout, version, encode)
            self._commit(shards, version=version, layout=layout)
            named = {shard.folder for shard in shards}
            for folder in set(self.folder.iterdir()) - named:
                if SHARD_NAME.fullmatch(folder.name):
                    shutil.rmtree(folder)

    def _rewrite(self, folder: Path, layout: Layout, version: int, encode: Encode | None) -> list[Shard]:
        """Shards of the live items, in the order of ids, encoded anew or as they are."""
        rows, shards = self.rows(), []
        for first in range(0, len(rows), SHARD):
            name, last = shard_name(version, len(shards)), min(first + SHARD, len(rows))
            with new_shard(folder, name, layout) as writer:
                for start in range(first, last, BATCH):
                    part = slice(start, min(start + BATCH, last))
                    ids = rows.ids[part]
                    items, versions = self.items(ids), version if encode else rows.versions[part]
                    arrays = encode(items) if encode else (self.keys(ids), self.values(ids))
                    writer.append(stored_rows(layout, items, ids, versions, *arrays))
            shards.append(Shard(folder, writer.info, layout))
        return shards

    @contextlib.contextmanager
    def _next_version(self) -> Iterator[int]:
        """The number of the next version, while no other program changes the memory; what was written of one that does
        not end well is removed."""
        with Lock(self.folder, "changing"):
            found, version = read_manifest(self.folder), self.version + 1
            if found != self.manifest:
                versions = f"version {found.version}, opened at {self.version}"
                raise ValueError(f"{self.folder} was changed or replaced ({versions}): load it again")
            begun = PARTIAL, f"v{version:05d}-"
            remove(self.folder, *begun)  # of a program that was killed
            try:
                yield version
            except BaseException:
                if read_manifest(self.folder).version < version:
                    remove(self.folder, *begun)
                raise

    def _commit(self, shards: list[Shard], **fields: Any) -> None:
        manifest = dataclasses.replace(self.manifest, shards=tuple(shard.info for shard in shards), **fields)
        write_manifest(self.folder, manifest)
        self.manifest, self.shards = manifest, shards
