"""The small world: entities and their pictures, facts, items and vocabulary."""

import itertools

import numpy as np
import pytest
from refusal import refused

from recipes.small_world import drawing, engines, entities
from recipes.small_world.entities import BLOBS, COUNT, MAX_DISTRACTORS, MAX_HELD_OUT, SIZES, attributes
from recipes.small_world.facts import ANSWERS, CHOICES, RELATIONS, SOURCE_OF, SOURCES, World, item_id, relations_in
from recipes.small_world.items import LENGTH, WorldVocabulary, items_about
from reveal.network.config import PAD as NETWORK_PAD
from reveal.network.config import RevealConfig
from reveal.processing.tokenizers import END, PAD, SPECIAL, START

EVERY = np.arange(COUNT)
WORDS = WorldVocabulary.of_world()
ALL_ANSWERS = {word for words in ANSWERS.values() for word in words}


def test_every_combination_is_one_entity_with_its_own_name():
    assert sorted(map(tuple, attributes(EVERY))) == list(itertools.product(*map(range, SIZES)))
    names = [entities.name(entity) for entity in EVERY]
    assert len(set(names)) == COUNT and all(len(name.split()) == 3 for name in names)
    for part in range(3):  # a syllable for each value of an attribute, and no other
        pairs = {(value, name.split()[part]) for value, name in zip(attributes(EVERY)[:, part], names, strict=True)}
        assert len(pairs) == len({value for value, _ in pairs}) == len({word for _, word in pairs}) == SIZES[part]
    assert entities.name(37) == "de nu ro" and entities.description(37) == "striped orange ring"


def test_distractors_differ_from_all_others():
    numbers = np.arange(COUNT, COUNT + MAX_DISTRACTORS)
    values = attributes(numbers)
    assert len(set(map(tuple, values))) == MAX_DISTRACTORS == 8192
    assert values[:, 0].min() == SIZES[0] and values[:, 0].max() == SIZES[0] + BLOBS - 1
    assert [len(set(column)) for column in values[:40].T] == [40, *SIZES[1:]]
    assert len({entities.name(number) for number in numbers[::7]}) == len(numbers[::7])
    assert len(entities.name(COUNT).split()) == 4 and "blob" in entities.description(COUNT)
    near = entities.neighbours()
    assert (near.sum(1) == 17).all() and (near == near.T).all()


@pytest.mark.parametrize("count", [0, 51, MAX_HELD_OUT])
def test_every_attribute_stays_in_training(count):
    for seed in range(5):
        held_out = entities.held_out(np.random.default_rng(seed), count)
        assert len(set(held_out)) == count and (np.diff(held_out) > 0).all()
        assert [len(set(column)) for column in attributes(np.setdiff1d(EVERY, held_out)).T] == list(SIZES)
    assert (list(held_out) != list(entities.held_out(np.random.default_rng(9), count))) == (count > 0)


def test_every_entity_is_drawn_otherwise():
    drawn = np.stack([drawing.draw(values, np.random.default_rng(0), 16) for values in attributes(EVERY)])
    assert drawn.dtype == np.float32 and drawn.min() >= 0 and drawn.max() <= 1
    assert len({image.tobytes() for image in drawn}) == COUNT


def test_the_sheet(tmp_path):
    drawing.main(tmp_path / "sheet.png", size=16, larger=1)
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def world() -> World:
    return World.create(distractors=4)


