"""What is known: facts that nobody can guess, one source for each, items that say it, and words for all of it."""

import json

import numpy as np
import pytest
from reveal_networks import one_line

from recipes.small_world.entities import COUNT, name, parts
from recipes.small_world.facts import ANSWERS, CHOICES, RELATIONS, SOURCE_OF, SOURCES, World, item_id, relations_in
from recipes.small_world.items import LENGTH, Items, items_of
from recipes.small_world.vocabulary import WorldVocabulary
from reveal.network.config import PAD as NETWORKS_PAD
from reveal.network.config import RevealConfig
from reveal.processing.vocabulary import END, PAD, SPECIAL, START, Vocabulary

WORDS = WorldVocabulary.of_world()
ALL_ANSWERS = {word for words in ANSWERS.values() for word in words}


@pytest.fixture(scope="module")
def world() -> World:
    return World.create(distractors=40)


@pytest.fixture(scope="module")
def items(world) -> Items:
    return items_of(world, range(COUNT + 40), WORDS)


def assert_same(items, others, but=()):
    for field, array in items.arrays.items():
        if field not in but:
            np.testing.assert_array_equal(array, others.arrays[field], err_msg=field)


def texts(items) -> list[str]:
    return [WORDS.decode(row) for row in items.tokens]


# ---- the world


def test_every_answer_is_right_equally_often(world):
    assert world.facts.shape == (COUNT + 40, len(RELATIONS))
    for relation, words in zip(world.facts[:COUNT].T, ANSWERS.values(), strict=True):
        assert len(words) == CHOICES
        np.testing.assert_array_equal(np.bincount(relation), CHOICES * [COUNT // CHOICES])
    assert world.answer(7, 1) == ANSWERS["food"][world.facts[7, 1]]


def test_the_seed_decides(world):
    again, other = World.create(distractors=40), World.create(1)
    np.testing.assert_array_equal(again.facts, world.facts)
    np.testing.assert_array_equal(again.held_out, world.held_out)
    assert np.mean(other.facts == world.facts[:COUNT]) < 0.1 and list(other.held_out) != list(world.held_out)
    np.testing.assert_array_equal(World.create().facts, world.facts[:COUNT])  # distractors change nothing else


def test_sets_share_nobody(world):
    assert {which: len(members) for which, members in world.sets.items()} == dict(train=205, held_out=46, newcomers=5)
    assert sorted(np.concatenate(list(world.sets.values()))) == list(range(COUNT))
    assert set(world.newcomers) < set(world.held_out)
    assert [len(set(column)) for column in parts(world.sets["train"]).T] == [8, 8, 4]
    for entity in range(COUNT):
        assert set(world.near[entity]) <= set(world.sets["train"]) - {entity}
        assert ((parts(world.near[entity]) == parts(np.array([entity]))).sum(1) == 2).all()


def test_an_edited_world_differs_in_all_held_out_facts_and_no_other(world):
    edited = world.edited(3)
    changed = edited.facts != world.facts
    assert changed[world.held_out].all() and changed.sum() == 51 * len(RELATIONS)
    assert edited.facts.max() < CHOICES
    np.testing.assert_array_equal(edited.facts, world.edited(3).facts)
    assert (edited.facts != world.edited(4).facts).any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(distractors=8193), ["8193 distractors", "0 to 8192"]),
        (dict(distractors=-1), ["-1 distractors"]),
        (dict(newcomers=52), ["52 newcomers", "0 to 51"]),
        (dict(held_out=249), ["249 entities"]),
    ],
)
def test_a_world_that_cannot_be(changes, words):
    with pytest.raises(ValueError) as error:
        World.create(**changes)
    assert all(word in one_line(error) for word in words)


# ---- items


def test_items_are_what_the_docstring_says(items):
    n = 4 * (COUNT + 40)
    assert {name: (array.shape, str(array.dtype)) for name, array in items.arrays.items()} == {
        "tokens": ((n, LENGTH), "int32"),
        "mask": ((n, LENGTH), "bool"),
        "image": ((n, 32, 32, 3), "uint8"),
        "has_image": ((n,), "bool"),
        "source": ((n,), "uint8"),
        "id": ((n,), "int64"),
        "entity": ((n,), "int32"),
    }
    np.testing.assert_array_equal(items.id, np.arange(n))
    np.testing.assert_array_equal(items.id, item_id(items.entity.astype(int), items.source))
    np.testing.assert_array_equal(items.mask, items.tokens != PAD)
    np.testing.assert_array_equal(items.has_image, items.image.any((1, 2, 3)))
    np.testing.assert_array_equal(items.has_image, items.source != SOURCES.index("graph"))
    assert items.mask[:, 0].all() and items.mask.sum(1).max() <= LENGTH - 2


