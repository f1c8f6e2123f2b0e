"""Milvus: a vector database, from a file beside the program to a cluster, by one client (Wang et al., SIGMOD 2021).

    memory = Memory.load("memory", engine=MilvusEngine("keys.db"))                       # milvus-lite: a file
    memory = Memory.load("memory", engine=MilvusEngine("http://host:19530", index="IVF_FLAT"))

One collection holds id, source and key of every live item. `update` sends what is new or changed since the last one and
deletes what is gone; an engine begins with an empty collection. Each source is searched by itself, with a filter, and
the gate is added before the results are merged: constant within a source, it can lose none. A file is slow (seconds for
100,000 keys) and made for trying out.

With `reuse`, collections outlive the program: `update` looks for one of just these rows, by a digest of them in its
name, and sends nothing if it is there; others of that engine's name are dropped. Until it is complete a collection is
called `..._filling_...`, so that programs that search for the first time at once do not fill the same one; what a
killed one has left is dropped after a day. A program whose collection was dropped makes it again when it searches.

A server that cannot be reached, does not answer in a minute, or refuses, is a ConnectionError in one line. The extra
`milvus` installs the client and milvus-lite.
"""

import contextlib
import hashlib
import importlib
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from reveal.memory.engines.engine import NOTHING, Rows, SearchResult, check_one_vector, check_search, merge, optional

CHUNK_BYTES = 16 * 2**20  # of keys in a request; a server takes 64 MB
MOST = 16384  # items that a request may ask for
PATIENCE, DEADLINE, LOADING = 10, 60, 600  # seconds to connect, for a request, to load a collection from the disk
DIGITS = 16  # of a digest
ABANDONED = 86400  # seconds after which nobody fills a collection any more


