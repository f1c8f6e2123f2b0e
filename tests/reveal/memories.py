"""Small memories for tests. As a program: builds or changes one and dies on the way."""

import os
import sys
from pathlib import Path

import numpy as np

from reveal.memory import Builder, Item, Layout, Memory
from reveal.memory import memory as memory_module

LAYOUT = Layout("encoder-1", ("kg", "wit", "vqa"), key_dim=8, value_shape=(3, 4), value_dtype="bfloat16")


def drawn(count: int, seed: int = 0, first: int = 0) -> tuple[list[Item], np.ndarray, np.ndarray]:
    """Items of all three sources, some with images; keys of unit length; values."""
    rng = np.random.default_rng(seed)
    keys, values = rng.normal(size=(count, 8)), rng.normal(size=(count, 3, 4)).astype(np.float32)
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    pictures = [None, bytes([first % 256, 1, 2]), np.full((2, 3, 3), 7, np.uint8)]
    items = [
        Item(LAYOUT.sources[number % 3], {"text": f"fact {first + number} · ü"}, pictures[number % 3])
        for number in range(count)
    ]
    return items, keys, values


def rows(count: int, width: int = 8, seed: int = 0, centres: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `Rows.of` takes them: ids in no order, sources, keys of unit length, spread evenly or around centres."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(count, width))
    if centres:
        keys = 0.3 * keys + 2 * rng.normal(size=(centres, width))[rng.integers(0, centres, count)]
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    return rng.permutation(2 * count)[:count], rng.integers(0, 3, count).astype(np.uint8), keys


def build(folder: Path, count: int, seed: int = 0, batch: int = 7, shard: int = 10, dies_at: int | None = None) -> None:
    """From item `count` of the builder on; the program ends at once before item `dies_at`."""
    items, keys, values = drawn(count, seed)
    with Builder(folder, LAYOUT, shard) as builder:
        for start in range(builder.count, count, batch):
            part = slice(start, min(start + batch, count))
            if dies_at is not None and part.stop > dies_at:
                os._exit(9)
            builder.add(items[part], keys[part], values[part])


if __name__ == "__main__":
    if sys.argv[2] == "build":
        build(Path(sys.argv[1]), 50, dies_at=34)
    else:  # a change that dies when its files are written and the manifest is not
        memory_module.write_manifest = lambda *_: os._exit(9)
        items, keys, values = drawn(5, seed=1, first=100)
        opened = Memory(sys.argv[1])
        opened.add(items, keys, values) if sys.argv[2] == "add" else opened.delete([3])
