"""Exact search against NumPy: each query's own items, on any number of devices, in bounded memory."""

import dataclasses
import os
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import exact_routing
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_routing import SOURCES, WIDTH, by_numpy, check, drawn, eighths
from refusal import refused

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine
from reveal.memory.engines import exact
from reveal.memory.engines.engine import Rows

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("devices", [1, 2])
def test_every_query_gets_its_own_items(devices):
    exact_routing.routing(devices)


@pytest.mark.long
def test_every_query_gets_its_own_items_on_more_devices():
    """The reference fails here from two queries a device on."""
    devices = 8
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
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


def engine_of(n: int = 200, dtype: str = "float32"):
    """An engine with its items, queries and gate."""
    rng = np.random.default_rng(3)
    items, engine = drawn(rng, n), ExactEngine(make_mesh(2), dtype)
    engine.update(Rows.of(*items), SOURCES, version=5)
    return engine, items, eighths(rng, 3, WIDTH), -np.abs(eighths(rng, 3, SOURCES))


def compare(found, wanted) -> None:
    for ours, theirs in zip(found[:3], wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_engine_finds_what_numpy_finds():
    engine, items, queries, gate = engine_of()
    for sources in (range(SOURCES), [1], [0, 2]):
        found = engine.search(queries, 10, sources=list(sources), log_gate=gate)
        compare(found, by_numpy(*items, queries, 10, gate, sources))
        assert found.version == 5 and found.ids.dtype == np.int64
    compare(engine.search(queries, 10), by_numpy(*items, queries, 10))
    gate[:, 1] = -np.inf
    assert not (engine.search(queries, 50, log_gate=gate).sources == 1).any()


def test_rows_that_the_devices_do_not_divide():
    """As of training on 7 devices beside a spare one."""
    rng = np.random.default_rng(4)
    (_, source, keys), queries, gate = drawn(rng, 301), eighths(rng, 4, WIDTH), -np.abs(eighths(rng, 4, SOURCES))
    index = exact.Index(jnp.asarray(keys), jnp.asarray(source, jnp.int32))
    hits = jax.jit(lambda *given: exact.search(index, *given[:1], 300, *given[1:], make_mesh(2)))(queries, gate)
    compare(hits, by_numpy(np.arange(301), source, keys, queries, 300, gate))


def test_a_process_searches_alone(monkeypatch):
    """As the first of several does that scores weights: the others do not search, and would be waited for."""
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[1:])
    engine = ExactEngine()
    assert engine.mesh.devices.ravel().tolist() == jax.devices()[1:]


def test_deleted_items_are_masked():
    engine, (ids, source, keys), queries, gate = engine_of()
    before = engine.index.keys
    gone = np.isin(ids, engine.search(queries, 20, log_gate=gate).ids)
    for kept in (~gone, ~gone & (source != 1), np.ones(200, bool)):
        rows = ids[kept], source[kept], keys[kept]
        engine.update(Rows.of(*rows), SOURCES, version=6)
        compare(engine.search(queries, 30, log_gate=gate), by_numpy(*rows, queries, 30, gate))
        assert engine.index.keys is before