class MilvusEngine:
    """A collection of a Milvus file or server.

    Args:
      uri: a file ending in .db, or the address of a server.
      index: FLAT (exact), IVF_FLAT, HNSW or another of the server's.
      token: "user:password" of a server.
      overwrite: drop a collection of that name.
      reuse: `collection` begins the name of one for each contents, which later programs find again.

    Raises ImportError without the extra; ConnectionError where no Milvus is; FileExistsError for a collection that is
    there, without `overwrite`."""

    def __init__(
        self,
        uri: str,
        collection: str = "reveal",
        *,
        index: str = "FLAT",
        token: str = "",
        overwrite: bool = False,
        reuse: bool = False,
    ):
        self._uri, self._reuse, self._milvus = uri, reuse, optional("pymilvus", "milvus")
        self.collection, self._index, self._name = collection, index, collection
        with self._plain_errors():
            self._client = self._milvus.MilvusClient(uri=uri, token=token, timeout=PATIENCE)
            if not reuse and self._call("has_collection", collection):
                if not overwrite:
                    self.close()
                    raise FileExistsError(f"{uri} holds a collection {collection!r}: name another, or set overwrite")
                self._call("drop_collection", collection)
        self._rows: Rows | None = None
        self._sources, self._version = 0, 0

    def update(self, rows: Rows, sources: int, version: int) -> None:
        """As `Engine.update`; only differences are sent."""
        check_one_vector(rows, self)
        before, self._sources = self._rows if self._sources else None, 0  # after one that fails all are sent
        with self._plain_errors():
            if self._reuse:
                self._attach(rows)
                pattern = re.compile(rf"{re.escape(self._name)}_(?:[0-9a-f]{{{DIGITS}}}|filling_(\d+)_[0-9a-f]+)")
                for other in self._call("list_collections"):  # with other contents, or left by killed programs
                    known = pattern.fullmatch(other)
                    if other != self.collection and known and int(known[1] or 0) < time.time() - ABANDONED:
                        self._call("drop_collection", other)
            else:
                if before is None or (before.memory, before.key_dim) != (rows.memory, rows.key_dim):
                    before = None
                    self._create(rows)
                self._send(rows, before)
        self._rows, self._sources, self._version = rows, sources, version

    def _send(self, rows: Rows, before: Rows | None) -> None:
        """Sends what differs from the rows before."""
        ids, versions = (rows.ids[:0], rows.versions[:0]) if before is None else (before.ids, before.versions)
        gone = np.setdiff1d(ids, rows.ids)
        chunk = max(1, CHUNK_BYTES // (4 * rows.key_dim))
        for start in range(0, len(gone), chunk):
            self._call("delete", self.collection, ids=gone[start : start + chunk].tolist())
        there, known = np.isin(rows.ids, ids), np.full(len(rows), -1)
        known[there] = versions[np.searchsorted(ids, rows.ids[there])]
        for start in range(0, len(rows), chunk):
            changed = start + np.flatnonzero(known[start : start + chunk] != rows.versions[start : start + chunk])
            if len(changed):
                keys = np.asarray(rows.keys(start, min(start + chunk, len(rows))), np.float32)[changed - start]
                columns = zip(rows.ids[changed].tolist(), rows.source[changed].tolist(), keys, strict=True)
                self._call("upsert", self.collection, [{"id": i, "source": s, "key": key} for i, s, key in columns])

    def _attach(self, rows: Rows) -> None:
        """Takes the collection that holds these rows; makes it if it is not there, or not complete."""
        self.collection = whole = f"{self._name}_{digest(rows)}"
        if self._call("has_collection", whole):
            # A server that was started again has it on its disk only, and cannot count it there.
            self._call("load_collection", whole, timeout=LOADING)
            options = {"filter": "", "output_fields": ["count(*)"], "consistency_level": "Strong"}
            if int(self._call("query", whole, **options)[0]["count(*)"]) != len(rows):
                self._call("drop_collection", whole)
        if not self._call("has_collection", whole):
            self._fill(rows, whole)
            self._call("load_collection", whole, timeout=LOADING)

    def _fill(self, rows: Rows, whole: str) -> None:
        """Makes a collection of these rows, and calls it `whole` when it is, unless another program was quicker."""
        self.collection = f"{self._name}_filling_{int(time.time())}_{secrets.token_hex(4)}"
        try:
            self._create(rows)
            self._send(rows, None)
            if not self._call("has_collection", whole):
                self._call("rename_collection", self.collection, whole)
        except self._milvus.MilvusException:
            if not self._call("has_collection", whole):
                raise
        finally:
            if self._call("has_collection", self.collection):
                self._call("drop_collection", self.collection)
            self.collection = whole

    def search(
        self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None
    ) -> SearchResult:
        """As `Engine.search`; raises ValueError also for k above `MOST`."""
        width = 0 if self._rows is None else self._rows.key_dim
        queries, chosen, gate = check_search(queries, k, sources, log_gate, width, self._sources)
        if k > MOST:
            raise ValueError(f"k is {k}: Milvus gives at most {MOST} items")
        ids = np.full((len(queries), len(chosen) * k), NOTHING)
        scores = np.full(ids.shape, -np.inf, np.float32)
        for place, number in enumerate(chosen if len(queries) else []):
            with self._plain_errors():
                answer = self._best(list(queries), k, number)
            for row, hits in enumerate(answer):
                part = slice(place * k, place * k + len(hits))
                ids[row, part], scores[row, part] = [hit["id"] for hit in hits], [hit["distance"] for hit in hits]
        origins = np.broadcast_to(np.repeat(chosen, k), ids.shape)
        return merge(ids, scores + gate[:, np.repeat(chosen, k)], origins, k, self._version)

    def _best(self, queries: list[np.ndarray], k: int, number: int) -> Any:
        """The best keys of one source; a collection that another program has dropped is made again."""
        options = {"data": queries, "limit": k, "anns_field": "key", "search_params": {"metric_type": "IP"}}
        options["filter"] = "" if self._sources == 1 else f"source == {number}"  # a filter takes as long as the search
        options["consistency_level"] = "Strong"
        try:
            return self._call("search", self.collection, **options)
        except self._milvus.MilvusException:
            if not self._reuse or self._rows is None or self._call("has_collection", self.collection):
                raise
            self._attach(self._rows)
            return self._call("search", self.collection, **options)

    def close(self) -> None:
        self._client.close()

    def _call(self, name: str, *args: Any, timeout: int = DEADLINE, **options: Any) -> Any:
        """Sends a request with a deadline; without one the client asks a server that is gone for minutes."""
        return getattr(self._client, name)(*args, timeout=timeout, **options)

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._milvus.MilvusException, importlib.import_module("grpc").RpcError) as error:
            reason = " ".join(str(getattr(error, "message", error)).split())
            raise ConnectionError(f"Milvus at {self._uri}: {reason}; check that it runs") from error

    def _create(self, rows: Rows) -> None:
        """Makes an empty collection for keys like these, in the place of one of its name."""
        if self._call("has_collection", self.collection):
            self._call("drop_collection", self.collection)
        kinds = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("source", kinds.INT16)
        schema.add_field("key", kinds.FLOAT_VECTOR, dim=rows.key_dim)
        params = self._client.prepare_index_params()
        params.add_index("key", index_type=self._index, metric_type="IP")
        self._call("create_collection", self.collection, schema=schema, index_params=params)


def digest(rows: Rows) -> str:
    """A hash of ids, sources and keys."""
    found, chunk = hashlib.sha256(), max(1, CHUNK_BYTES // (4 * rows.key_dim))
    found.update(np.ascontiguousarray(rows.ids).tobytes() + np.asarray(rows.source, np.int64).tobytes())
    for start in range(0, len(rows), chunk):
        found.update(np.asarray(rows.keys(start, min(start + chunk, len(rows))), np.float32).tobytes())
    return found.hexdigest()[:DIGITS]
