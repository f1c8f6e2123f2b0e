"""One version of a memory on the disk, to read: the manifest at once, anything else where it is asked.

Nothing is held for an item. An id is found by bisection in the shards whose range it is in, its key, value and payload
are read through maps of their files; so opening takes about a millisecond a shard, however large the shards are.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from reveal.memory.engines.engine import Rows
from reveal.memory.items import Item, ids_of, unpack
from reveal.memory.manifest import DTYPES, Layout, Manifest, check_encoder, read_manifest
from reveal.memory.shards import Shard


class Snapshot:
    """A memory's folder.

    Args:
      folder: of the memory.
      encoder: fingerprint of the network that will ask; None: any.

    Raises:
      FileNotFoundError: there is no memory, or a file of it is missing.
      ValueError: made by another encoder, of a newer format, damaged; in one line that names the file.
    """

    def __init__(self, folder: str | Path, encoder: str | None = None):
        self.folder, self.token = Path(folder), secrets.token_hex(8)
        manifest = read_manifest(self.folder)
        check_encoder(manifest.layout, encoder, self.folder)
        self._take(manifest)

    @property
    def layout(self) -> Layout:
        return self.manifest.layout

    def __len__(self) -> int:
        """Live items."""
        return sum(info.live for info in self.manifest.shards)

    def rows(self) -> Rows:
        """What an engine searches."""
        shards = self.shards
        live = [np.flatnonzero(shard.live()) for shard in shards]

        def joined(name: str, dtype: Any) -> np.ndarray:
            parts = [getattr(shard, name)[at] for shard, at in zip(shards, live, strict=True)]
            return np.concatenate([np.zeros(0, dtype), *parts])

        ids = joined("ids", np.int64)
        order = np.argsort(ids, kind="stable")
        home = np.repeat(np.arange(len(live), dtype=np.int32), [len(at) for at in live])[order]
        row = np.concatenate([np.zeros(0, np.int64), *live])[order]

        def keys(start: int, stop: int) -> np.ndarray:
            return self._gather(shards, "keys", home[start:stop], row[start:stop])

        source, versions = joined("source", np.uint8)[order], joined("version", np.int32)[order]
        return Rows(ids[order], source, versions, keys, self.layout.key_dim, self.token)

    def items(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> list[Item]:
        """The items themselves. Raises ValueError for an id that is not there."""
        home, row = self.find(ids)
        found: list[Any] = [None] * len(home)
        for number in np.unique(home):
            at, shard = np.flatnonzero(home == number), self.shards[number]
            numbers, own = shard.source[row[at]].tolist(), shard.ids[row[at]].tolist()
            for place, payload, source, name in zip(at, shard.payloads(row[at]), numbers, own, strict=True):
                found[place] = unpack(payload, self.layout.sources[source], name)
        return found

    def keys(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> np.ndarray:
        """[n k]. Raises as `items`."""
        return self._gather(self.shards, "keys", *self.find(ids))

    def values(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> np.ndarray:
        """[n c d]. Raises as `items`."""
        return self._gather(self.shards, "values", *self.find(ids))

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
            said = f"{len(missing)} ids are not in {self.folder}, {missing[0]} first"
            raise ValueError(f"{said}; give ids that a search has found")
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

    def _take(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.shards = [Shard(self.folder, info, manifest.layout) for info in manifest.shards]

    def _gather(self, shards: Sequence[Shard], name: str, home: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Keys or values, in the order asked for."""
        layout = self.layout
        shape = (layout.key_dim,) if name == "keys" else layout.value_shape
        found = np.empty((len(home), *shape), DTYPES[layout.key_dtype if name == "keys" else layout.value_dtype])
        for number in np.unique(home).tolist():
            at = home == number
            found[at] = getattr(shards[number], name)[row[at]]
        return found
