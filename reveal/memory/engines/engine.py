"""Search engines: they find the k items whose keys answer a query best. One interface, three implementations.

    score(query, item) = query . key + log_gate[source of the item]

is what every engine ranks by. Of keys and queries of several vectors (late interaction: ColBERT, Khattab and Zaharia,
SIGIR 2020; of images FLMR, Lin et al., NeurIPS 2023) the first part is, for query vectors q_i and key vectors k_j,

    MaxSim = sum over i of the largest q_i . k_j of all j

The gate is added before anything is selected: a selection by the bare product first would lose items of a trusted
source for good, and a gate that multiplies would prefer, among keys that point away from the query, those of the source
that is trusted least (both are what the reference does).

| engine | name | what for |
| --- | --- | --- |
| `ExactEngine` | exact | the default: in JAX, keys split over the devices; alone compares keys of several vectors |
| `FaissEngine` | faiss, faiss:ivfpq, faiss:hnsw | the host's RAM: approximate, for millions of items (extra `faiss`) |
| `MilvusEngine` | keys.db, http://host:19530 | a file or a server: beyond a machine's RAM (extra `milvus`) |

`update` gives an engine live items only, in the order of their ids. Among equal scores the smaller id comes first.
Where fewer than k items may be chosen from, the rest is id -1, source -1, score -inf.
"""

import hashlib
import importlib
import logging
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, UInt64

NOTHING = -1  # the id, and the source, of what was not found


