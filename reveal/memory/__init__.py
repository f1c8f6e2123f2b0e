"""The memory of REVEAL: items of several sources, stored on the disk, found by inner product, changed at any time
(Hu et al., CVPR 2023, "memory construction from multimodal knowledge corpora").

An item is stored as a key to find it by, a value of a few tokens to read it with, and a payload: its texts and its
image (`items`). `manifest`, `shards` and `folder` are the layout of the folder, `builder` writes a new memory,
`versions` has one version and a change to the next, `memory` reads, searches and changes, and `engines` search.

    from reveal import memory
    with memory.Builder("facts", layout) as builder:
        builder.add([memory.Item("kg", {"text": "gulls eat fish"})], keys, values)
    result = memory.Memory.load("facts").search(queries, k=5)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
