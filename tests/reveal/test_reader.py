"""Batched answering with a memory: what is found, read and written, for any number of rows, and after changes."""

import jax
import numpy as np
import pytest
from little_worlds import WORLD
from little_worlds import WORLD_NETWORK as NETWORK
from refusal import refused
from reveal_networks import drawn

from recipes.small_world.facts import SOURCES
from reveal.memory.items import Item
from reveal.network.generator import Decoding
from reveal.reader import Reader

BATCH = 8
READ = WORLD.read_item
QUESTIONS = WORLD.evaluation("held_out", 1)


@pytest.fixture(scope="module")
def model():
    return drawn(NETWORK)


@pytest.fixture(scope="module")
def reader(model, tmp_path_factory):
    reader = Reader(model, None, READ, BATCH)
    reader.build(tmp_path_factory.mktemp("reader") / "memory", WORLD.memory_items()[:160], SOURCES)
    return reader


def asked(rows):
    return QUESTIONS["tokens"][rows], QUESTIONS["image"][rows]


@pytest.mark.long
def test_the_best_items_of_each_question_are_found(reader, model):
    tokens, image = asked(slice(0, 7))
    output = reader.ask(tokens, image, k=5)
    query = jax.jit(model.encode_query)(tokens, image)
    rows = reader.memory.rows()
    keys = np.asarray(rows.keys(0, len(rows)))
    scores = np.asarray(query.vector) @ keys.T + np.asarray(query.log_gate)[:, rows.source]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_allclose(output.retrieved.scores, np.take_along_axis(scores, best, 1), atol=1e-5)
    np.testing.assert_array_equal(output.retrieved.ids, rows.ids[best])
    np.testing.assert_allclose(output.prior.mean(axis=1), 1, atol=1e-5)
    assert (output.shares > 0).all() and (output.shares.sum(axis=1) < 1).all()
    assert output.tokens.shape == (7, 8)
    output = reader.ask(tokens, image, k=5, sources=["graph", "vqa"])
    assert set(output.retrieved.sources.ravel().tolist()) <= {0, 3}


def test_any_number_of_questions_is_answered_alike(reader):
    many = reader.ask(*asked(np.arange(BATCH + 3) % len(QUESTIONS["id"])), k=5, decoding=Decoding(2))
    few = reader.ask(*asked(slice(0, 3)), k=5, decoding=Decoding(2))
    for whole, part in (many[0], few[0]), *zip(many.retrieved[:3], few.retrieved[:3], strict=True):
        np.testing.assert_allclose(whole[:3], part, atol=1e-5)
    assert many.tokens.shape == (BATCH + 3, 2)


def test_without_a_memory_the_question_is_alone(model):
    reader, rows = Reader(model, None, READ, BATCH), asked(slice(0, 2))
    output = reader.ask(*rows, k=0)
    assert output.retrieved.ids.shape == output.prior.shape == output.shares.shape == (2, 0)
    none = asked(slice(0, 0))
    for needs_more in (
        lambda: reader.ask(*none, k=0),
        lambda: reader.ask(*rows),
        lambda: reader.add([]),
        lambda: Reader(model).encode([]),
    ):
        refused(ValueError, needs_more)


def test_changes_are_read_at_once(reader):
    about = WORLD.memory_items(WORLD.world.newcomers)
    before = len(reader.memory)
    ids = reader.add(about)
    assert ids == [item.id for item in about] and len(reader.memory) == before + len(about)
    changed = Item(about[0].source, {"text": "home cave"}, about[0].picture, about[0].id)
    reader.edit([changed])
    assert reader.memory.items([changed.id])[0].fields == {"text": "home cave"}
    key, value = reader.encode([changed])
    np.testing.assert_allclose(reader.memory.values(np.array([changed.id])), value, atol=1e-6)
    found = reader.memory.search(key, 1)
    assert found.scores[0, 0] == pytest.approx(1, abs=1e-5)
    reader.delete(ids)
    assert len(reader.memory) == before
