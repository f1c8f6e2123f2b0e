"""The memory: a folder on the disk that is opened in an instant, read where asked, searched, and changed in versions.

    memory = Memory.load("memory", encoder=fingerprint(params))
    result = memory.search(queries, k=10, log_gate=gate)     # ids, scores, sources, version
    values = memory.values(result.ids)                       # what the fusion reads
    memory.items(result.ids[0])                              # what a person is shown
    memory.add([Item("kg", {"text": "..."})], keys, values)  # no training; the next search finds it
    memory.delete([17])                                      # a bit in a bitmap

Each change is a new version (`manifest.py`), there whole or not at all; one program at a time changes a memory. Rows of
deleted and edited items stay in their files until `compact`. The engine gets keys at the first search after a change.

**Small changes** write a shard each. A change that leaves `FAN` shards of one size (of 1 to 15 live rows, of 16 to 255,
of 256 to 4,095) merges as many to one. Larger shards stay, those of a build among them: a change rewrites some 65,000
items at most, and an item is written anew some three times.

**Programs that read** go on when another one changes or replaces the memory: what they miss they find in the present
version (`reopen`). `of_one_version` reads all again then, so that what was found, its values and its texts belong
together.
"""

import contextlib
import copy
import dataclasses
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from common.io.files import atomic_folder
from reveal.memory.builder import Builder
from reveal.memory.engines.engine import Engine, Rows, SearchResult
from reveal.memory.folder import ENCODER, SHARD_NAME, Lock, remove_indexes, remove_partial, shard_name
from reveal.memory.items import Item
from reveal.memory.manifest import Layout, Manifest, read_manifest, write_manifest
from reveal.memory.shards import SHARD, Shard, new_shard, stored_rows
from reveal.memory.versions import Change, Snapshot

Encode = Callable[[list[Item]], tuple[np.ndarray, np.ndarray]]  # -> keys [n k], values [n c d]
BATCH = 256  # items in RAM at a time where all are rewritten
FAN = 16  # shards of one size that are merged
ROUNDS = 20  # of a read that other programs' changes overtake

_SEARCHED: weakref.WeakKeyDictionary[Engine, tuple[str, Manifest]] = weakref.WeakKeyDictionary()


