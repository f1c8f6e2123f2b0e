"""A change in progress: items in shards that no manifest names yet, and the ids of those to be deleted.

    with memory.changing() as change:            # one version more at the end, or nothing at all
        for items, keys, values in batches:
            change.add(items, keys, values)

Each call writes a shard, so a change of any size takes the RAM of one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from reveal.memory.folder import shard_name
from reveal.memory.items import MOST_IDS, Item, ids_of
from reveal.memory.manifest import Manifest
from reveal.memory.shards import Shard, new_shard, read_info, rows_of
from reveal.memory.snapshot import Snapshot


class Change:
    """What becomes the next version of a memory.

    Args:
      before: the memory as it is.
      version: the next one's number.
    """

    def __init__(self, before: Snapshot, version: int):
        self._before, self._version, self._next = before, version, before.manifest.next_id
        self._written: list[Shard] = []
        self._deleted: list[int] = []

    def add(self, items: Sequence[Item], keys: Any, values: Any) -> list[int]:
        """New items; their ids. Raises ValueError for an id that is there, and as `shards.rows_of`; then nothing of
        this call was written."""
        ids = self._with_new_ids(items)
        if min(ids, default=0) < 0:
            raise ValueError(f"id {min(ids)} is below 0, which stands for nothing found; give another, or none")
        home, _ = self._before.locate(ids_of(ids))
        there = [number for number, at in zip(ids, home, strict=True) if at >= 0]
        if there:
            raise ValueError(f"{len(there)} ids are in {self._before.folder} already, {there[0]} first; edit those")
        self._write(items, ids, keys, values)
        return ids

    def edit(self, items: Sequence[Item], keys: Any, values: Any) -> None:
        """Items in the place of those with their ids. Raises ValueError for an id that is not there, and as
        `shards.rows_of`; then nothing of this call was written."""
        ids = [item.id for item in items if item.id is not None]
        if len(ids) < len(items):
            raise ValueError("an item to edit has no id; give it the one that it has in the memory, or add it")
        self._before.find(ids)
        self._write(items, ids, keys, values)
        self._deleted += ids

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Deletes items. Raises ValueError for an id that is not there."""
        self._before.find(ids)
        self._deleted += map(int, ids)

    def reserve(self, number: int) -> None:
        """Leaves the ids below to items that bring them: new ones are not smaller."""
        self._next = max(self._next, number)

    def manifest(self) -> Manifest | None:
        """Of the next version, with the files it needs written; None: nothing has changed."""
        if not self._written and not self._deleted:
            return None
        before = self._before
        home, row = before.find(self._deleted)
        infos = [*before.manifest.shards, *(shard.info for shard in self._written)]
        for number in np.unique(home):
            infos[number] = before.shards[number].delete(row[home == number], self._version)
        return dataclasses.replace(before.manifest, version=self._version, next_id=self._next, shards=tuple(infos))

    def _with_new_ids(self, items: Sequence[Item]) -> list[int]:
        first = max([self._next - 1, *(item.id for item in items if item.id is not None)]) + 1
        missing = sum(item.id is None for item in items)
        if missing and first + missing > MOST_IDS:
            raise ValueError(f"no id is left behind {first - 1}; give the items ids of their own")
        new = iter(range(first, first + missing))
        return [next(new) if item.id is None else item.id for item in items]

    def _write(self, items: Sequence[Item], ids: list[int], keys: Any, values: Any) -> None:
        """A shard, in the order of ids."""
        if not items:
            return
        before, numbers = self._before, ids_of(ids)
        order = np.argsort(numbers)
        self._refuse_twice(numbers[order])
        rows = rows_of(before.layout, items, numbers, self._version, keys, values)
        name = shard_name(self._version, len(self._written))
        with new_shard(before.folder, name, before.layout) as writer:
            writer.append(rows.take(order))
        self._written.append(Shard(before.folder, read_info(before.folder / name), before.layout))
        self._next = max(self._next, max(ids) + 1)

    def _refuse_twice(self, ids: Int[np.ndarray, " n"]) -> None:
        """Raises ValueError for an id, of rising ones, that is there twice in this change."""
        twice = ids[1:][np.diff(ids) == 0]
        for shard in self._written:
            if not len(twice) and ids[0] <= shard.info.last and shard.info.first <= ids[-1]:
                twice = ids[shard.find(ids) >= 0]
        if len(twice):
            raise ValueError(f"id {twice[0]} is there twice in one change; give each item an id of its own")