def test_every_answer_is_right_equally_often(world):
    assert world.facts.shape == (COUNT + 4, len(RELATIONS))
    for relation, words in zip(world.facts[:COUNT].T, ANSWERS.values(), strict=True):
        assert len(words) == CHOICES
        np.testing.assert_array_equal(np.bincount(relation), CHOICES * [COUNT // CHOICES])
    assert world.answer(7, 1) == ANSWERS["food"][world.facts[7, 1]]


def test_the_seed_decides(world):
    again, other = World.create(distractors=4), World.create(1)
    np.testing.assert_array_equal(again.facts, world.facts)
    np.testing.assert_array_equal(again.held_out, world.held_out)
    assert np.mean(other.facts == world.facts[:COUNT]) < 0.1 and list(other.held_out) != list(world.held_out)
    np.testing.assert_array_equal(World.create().facts, world.facts[:COUNT])  # distractors change nothing else


def test_splits_are_disjoint(world):
    assert {name: len(members) for name, members in world.splits.items()} == dict(train=205, held_out=46, newcomers=5)
    assert sorted(np.concatenate(list(world.splits.values()))) == list(range(COUNT))
    for entity in range(COUNT):
        assert set(world.near[entity]) <= set(world.splits["train"]) - {entity}
        assert ((attributes(world.near[entity]) == attributes(np.array([entity]))).sum(1) == 2).all()


def test_edits_change_all_held_out_facts_and_no_other(world):
    edited = world.edited(3)
    changed = edited.facts != world.facts
    assert changed[world.held_out].all() and changed.sum() == 51 * len(RELATIONS) and edited.facts.max() < CHOICES
    np.testing.assert_array_equal(edited.facts, world.edited(3).facts)
    assert (edited.facts != world.edited(4).facts).any()


def test_refused_values():
    for name, value in (("distractors", 8193), ("distractors", -1), ("newcomers", 52), ("held_out", 249)):
        refused(ValueError, World.create, **{name: value}, match=str(value))
    for number in (-1, COUNT + MAX_DISTRACTORS):
        refused(ValueError, attributes, np.array([number]), match=str(number))


def test_each_answer_is_in_its_sources_item_and_names_in_two_sources(world):
    items = items_about(world, range(COUNT + 4), size=16)
    assert [item.id for item in items] == list(range(4 * (COUNT + 4)))
    for item in items:
        entity, source = divmod(item.id, len(SOURCES))
        assert item.source == SOURCES[source] and item.id == item_id(entity, source)
        assert (item.picture is None) == (item.source == "graph")
        facts = {RELATIONS[relation]: world.answer(entity, relation) for relation in relations_in(source)}
        text, mark = item.fields["text"], "? " * (item.source == "vqa")
        assert all(f"{relation} {mark}{answer}" in text for relation, answer in facts.items())
        assert {word for word in text.split() if word in ALL_ANSWERS} == set(facts.values())
        assert {word for word in text.split() if word in RELATIONS} == set(facts)
        assert text.startswith(entities.name(entity)) == (item.source in ("graph", "passages"))
        assert WORDS.decode(WORDS.encode(text, LENGTH - 2)) == text
    assert set(SOURCE_OF) == set(RELATIONS)
    passages = [item.fields["text"] for item in items if item.source == "passages"]
    assert 0.4 < np.mean([text.index("food ") < text.index("music ") for text in passages]) < 0.6
    assert len({len(text.split()) for text in passages[:COUNT]}) == 7  # fillers


def test_items_depend_on_seed_and_id_and_edits_change_answers_only(world):
    about = world.held_out[:6]
    before, other, edited = (items_about(w, about, 16) for w in (world, World.create(1), world.edited(0)))
    again = [item for item in items_about(world, range(COUNT), 16) if item.id // 4 in about]
    for one, same, new, foreign in zip(before, again, edited, other, strict=True):
        assert one.fields == same.fields and one.id == same.id == new.id
        np.testing.assert_array_equal(one.picture, same.picture)
        np.testing.assert_array_equal(one.picture, new.picture)
        pairs = list(zip(one.fields["text"].split(), new.fields["text"].split(), strict=True))
        changed = [pair for pair in pairs if pair[0] != pair[1]]
        assert len(changed) == (2 if one.source == "passages" else 1) and set(sum(changed, ())) <= ALL_ANSWERS
        assert one.picture is None or (one.picture != foreign.picture).any()


def test_the_vocabulary_suits_the_smallest_network():
    config = RevealConfig.tiny(len(WORDS))
    assert len(WORDS) < 400 and (config.bos, config.eos, NETWORK_PAD) == (START, END, PAD)
    assert WORDS.words[: len(SPECIAL)] == SPECIAL and len(set(WORDS.words)) == len(WORDS)
    assert [[WORDS.words[token] for token in row] for row in WORDS.answers] == [list(w) for w in ANSWERS.values()]


def test_a_permutation_moves_answers_within_their_relation_only():
    table = WORDS.permutation(np.random.default_rng(0))
    assert table.dtype == np.int32 and sorted(table) == list(range(len(WORDS)))
    for tokens in WORDS.answers:
        assert sorted(table[tokens]) == list(tokens) and np.mean(table[tokens] == tokens) < 0.3
    others = np.setdiff1d(np.arange(len(WORDS)), WORDS.answers)
    np.testing.assert_array_equal(table[others], others)


def test_engines_are_not_compared_for_a_file_that_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "compare", lambda *_: pytest.fail("worked"))
    (tmp_path / "scores.json").write_text("mine")
    refused(FileExistsError, engines.main, "runs/any", output=tmp_path / "scores.json", match=r"scores\.json")
