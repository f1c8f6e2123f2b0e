"""One version of a memory on the disk, to read, and a change that becomes the next version.

Of a snapshot nothing is held in RAM for an item: an id is found by bisection in the shards whose range it is in, its
key, value and payload are read through maps of their files. A change is items in shards that no manifest names yet, and
the ids of those to be deleted; each call writes a shard, so a change of any size takes the RAM of one call:

    with memory.changing() as change:            # one version more at the end, or nothing at all
        for items, keys, values in batches:
            change.add(items, keys, values)
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from reveal.memory.engines.engine import NOTHING, Rows
from reveal.memory.folder import shard_name
from reveal.memory.items import MOST_IDS, Item, ids_of, unpack
from reveal.memory.manifest import DTYPES, Layout, check_encoder, read_manifest
from reveal.memory.shards import Shard, new_shard, stored_rows


class Snapshot:
    """The memory in a folder; `encoder` is the fingerprint of the network that will search, None: any.

    Raises FileNotFoundError if there is none or a file of it is missing; ValueError if another encoder made it, its
    format is newer, or it is damaged."""

    def __init__(self, folder: str | Path, encoder: str | None = None):
        self.folder, self._token = Path(folder), secrets.token_hex(8)
        while True:
            self.manifest = read_manifest(self.folder)
            check_encoder(self.layout, encoder, self.folder)
            try:
                self.shards = [Shard(self.folder, info, self.layout) for info in self.manifest.shards]
                return
            except (FileNotFoundError, ValueError):
                if read_manifest(self.folder) == self.manifest:
                    raise
                # Another program has made the next version meanwhile, and removed files of this one.

    @property
    def layout(self) -> Layout:
        return self.manifest.layout

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def sources(self) -> dict[str, int]:
        """Live items of each source, by name and in the order of their numbers."""
        return self.manifest.counts

    def __len__(self) -> int:
        return sum(self.sources.values())

    def items(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> list[Item]:
        """The items. Raises ValueError for an id that is not there."""
        wanted, (home, row) = ids_of(ids).tolist(), self.find(ids)
        found: list[Any] = [None] * len(home)
        for number in np.unique(home):
            at, shard = np.flatnonzero(home == number), self.shards[number]
            sources = shard.array("source", row[at])[row[at]].tolist()
            for place, payload, source in zip(at.tolist(), shard.payloads(row[at]), sources, strict=True):
                found[place] = unpack(payload, self.layout.sources[int(source)], wanted[place])
        return found

    def keys(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> np.ndarray:
        """[n k]. Raises as `items`."""
        return _gather(self.shards, "keys", self.layout, *self.find(ids))

    def values(self, ids: Sequence[int] | Int[np.ndarray, "*n"]) -> np.ndarray:
        """[... c d]: zeros where an id is -1, that is where nothing was found. Raises as `items`."""
        ids = ids_of(ids)
        values = np.zeros((*ids.shape, *self.layout.value_shape), DTYPES[self.layout.value_dtype])
        there = ids != NOTHING
        values[there] = _gather(self.shards, "values", self.layout, *self.find(ids[there]))
        return values

    def rows(self) -> Rows:
        """The live items, as engines take them."""
        shards, layout = self.shards, self.layout
        live = [np.flatnonzero(shard.live()) for shard in shards]

        def joined(name: str, dtype: Any) -> np.ndarray:
            parts = [shard.array(name)[at] for shard, at in zip(shards, live, strict=True)]
            return np.concatenate([np.zeros(0, dtype), *parts])

        ids = joined("ids", np.int64)
        rising = bool((ids[1:] > ids[:-1]).all())  # after a build
        order = slice(None) if rising else np.argsort(ids, kind="stable")
        home = np.repeat(np.arange(len(live), dtype=np.int32), [len(at) for at in live])[order]
        row = np.concatenate([np.zeros(0, np.int64), *live])[order]

        def keys(start: int, stop: int) -> np.ndarray:
            own, at = home[start:stop], row[start:stop]
            if len(at) and (own == own[0]).all() and (np.diff(at) == 1).all():
                return shards[own[0]].array("keys", at)[at[0] : at[-1] + 1]  # the map itself
            return _gather(shards, "keys", layout, own, at)

        def origins() -> np.ndarray:
            """By the checksums of the files with the rows' keys and ids: no file is read."""
            files = (shard.info.files for shard in shards)
            return np.array([own["keys.npy"][1] << 32 | own["ids.npy"][1] for own in files], np.uint64)[home]

        source, versions = joined("source", np.uint8)[order], joined("version", np.int32)[order]
        own = layout.key_dim, self._token, layout.key_vectors
        return Rows(ids[order], source, versions, keys, *own, origins)

    def verify(self) -> None:
        """Reads everything. Raises ValueError that names every file whose bytes have changed."""
        if damaged := [path for shard in self.shards for path in shard.damaged()]:
            names = "".join(f"\n  {path}" for path in damaged)
            raise ValueError(f"{len(damaged)} files have changed since they were written; copy them again:{names}")

    def find(self, ids: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row) of each id. Raises as `items`."""
        wanted = ids_of(ids)
        home, row = self.locate(wanted)
        if len(missing := wanted[home < 0]):
            raise ValueError(f"{len(missing)} ids are not in {self.folder}, {missing[0]} first; give ids of its items")
        return home, row

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row) of each id; (-1, -1) where there is none."""
        home, row = np.full(len(ids), -1), np.full(len(ids), -1)
        low, high = int(ids.min(initial=MOST_IDS)), int(ids.max(initial=-1))
        for number, shard in enumerate(self.shards):
            if shard.info.last < low or high < shard.info.first:
                continue  # most shards, where single items were added
            may = np.flatnonzero((ids >= shard.info.first) & (ids <= shard.info.last))
            if len(may):
                rows = shard.find(ids[may])
                home[may[rows >= 0]], row[may[rows >= 0]] = number, rows[rows >= 0]
        return home, row


