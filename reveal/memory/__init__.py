"""The memory of REVEAL: items of several sources, kept on the disk, found by inner product, changed at any time.

(Hu et al., CVPR 2023, "memory construction from multimodal knowledge corpora".) An item is kept as a key to find it
by, a value of a few tokens to read it with, and itself.

| module | what |
| --- | --- |
| `items` | an item, and the bytes it is kept as |
| `manifest`, `shards`, `shard_writer` | the layout of the folder |
| `builder` | writes a new memory, of any size, in the RAM of one batch |
| `snapshot`, `store` | the folder: one version of it, to read; add, edit, delete, refresh |
| `change`, `lock` | a change of any size, whole or not at all; one program at a time |
| `engine` | what every search engine does; `exact`, `exact_engine`, `faiss_engine`, `milvus_engine` |
| `memory`, `choice` | a store with an engine; an engine by a word |

    from reveal import memory
    with memory.Builder("facts", layout) as builder:
        builder.add([memory.Knowledge("kg", {"text": "gulls eat fish"})], keys, values)
    found = memory.Memory.load("facts").search(queries, k=5)

Names are imported when they are first used (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from reveal.memory.builder import Builder
    from reveal.memory.engine import Engine, Found, Rows
    from reveal.memory.exact_engine import ExactEngine
    from reveal.memory.faiss_engine import FaissEngine
    from reveal.memory.items import Knowledge
    from reveal.memory.manifest import Layout, Manifest, fingerprint
    from reveal.memory.memory import Memory
    from reveal.memory.milvus_engine import MilvusEngine
    from reveal.memory.store import Store

__all__ = [
    "Builder",
    "Engine",
    "ExactEngine",
    "FaissEngine",
    "Found",
    "Knowledge",
    "Layout",
    "Manifest",
    "Memory",
    "MilvusEngine",
    "Rows",
    "Store",
    "fingerprint",
]

_HOMES = {
    "Builder": "builder",
    "Engine": "engine",
    "ExactEngine": "exact_engine",
    "FaissEngine": "faiss_engine",
    "Found": "engine",
    "Knowledge": "items",
    "Layout": "manifest",
    "Manifest": "manifest",
    "Memory": "memory",
    "MilvusEngine": "milvus_engine",
    "Rows": "engine",
    "Store": "store",
    "fingerprint": "manifest",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
