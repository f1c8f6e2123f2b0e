"""FAISS: the usual library for approximate nearest neighbours on one machine (Douze et al., 2024, arXiv 2401.08281).

    memory = Memory.load("memory", engine=FaissEngine("ivfpq"))

| kind | index | what for |
| --- | --- | --- |
| `flat` | every key is compared | exact; checks the others |
| `ivfpq` | lists around centres, 4-bit product codes, refined with the keys | millions of items that cluster |
| `hnsw` | a graph | the fastest search; many minutes to build, so for memories that seldom change |

There is one index per source. The gate is constant within a source, so it is added to what each index has found and no
approximation can lose a trusted source; and to search some sources is to leave the others out. A source whose items
are too few for its kind (`FEWEST`) is searched exactly. `update` builds anew the sources that have changed, no others.

Equal scores at the edge of the k best may fall either way: FAISS decides. The extra `faiss` installs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reveal.memory.engines.engine import NOTHING, Rows, SearchResult, check_one_vector, check_search, merge, optional

FEWEST = {"flat": 0, "ivfpq": 10_000, "hnsw": 1_000}  # the kinds
CHUNK = 65536  # keys that are copied at a time
PER_LIST = 1000  # items of a list of `ivfpq`, on average
TRAINING = 100  # keys a centre is found from


@dataclass(frozen=True)
class FaissConfig:
    """Settings of `ivfpq` and of `hnsw`."""

    probes: int = 32  # ivfpq: lists that are searched
    refine: int = 10  # ivfpq: candidates per result that are compared by their keys themselves
    links: int = 32  # hnsw: neighbours of a node
    breadth: int = 256  # hnsw: candidates while searching
    depth: int = 200  # hnsw: candidates while building


class FaissEngine:
    """One FAISS index per source, in the host's RAM.

    Raises ValueError for another kind than the table's, and ImportError without the extra."""

    def __init__(self, kind: str = "flat", config: FaissConfig | None = None):
        if kind not in FEWEST:
            raise ValueError(f"kind {kind!r} is not one of FaissEngine: choose one of {', '.join(FEWEST)}")
        self.kind, self.config, self._faiss = kind, config or FaissConfig(), optional("faiss", "faiss")
        self._parts: dict[int, tuple[np.ndarray, np.ndarray, Any]] = {}  # source -> ids, versions, index
        self._memory, self._sources, self._version, self._width = "", 0, 0, 0

    def update(self, rows: Rows, sources: int, version: int) -> None:
        check_one_vector(rows, self)
        parts, known = {}, self._parts if rows.memory == self._memory else {}
        for number in range(sources):
            at = np.flatnonzero(rows.source == number)
            ids, versions = rows.ids[at], rows.versions[at]
            before = known.get(number)
            if before and np.array_equal(before[0], ids) and np.array_equal(before[1], versions):
                parts[number] = before
            elif len(at):
                parts[number] = ids, versions, self._build(rows, at)
        self._parts, self._memory = parts, rows.memory
        self._sources, self._version, self._width = sources, version, rows.key_dim

    def search(
        self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None
    ) -> SearchResult:
        queries, chosen, gate = check_search(queries, k, sources, log_gate, self._width, self._sources)
        nothing = np.zeros((len(queries), 0), np.int64)
        found = [(nothing, nothing.astype(np.float32), nothing)]  # ids, scores, sources of each index
        for number in chosen:
            if number in self._parts:
                own, _, index = self._parts[number]
                scores, at = index.search(queries, min(k, len(own)))
                ids = np.where(at < 0, NOTHING, own[at])
                found.append((ids, scores + gate[:, [number]], np.full(at.shape, number)))
        ids, scores, origins = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        return merge(ids, scores, origins, k, self._version)

    def _build(self, rows: Rows, at: np.ndarray) -> Any:
        """The index of the rows `at`, which are those of one source."""
        faiss, width, config = self._faiss, rows.key_dim, self.config
        kind = self.kind if len(at) >= FEWEST[self.kind] else "flat"
        if kind == "flat":
            index = faiss.IndexFlatIP(width)
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(width, config.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction, index.hnsw.efSearch = config.depth, config.breadth
        else:
            index = self._ivfpq(rows, at)
        for start in range(0, len(at), CHUNK):
            index.add(_keys(rows, at[start : start + CHUNK]))
        return index

    def _ivfpq(self, rows: Rows, at: np.ndarray) -> Any:
        """An empty IVF-PQ index, trained on a share of the keys."""
        faiss, lists = self._faiss, max(16, len(at) // PER_LIST)
        codes = rows.key_dim // 2 if rows.key_dim % 2 == 0 else rows.key_dim  # two numbers in 4 bits, or one
        index = faiss.index_factory(rows.key_dim, f"IVF{lists},PQ{codes}x4fsr,RFlat", faiss.METRIC_INNER_PRODUCT)
        # with more probes than lists the fast scan finds anything at all, and does not say so
        faiss.extract_index_ivf(index).nprobe = min(self.config.probes, lists)
        index.k_factor = self.config.refine
        count = min(len(at), TRAINING * lists)
        index.train(_keys(rows, np.sort(np.random.default_rng(0).choice(at, count, replace=False))))
        return index


def _keys(rows: Rows, at: np.ndarray) -> np.ndarray:
    """float32 keys of rising rows, without reading more than CHUNK at a time."""
    parts = [np.zeros((0, rows.key_dim), np.float32)]
    for start in range(int(at[0]), int(at[-1]) + 1, CHUNK):
        own = at[(at >= start) & (at < start + CHUNK)]
        if len(own):
            parts.append(np.asarray(rows.keys(int(own[0]), int(own[-1]) + 1)[own - own[0]], np.float32))
    return np.concatenate(parts)
