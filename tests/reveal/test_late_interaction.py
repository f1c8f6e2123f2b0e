"""Keys and queries of several vectors: MaxSim in a memory and on the devices, against NumPy."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_routing import SOURCES, by_numpy, eighths
from memories import LAYOUT
from refusal import refused

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, FaissEngine, Item, Layout, Manifest, Memory
from reveal.memory.engines import exact
from reveal.memory.engines.engine import Rows
from reveal.memory.engines.milvus_engine import MilvusEngine
from reveal.memory.manifest import read_manifest

VECTORS, WIDTH = 3, 8


def drawn(rng, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids in no order, sources, keys with a third of the vectors padding and every tenth key nothing else, versions;
    multiples of 1/8, so that scores are exact and ties are many."""
    keys = eighths(rng, n, VECTORS, WIDTH)
    keys[rng.random((n, VECTORS)) < 1 / 3] = 0
    keys[::10] = 0
    ids = rng.permutation(3 * n)[:n].astype(np.int64)
    return ids, rng.integers(0, SOURCES, n).astype(np.uint8), keys.reshape(n, -1), np.zeros(n, np.int32)


def asked(rng, b: int, q: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries, the last vector of each is padding if it has others; a gate."""
    queries = eighths(rng, b, q, WIDTH)
    queries[:, 1:][:, -1:] = 0
    return queries, -np.abs(eighths(rng, b, SOURCES))


def rows_of(ids, source, keys, versions, vectors: int = VECTORS) -> Rows:
    return dataclasses.replace(Rows.of(ids, source, keys, versions), key_vectors=vectors)


def check(engine, items, queries, k: int, gate=None, sources=range(SOURCES)) -> None:
    """Compares with every query's MaxSim of every item."""
    found, (ids, source, keys, _) = engine.search(queries, k, sources=list(sources), log_gate=gate), items
    queries, vectors = queries[:, None] if queries.ndim == 2 else queries, keys.reshape(len(keys), -1, WIDTH)
    padding = ~vectors.any(axis=2) & vectors.any(axis=(1, 2))[:, None]
    products = np.where(padding, -np.inf, np.einsum("bqd,nvd->bqnv", queries, vectors))
    wanted = by_numpy(ids, source, np.eye(len(ids)), products.max(axis=3).sum(axis=1), k, gate, sources)
    for ours, theirs in zip(found[:3], wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("budget", [exact.BUDGET, 128 * 100])
def test_the_engine_finds_what_numpy_finds(devices, budget, monkeypatch):
    """In one block and in many, the last of which overlaps; with queries of one vector and of several."""
    monkeypatch.setattr(exact, "BUDGET", budget)
    rng = np.random.default_rng(devices)
    items, engine = drawn(rng, 700), ExactEngine(make_mesh(devices))
    engine.update(rows_of(*items), SOURCES, version=4)
    for q in (1, 2, 5):
        queries, gate = asked(rng, 3, q)
        check(engine, items, queries, 20, gate)
        check(engine, items, queries, 20, gate, [0, 2])
    check(engine, items, queries[:, 0], 7)
    few = tuple(column[:30] for column in items)
    engine.update(rows_of(*few), SOURCES, version=5)
    check(engine, few, queries, 40, gate, [1])


def test_changes_are_put_in_place_and_padding_stays_padding(monkeypatch):
    rng, engine = np.random.default_rng(2), ExactEngine(make_mesh(2))
    items, (queries, gate) = drawn(rng, 200), asked(rng, 3, 4)
    engine.update(rows_of(*items), SOURCES, 1)
    check(engine, items, queries, 30, gate)
    monkeypatch.setattr(exact, "place", None)
    ids, source, keys, versions = (column[:-20].copy() for column in items)  # deleted
    changed = eighths(rng, len(ids), VECTORS, WIDTH)
    changed[:, 1] = 0
    keys[5:9], versions[5:9] = changed[5:9].reshape(4, -1), 2  # edited
    added = drawn(rng, 6)
    ids, source, keys = (np.append(old, new, 0) for old, new in zip((ids, source, keys), added[:3], strict=True))
    ids[-6:] = items[0].max() + 1 + np.arange(6)
    items = ids, source, keys, np.append(versions, [2] * 6)
    engine.update(rows_of(*items), SOURCES, 2)
    check(engine, items, queries, 60, gate)
    assert not np.asarray(keys[0]).any() and engine.search(queries, 1).version == 2


def test_a_search_compiles_once_for_a_shape():
    rng, engine = np.random.default_rng(3), ExactEngine(make_mesh(2))
    engine.update(rows_of(*drawn(rng, 100)), SOURCES, 1)
    engine.search(asked(rng, 4, 2)[0], 5)
    compiled = exact._jitted._cache_size()
    for b in (3, 4):
        engine.search(asked(rng, b, 2)[0], 5)
    assert exact._jitted._cache_size() == compiled


def test_scores_stay_in_their_budget():
    """Of 64 queries of 32 vectors with 131,072 keys of 8: products of one block at a time."""
    mesh, n = make_mesh(1), 2**17
    index = exact.Index(jax.ShapeDtypeStruct((n, 8 * 128), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32))
    inputs = jax.ShapeDtypeStruct((64, 32, 128), jnp.float32), jax.ShapeDtypeStruct((64, 1), jnp.float32)
    search = jax.jit(lambda index, q, gate: exact.search(index, q, 50, gate, mesh))
    products = re.findall(r"dot_general.*-> tensor<(\d+)x(\d+)xf32>", search.lower(index, *inputs).as_text())
    assert [rows for rows, _ in products] == ["2048"] and 2048 * int(products[0][1]) <= exact.BUDGET


def test_engines_of_one_vector_refuse_and_name_the_way_out(monkeypatch):
    items, queries = drawn(np.random.default_rng(4), 40), np.ones((2, VECTORS * WIDTH), np.float32)
    milvus = MilvusEngine.__new__(MilvusEngine)  # without a client: refused before anything is sent
    pytest.importorskip("faiss")
    for engine in (FaissEngine(), milvus):
        refused(ValueError, engine.update, rows_of(*items), SOURCES, 1, match="ExactEngine")
    engine = ExactEngine(make_mesh(1))
    engine.update(rows_of(*items), SOURCES, 1)
    for wrong in (
        queries,
        queries[:, None],
        np.ones((2, 0, WIDTH)),
        np.ones((1, 2, 2, WIDTH)),
        np.full((1, WIDTH), np.nan),
    ):
        refused(ValueError, engine.search, wrong, 3)


def test_a_manifest_of_one_vector_is_as_it_was(tmp_path):
    """The hash is that of the commit before there were several."""
    manifest = Manifest(LAYOUT, 1, 0, ())
    assert manifest.hash() == "940a4161294d4b674476757091760d1496d183278e42f156aed33bddb2b77440"
    Memory.create(tmp_path / "one", LAYOUT)
    assert "key_vectors" not in (tmp_path / "one/manifest.json").read_text()
    several = dataclasses.replace(LAYOUT, key_vectors=2)
    assert dataclasses.replace(manifest, layout=several).hash() != manifest.hash()
    Memory.create(tmp_path / "two", several)
    assert read_manifest(tmp_path / "two").layout == several
    text = json.loads((tmp_path / "two/manifest.json").read_text())
    for wrong in (0, -2, 3):
        del text["checksum"]
        text["layout"]["key_vectors"] = wrong
        (tmp_path / "two/manifest.json").write_text(json.dumps(text))
        refused(ValueError, read_manifest, tmp_path / "two", match="manifest")
        text["checksum"] = 0


def test_a_memory_of_several_vectors(tmp_path):
    """Searched by default, with FAISS refused; a network of another number of vectors encodes it anew."""
    memory = Memory.create(tmp_path / "m", Layout("e", ("own",), 6, (1, 1), key_vectors=3))
    keys, values = np.zeros((3, 3, 2), np.float32), np.zeros((3, 1, 1), np.float32)
    keys[0, 0], keys[1, 1], keys[2, 2] = (1, 0), (0, 1), (0.6, 0.8)
    memory.add([Item("own", {"text": str(n)}) for n in range(3)], keys.reshape(3, -1), values)
    assert memory.search([[1, 0], [0, 1]], 3).ids.tolist() == [[0, 2, 1], [1, 2, 0]]
    both = memory.search([[[1, 0], [0, 1]]], 2)
    assert both.ids.tolist() == [[2, 0]] and both.scores[0, 0] == pytest.approx(1.4)
    memory.edit([Item("own", {"text": "0"}, id=0)], np.array([[0, 0, 1, 0, 0, 1]]), values[:1])
    assert memory.search([[[1, 0], [0, 1]]], 1).ids.tolist() == [[0]]
    pytest.importorskip("faiss")
    refused(ValueError, Memory(tmp_path / "m", FaissEngine()).search, [[1, 0]], 1, match="ExactEngine")
    memory.refresh(lambda items: (np.ones((len(items), 2)), values), "f", key_dim=2, key_vectors=1)
    assert memory.search([[1, 1]], 3).scores.tolist() == [[2, 2, 2]]
    assert "key_vectors" not in (tmp_path / "m/manifest.json").read_text()
