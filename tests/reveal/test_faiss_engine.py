"""FAISS finds what the exact search finds; approximate kinds nearly so. Needs the extra `faiss`."""

import numpy as np
import pytest
from refusal import refused

pytest.importorskip("faiss")

from memories import rows as drawn

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, FaissEngine, Rows
from reveal.memory.engines.engine import optional
from reveal.memory.engines.faiss_engine import FEWEST, FaissConfig


def searched(items, queries, k, kind="flat", config=None, **options):
    """Results of the exact search and of FAISS."""
    for engine in (ExactEngine(make_mesh(1)), FaissEngine(kind, config)):
        engine.update(Rows.of(*items), 3, version=2)
        yield engine.search(queries, k, **options)


@pytest.mark.parametrize(("count", "sources", "gated"), [(300, None, False), (300, [0, 2], True), (30, [1], False)])
def test_flat_is_exact(count, sources, gated):
    gate = np.log(np.random.default_rng(1).dirichlet([1, 1, 1], 5)) if gated else None
    exact, faiss = searched(drawn(count, 16), drawn(5, 16, seed=1)[2], 50, sources=sources, log_gate=gate)
    np.testing.assert_array_equal(faiss.ids, exact.ids)
    np.testing.assert_allclose(faiss.scores, exact.scores, atol=1e-6)  # also -inf where there are too few
    np.testing.assert_array_equal(faiss.sources, exact.sources)
    assert faiss.version == exact.version == 2 and faiss.present.all() == (count == 300)


@pytest.mark.parametrize(("kind", "probes"), [("ivfpq", 8), ("ivfpq", 32), ("hnsw", 8)])  # there are 16 lists
def test_approximate_kinds_find_nearly_all(kind, probes, monkeypatch):
    monkeypatch.setitem(FEWEST, kind, 500)
    items = drawn(2400, 16, centres=50)
    exact, faiss = searched(items, items[2][:20], 10, kind, FaissConfig(probes=probes))
    recall = np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(exact.ids, faiss.ids, strict=True)])
    assert recall > 0.9
    np.testing.assert_allclose(faiss.scores[:, 0], 1, atol=1e-5)  # of the keys themselves, not of their codes


def test_only_sources_that_changed_are_built_again(monkeypatch):
    ids, source, keys = drawn(60, 16)
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
    refused(ValueError, FaissEngine, "lsh", match="'lsh'")
    refused(ImportError, optional, "no_such_package", "milvus", match=r"\[milvus\]")
