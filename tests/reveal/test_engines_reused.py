"""An engine that is given to one memory after another searches the keys of the one that asks."""

import numpy as np
import pytest
from memories import LAYOUT, drawn

from common.training.mesh import make_mesh
from reveal.memory import Builder, ExactEngine, Memory


def memory_of(folder, seed: int, engine) -> tuple[Memory, np.ndarray]:
    """Of the same ids and versions whatever the seed is."""
    items, keys, values = drawn(12, seed)
    with Builder(folder, LAYOUT) as builder:
        builder.add(items, keys, values)
    return Memory.load(folder, engine), keys


def engine_of(kind: str, folder):
    if kind == "exact":
        return ExactEngine(make_mesh(1))
    if kind == "faiss":
        pytest.importorskip("faiss")
        from reveal.memory import FaissEngine

        return FaissEngine()
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    from reveal.memory import MilvusEngine

    return MilvusEngine(str(folder / "keys.db"), reuse=kind == "reuse")


@pytest.mark.parametrize("kind", ["exact", "faiss", "milvus", "reuse"])
def test_each_memory_is_searched_by_its_own_keys(tmp_path, kind):
    engine = engine_of(kind, tmp_path)
    first, second = (memory_of(tmp_path / str(seed), seed, engine) for seed in (1, 2))
    for memory, keys in (first, second, first):
        assert memory.search(keys, 1).ids.ravel().tolist() == list(range(12))
