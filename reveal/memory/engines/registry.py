"""An engine by a word, for configs: what `--engine` and `--milvus` of the `reveal` command say in two.

| word | engine |
| --- | --- |
| `exact` | the exact search on the devices |
| `faiss`, `faiss:ivfpq`, `faiss:hnsw` | FAISS, flat or of that kind |
| `keys.db`, `http://host:19530` | Milvus: a file, or a server |

Milvus keeps a memory's keys from program to program, in a collection named by the memory's place: host and folder.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from pathlib import Path

from reveal.memory.engines.engine import Engine


def engine_of(word: str, memory: str | Path) -> Engine | None:
    """The engine for the memory in a folder; None: the exact one.

    Raises ValueError for another word, ImportError without the extra, ConnectionError without a Milvus there."""
    if word == "exact":
        return None
    name, _, kind = word.partition(":")
    if name == "faiss":
        from reveal.memory.engines.faiss_engine import FaissEngine

        return FaissEngine(kind or "flat")
    if word.endswith(".db") or "://" in word:
        return milvus(word, memory)
    raise ValueError(f"engine is {word!r}: choose exact, faiss, or Milvus by its file (x.db) or address (http://...)")


def milvus(uri: str, memory: str | Path) -> Engine:
    """Milvus at a file or an address, for the memory in a folder; raises as `engine_of`."""
    from reveal.memory.engines.milvus_engine import MilvusEngine

    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # its tracebacks come back as errors of one line
    place = hashlib.sha256(f"{platform.node()}:{Path(memory).resolve()}".encode()).hexdigest()[:12]
    return MilvusEngine(uri, f"reveal_{place}", reuse=True)
