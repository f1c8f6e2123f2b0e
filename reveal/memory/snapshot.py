"""One version of a memory on the disk, to read: the manifest at once, anything else where it is asked for.

Nothing is held in RAM for an item. An id is found by bisection in the shards whose range it is in; its key, value and
payload are read through maps of their files. So opening takes about a millisecond a shard, however large it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from reveal.memory.engines.engine import NOTHING, Rows
from reveal.memory.items import Item, ids_of, unpack
from reveal.memory.manifest import DTYPES, Layout, Manifest, check_encoder, read_manifest
from reveal.memory.shards import Shard


class Snapshot:
    """A memory's folder.

    Args:
      folder: of the memory.
      encoder: fingerprint of the network that will search; None: any.

    Raises:
      FileNotFoundError: there is no memory, or a file of it is missing.
      ValueError: made by another encoder, of a newer format, damaged; in one line that names the file.
    """

    def __init__(self, folder: str | Path, encoder: str | None = None):
        self.folder, self._token = Path(folder), secrets.token_hex(8)
        manifest = read_manifest(self.folder)
        check_encoder(manifest.layout, encoder, self.folder)
        self._open(manifest)

    def _open(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.shards = [Shard(self.folder, info, manifest.layout) for info in manifest.shards]

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
        """Live items."""
        return sum(info.live for info in self.manifest.shards)

    def items(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> list[Item]:
        """The items. Raises ValueError for an id that is not there."""
        home, row = self.find(ids)
        found: list[Any] = [None] * len(home)
        for number in np.unique(home):
            at, shard = np.flatnonzero(home == number), self.shards[number]
            sources, own_ids = (shard.array(name)[row[at]].tolist() for name in ("source", "ids"))
            for place, payload, source, own_id in zip(at, shard.payloads(row[at]), sources, own_ids, strict=True):
                found[place] = unpack(payload, self.layout.sources[source], own_id)
        return found

    def keys(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> np.ndarray:
        """[n k]. Raises as `items`."""
        return _gather(self.shards, "keys", self.layout, *self.find(ids))

    def values(self, ids: Sequence[int] | Int[np.ndarray, ...]) -> np.ndarray:
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
        order = np.argsort(ids, kind="stable")
        home = np.repeat(np.arange(len(live), dtype=np.int32), [len(at) for at in live])[order]
        row = np.concatenate([np.zeros(0, np.int64), *live])[order]

        def keys(start: int, stop: int) -> np.ndarray:
            return _gather(shards, "keys", layout, home[start:stop], row[start:stop])

        source, versions = joined("source", np.uint8)[order], joined("version", np.int32)[order]
        return Rows(ids[order], source, versions, keys, layout.key_dim, self._token)

    def verify(self) -> None:
        """Reads everything. Raises ValueError that names a file whose bytes have changed."""
        for shard in self.shards:
            shard.verify()

    def find(self, ids: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row) of each id. Raises as `items`."""
        wanted = ids_of(ids)
        home, row = self.locate(wanted)
        if (home < 0).any():
            missing = wanted[home < 0]
            raise ValueError(
                f"{len(missing)} ids are not in {self.folder}, {missing[0]} first; give ids that a search has found"
            )
        return home, row

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row) of each id; (-1, -1) where there is none."""
        home, row = np.full(len(ids), -1), np.full(len(ids), -1)
        for number, shard in enumerate(self.shards):
            may = np.flatnonzero((ids >= shard.info.first) & (ids <= shard.info.last))
            if len(may):
                rows = shard.find(ids[may])
                home[may[rows >= 0]], row[may[rows >= 0]] = number, rows[rows >= 0]
        return home, row


def _gather(shards: Sequence[Shard], name: str, layout: Layout, home: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Keys or values of the rows `row` of the shards `home`."""
    shape, dtype = ((layout.key_dim,), layout.key_dtype) if name == "keys" else (layout.value_shape, layout.value_dtype)
    found = np.empty((len(home), *shape), DTYPES[dtype])
    for number in np.unique(home).tolist():
        at = home == number
        found[at] = shards[number].array(name)[row[at]]
    return found
