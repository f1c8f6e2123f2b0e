"""The store: a memory on the disk. Opened in an instant, read where asked, changed without touching what is there.

    store = Store("memory")                         # the manifest and the headers of the shards; nothing else
    store.delete([17])                              # a bit in a bitmap
    store.edit([Item("kg", {"text": "..."}, id=18)], keys, values)     # a bit, and a new small shard

Each change is a new version (`manifest.py`): it is there whole, or not at all, and only one program changes a memory at
a time. Rows of deleted and edited items stay in their files until `compact` writes the live ones anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from common.io.files import atomic_folder
from reveal.memory.builder import SHARD, remove_partial, shard_name
from reveal.memory.change import Change
from reveal.memory.items import Item, pack
from reveal.memory.lock import Lock
from reveal.memory.manifest import Layout, Manifest, ShardInfo, read_manifest, write_manifest
from reveal.memory.shard_writer import new_shard, read_info, stored
from reveal.memory.snapshot import Snapshot

Encode = Callable[[list[Item]], tuple[np.ndarray, np.ndarray]]  # -> keys [n k], values [n c d]
BATCH = 256  # items in RAM at a time where all are gone through


class Store(Snapshot):
    """A memory's folder, to read and to change; made as `Snapshot`, and raises as it does."""

    def add(self, items: Sequence[Item], keys: np.ndarray, values: np.ndarray) -> list[int]:
        """New items, one version more; their ids. Raises ValueError for an id that is there, and as `Builder.add`."""
        with self.changing() as change:
            return change.add(items, keys, values)

    def edit(self, items: Sequence[Item], keys: np.ndarray, values: np.ndarray) -> None:
        """Puts items in the place of those with their ids, one version more. Raises ValueError for an id that is not
        there, and as `Builder.add`."""
        with self.changing() as change:
            change.edit(items, keys, values)

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Takes items out, one version more. Raises ValueError for an id that is not there."""
        with self.changing() as change:
            change.delete(ids)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Change]:
        """For many items: what is added, edited and deleted in the body is one version more when it has ended well,
        and else nothing."""
        with self._change() as version:
            change = Change(self, version)
            yield change
            if (manifest := change.manifest()) is not None:
                self._save(manifest)

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
        """Only one program at a time, and only of the version that it knows; the number of the next. What was written
        of a change that does not end well goes."""
        with Lock(self.folder, "changing"):
            found, known = read_manifest(self.folder), self.manifest
            if found.version != known.version:
                raise ValueError(
                    f"{self.folder} is at version {found.version} by now, not {known.version}: load it again"
                )
            if found.hash() != known.hash():
                raise ValueError(f"{self.folder} is another memory by now: load it again")
            version = known.version + 1
            remove_partial(self.folder)
            self._remove(version)  # of a program that was killed
            try:
                yield version
            except BaseException:
                if read_manifest(self.folder).version < version:
                    self._remove(version)
                raise

    def _remove(self, version: int) -> None:
        """The shards that this version has written."""
        for shard in self.folder.glob(f"v{version:05d}-*"):
            shutil.rmtree(shard)

    def _save(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self._take(manifest)

    def _clean(self) -> None:
        named = {info.name for info in self.manifest.shards}
        for folder in self.folder.glob("v?????-?????"):
            if folder.name not in named:
                shutil.rmtree(folder)