@dataclass(frozen=True, eq=False)
class Rows:
    """Live items in the order of their ids; the keys are fetched in pieces."""

    ids: Int[np.ndarray, " n"]  # rising
    source: Integer[np.ndarray, " n"]  # numbers
    versions: Integer[np.ndarray, " n"]  # of the memory when the item got its key: id and version identify the key
    keys: Callable[[int, int], Any]  # (start, stop) -> keys of those rows
    key_dim: int
    memory: str = ""  # drawn name of the memory; equal ids and versions of another one have other keys
    key_vectors: int = 1  # of each key, one after the other in its numbers
    # of each row, for what outlives a program: equal ids and origins have equal keys, in all memories; 0, None: unknown
    origins: Callable[[], UInt64[np.ndarray, " n"]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(
        cls,
        ids: Int[np.ndarray, " n"],
        source: Integer[np.ndarray, " n"],
        keys: Float[np.ndarray, "n k"],
        versions: Integer[np.ndarray, " n"] | None = None,
    ) -> "Rows":
        """Rows of arrays in any order. Raises ValueError if an id is there twice."""
        order = np.argsort(ids, kind="stable")
        ids, keys, made = ids[order], keys[order], np.zeros(len(ids), np.int32) if versions is None else versions
        if len(twice := ids[1:][np.diff(ids) == 0]):
            raise ValueError(f"id {twice[0]} is there twice; give each item its own")
        return cls(ids, source[order], made[order], lambda start, stop: keys[start:stop], keys.shape[1])


class SearchResult(NamedTuple):
    """The best k items of each query, best first."""

    ids: Int[np.ndarray, "b k"]  # -1 where there was none
    scores: Float[np.ndarray, "b k"]  # with the gate; -inf where there was none
    sources: Int[np.ndarray, "b k"]  # numbers; -1 where there was none
    version: int  # of the memory that was searched

    @property
    def present(self) -> Bool[np.ndarray, "b k"]:
        return self.ids != NOTHING


@runtime_checkable
class Engine(Protocol):
    def update(self, rows: Rows, sources: int, version: int) -> None:
        """From now on search `rows`, of `sources` sources. A row whose id and version were there before has the same
        key, as long as `rows.memory` is the same."""
        ...

    def search(
        self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None
    ) -> SearchResult:
        """The k best items of each query [b d] (of several vectors: [b q d]), of some sources by their numbers, or of
        all; `log_gate` [b s] is of all sources. Raises ValueError for shapes that do not fit, k below 1, a source that
        is not there."""
        ...


def optional(package: str, extra: str) -> Any:
    """Imports a package. Raises ImportError that names the extra which installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        install = f"pip install 'film-plugins-reveal[{extra}]'"
        raise ImportError(f"{package} is not installed: install the extra: {install}") from error


def engine_of(name: str, memory: str | Path, token: str = "") -> Engine | None:
    """The engine of a name in the module's table for the memory in a folder; None: the exact one. `token` is Milvus',
    whose collection is named by host and folder, so that it keeps a memory's keys from program to program.

    Raises ValueError for another name, ImportError without the extra, ConnectionError without a Milvus there."""
    if name == "exact":
        return None
    family, _, kind = name.partition(":")
    if family == "faiss":
        from reveal.memory.engines.faiss_engine import FaissEngine
        from reveal.memory.folder import INDEXES

        return FaissEngine(kind or "flat", folder=Path(memory) / INDEXES)
    if name.endswith(".db") or "://" in name:
        from reveal.memory.engines.milvus_engine import MilvusEngine

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # its tracebacks come back as errors of one line
        place = hashlib.sha256(f"{platform.node()}:{Path(memory).resolve()}".encode()).hexdigest()[:12]
        return MilvusEngine(name, f"reveal_{place}", token=token, reuse=True)
    raise ValueError(f"engine is {name!r}: choose exact, faiss, or Milvus by its file (x.db) or address (http://...)")


def check_one_vector(rows: Rows, engine: Engine) -> None:
    """Raises ValueError for keys of several vectors."""
    if rows.key_vectors > 1:
        found = f"keys have {rows.key_vectors} vectors, {type(engine).__name__} compares one"
        raise ValueError(f"{found}: search them with ExactEngine, the default (--engine exact)")


def check_search(
    queries: Any, k: int, sources: Sequence[int] | None, log_gate: Any, key_dim: int, count: int, several: bool = False
) -> tuple[Float[np.ndarray, "b *q d"], list[int], Float[np.ndarray, "b s"]]:
    """Queries, the chosen of `count` sources in order, and the gate (0 where there is none), as float32. A query is a
    vector of `key_dim` numbers, or with `several` some. Raises as `search`."""
    if not count:
        raise ValueError("the engine has no keys: update it, which has not been done or has failed")
    queries = np.asarray(queries, np.float32)
    if queries.ndim not in ((2, 3) if several else (2,)) or queries.shape[-1] != key_dim or 0 in queries.shape[1:]:
        way_out = f"give [b {key_dim}]" + (f" or [b q {key_dim}]" if several else "")
        raise ValueError(f"queries are {list(queries.shape)}, vectors of keys have {key_dim} numbers; {way_out}")
    if not np.isfinite(queries).all():
        raise ValueError("a query is not finite: every item would match; look at the network that made it")
    if k < 1:
        raise ValueError(f"k is {k}: ask for 1 item or more")
    chosen = sorted(set(range(count) if sources is None else sources))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < count:
        raise ValueError(f"sources are {chosen}: name some of 0 to {count - 1}")
    gate = np.zeros((len(queries), count), np.float32) if log_gate is None else np.asarray(log_gate, np.float32)
    if gate.shape != (len(queries), count):
        raise ValueError(f"log_gate is {list(gate.shape)}, not one number for each query and source")
    if np.isnan(gate).any() or (gate == np.inf).any():
        raise ValueError("log_gate holds NaN or infinity; give logarithms of probabilities")
    return queries, chosen, gate


def merge(
    ids: Int[np.ndarray, "b m"], scores: Float[np.ndarray, "b m"], sources: Int[np.ndarray, "b m"], k: int, version: int
) -> SearchResult:
    """The best k of candidates, each id at most once in a row; filled up where there are fewer."""
    absent = (ids == NOTHING) | (scores == -np.inf)
    order = np.lexsort((ids, -scores, absent), axis=1)[:, :k]

    def best(column: np.ndarray, nothing: int | float, kind: type) -> np.ndarray:
        found = np.take_along_axis(np.where(absent, nothing, column), order, axis=1).astype(kind)
        return np.pad(found, ((0, 0), (0, max(0, k - ids.shape[1]))), constant_values=nothing)

    columns = best(ids, NOTHING, np.int64), best(scores, -np.inf, np.float32), best(sources, NOTHING, np.int64)
    return SearchResult(*columns, version)