class Memory(Snapshot):
    """A memory's folder, to read, to search and to change.

    Args:
      folder, encoder: as `Snapshot`, and raises as it does.
      engine: that searches; None: `ExactEngine` on this process's devices. Several memories may take turns with one.
      wait: seconds that a change waits for another program's; it is then made to the version that is there. With 0 it
        is refused, also if another program has changed the memory since it was opened."""

    def __init__(
        self, folder: str | Path, engine: Engine | None = None, encoder: str | None = None, wait: int | float = 0
    ):
        super().__init__(folder, encoder)
        self.engine, self.wait = engine, wait

    @classmethod
    def create(cls, folder: str | Path, layout: Layout, engine: Engine | None = None) -> "Memory":
        """An empty memory in a new folder; for many items, see `Builder`. Raises FileExistsError."""
        Builder(folder, layout).finish()
        return cls(folder, engine)

    @classmethod
    def load(cls, folder: str | Path, engine: Engine | None = None, encoder: str | None = None) -> "Memory":
        """Opens a folder; the same as the constructor."""
        return cls(folder, engine, encoder)

    def search(self, query: Any, k: int, sources: Sequence[str] | None = None, log_gate: Any = None) -> SearchResult:
        """The k best items of each query [b d] (of several vectors: [b q d]), of all sources or of those named;
        `log_gate` [b s] is of all sources. Raises ValueError as `Engine.search`."""
        if self.engine is None:
            from reveal.memory.engines.exact import ExactEngine

            self.engine = ExactEngine()
        engine = self.engine

        def found() -> SearchResult:
            numbers = None if sources is None else [self.layout.number(source) for source in sources]
            if _SEARCHED.get(engine) != (self._token, self.manifest):
                _SEARCHED.pop(engine, None)  # an update that fails leaves keys of neither
                engine.update(self.rows(), len(self.layout.sources), self.version)
                _SEARCHED[engine] = self._token, self.manifest
            return engine.search(query, k, sources=numbers, log_gate=log_gate)

        return self.of_one_version(found)

    # Reads of the base class, also when another program has removed the files that were open:

    def items(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> list[Item]:
        return self.of_one_version(super().items, ids)

    def keys(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> np.ndarray:
        return self.of_one_version(super().keys, ids)

    def values(self, ids: Sequence[int] | Int[np.ndarray, "*n"]) -> np.ndarray:
        return self.of_one_version(super().values, ids)

    def rows(self) -> Rows:
        return self.of_one_version(super().rows)

    def verify(self) -> None:
        self.of_one_version(super().verify)

    def reopen(self) -> bool:
        """Opens the version on the disk; returns whether another program has changed it. Raises as the constructor."""
        manifest = read_manifest(self.folder)
        if manifest == self.manifest:
            return False
        present = Snapshot(self.folder, self.layout.encoder)
        before, after = (
            {(one.info.name, one.info.files["ids.npy"], one.info.files["keys.npy"]) for one in snapshot.shards}
            for snapshot in (self, present)
        )
        if before and before <= after:  # the same memory, so engines keep the keys that they have
            present._token = self._token
        self.__dict__.update(vars(present))
        return True

    def of_one_version(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """What `read` returns. It is called again, up to `ROUNDS` times, in the present version if it missed what
        another program has changed, or if one of its own reads has opened that version. Raises as it does."""
        for _ in range(ROUNDS):
            begun = self.manifest
            try:
                result = read(*arguments)
            except (FileNotFoundError, ValueError):
                if self.manifest is begun and not self.reopen():
                    raise
            else:
                if self.manifest is begun:
                    return result
        raise ValueError(f"{self.folder} changes faster than it is read: try again when fewer programs write")

    def add(self, items: Sequence[Item], keys: Any, values: Any) -> list[int]:
        """Adds items in a new version, and returns their ids. Raises as `Change.add`."""
        with self.changing() as change:
            return change.add(items, keys, values)

    def edit(self, items: Sequence[Item], keys: Any, values: Any) -> None:
        """Puts items in the place of those with their ids, in a new version. Raises as `Change.edit`, and ValueError
        for one that another program has changed since this memory was opened."""
        before, opened = self.manifest, self.version
        with self.changing() as change:
            change.edit(items, keys, values)
            if self.manifest is not before:
                if self.version <= opened:
                    raise ValueError(f"{self.folder} has been replaced by another program: edit it again")
                rows = self.rows()
                if late := {item.id for item in items} & set(rows.ids[rows.versions > opened].tolist()):
                    raise ValueError(f"another program has changed item {late.pop()} of {self.folder}: edit it again")

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Deletes items, in a new version. Raises as `Change.delete`."""
        with self.changing() as change:
            change.delete(ids)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Change]:
        """What the body adds, edits and deletes becomes one new version, or nothing if the body raises. Raises
        ValueError if another program has changed the memory, or is changing it."""
        with self._next_version() as version:
            change = Change(self, version)
            yield change
            if (shards := change.finish()) is not None:
                self._commit(self._merged(shards, version), version=version, next_id=change.next_id)

    def compact(self) -> None:
        """Writes the live items anew, in the order of their ids, as a new version, and removes all other files."""
        self._renew(self.layout, None)

    def refresh(self, encode: Encode, encoder: str, **shape: Any) -> None:
        """Encodes every item anew with a network of that fingerprint; `shape` has the fields of `Layout` that differ.
        Raises ValueError, before anything is encoded, for `sources` that lack one of the items'."""
        layout = dataclasses.replace(self.layout, encoder=encoder, **shape)
        for source in (name for name, count in self.sources.items() if count):
            layout.number(source)
        self._renew(layout, encode)

    def save(self, folder: str | Path) -> None:
        """A compact copy of this version in a new folder."""
        with atomic_folder(folder, durable=True) as temporary:
            shards = self._rewrite(temporary, self.layout, self.version, None)
            write_manifest(temporary, dataclasses.replace(self.manifest, shards=tuple(one.info for one in shards)))
            if (self.folder / ENCODER).is_file():
                shutil.copyfile(self.folder / ENCODER, temporary / ENCODER)

    def _renew(self, layout: Layout, encode: Encode | None) -> None:
        """The next version from the live items alone."""
        with self._next_version() as version:
            self._commit(self._rewrite(self.folder, layout, version, encode), version=version, layout=layout)
        remove_indexes(self.folder)  # of files that are gone

    def _merged(self, shards: list[Shard], version: int) -> list[Shard]:
        """The shards of a version that is being written, with `FAN` of one size merged (module docstring)."""
        sizes: dict[int, list[Shard]] = {}
        for shard in shards:
            rows = sum(shard.info.counts)
            if rows < SHARD // FAN:
                sizes.setdefault((max(rows, 1).bit_length() - 1) // (FAN.bit_length() - 1), []).append(shard)
        group = next((found[:FAN] for found in sizes.values() if len(found) >= FAN), None)
        if group is None:
            return shards
        part = copy.copy(self)  # of the group alone
        part.shards = group
        merged = part._rewrite(self.folder, self.layout, version, None)
        return [shard for shard in shards if shard not in group] + merged

    def _rewrite(self, folder: Path, layout: Layout, version: int, encode: Encode | None) -> list[Shard]:
        """Shards of the live items, in the order of ids, encoded anew or as they are."""
        rows, shards = self.rows(), []
        begun = len(list(folder.glob(f"v{version:05d}-*")))
        for first in range(0, len(rows), SHARD):
            name, last = shard_name(version, begun + len(shards)), min(first + SHARD, len(rows))
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
        """The number of the next version, while no other program changes the memory; of one that fails nothing
        stays."""
        with Lock(self.folder, "changing", self.wait):
            layout = self.layout
            if self.wait and self.reopen() and self.layout != layout:
                raise ValueError(f"{self.folder} was encoded anew by another program: load it again")
            manifest, version = read_manifest(self.folder), self.version + 1
            if manifest != self.manifest:
                versions = f"version {manifest.version}, opened at {self.version}"
                raise ValueError(f"{self.folder} was changed or replaced ({versions}): load it again")

            def forget() -> None:
                remove_partial(self.folder)
                self._remove_other_shards()
                for shard in self.shards:
                    (shard.folder / f"deleted-{version}.npy").unlink(missing_ok=True)

            forget()  # what a program that was killed has begun, or had no time to remove
            try:
                yield version
            except BaseException:
                if read_manifest(self.folder).version < version:
                    forget()
                raise

    def _commit(self, shards: list[Shard], **fields: Any) -> None:
        manifest = dataclasses.replace(self.manifest, shards=tuple(shard.info for shard in shards), **fields)
        write_manifest(self.folder, manifest)
        replaced = {one.folder / one.info.deleted for one in self.shards if one.info.deleted}
        replaced -= {one.folder / one.info.deleted for one in shards if one.info.deleted}
        self.manifest, self.shards = manifest, shards
        self._remove_other_shards()
        for path in replaced:  # readers of the version before find the new one (`reopen`)
            path.unlink(missing_ok=True)

    def _remove_other_shards(self) -> None:
        for folder in set(self.folder.iterdir()) - {shard.folder for shard in self.shards}:
            if SHARD_NAME.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
