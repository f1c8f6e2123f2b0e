"""Memory: what the network may look up. A store on the disk, an engine to search it, one object.

    memory = Memory.load("memory", encoder=fingerprint(params))
    found = memory.search(queries, k=10, log_gate=gate)      # ids, scores, sources, version
    values = memory.values(found.ids)                        # what the fusion reads
    memory.items(found.ids[0])                               # what a person is shown
    memory.add([Item("kg", {"text": "..."})], keys, values)       # no training; the next search has it

Keys come to the engine at the first search after a change.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from reveal.memory.builder import Builder
from reveal.memory.engines.engine import NOTHING, Engine, Found
from reveal.memory.items import Item
from reveal.memory.manifest import DTYPES, Layout
from reveal.memory.store import Encode, Store

_SEARCHED: weakref.WeakKeyDictionary[Engine, tuple[str, int]] = weakref.WeakKeyDictionary()


class Memory:
    """A store and an engine.

    Args:
      store: the folder.
      engine: that searches; None: `ExactEngine` over all devices. One that several memories have gets each one's keys
        anew when that is its turn.
    """

    def __init__(self, store: Store, engine: Engine | None = None):
        self.store, self._engine = store, engine

    @classmethod
    def create(cls, folder: str | Path, layout: Layout, engine: Engine | None = None) -> Memory:
        """An empty one in a new folder. For many items, `Builder`. Raises FileExistsError."""
        Builder(folder, layout).finish()
        return cls(Store(folder), engine)

    @classmethod
    def load(cls, folder: str | Path, engine: Engine | None = None, encoder: str | None = None) -> Memory:
        """Opens a folder; raises as `Store`."""
        return cls(Store(folder, encoder), engine)

    @property
    def version(self) -> int:
        return self.store.manifest.version

    @property
    def sources(self) -> dict[str, int]:
        """Live items of each source, by name and in the order of their numbers."""
        return self.store.manifest.counts

    def __len__(self) -> int:
        return len(self.store)

    @property
    def engine(self) -> Engine:
        """The engine, up to date."""
        if self._engine is None:
            from reveal.memory.engines.exact_engine import ExactEngine

            self._engine = ExactEngine()
        if _SEARCHED.get(self._engine) != (self.store.token, self.version):
            _SEARCHED.pop(self._engine, None)  # an update that fails leaves keys of neither
            self._engine.update(self.store.rows(), len(self.store.layout.sources), self.version)
            _SEARCHED[self._engine] = self.store.token, self.version
        return self._engine

    def search(self, query: Any, k: int, sources: Sequence[str] | None = None, log_gate: Any = None) -> Found:
        """The k best items of each query [b d], of all sources or of those named; `log_gate` [b s] is of all sources.
        Raises ValueError for shapes that do not fit and for a source that is not there."""
        numbers = None if sources is None else [self.store.layout.number(source) for source in sources]
        return self.engine.search(query, k, sources=numbers, log_gate=log_gate)

    def items(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> list[Item]:
        """The items with those ids. Raises ValueError for one that is not there."""
        return self.store.items(ids)

    def values(self, ids: Int[np.ndarray, "*n"]) -> np.ndarray:
        """[*n c d]: zeros where an id is -1, that is where nothing was found. Raises as `items`."""
        there, layout = ids != NOTHING, self.store.layout
        values = np.zeros((*ids.shape, *layout.value_shape), DTYPES[layout.value_dtype])
        if there.any():
            values[there] = self.store.values(ids[there])
        return values

    def add(self, items: Sequence[Item], keys: Any, values: Any) -> list[int]:
        """New items; their ids. Raises as `Store.add`."""
        return self.store.add(items, np.asarray(keys), np.asarray(values))

    def edit(self, items: Sequence[Item], keys: Any, values: Any) -> None:
        """Items in the place of those with their ids. Raises as `Store.edit`."""
        self.store.edit(items, np.asarray(keys), np.asarray(values))

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Takes items out. Raises as `Store.delete`."""
        self.store.delete(ids)

    def refresh(self, encode: Encode, encoder: str, **shape: Any) -> None:
        """Encodes every item again: `encode` makes keys and values of items, `encoder` is its fingerprint, `shape` what
        is otherwise with it (`Store.refresh`)."""
        self.store.refresh(encode, encoder, **shape)

    def compact(self) -> None:
        """Gives back the space of deleted and edited items."""
        self.store.compact()

    def save(self, folder: str | Path) -> None:
        """A compact copy in a new folder."""
        self.store.save(folder)
