"""Milvus, as a file: the results of the exact search, and updates that send differences. Needs the extra `milvus`.

With `MILVUS_SERVER=http://HOST:19530` (and `MILVUS_TOKEN`) one test runs on that server, in a collection of its own.
"""

import importlib
import os
import secrets
import time

import numpy as np
import pytest
from refusal import refused

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

import pymilvus
from memories import rows as drawn

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, MilvusEngine, Rows
from reveal.memory.engines.engine import engine_of
from reveal.memory.engines.milvus_engine import ABANDONED, digest

QUERIES = drawn(4, seed=9)[2]


@pytest.fixture
def opened(tmp_path):
    """Makes engines of one file."""
    engines = []

    def new(name: str = "mine", reuse: bool = False) -> MilvusEngine:
        engines.append(MilvusEngine(str(tmp_path / "keys.db"), name, reuse=reuse))
        return engines[-1]

    yield new
    for engine in engines:
        engine.close()


def same(milvus, items, versions=None, version=1, **search) -> None:
    """Both engines find the same after an update."""
    exact = ExactEngine(make_mesh(1))
    for engine in (exact, milvus):
        engine.update(Rows.of(*items, versions), 3, version)
    wanted, found = (engine.search(QUERIES, 12, **search) for engine in (exact, milvus))
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)
    np.testing.assert_array_equal(found.sources, wanted.sources)
    assert found.version == version


def test_it_finds_what_the_exact_search_finds(opened):
    gate, milvus = np.log(np.random.default_rng(1).dirichlet([1, 1, 1], 4)), opened()
    for search in ({}, {"sources": [1]}, {"sources": [0, 2], "log_gate": gate}):
        same(milvus, drawn(40), **search)
    refused(ValueError, milvus.search, QUERIES, 20_000, match="16384")
    refused(FileExistsError, opened, match="'mine'")


@pytest.mark.skipif("MILVUS_SERVER" not in os.environ, reason="MILVUS_SERVER names no server")
def test_a_server_finds_what_the_exact_search_finds():
    name, items = f"test_{secrets.token_hex(8)}", drawn(40)
    uri, token = os.environ["MILVUS_SERVER"], os.environ.get("MILVUS_TOKEN", "")
    engine = MilvusEngine(uri, name, token=token, reuse=True)
    try:
        same(engine, items)
        ids, source, keys = items
        same(engine, (ids[4:], source[4:], -keys[4:]), np.arange(36), version=2, sources=[0, 2])
    finally:
        for collection in engine._client.list_collections():
            if collection.startswith(name):
                engine._client.drop_collection(collection)
        engine.close()


def test_updates_send_differences(opened, monkeypatch):
    milvus, (ids, source, keys) = opened(), drawn(40)
    same(milvus, (ids, source, keys))
    sent, upsert = [], milvus._client.upsert
    monkeypatch.setattr(milvus._client, "upsert", lambda name, data, **_: sent.extend(data) or upsert(name, data))
    kept, versions = np.arange(40) > 4, np.where(np.arange(40) == 17, 2, 0)
    keys[17] *= -1
    same(milvus, (ids[kept], source[kept], keys[kept]), versions[kept], version=2)
    assert [row["id"] for row in sent] == [ids[17]]


def test_an_update_that_fails_leaves_nothing_behind(opened, monkeypatch):
    milvus, (ids, source, keys) = opened(), drawn(40)
    same(milvus, (ids[1:], source[1:], keys[1:]))
    with monkeypatch.context() as patch:
        upsert = milvus._client.upsert

        def cut(*sent, **_):
            upsert(*sent)
            raise pymilvus.MilvusException(1, "gone")

        patch.setattr(milvus._client, "upsert", cut)
        refused(ConnectionError, milvus.update, Rows.of(ids, source, keys), 3, 2, match="gone")
    refused(ValueError, milvus.search, QUERIES, 12, match="no keys")
    same(milvus, (ids[1:], source[1:], keys[1:]), version=3)


def test_keys_stay_for_the_next_program(opened, monkeypatch):
    first, items = opened(reuse=True), drawn(20)
    same(first, items)
    (name,) = first._client.list_collections()
    assert name.startswith("mine_")
    first._client.create_collection("mine_other", dimension=4)  # somebody else's: no digest
    first.close()

    again = opened(reuse=True)
    with monkeypatch.context() as patch:
        patch.setattr(again._client, "upsert", None)  # nothing is sent
        same(again, items)
    ids, source, keys = items
    same(again, (ids, source, -keys))
    assert name not in again._client.list_collections() and "mine_other" in again._client.list_collections()


def test_a_collection_that_another_program_dropped_is_made_again(opened):
    engine = opened(reuse=True)
    same(engine, drawn(20))
    before = engine.search(QUERIES, 12)
    engine._client.drop_collection(engine.collection)
    newer = f"mine_{'0' * 16}"
    engine._client.create_collection(newer, dimension=4)
    np.testing.assert_array_equal(engine.search(QUERIES, 12).ids, before.ids)
    assert newer in engine._client.list_collections()  # of the program that has the newer version


def test_a_collection_has_its_name_when_it_is_complete(opened, monkeypatch):
    engine, items = opened(reuse=True), drawn(20)
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


def test_collections_of_two_hosts_are_two(monkeypatch):
    names = []
    engine = "reveal.memory.engines.milvus_engine.MilvusEngine"
    monkeypatch.setattr(engine, lambda uri, name, token, reuse: names.append(name) or ExactEngine(make_mesh(1)))
    for host in ("a", "b", "a"):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        engine_of("keys.db", "facts")
    assert names[0] != names[1] and names[0] == names[2]


def test_a_server_that_goes_or_refuses_is_a_connection_error(opened, monkeypatch):
    milvus, waited = opened(), []
    same(milvus, drawn(10))

    def gone(*_, timeout, **__):
        waited.append(timeout)
        raise importlib.import_module("grpc").RpcError("deadline exceeded")

    def refuse(*_, **__):
        raise pymilvus.MilvusException(message="no such user")

    monkeypatch.setattr(milvus._client, "search", gone)
    refused(ConnectionError, milvus.search, QUERIES, 2, match="deadline exceeded")
    assert waited == [60]
    monkeypatch.setattr(pymilvus.MilvusClient, "has_collection", refuse)
    refused(ConnectionError, opened, "other", match="no such user")
    refused(ConnectionError, MilvusEngine, "http://127.0.0.1:9", match="http://127")
