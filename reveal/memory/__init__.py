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
        builder.add([memory.Item("kg", {"text": "gulls eat fish"})], keys, values)
    found = memory.Memory.load("facts").search(queries, k=5)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
