"""Milvus: a vector database, from a file beside the program to a cluster, by one client (Wang et al., SIGMOD 2021).

    memory = Memory.load("memory", engine=MilvusEngine("keys.db"))                       # milvus-lite: a file
    memory = Memory.load("memory", engine=MilvusEngine("http://host:19530", index="IVF_FLAT"))

One collection holds id, source and key of every live item. `update` sends what is new or changed since the last one and
takes out what is gone; the first update of an engine begins with an empty collection, so one that exists is given up
only with `overwrite`. Each source is searched for itself, with a filter, and the gate is added before the results are
merged: constant within a source, it can lose none. A file is slow (seconds for 100,000 keys) and made for trying out.

The extra `milvus` installs the client and milvus-lite.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from reveal.memory.engine import NOTHING, Found, Rows, check_search, merge

EXTRA = "install the extra: pip install 'film-plugins-reveal[milvus]'"
CHUNK_BYTES = 16 * 2**20  # of keys in a request; a server takes 64 MB
MOST = 16384  # items that a request may ask for


class MilvusEngine:
    """A collection of a Milvus file or server.

    Args:
      uri: a file ending in .db, or the address of a server.
      collection: its name.
      index: FLAT (exact), IVF_FLAT, HNSW or another of the server's.
      token: "user:password" of a server.
      overwrite: give up a collection of that name.

    Raises:
      ImportError: without the extra.
      FileExistsError: the collection is there, without `overwrite`.
    """

    def __init__(
        self,
        uri: str,
        collection: str = "reveal",
        *,
        index: str = "FLAT",
        token: str = "",
        overwrite: bool = False,
    ):
        self._client = _import().MilvusClient(uri=uri, token=token)
        self.collection, self._index = collection, index
        if self._client.has_collection(collection):
            if not overwrite:
                self.close()
                raise FileExistsError(f"{uri} holds a collection {collection!r}; give another name or overwrite=True")
            self._client.drop_collection(collection)
        self._ids, self._versions = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._sources, self._version, self._width = 0, 0, 0

    def update(self, rows: Rows, sources: int, version: int) -> None:
        """As `Engine`; only differences are sent."""
        if rows.key_dim != self._width:
            self._create(rows.key_dim)
        gone = np.setdiff1d(self._ids, rows.ids)
        chunk = max(1, CHUNK_BYTES // (4 * rows.key_dim))
        for start in range(0, len(gone), chunk):
            self._client.delete(self.collection, ids=gone[start : start + chunk].tolist())
        before = np.full(len(rows), -1)
        there = np.isin(rows.ids, self._ids)
        before[there] = self._versions[np.searchsorted(self._ids, rows.ids[there])]
        for start in range(0, len(rows), chunk):
            changed = start + np.flatnonzero(before[start : start + chunk] != rows.versions[start : start + chunk])
            if len(changed):
                keys = np.asarray(rows.keys(start, min(start + chunk, len(rows))), np.float32)
                data = [
                    {"id": int(rows.ids[row]), "source": int(rows.source[row]), "key": keys[row - start]}
                    for row in changed
                ]
                self._client.upsert(self.collection, data)
        self._ids, self._versions = rows.ids, rows.versions
        self._sources, self._version = sources, version

    def search(self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None) -> Found:
        """As `Engine`. Raises also for k above what Milvus gives."""
        queries, chosen, gate = check_search(queries, k, sources, log_gate, self._width, self._sources)
        if k > MOST:
            raise ValueError(f"k is {k}: Milvus gives at most {MOST} items")
        ids = np.full((len(queries), len(chosen), k), NOTHING)
        scores = np.full(ids.shape, -np.inf, np.float32)
        for place, number in enumerate(chosen if len(queries) else []):
            answer = self._client.search(
                self.collection,
                data=list(queries),
                limit=k,
                filter="" if self._sources == 1 else f"source == {number}",  # a filter takes as long as the search
                anns_field="key",
                search_params={"metric_type": "IP"},
                consistency_level="Strong",
            )
            for row, hits in enumerate(answer):
                ids[row, place, : len(hits)] = [hit["id"] for hit in hits]
                scores[row, place, : len(hits)] = [hit["distance"] for hit in hits]
        scores += gate[:, chosen, None]
        origins = np.broadcast_to(np.array(chosen)[:, None], ids.shape)
        ids, scores, origins = (x.reshape(len(queries), len(chosen) * k) for x in (ids, scores, origins))
        return merge(ids, scores, origins, k, self._version)

    def close(self) -> None:
        self._client.close()

    def _create(self, width: int) -> None:
        if self._client.has_collection(self.collection):
            self._client.drop_collection(self.collection)
        kinds = importlib.import_module("pymilvus").DataType
        schema = self._client.create_schema(auto_id=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("source", kinds.INT16)
        schema.add_field("key", kinds.FLOAT_VECTOR, dim=width)
        params = self._client.prepare_index_params()
        params.add_index("key", index_type=self._index, metric_type="IP")
        self._client.create_collection(self.collection, schema=schema, index_params=params)
        self._ids, self._versions, self._width = np.zeros(0, np.int64), np.zeros(0, np.int64), width


def _import() -> Any:
    try:
        return importlib.import_module("pymilvus")
    except ImportError as error:
        raise ImportError(f"pymilvus is not installed: {EXTRA}") from error
