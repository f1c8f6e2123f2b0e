"""Exact search: the items that NumPy finds, for each query its own, on any number of devices, in bounded memory."""

import os
import subprocess
import sys
from pathlib import Path

import exact_routing
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_routing import SOURCES, WIDTH, by_numpy, check, drawn, eighths
from jax.test_util import check_grads

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine
from reveal.memory.engines import exact
from reveal.memory.engines.engine import Rows
from reveal.network import heads

ROOT = Path(__file__).parents[2]
FIXTURE = np.load(ROOT / "tests/data/reveal/memory_retrieval_4dev.npz")


@pytest.mark.parametrize("devices", [1, 2])
def test_every_query_gets_its_own_items(devices):
    exact_routing.routing(devices)


@pytest.mark.parametrize("devices", [4, 8])
def test_every_query_gets_its_own_items_on_more_devices(devices):
    """The reference fails here from two queries a device on."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": f"{os.environ['JAX_COMPILATION_CACHE_DIR']}-{devices}",
    }
    words = [sys.executable, exact_routing.__file__, str(devices)]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_blocks_and_groups_change_nothing(monkeypatch):
    """Many blocks, the last of which overlaps, and groups of 2 to 16 keys."""
    monkeypatch.setattr(exact, "BUDGET", 384 * (2 + WIDTH))
    for n, k in ((1000, 1), (2000, 3), (1500, 50)):
        check(make_mesh(2), n, b=2, k=k, split=True)


def searched(n: int = 200, devices: int = 2):
    rng = np.random.default_rng(3)
    items = drawn(rng, n)
    engine = ExactEngine(make_mesh(devices))
    engine.update(Rows.of(*items), SOURCES, version=5)
    return engine, items, eighths(rng, 3, WIDTH), -np.abs(eighths(rng, 3, SOURCES))


def test_the_engine_finds_what_numpy_finds():
    engine, items, queries, gate = searched()
    for sources in (None, [1], [0, 2]):
        for given in (None, gate):
            found = engine.search(queries, 10, sources=sources, log_gate=given)
            wanted = by_numpy(*items, queries, 10, given, range(SOURCES) if sources is None else sources)
            for ours, theirs in zip(found[:3], wanted, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            assert found.version == 5 and found.ids.dtype == np.int64


def test_where_there_are_fewer_than_k():
    engine, (ids, source, _), queries, _ = searched(n=20)
    found = engine.search(queries, 15, sources=[2])
    count = int((source == 2).sum())
    assert 0 < count < 15
    assert (found.present.sum(1) == count).all()
    np.testing.assert_array_equal(np.sort(found.ids[:, :count]), np.sort(np.stack([ids[source == 2]] * 3)))
    assert (found.ids[:, count:] == -1).all() and (found.scores[:, count:] == -np.inf).all()


def test_an_empty_memory_finds_nothing():
    engine = ExactEngine(make_mesh(2))
    engine.update(Rows.of(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 4), np.float32)), 2, 1)
    found = engine.search(np.ones((2, 4)), 3)
    assert not found.present.any() and found.ids.shape == (2, 3)


def test_what_is_deleted_is_masked_and_what_is_added_found():
    engine, (ids, source, keys), queries, gate = searched()
    before = engine.index.keys
    gone = np.isin(ids, engine.search(queries, 20, log_gate=gate).ids)
    for kept in (~gone, ~gone & (source != 1), np.ones(200, bool)):
        engine.update(Rows.of(ids[kept], source[kept], keys[kept]), SOURCES, version=6)
        found = engine.search(queries, 30, log_gate=gate)
        for ours, theirs in zip(
            found[:3], by_numpy(ids[kept], source[kept], keys[kept], queries, 30, gate), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
        assert engine.index.keys is before and found.version == 6
    rng = np.random.default_rng(8)
    ids, source, keys = (
        np.append(ids, 1000 + np.arange(9)),
        np.append(source, [2] * 9),
        np.append(keys, eighths(rng, 9, WIDTH), 0),
    )
    versions = np.where(np.arange(209) == 5, 7, 0)
    keys[5] *= -1
    engine.update(Rows.of(ids, source, keys, versions), SOURCES, version=7)
    np.testing.assert_array_equal(engine.search(queries, 30).ids, by_numpy(ids, source, keys, queries, 30)[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_keys_are_searched_as_they_are_rounded(dtype):
    """Multiples of 1/8 are not rounded at all."""
    rng = np.random.default_rng(3)
    items, queries = drawn(rng, 200), eighths(rng, 3, WIDTH)
    engine = ExactEngine(make_mesh(2), dtype)
    engine.update(Rows.of(*items), SOURCES, version=5)
    np.testing.assert_array_equal(engine.search(queries, 9).ids, by_numpy(*items, queries, 9)[0])
    assert engine.index.keys.dtype == dtype


def test_a_shut_gate_lets_nothing_through():
    engine, _, queries, gate = searched()
    gate[:, 1] = -np.inf
    assert not (engine.search(queries, 50, log_gate=gate).sources == 1).any()


def test_ids_beyond_32_bits_keep_their_number():
    engine = ExactEngine(make_mesh(2))
    ids = np.array([2**40 + 7, 3])
    engine.update(Rows.of(ids, np.zeros(2, np.uint8), np.eye(2, dtype=np.float32)), 1, 1)
    assert engine.search(np.eye(2), 1).ids.ravel().tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(queries=np.ones((3, 5))), "keys have 8 numbers"),
        (dict(queries=np.full((3, 8), np.nan)), "not finite"),
        (dict(k=0), "k is 0"),
        (dict(sources=[3]), "0 to 2"),
        (dict(sources=[]), "0 to 2"),
        (dict(log_gate=np.zeros((3, 2))), r"log_gate is \[3, 2\]"),
        (dict(log_gate=np.full((3, 3), np.nan)), "log_gate holds NaN"),
    ],
)
def test_what_cannot_be_searched_is_refused(change, message):
    engine, _, queries, _ = searched()
    with pytest.raises(ValueError, match=message):
        engine.search(**(dict(queries=queries, k=2) | change))


def test_a_batch_that_does_not_split():
    engine, _, queries, gate = searched()
    with pytest.raises(ValueError, match="3 queries do not split over 2 devices"):
        exact.search(engine.index, jnp.asarray(queries), 2, jnp.asarray(gate), engine.mesh, split=True)


def test_an_id_twice():
    with pytest.raises(ValueError, match="id 4 is there twice"):
        Rows.of(np.array([4, 1, 4]), np.zeros(3, np.uint8), np.eye(3, dtype=np.float32))


def test_memory_stays_bounded():
    """What XLA sets aside beside keys and results, for a million keys: no number of b x n is kept."""
    mesh, n = make_mesh(1), 2**20
    index = exact.Index(jax.ShapeDtypeStruct((n, 128), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32))
    search = jax.jit(lambda index, q, gate: exact.search(index, q, 50, gate, mesh))
    lowered = search.lower(
        index, jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((64, 4), jnp.float32)
    )
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 100e6


def test_rescoring_gives_the_same_scores_and_their_gradients():
    engine, _, queries, gate = searched(n=40)
    queries, gate = jnp.asarray(queries), jnp.asarray(gate)
    hits = exact.search(engine.index, queries, 5, gate, engine.mesh)
    again = exact.rescore(engine.index.keys, hits, queries, gate)
    np.testing.assert_array_equal(again, hits.scores)
    found = engine.index.keys[hits.rows]
    np.testing.assert_allclose(heads.scores(queries, found, gate, hits.sources), again, atol=1e-6)
    given = engine.index.keys, queries, gate
    check_grads(lambda *x: exact.rescore(jnp.asarray(x[0]), hits, *map(jnp.asarray, x[1:])), given, 1, ("rev",))


def test_the_search_itself_has_no_gradient_and_what_is_missing_harms_none():
    engine, _, queries, gate = searched(n=4)
    shut = exact.allow(jnp.asarray(gate), [0, 1])

    @jax.jit
    def sums(keys, queries, gate):
        hits = exact.search(exact.Index(keys, engine.index.source), queries, 6, gate, engine.mesh)
        scores = exact.rescore(keys, hits, queries, gate)
        return tuple(jnp.where(hits.rows < 0, 0, x).sum() for x in (hits.scores, scores))

    given = engine.index.keys, jnp.asarray(queries), shut
    gradients = jax.jit(jax.jacrev(sums, (0, 1, 2)))(*given)
    assert not any(np.any(gradient) for gradient in gradients[0])
    assert all(np.isfinite(gradient).all() and np.any(gradient) for gradient in gradients[1])


def test_the_reference_finds_the_same_items():
    """Its gate multiplies: a search per source with scaled queries is that. Four rows in one batch; it had one a
    device."""
    keys, queries = FIXTURE["in:mem_keys"].reshape(24, 16), FIXTURE["out:base_query"].reshape(4, 16)
    source, gate = FIXTURE["in:mem_source_id"].reshape(24), FIXTURE["out:corpus_scores"].reshape(4, 3)
    engine = ExactEngine(make_mesh(2))
    engine.update(Rows.of(np.arange(24), source, keys), 3, 1)
    plain = engine.search(queries, 24)
    products = FIXTURE["out:all_scores_q_dot_key"].reshape(4, 24)
    np.testing.assert_array_equal(plain.ids, np.argsort(-products, axis=1))
    parts = [engine.search(queries * gate[:, [number]], 4, sources=[number]) for number in range(3)]
    scores, sources = (np.concatenate([part[at] for part in parts], 1) for at in (1, 2))
    best = np.argsort(-scores, axis=1)[:, :4]
    wanted = FIXTURE["out:topk_scores"].reshape(4, 4)
    np.testing.assert_allclose(np.take_along_axis(scores, best, 1), wanted, atol=1e-6)
    np.testing.assert_array_equal(np.take_along_axis(sources, best, 1), FIXTURE["out:global_corpus_ids"].reshape(4, 4))
    ids = np.take_along_axis(np.concatenate([part.ids for part in parts], 1), best, 1)
    texts = FIXTURE["in:mem_text"].reshape(24, 6)[ids[:, :2]]
    np.testing.assert_array_equal(texts, FIXTURE["out:retr_data/text_tokens"].reshape(4, 2, 6))
