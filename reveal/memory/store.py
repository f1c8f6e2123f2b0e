"""The store: a memory on the disk. Opened in an instant, read where asked, changed without touching what is there.

    store = Store("memory")                         # the manifest and the headers of the shards; nothing else
    store.delete([17])                              # a bit in a bitmap
    store.edit([Knowledge("kg", {"text": "..."}, id=18)], keys, values)     # a bit, and a new small shard

Each change is a new version (`manifest.py`): it is there whole, or not at all, and only one program changes a memory at
a time. Rows of deleted and edited items stay in their files until `compact` writes the live ones anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from common.files import atomic_folder
from reveal.memory.builder import SHARD, remove_partial, shard_name
from reveal.memory.items import Knowledge, pack
from reveal.memory.manifest import Layout, Manifest, ShardInfo, read_manifest, write_manifest
from reveal.memory.shard_writer import new_shard, read_info, stored
from reveal.memory.shards import tombstones
from reveal.memory.snapshot import Snapshot

Encode = Callable[[list[Knowledge]], tuple[np.ndarray, np.ndarray]]  # -> keys [n k], values [n c d]
LOCK = ".lock"
BATCH = 256  # items in RAM at a time where all are gone through


class Store(Snapshot):
    """A memory's folder, to read and to change; made as `Snapshot`, and raises as it does."""

    def add(self, items: Sequence[Knowledge], keys: np.ndarray, values: np.ndarray) -> list[int]:
        """New items, one version more; their ids. Raises ValueError for an id that is there, and as `Builder.add`."""
        with self._change() as version:
            ids = self._fresh(items)
            if min(ids, default=0) < 0:
                raise ValueError(f"id {min(ids)} is below 0, which stands for nothing found; give another, or none")
            home, _ = self._locate(np.array(ids, np.int64))
            there = [number for number, at in zip(ids, home, strict=True) if at >= 0]
            if there:
                raise ValueError(f"{len(there)} ids are in {self.folder} already, {there[0]} first; edit those")
            self._commit(version, lambda: self.manifest.shards, items, ids, keys, values)
        return ids

    def edit(self, items: Sequence[Knowledge], keys: np.ndarray, values: np.ndarray) -> None:
        """Puts items in the place of those with their ids, one version more. Raises ValueError for an id that is not
        there, and as `Builder.add`."""
        with self._change() as version:
            ids = [item.id for item in items if item.id is not None]
            if len(ids) < len(items):
                raise ValueError("an item to edit has no id; give it the one that it has in the memory, or add it")
            self._commit(version, lambda: self._without(ids, version), items, ids, keys, values)

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Takes items out, one version more. Raises ValueError for an id that is not there."""
        with self._change() as version:
            if len(ids):
                shards = self._without(ids, version)
                self._save(dataclasses.replace(self.manifest, version=version, shards=shards))

    def compact(self) -> None:
        """Writes the live items anew, in the order of their ids, and removes all other files; one version more. Other
        programs that have the memory open have to open it again."""
        with self._change() as version:
            shards = self._rewrite(self.folder, self.layout, version, None)
            self._save(dataclasses.replace(self.manifest, version=version, shards=shards))
            self._clean()

    def refresh(self, encode: Encode, encoder: str, **shape: Any) -> None:
        """Encodes every item again with a network of that fingerprint, one version more; as `compact` otherwise.

        `shape` has the fields of `Layout` that are others in that network. Raises ValueError, before anything is
        encoded, for `sources` that lack one of the items'."""
        with self._change() as version:
            layout = dataclasses.replace(self.layout, encoder=encoder, **shape)
            for source in (name for name, count in self.manifest.counts.items() if count):
                layout.number(source)
            shards = self._rewrite(self.folder, layout, version, encode)
            self._save(dataclasses.replace(self.manifest, layout=layout, version=version, shards=shards))
            self._clean()

    def save(self, folder: str | Path) -> None:
        """A compact copy of this version in a new folder."""
        with atomic_folder(folder) as temporary:
            shards = self._rewrite(temporary, self.layout, self.manifest.version, None)
            write_manifest(temporary, dataclasses.replace(self.manifest, shards=shards))

    def _fresh(self, items: Sequence[Knowledge]) -> list[int]:
        """Ids for all, new ones where an item has none."""
        given = [item.id for item in items if item.id is not None]
        following = iter(range(max([self.manifest.next_id - 1, *given]) + 1, 2**62))
        return [next(following) if item.id is None else item.id for item in items]

    def _without(self, ids: Sequence[int] | np.ndarray, version: int) -> tuple[ShardInfo, ...]:
        home, row = self._find(ids)
        infos = list(self.manifest.shards)
        for number in np.unique(home):
            infos[number] = tombstones(self._shards[number], row[home == number], version)
        return tuple(infos)

    def _commit(
        self,
        version: int,
        before: Callable[[], tuple[ShardInfo, ...]],
        items: Sequence[Knowledge],
        ids: list[int],
        keys: Any,
        values: Any,
    ) -> None:
        """Writes a shard of `items` and makes it, behind those of `before`, the next version."""
        if not len(items) == len(keys) == len(values):
            raise ValueError(f"{len(items)} items, {len(keys)} keys, {len(values)} values: give one of each")
        if len(set(ids)) < len(ids):
            raise ValueError("an id is there twice in one change; give each item once")
        if not items:
            return
        order = np.argsort(ids)
        source = np.array([self.layout.number(item.source) for item in items])[order]
        payloads = [pack(items[at]) for at in order]
        keys, values = stored(self.layout, np.array(ids), keys, values)
        shards, name = before(), shard_name(version, 0)
        with new_shard(self.folder, name, self.layout) as writer:
            versions = np.full(len(items), version, np.int32)
            writer.append(np.array(ids)[order], source, versions, keys[order], values[order], payloads)
        following = max(self.manifest.next_id, max(ids) + 1)
        self._save(Manifest(self.layout, version, following, (*shards, read_info(self.folder / name))))

    def _rewrite(self, folder: Path, layout: Layout, version: int, encode: Encode | None) -> tuple[ShardInfo, ...]:
        """Shards of the live items, in the order of ids, as `encode` has them or as they are."""
        rows, infos = self.rows(), []
        for first in range(0, len(rows), SHARD):
            name = shard_name(version, len(infos))
            with new_shard(folder, name, layout) as writer:
                last = min(first + SHARD, len(rows))
                for start in range(first, last, BATCH):
                    part = slice(start, min(start + BATCH, last))
                    ids = rows.ids[part]
                    items = self.items(ids)
                    made = np.full(len(ids), version, np.int32) if encode else rows.versions[part]
                    keys, values = encode(items) if encode else (self.keys(ids), self.values(ids))
                    payloads = [pack(item) for item in items]
                    source = np.array([layout.number(item.source) for item in items])
                    writer.append(ids, source, made, *stored(layout, ids, keys, values), payloads)
            infos.append(read_info(folder / name))
        return tuple(infos)

    @contextlib.contextmanager
    def _change(self) -> Iterator[int]:
        """Only one program at a time, and only of the version that it knows; the number of the next."""
        with (self.folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ValueError(f"another program is changing {self.folder}; try again when it is done") from error
            if (found := read_manifest(self.folder).version) != self.manifest.version:
                raise ValueError(
                    f"{self.folder} is at version {found} by now, not {self.manifest.version}: load it again"
                )
            version = self.manifest.version + 1
            remove_partial(self.folder)
            for left in self.folder.glob(f"v{version:05d}-*"):  # of a change that did not end
                shutil.rmtree(left)
            yield version

    def _save(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self._take(manifest)

    def _clean(self) -> None:
        named = {info.name for info in self.manifest.shards}
        for folder in self.folder.glob("v?????-?????"):
            if folder.name not in named:
                shutil.rmtree(folder)
