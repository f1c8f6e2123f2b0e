"""Asking with a memory: what is found, read and written, whatever the number of rows, and after changes."""

import jax
import numpy as np
import pytest
from flax import nnx
from little_world import NETWORK, WORLD

from recipes.small_world.facts import SOURCES
from reveal.memory.items import Item
from reveal.memory.memory import Memory
from reveal.network.generator import Greedy
from reveal.network.model import Reveal
from reveal.reader import PART, Reader, reader_fingerprint


@pytest.fixture(scope="module")
def model():
    return Reveal(NETWORK, rngs=nnx.Rngs(0))


@pytest.fixture
def reader(model, tmp_path):
    reader = Reader(model, read_item=WORLD.read_item)
    reader.build(tmp_path / "memory", WORLD.memory_items(), SOURCES)
    return reader


@pytest.fixture(scope="module")
def questions():
    return WORLD.evaluation("held_out", 1)


def asked(questions, rows):
    return questions["tokens"][rows], questions["image"][rows]


def test_items_go_to_memory_and_come_back_as_the_network_reads_them():
    again = WORLD.read_item(WORLD.memory_items()[:12])
    np.testing.assert_array_equal(again["tokens"], WORLD.items.tokens[:12])
    np.testing.assert_array_equal(again["has_image"], WORLD.items.has_image[:12])
    np.testing.assert_allclose(again["image"], WORLD.items.image[:12] / 255, atol=1e-7)


def test_the_best_items_of_each_question_are_found(reader, model, questions):
    tokens, image = asked(questions, slice(0, 7))
    told = reader.ask(tokens, image, k=5)
    query = model.encode_query(tokens, image)
    store = reader.memory.store
    rows = store.rows()
    keys = np.asarray(rows.keys(0, len(rows)))
    scores = np.asarray(query.vector) @ keys.T + np.asarray(query.log_gate)[:, rows.source]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_allclose(told.found.scores, np.take_along_axis(scores, best, 1), atol=1e-5)
    np.testing.assert_array_equal(told.found.ids, rows.ids[best])
    np.testing.assert_allclose(told.prior.mean(axis=1), 1, atol=1e-5)
    assert (told.shares > 0).all() and (told.shares.sum(axis=1) < 1).all()
    assert told.tokens.shape == (7, 8)


def test_any_number_of_questions_is_answered_alike(reader, questions):
    many = reader.ask(*asked(questions, np.arange(PART + 3) % len(questions["id"])), how=Greedy(2))
    few = reader.ask(*asked(questions, slice(0, 3)), how=Greedy(2))
    for whole, part in zip(
        jax.tree.leaves(many[:1] + tuple(many.found[:3])), jax.tree.leaves(few[:1] + tuple(few.found[:3])), strict=True
    ):
        np.testing.assert_allclose(whole[:3], part, atol=1e-5)
    assert many.tokens.shape == (PART + 3, 2)


def test_without_a_memory_the_question_is_alone(model, questions):
    told = Reader(model).ask(*asked(questions, slice(0, 2)), k=0)
    assert told.found.ids.shape == told.prior.shape == told.shares.shape == (2, 0)
    with pytest.raises(ValueError, match="k is 4, but there is no memory"):
        Reader(model).ask(*asked(questions, slice(0, 2)))
    with pytest.raises(ValueError, match="there is no memory to change"):
        Reader(model, read_item=WORLD.read_item).add([])


def test_what_is_added_and_edited_is_read_at_once(reader, questions):
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


def test_sources_may_be_left_out(reader, questions):
    told = reader.ask(*asked(questions, slice(0, 4)), k=6, sources=["graph", "vqa"])
    assert set(told.found.sources.ravel().tolist()) <= {0, 3}


def test_a_memory_of_another_network_is_refused(reader, tmp_path):
    other = Reveal(NETWORK, rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match="encoder"):
        Memory.load(tmp_path / "memory", encoder=reader_fingerprint(other))
