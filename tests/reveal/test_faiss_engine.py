"""FAISS finds what the exact search finds; approximate kinds nearly so. Needs the extra `faiss`."""

import numpy as np
import pytest

pytest.importorskip("faiss")

from memories import build
from memories import drawn as memories_of

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, FaissEngine, Memory, Rows
from reveal.memory.engines.faiss_engine import FEWEST, FaissConfig


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def drawn(n: int, width: int = 16, centres: int = 0, seed: int = 0):
    """Ids in no order, sources, keys: spread evenly, or around centres."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(n, width))
    if centres:
        keys = 0.3 * keys + 2 * rng.normal(size=(centres, width))[rng.integers(0, centres, n)]
    return rng.permutation(2 * n)[:n], rng.integers(0, 3, n).astype(np.uint8), unit(keys)


def engines(items, kind="flat", config=None):
    made = ExactEngine(make_mesh(1)), FaissEngine(kind, config)
    for engine in made:
        engine.update(Rows.of(*items), 3, version=2)
    return made


@pytest.mark.parametrize("sources", [None, [1], [0, 2]])
@pytest.mark.parametrize("gated", [False, True])
def test_flat_is_exact(sources, gated):
    rng = np.random.default_rng(1)
    queries = unit(rng.normal(size=(5, 16)))
    gate = np.log(rng.dirichlet([1, 1, 1], 5)) if gated else None
    exact, faiss = (engine.search(queries, 50, sources=sources, log_gate=gate) for engine in engines(drawn(300)))
    np.testing.assert_array_equal(faiss.ids, exact.ids)
    np.testing.assert_allclose(faiss.scores, exact.scores, atol=1e-6)
    np.testing.assert_array_equal(faiss.sources, exact.sources)
    assert faiss.version == exact.version == 2


def test_a_source_with_fewer_than_k_and_an_empty_memory():
    exact, faiss = (engine.search(np.eye(16)[:2], 20, sources=[0]) for engine in engines(drawn(30)))
    np.testing.assert_array_equal(faiss.ids, exact.ids)
    np.testing.assert_array_equal(faiss.scores == -np.inf, exact.scores == -np.inf)
    assert not faiss.present.all()
    for engine in engines(drawn(0)):
        assert not engine.search(np.eye(16)[:2], 3).present.any()


@pytest.mark.parametrize("kind, probes", [("ivfpq", 8), ("ivfpq", 32), ("hnsw", 8)])  # there are 16 lists
def test_approximate_kinds_find_nearly_all(kind, probes, monkeypatch):
    monkeypatch.setitem(FEWEST, kind, 500)
    items = drawn(6000, centres=50)
    queries = items[2][:20]
    exact, faiss = (engine.search(queries, 10) for engine in engines(items, kind, FaissConfig(probes=probes)))
    recall = np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(exact.ids, faiss.ids, strict=True)])
    assert recall > 0.9
    np.testing.assert_allclose(faiss.scores[:, 0], 1, atol=1e-5)  # of the keys themselves, not of their codes


def test_only_sources_that_changed_are_built_again(monkeypatch):
    ids, source, keys = drawn(60)
    engine, built = FaissEngine(), []
    build = FaissEngine._build
    monkeypatch.setattr(FaissEngine, "_build", lambda self, rows, at: built.append(1) or build(self, rows, at))
    engine.update(Rows.of(ids, source, keys), 3, 1)
    gone = np.flatnonzero(source == 1)[0]
    kept = np.arange(60) != gone
    engine.update(Rows.of(ids[kept], source[kept], keys[kept]), 3, 2)
    assert len(built) == 4
    versions = np.where(source[kept] == 2, 3, 0)
    engine.update(Rows.of(ids[kept], source[kept], -keys[kept], versions), 3, 3)
    assert len(built) == 5
    assert ids[gone] not in engine.search(keys[[gone]], 59).ids


def test_an_unknown_kind():
    with pytest.raises(ValueError, match="kind 'lsh' is not one of FaissEngine"):
        FaissEngine("lsh")


def test_a_memory_searched_by_it_has_every_change(tmp_path):
    build(tmp_path, 25)
    memory, keys = Memory.load(tmp_path, FaissEngine()), memories_of(25)[1]
    assert memory.search(keys[[4, 9]], 1).ids.ravel().tolist() == [4, 9]
    memory.delete([4])
    found = memory.search(keys[[4, 9]], 30, sources=["kg", "wit"])
    assert found.version == 2 and 4 not in found.ids and found.present.sum() == 2 * 16
    np.testing.assert_array_equal(found.ids, Memory.load(tmp_path).search(keys[[4, 9]], 30, ["kg", "wit"]).ids)