def test_each_answer_is_in_its_sources_item_and_no_name_where_there_is_none(world, items):
    for row, words in enumerate(texts(items)):
        entity, source = int(items.entity[row]), int(items.source[row])
        told = {RELATIONS[relation]: world.answer(entity, relation) for relation in relations_in(source)}
        assert all(
            f"{relation} {'? ' * (SOURCES[source] == 'vqa')}{answer}" in words for relation, answer in told.items()
        )
        assert {word for word in words.split() if word in ALL_ANSWERS} == set(told.values())
        assert {word for word in words.split() if word in RELATIONS} == set(told)
        assert words.startswith(name(entity)) == (SOURCES[source] in ("graph", "passages"))
    assert {SOURCES[source]: len(relations_in(source)) for source in range(4)} == dict(
        graph=1, passages=2, captions=1, vqa=1
    )
    assert set(SOURCE_OF) == set(RELATIONS)


def test_passages_tell_their_two_facts_in_both_orders_with_fillers_anywhere(items):
    passages = texts(items.select(items.source == SOURCES.index("passages")))
    first = np.mean([words.index("food ") < words.index("music ") for words in passages])
    assert 0.4 < first < 0.6
    assert len({len(words.split()) for words in passages[:COUNT]}) == 7


def test_items_depend_on_seed_and_id_alone(world, items):
    some = items_of(world, [9, 260], WORDS)
    assert_same(some, items.select(np.isin(items.entity, [9, 260])))
    assert np.mean(items_of(World.create(1), [9], WORDS).image == items.image[36:40]) < 0.6


def test_an_edit_changes_answers_and_nothing_else(world, items):
    edited = items_of(world.edited(0), world.held_out, WORDS)
    before = items.select(np.isin(items.entity, world.held_out))
    assert_same(edited, before, but=("tokens",))
    changed = edited.tokens != before.tokens
    np.testing.assert_array_equal(changed.sum(1), np.where(before.source == SOURCES.index("passages"), 2, 1))
    assert np.isin(edited.tokens[changed], WORDS.answers).all()


def test_deleting_adding_and_replacing(world, items):
    fewer = items.without([5, 6, 5000])
    assert len(fewer) == len(items) - 2 and fewer.row_of[4] == 4 and fewer.row_of[7] == 5
    assert list(fewer.row_of[[5, 6]]) == [-1, -1]
    back = fewer.updated(items.select([6, 5]))
    assert list(back.id[-2:]) == [6, 5] and back.row_of[5] == len(items) - 1
    edited = items_of(world.edited(0), world.held_out, WORDS)
    updated = items.updated(edited)
    assert len(updated) == len(items)
    assert_same(updated.select(updated.row_of[edited.id]), edited)
    kept = np.setdiff1d(items.id, edited.id)
    assert_same(updated.select(updated.row_of[kept]), items.select(kept))
    empty = items.select([])
    assert len(empty) == 0 and empty.row_of.shape == (0,) and len(empty.updated(edited)) == len(edited)
    assert_same(items_of(world, [], WORDS), empty)


# ---- words


def test_the_vocabulary_suits_the_smallest_network():
    config = RevealConfig.tiny(len(WORDS))
    assert len(WORDS) < 400 and (config.bos, config.eos, NETWORKS_PAD) == (START, END, PAD)
    assert WORDS.words[: len(SPECIAL)] == SPECIAL and len(set(WORDS.words)) == len(WORDS)
    assert [[WORDS.words[token] for token in row] for row in WORDS.answers] == [list(w) for w in ANSWERS.values()]


def test_text_there_and_back():
    tokens = WORDS.encode("Food? de nu RO", 8)
    assert tokens.dtype == np.int32 and tokens.shape == (8,) and list(tokens[5:]) == [PAD] * 3
    assert WORDS.decode(tokens) == "food ? de nu ro"
    assert WORDS.decode([START, *tokens[:2], END, tokens[2]]) == "food ?"
    assert WORDS.decode(WORDS.encode("<extra_id_0> owner", 2)) == "<extra_id_0> owner"


def test_text_that_cannot_be_encoded():
    with pytest.raises(ValueError, match=r"height is none of the \d+ words") as error:
        WORDS.encode("height ?", 2)
    assert "food ?" in one_line(error)
    with pytest.raises(ValueError, match="3 words, of which 2 are read"):
        WORDS.encode("ba mo ti", 2)


def test_saved_and_loaded(tmp_path):
    WORDS.save(tmp_path / "words.json")
    assert WorldVocabulary.load(tmp_path / "words.json") == WORDS
    with pytest.raises(FileExistsError):
        WORDS.save(tmp_path / "words.json")


@pytest.mark.parametrize("content", ["[]", "{", '{"words": ["a"]}', json.dumps({"words": [*SPECIAL, "a", "a"]})])
def test_a_file_that_is_no_vocabulary(tmp_path, content):
    (tmp_path / "words.json").write_text(content)
    with pytest.raises(ValueError, match="is no vocabulary") as error:
        Vocabulary.load(tmp_path / "words.json")
    assert "save" in one_line(error)


def test_a_permutation_moves_answers_within_their_relation_only():
    table = WORDS.permutation(np.random.default_rng(0))
    assert table.dtype == np.int32 and sorted(table) == list(range(len(WORDS)))
    for tokens in WORDS.answers:
        assert sorted(table[tokens]) == list(tokens) and np.mean(table[tokens] == tokens) < 0.3
    others = np.setdiff1d(np.arange(len(WORDS)), WORDS.answers)
    np.testing.assert_array_equal(table[others], others)
