"""FAISS finds what the exact search finds; approximate kinds nearly so. Needs the extra `faiss`."""

import numpy as np
import pytest

pytest.importorskip("faiss")

from memories import build
from memories import drawn as memory_of

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, FaissEngine, Memory, Rows
from reveal.memory.engines.engine import optional
from reveal.memory.engines.faiss_engine import FEWEST, FaissConfig


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def drawn(n: int, centres: int = 0):
    """Ids in no order, sources, keys of 16 numbers: spread evenly, or around centres."""
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(n, 16))
    if centres:
        keys = 0.3 * keys + 2 * rng.normal(size=(centres, 16))[rng.integers(0, centres, n)]
    return rng.permutation(2 * n)[:n], rng.integers(0, 3, n).astype(np.uint8), unit(keys)


def searched(items, queries, k, kind="flat", config=None, **options):
    """Results of the exact search and of FAISS."""
    for engine in (ExactEngine(make_mesh(1)), FaissEngine(kind, config)):
        engine.update(Rows.of(*items), 3, version=2)
        yield engine.search(queries, k, **options)


@pytest.mark.parametrize(("count", "sources", "gated"), [(300, None, False), (300, [0, 2], True), (30, [1], False)])
def test_flat_is_exact(count, sources, gated):
    rng = np.random.default_rng(1)
    queries = unit(rng.normal(size=(5, 16)))
    gate = np.log(rng.dirichlet([1, 1, 1], 5)) if gated else None
    exact, faiss = searched(drawn(count), queries, 50, sources=sources, log_gate=gate)
    np.testing.assert_array_equal(faiss.ids, exact.ids)
    np.testing.assert_allclose(faiss.scores, exact.scores, atol=1e-6)  # also -inf where there are too few
    np.testing.assert_array_equal(faiss.sources, exact.sources)
    assert faiss.version == exact.version == 2 and faiss.present.all() == (count == 300)


@pytest.mark.parametrize(("kind", "probes"), [("ivfpq", 8), ("ivfpq", 32), ("hnsw", 8)])  # there are 16 lists
def test_approximate_kinds_find_nearly_all(kind, probes, monkeypatch):
    monkeypatch.setitem(FEWEST, kind, 500)
    items = drawn(2400, centres=50)
    exact, faiss = searched(items, items[2][:20], 10, kind, FaissConfig(probes=probes))
    recall = np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(exact.ids, faiss.ids, strict=True)])
    assert recall > 0.9
    np.testing.assert_allclose(faiss.scores[:, 0], 1, atol=1e-5)  # of the keys themselves, not of their codes


def test_only_sources_that_changed_are_built_again(monkeypatch):
    ids, source, keys = drawn(60)
    engine, built = FaissEngine(), []
    original = FaissEngine._build
    monkeypatch.setattr(FaissEngine, "_build", lambda self, rows, at: built.append(1) or original(self, rows, at))
    engine.update(Rows.of(ids, source, keys), 3, 1)
    gone = np.flatnonzero(source == 1)[0]
    kept = np.arange(60) != gone
    engine.update(Rows.of(ids[kept], source[kept], keys[kept]), 3, 2)
    assert len(built) == 4
    versions = np.where(source[kept] == 2, 3, 0)
    engine.update(Rows.of(ids[kept], source[kept], -keys[kept], versions), 3, 3)
    assert len(built) == 5
    assert ids[gone] not in engine.search(keys[[gone]], 59).ids


def test_an_unknown_kind_and_a_missing_package():
    with pytest.raises(ValueError, match="'lsh'"):
        FaissEngine("lsh")
    with pytest.raises(ImportError, match=r"\[milvus\]"):
        optional("no_such_package", "milvus")


def test_a_memory_searched_by_it_has_every_change(tmp_path):
    build(tmp_path, 25)
    memory, keys = Memory.load(tmp_path, FaissEngine()), memory_of(25)[1]
    assert memory.search(keys[[4, 9]], 1).ids.ravel().tolist() == [4, 9]
    memory.delete([4])
    found = memory.search(keys[[4, 9]], 30, sources=["kg", "wit"])
    assert found.version == 2 and 4 not in found.ids and found.present.sum() == 2 * 16
    np.testing.assert_array_equal(found.ids, Memory.load(tmp_path).search(keys[[4, 9]], 30, ["kg", "wit"]).ids)
