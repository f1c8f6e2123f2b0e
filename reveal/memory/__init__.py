"""The memory of REVEAL: items of several sources, stored on the disk, found by inner product, changed at any time.

(Hu et al., CVPR 2023, "memory construction from multimodal knowledge corpora".) An item is stored as a key to find it
by, a value of a few tokens to read it with, and a payload: its texts and its image.

| module | what |
| --- | --- |
| `items` | an item and its payload |
| `manifest`, `shards`, `folder` | the layout of the folder; its lock |
| `builder` | writes a new memory, of any size, in the RAM of one batch |
| `versions` | one version, to read; a change that becomes the next |
| `memory` | reads, searches and changes a memory |
| `engines` | exact search and late interaction on devices, FAISS, Milvus |

    from reveal import memory
    with memory.Builder("facts", layout) as builder:
        builder.add([memory.Item("kg", {"text": "gulls eat fish"})], keys, values)
    result = memory.Memory.load("facts").search(queries, k=5)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