@pytest.mark.parametrize(
    ("first", "few"), [(2**40, 1024), (2**40, 8), (-(10**6), 1024)]
)  # ids beyond 32 bits, or before
def test_edited_and_added_items_are_found(monkeypatch, first, few):
    """Put in place while they are few and the last, with all others copied else; twice, with a deletion between."""
    monkeypatch.setattr(exact, "FEW", few)
    engine, (ids, source, keys), queries, _ = engine_of()
    placed, rng, versions = [], np.random.default_rng(8), np.zeros(len(ids), np.int32)
    monkeypatch.setattr(exact, "place", lambda *given, place=exact.place: placed.append(given[0]) or place(*given))
    for version in (7, 8):
        added = first + version * 100 + np.arange(9), [2] * 9, eighths(rng, 9, WIDTH)
        ids, source, keys = (np.append(old, new, 0)[1:] for old, new in zip((ids, source, keys), added, strict=True))
        versions = np.append(versions, [version] * 9)[1:]
        keys[5], versions[5] = -keys[5], version
        engine.update(Rows.of(ids, source, keys, versions), SOURCES, version)
        compare(engine.search(queries, 30), by_numpy(ids, source, keys, queries, 30))
    assert sum(len(rows) > 0 for rows in placed) == (0 if few > 9 and first > 0 else 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_are_copied_in_blocks_of_bounded_size(dtype, monkeypatch):
    """Each device's rows once, but for the last block, which reaches back; one program for a shape; the host holds a
    few blocks."""
    width, n, block, mesh = 64, 10_001, 2**16, make_mesh(2)
    monkeypatch.setattr(exact, "BLOCK", block)
    keys, asked = np.random.default_rng(9).standard_normal((n, width), np.float32), []
    numbers = np.arange(n), np.zeros(n, np.uint8), np.zeros(n, np.int32)
    rows = Rows(*numbers, lambda start, stop: asked.append(stop - start) or keys[start:stop].copy(), width)
    compiled = exact._with_block._cache_size()
    exact.place(rows, 1, mesh, dtype)
    asked.clear()
    tracemalloc.start()
    index = exact.place(rows, 1, mesh, dtype)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert exact._with_block._cache_size() == compiled + 1
    each = block // (width * index.keys.dtype.itemsize)
    assert max(asked) == each and n <= sum(asked) < n + 2 * each
    assert most < 10 * block + 20 * n < keys.nbytes / 2  # also float32 keys of half precision, and numbers of sources
    np.testing.assert_array_equal(np.asarray(index.keys[:n]), keys.astype(index.keys.dtype))
    assert not np.asarray(index.keys[n:], np.float32).any()


def test_changes_stay_in_the_memory_of_the_first_copy():
    engine, (ids, source, keys), _, _ = engine_of()
    places = [part.data.unsafe_buffer_pointer() for part in engine.index.keys.addressable_shards]
    for version in (6, 7):
        engine.update(Rows.of(ids, source, -keys, np.where(ids == ids[0], version, 0)), SOURCES, version)
        assert [part.data.unsafe_buffer_pointer() for part in engine.index.keys.addressable_shards] == places


def test_all_keys_anew_are_not_held_beside_the_old_ones():
    engine, (ids, source, keys), queries, _ = engine_of()
    old = weakref.ref(engine.index.keys)

    def fetch(start: int, stop: int) -> np.ndarray:
        assert old() is None
        return keys[np.argsort(ids)][start:stop]

    rows = Rows.of(ids, source, keys, np.ones(len(ids), np.int32))
    engine.update(dataclasses.replace(rows, keys=fetch, memory="another"), SOURCES, 6)
    compare(engine.search(queries, 30), by_numpy(ids, source, keys, queries, 30))


def test_keys_of_a_failing_update_are_missed_by_name():
    engine, (ids, source, keys), queries, _ = engine_of()
    rows = dataclasses.replace(Rows.of(ids, source, keys), memory="another")
    refused(OSError, engine.update, dataclasses.replace(rows, keys=lambda start, stop: os.lstat("")), SOURCES, 6)
    for without in (engine, ExactEngine(make_mesh(1))):
        refused(ValueError, without.search, queries, 3, match="no keys")
    engine.update(rows, SOURCES, 6)
    compare(engine.search(queries, 30), by_numpy(ids, source, keys, queries, 30))


def test_refusals():
    engine, _, queries, gate = engine_of()
    for change, value in (
        (dict(queries=np.ones((3, 5))), r"\[3, 5\]"),
        (dict(queries=np.full((3, 8), np.nan)), "query"),
        (dict(k=0), "k is 0"),
        (dict(sources=[3]), "0 to 2"),
        (dict(sources=[]), "0 to 2"),
        (dict(log_gate=np.zeros((3, 2))), r"\[3, 2\]"),
        (dict(log_gate=np.full((3, 3), np.nan)), "log_gate"),
    ):
        refused(ValueError, engine.search, **dict(queries=queries, k=2) | change, match=value)
    with pytest.raises(ValueError, match="3 queries"):
        exact.search(engine.index, jnp.asarray(queries), 2, jnp.asarray(gate), engine.mesh, split=True)
    refused(ValueError, Rows.of, np.array([4, 1, 4]), np.zeros(3, np.uint8), np.eye(3, dtype=np.float32), match="id 4 ")


def test_memory_stays_bounded():
    """What XLA allocates beside keys and results, for a million keys: nothing of b x n."""
    mesh, n = make_mesh(1), 2**20
    index = exact.Index(jax.ShapeDtypeStruct((n, 128), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32))
    inputs = (jax.ShapeDtypeStruct((64, size), jnp.float32) for size in (128, 4))
    search = jax.jit(lambda index, q, gate: exact.search(index, q, 50, gate, mesh))
    assert search.lower(index, *inputs).compile().memory_analysis().temp_size_in_bytes < 100e6


def test_the_search_has_no_gradient():
    engine, _, queries, gate = engine_of(n=4)
    shut = exact.allow(jnp.asarray(gate), [0, 1])

    @jax.jit
    def total(keys, queries, gate):
        hits = exact.search(exact.Index(keys, engine.index.source), queries, 6, gate, engine.mesh)
        return jnp.where(hits.rows < 0, 0, hits.scores).sum()

    gradients = jax.jit(jax.grad(total, (0, 1, 2)))(engine.index.keys, jnp.asarray(queries), shut)
    assert not any(np.any(gradient) for gradient in gradients)
