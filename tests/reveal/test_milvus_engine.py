"""Milvus, as a file: the results of the exact search, and updates that send differences. Needs the extra `milvus`."""

import importlib
import time

import numpy as np
import pytest

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

import pymilvus
from reveal.memory.engines.engine import milvus as milvus_of

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, MilvusEngine, Rows
from reveal.memory.engines.milvus_engine import ABANDONED, digest


def drawn(n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(n, 8))
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    return rng.permutation(2 * n)[:n], rng.integers(0, 3, n).astype(np.uint8), keys


@pytest.fixture
def milvus(tmp_path):
    engine = MilvusEngine(str(tmp_path / "keys.db"))
    yield engine
    engine.close()


def same(milvus, items, versions=None, version=1, **search) -> None:
    exact = ExactEngine(make_mesh(1))
    for engine in (exact, milvus):
        engine.update(Rows.of(*items, versions), 3, version)
    queries = drawn(4, seed=9)[2]
    wanted, found = (engine.search(queries, 12, **search) for engine in (exact, milvus))
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)
    np.testing.assert_array_equal(found.sources, wanted.sources)
    assert found.version == version


def test_it_finds_what_the_exact_search_finds(milvus):
    gate = np.log(np.random.default_rng(1).dirichlet([1, 1, 1], 4))
    same(milvus, drawn(40))
    same(milvus, drawn(40), sources=[1])
    same(milvus, drawn(40), sources=[0, 2], log_gate=gate)


def test_updates_send_differences(milvus, monkeypatch):
    ids, source, keys = drawn(40)
    same(milvus, (ids, source, keys))
    sent, upsert = [], milvus._client.upsert
    monkeypatch.setattr(milvus._client, "upsert", lambda name, data, **_: sent.extend(data) or upsert(name, data))
    kept, versions = np.arange(40) > 4, np.where(np.arange(40) == 17, 2, 0)
    keys[17] *= -1
    same(milvus, (ids[kept], source[kept], keys[kept]), versions[kept], version=2)
    assert [row["id"] for row in sent] == [ids[17]]


def test_a_collection_is_not_given_up_silently(milvus, tmp_path):
    same(milvus, drawn(10))
    with pytest.raises(FileExistsError, match="holds a collection 'reveal'"):
        MilvusEngine(str(tmp_path / "keys.db"))


def test_too_many_items(milvus):
    same(milvus, drawn(10))
    with pytest.raises(ValueError, match="Milvus gives at most 16384"):
        milvus.search(np.ones((1, 8)), 20_000)


def test_keys_stay_for_the_next_program(tmp_path, monkeypatch):
    uri, items = str(tmp_path / "kept.db"), drawn(20)
    first = MilvusEngine(uri, "mine", reuse=True)
    same(first, items)
    (name,) = first._client.list_collections()
    assert name.startswith("mine_")
    first._client.create_collection("mine_other", dimension=4)  # somebody else's: no digest
    first.close()

    again = MilvusEngine(uri, "mine", reuse=True)
    monkeypatch.setattr(again._client, "upsert", None)  # nothing is sent
    same(again, items)
    monkeypatch.undo()
    ids, source, keys = items
    same(again, (ids, source, -keys))
    assert name not in again._client.list_collections() and "mine_other" in again._client.list_collections()
    again.close()


def test_a_collection_that_another_program_dropped_is_made_again(tmp_path):
    engine, items = MilvusEngine(str(tmp_path / "kept.db"), "mine", reuse=True), drawn(20)
    same(engine, items)
    queries = drawn(4, seed=9)[2]
    before = engine.search(queries, 12)
    engine._client.drop_collection(engine.collection)
    newer = f"mine_{'0' * 16}"
    engine._client.create_collection(newer, dimension=4)
    np.testing.assert_array_equal(engine.search(queries, 12).ids, before.ids)
    assert newer in engine._client.list_collections()  # of the program that has the newer version
    engine.close()


def test_a_server_that_goes_is_one_line(milvus, monkeypatch):
    same(milvus, drawn(10))
    waited = []

    def gone(*_, timeout, **__):
        waited.append(timeout)
        raise importlib.import_module("grpc").RpcError("deadline exceeded")

    monkeypatch.setattr(milvus._client, "search", gone)
    with pytest.raises(ConnectionError, match="deadline exceeded; check that it runs"):
        milvus.search(np.ones((1, 8)), 2)
    assert waited == [60]


def test_a_collection_has_its_name_when_it_is_whole(tmp_path, monkeypatch):
    engine, items = MilvusEngine(str(tmp_path / "kept.db"), "mine", reuse=True), drawn(20)
    abandoned, fresh = (f"mine_filling_{int(time.time()) - age}_ab" for age in (ABANDONED + 9, 0))
    for name in (abandoned, fresh):
        engine._client.create_collection(name, dimension=4)
    upsert, there = engine._client.upsert, []
    monkeypatch.setattr(
        engine._client, "upsert", lambda *sent, **_: there.append(engine._client.list_collections()) or upsert(*sent)
    )
    same(engine, items)
    assert len(there) == 1 and all(name.startswith("mine_filling_") for name in there[0])
    assert sorted(engine._client.list_collections()) == sorted([engine.collection, fresh])

    def other_was_quicker(*sent, **_):
        upsert(*sent)
        engine._client.rename_collection(sent[0], f"mine_{digest(Rows.of(*items))}")
        engine._client.create_collection(sent[0], dimension=4)

    engine._client.drop_collection(engine.collection)
    monkeypatch.setattr(engine._client, "upsert", other_was_quicker)
    same(engine, items)
    assert sorted(engine._client.list_collections()) == sorted([engine.collection, fresh])
    engine.close()


def test_places_of_two_hosts_are_two(monkeypatch):
    made = []
    engine = "reveal.memory.engines.milvus_engine.MilvusEngine"
    monkeypatch.setattr(engine, lambda uri, name, reuse: made.append(name) or ExactEngine(make_mesh(1)))
    for host in ("a", "b", "a"):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        milvus_of("keys.db", "facts")
    assert made[0] != made[1] and made[0] == made[2]


def test_an_error_while_it_is_opened_is_one_line(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise pymilvus.MilvusException(message="no such user")

    monkeypatch.setattr(pymilvus.MilvusClient, "has_collection", refuse)
    with pytest.raises(ConnectionError, match="no such user; check that it runs"):
        MilvusEngine(str(tmp_path / "keys.db"))


def test_a_server_that_is_not_there():
    with pytest.raises(
        ConnectionError, match=r"Milvus at http://127\.0\.0\.1:9: .*; check that it runs, or take another"
    ):
        MilvusEngine("http://127.0.0.1:9")