class Change:
    def __init__(self, before: Snapshot, version: int):
        self._before, self._version, self.next_id = before, version, before.manifest.next_id
        self._written: list[Shard] = []
        self._edited, self._deleted = ids_of([]), ids_of([])

    def add(self, items: Sequence[Item], keys: Any, values: Any) -> list[int]:
        """New items; their ids. Raises ValueError, having written nothing, for an id that is there, and as
        `shards.stored_rows`."""
        ids = self._with_new_ids(items)
        if min(ids, default=0) < 0:
            raise ValueError(f"id {min(ids)} is below 0, which stands for nothing found; give another, or none")
        if len(taken := ids_of(ids)[self._before.locate(ids_of(ids))[0] >= 0]):
            raise ValueError(f"{len(taken)} ids are in {self._before.folder} already, {taken[0]} first; edit those")
        self._write(items, ids, keys, values)
        return ids

    def edit(self, items: Sequence[Item], keys: Any, values: Any) -> None:
        """Items in the place of those with their ids. Raises ValueError, having written nothing, for an id that is not
        there, and as `shards.stored_rows`."""
        ids = [item.id for item in items if item.id is not None]
        if len(ids) < len(items):
            raise ValueError("an item to edit has no id; give it the one that it has in the memory, or add it")
        self._before.find(ids)
        self._write(items, ids, keys, values)
        self._edited = np.append(self._edited, ids_of(ids))

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Deletes items. Raises ValueError for an id that is not there."""
        self._before.find(ids)
        self._deleted = np.append(self._deleted, ids_of(ids))

    def reserve(self, number: int) -> None:
        """Leaves the ids below to items that bring them: new ones are not smaller."""
        self.next_id = max(self.next_id, number)

    def finish(self) -> list[Shard] | None:
        """The shards of the next version, all files written; None: nothing has changed. Raises ValueError for an id
        that was both edited and deleted."""
        if len(both := np.intersect1d(self._edited, self._deleted)):
            raise ValueError(f"id {both[0]} is edited and deleted in one change; do one of them, or make two changes")
        home, row = self._before.find(np.append(self._edited, self._deleted))
        if not self._written and not len(home):
            return None
        shards = [*self._before.shards, *self._written]
        for number in np.unique(home):
            shards[number] = shards[number].delete(row[home == number], self._version)
        return shards

    def _with_new_ids(self, items: Sequence[Item]) -> list[int]:
        first = max([self.next_id - 1, *(item.id for item in items if item.id is not None)]) + 1
        missing = sum(item.id is None for item in items)
        if missing and first + missing > MOST_IDS:
            raise ValueError(f"no id is left behind {first - 1}; give the items ids of their own")
        new = iter(range(first, first + missing))
        return [next(new) if item.id is None else item.id for item in items]

    def _write(self, items: Sequence[Item], ids: list[int], keys: Any, values: Any) -> None:
        """Writes a shard of items, in the order of ids."""
        if not items:
            return
        before, numbers = self._before, ids_of(ids)
        order = np.argsort(numbers)
        rising = numbers[order]
        near = [one for one in self._written if rising[0] <= one.info.last and one.info.first <= rising[-1]]
        twice = np.concatenate([rising[1:][np.diff(rising) == 0], *(rising[one.find(rising) >= 0] for one in near)])
        if len(twice):
            raise ValueError(f"id {twice[0]} is there twice in one change; give each item an id of its own")
        rows = stored_rows(before.layout, items, numbers, self._version, keys, values)
        name = shard_name(self._version, len(self._written))
        with new_shard(before.folder, name, before.layout) as writer:
            writer.append({name: column[order] for name, column in rows.items()})
        self._written.append(Shard(before.folder, writer.info, before.layout))
        self.reserve(max(ids) + 1)


def _gather(shards: Sequence[Shard], name: str, layout: Layout, home: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Keys or values of the rows `row` of the shards `home`."""
    shape, dtype = ((layout.key_dim,), layout.key_dtype) if name == "keys" else (layout.value_shape, layout.value_dtype)
    found = np.empty((len(home), *shape), DTYPES[dtype])
    for number in np.unique(home).tolist():
        at = home == number
        found[at] = shards[number].array(name, row[at])[row[at]]
    return found
