"""The default engine: `exact.py` behind the interface of `engine.py`, for callers outside a program of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from common.training.mesh import make_mesh
from reveal.memory.engines import exact
from reveal.memory.engines.engine import NOTHING, Found, Rows, check_search


class ExactEngine:
    """Keys on the devices, split over them by rows.

    A search compiles once for each k and number of queries, rounded up to a power of two.

    Args:
      mesh: None: all devices.
      dtype: of the keys on the devices; bfloat16 halves their memory and takes about 2 % of recall.
    """

    def __init__(self, mesh: Mesh | None = None, dtype: str = "float32"):
        self.mesh, self._dtype = mesh or make_mesh(), dtype
        self._place(Rows.of(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 1), np.float32)), 1)
        self._version = 0

    def update(self, rows: Rows, sources: int, version: int) -> None:
        """As `Engine`. Where items have only gone they are masked; else it takes as long as copying the keys."""
        kept = np.isin(self.ids, rows.ids, assume_unique=True)
        same = (rows.memory, sources, rows.key_dim) == (self._memory, self._sources, self.index.keys.shape[1])
        if same and np.array_equal(self.ids[kept], rows.ids) and np.array_equal(self._made[kept], rows.versions):
            source = np.full(len(self.ids), sources)
            source[kept] = rows.source
            self.index = self.index._replace(source=exact.place_source(source, sources, self.mesh))
        else:
            self._place(rows, sources)
        self._version = version

    def search(self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None) -> Found:
        """As `Engine`."""
        width = self.index.keys.shape[1]
        queries, chosen, gate = check_search(queries, k, sources, log_gate, width, self._sources)
        b = len(queries)
        padding = ((0, (1 << max(b - 1, 0).bit_length()) - b), (0, 0))
        shut = np.where(np.isin(np.arange(self._sources), chosen), gate, -np.inf).astype(np.float32)
        hits = _search(self.index, np.pad(queries, padding), np.pad(shut, padding), k, self.mesh)
        rows, scores, origin = (np.asarray(x)[:b] for x in jax.device_get(hits))
        ids = np.full(rows.shape, NOTHING, np.int64)
        ids[rows != NOTHING] = self.ids[rows[rows != NOTHING]]
        return Found(ids, scores, origin.astype(np.int64), self._version)

    def _place(self, rows: Rows, sources: int) -> None:
        self.index = exact.place(rows, sources, self.mesh, self._dtype)
        self.ids, self._made, self._memory, self._sources = rows.ids, rows.versions, rows.memory, sources


@partial(jax.jit, static_argnums=(3, 4))
def _search(index: exact.Index, queries: Any, log_gate: Any, k: int, mesh: Mesh) -> exact.Hits:
    return exact.search(index, jnp.asarray(queries), k, jnp.asarray(log_gate), mesh)
