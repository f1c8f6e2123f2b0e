"""Questions come in batches that are right, in the batch's language, repeatable and the same for any process count."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reveal_networks import one_line

from recipes.small_world.data import WorldConfig
from recipes.small_world.entities import parts
from recipes.small_world.facts import GOLD_SOURCE, RELATIONS, SOURCES
from recipes.small_world.items import Items
from reveal.processing.vocabulary import END

DATA = WorldConfig(batch_size=16, distractors=8)
EVERYTHING = DATA.items.updated(DATA.items_about(DATA.world.newcomers))


def take(iterator, count) -> list[dict[str, np.ndarray]]:
    return [next(iterator) for _ in range(count)]


def assert_equal(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def tokens_of(items: Items, ids) -> np.ndarray:
    rows = items.row_of[ids]
    assert (rows >= 0).all()
    return items.tokens[rows]


def answered(tokens, relation, table=None) -> np.ndarray:
    """The word after the relation's in each row (vqa has a mark between them), read through a table."""
    words = [[DATA.vocabulary.words[token] for token in row] for row in tokens]
    places = [row.index(RELATIONS[r]) + 1 for row, r in zip(words, relation, strict=True)]
    places = [place + (row[place] == "?") for place, row in zip(places, words, strict=True)]
    found = np.array([row[place] for row, place in zip(tokens, places, strict=True)])
    return found if table is None else np.array([t[token] for t, token in zip(table, found, strict=True)])


@functools.cache
def first() -> dict[str, np.ndarray]:
    """Several batches as one."""
    batches = take(DATA.batches(0), 12)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_a_batch_is_what_the_docstring_says():
    assert {name: (array.shape, str(array.dtype)) for name, array in next(DATA.batches(0)).items()} == {
        "image": ((16, 32, 32, 3), "float32"),
        "tokens": ((16, 2), "int32"),
        "answer": ((16, 2), "int32"),
        "relation": ((16,), "int32"),
        "source": ((16,), "int32"),
        "gold": ((16,), "int32"),
        "negatives": ((16, 7), "int32"),
        "permutation": ((16, len(DATA.vocabulary)), "int32"),
        "id": ((16,), "int64"),
    }
    batch = first()
    assert batch["image"].min() >= 0 and batch["image"].max() <= 1
    entity, relation = np.divmod(batch["id"], len(RELATIONS))
    assert set(entity) <= set(DATA.world.sets["train"])
    np.testing.assert_array_equal(batch["relation"], relation)
    np.testing.assert_array_equal(batch["source"], GOLD_SOURCE[relation])
    assert (batch["answer"][:, 1] == END).all()
    for tokens, name in zip(batch["tokens"], relation, strict=True):
        assert DATA.vocabulary.decode(tokens) == f"{RELATIONS[name]} ?"


def test_the_gold_item_has_the_answer_in_the_language_of_the_batch():
    batch = first()
    read = answered(tokens_of(DATA.items, batch["gold"]), batch["relation"], batch["permutation"])
    np.testing.assert_array_equal(read, batch["answer"][:, 0])
    plain = next(WorldConfig(batch_size=16, distractors=8, shuffle=False).batches(0))
    np.testing.assert_array_equal(plain["permutation"], np.tile(np.arange(len(DATA.vocabulary)), (16, 1)))
    read = answered(tokens_of(DATA.items, plain["gold"]), plain["relation"])
    np.testing.assert_array_equal(read, plain["answer"][:, 0])
    assert np.mean(batch["answer"][:16, 0] == plain["answer"][:, 0]) < 0.3


def test_each_batch_has_a_language_which_all_its_rows_share():
    tables = first()["permutation"].reshape(12, 16, -1)
    assert (tables == tables[:, :1]).all()
    assert len({table.tobytes() for table in tables[:, 0]}) == 12


def test_items_are_translated_inside_a_program():
    """As the module's docstring does it, with the memory on the device."""
    batch, items = next(DATA.batches(0)), DATA.items
    memory, rows = jnp.asarray(items.tokens), jnp.asarray(items.row_of)

    @jax.jit
    def read(batch):
        return jnp.take_along_axis(batch["permutation"], memory[rows[batch["gold"]]], axis=1)

    tokens = read({name: batch[name] for name in ("permutation", "gold")})
    assert (np.asarray(tokens) == batch["answer"][:, :1]).any(1).all()


def test_hard_negatives_are_near_and_never_right():
    batch = first()
    entity, gold = batch["id"] // len(RELATIONS), batch["source"]
    of, source = np.divmod(batch["negatives"], len(SOURCES))
    assert (of[:, :3] == entity[:, None]).all()
    assert (np.sort(np.concatenate([source[:, :3], gold[:, None]], axis=1)) == np.arange(4)).all()
    assert (source[:, 3:] == gold[:, None]).all()
    own, near = parts(entity), parts(of[:, 3:].reshape(-1)).reshape(len(entity), 4, 3)
    assert ((near == own[:, None]).sum(-1) == 2).all()
    assert set((near != own[:, None]).argmax(-1).reshape(-1)) == {0, 1, 2}
    assert set(of.reshape(-1)) <= set(DATA.world.sets["train"])
    assert all(len(set(row)) == 7 for row in batch["negatives"])


def test_no_negatives_but_the_entitys_own():
    assert next(WorldConfig(near=0, batch_size=4).batches(0))["negatives"].shape == (4, 3)


def test_every_question_comes_once_in_an_epoch_and_with_another_picture_in_the_next():
    data = WorldConfig(size=16, held_out=248, newcomers=0, near=0, batch_size=8)
    batches = take(data.batches(0), 10)
    ids, images = (np.stack([batch[name] for batch in batches]).reshape(2, 40, -1) for name in ("id", "image"))
    assert sorted(ids[0]) == sorted(ids[1]) and len(set(ids[0, :, 0])) == 8 * len(RELATIONS)
    assert list(ids[0]) != list(ids[1])
    pictures = [epoch[numbers[:, 0].argsort()] for epoch, numbers in zip(images, ids, strict=True)]
    assert np.abs(pictures[0] - pictures[1]).mean(axis=1).min() > 0.02


def test_the_seed_decides():
    threaded = WorldConfig(batch_size=16, distractors=8, threads=3)
    assert_equal(take(threaded.batches(1), 4), take(DATA.batches(1), 4))
    ids = [np.concatenate([batch["id"] for batch in take(DATA.batches(seed), 2)]).tolist() for seed in (1, 2)]
    assert ids[0] != ids[1]


def test_a_new_iterator_goes_on_where_the_state_says():
    whole = DATA.batches(7)
    take(whole, 3)
    state = json.loads(json.dumps(whole.get_state()))  # small and plain
    expected = take(whole, 4)
    resumed = DATA.batches(7)
    resumed.set_state(state)
    assert_equal(take(resumed, 4), expected)


def test_processes_share_each_batch_of_one():
    """Languages too: a row's answer does not depend on who reads it."""
    whole = take(DATA.batches(5, 0, 1), 3)
    parts = [take(DATA.batches(5, index, 2), 3) for index in (0, 1)]
    together = [{name: np.concatenate([a[name], b[name]]) for name in a} for a, b in zip(*parts, strict=True)]
    assert_equal(together, whole)
    assert not set(parts[0][0]["id"]) & set(parts[1][0]["id"])


# ---- evaluation


@pytest.mark.parametrize(("which", "count"), [("train", 205), ("held_out", 46), ("newcomers", 5)])
def test_a_set_asks_everything_about_its_entities(which, count):
    asked = DATA.evaluation(which, renderings=2)
    assert {name: str(array.dtype) for name, array in asked.items()} == {
        name: str(array.dtype) for name, array in first().items() if name not in ("negatives", "permutation")
    }
    entity, relation = np.divmod(asked["id"], len(RELATIONS))
    assert len(entity) == count * len(RELATIONS) * 2 and set(entity) == set(DATA.world.sets[which])
    read = answered(tokens_of(EVERYTHING, asked["gold"]), relation)
    np.testing.assert_array_equal(read, asked["answer"][:, 0])
    assert (DATA.items.row_of[asked["gold"]] < 0).all() == (which == "newcomers")


def test_sets_are_fixed_and_their_pictures_all_different():
    asked, again = (WorldConfig(newcomers=count).evaluation("held_out", 3) for count in (5, 0))
    np.testing.assert_array_equal(np.isin(again["id"], asked["id"]).sum(), len(asked["id"]))
    np.testing.assert_array_equal(again["image"][np.isin(again["id"], asked["id"])], asked["image"])
    assert len({image.tobytes() for image in asked["image"]}) == len(asked["image"])
    items = {image.tobytes() for image in EVERYTHING.image.astype(np.float32) / 255}
    assert not items & {image.tobytes() for image in np.round(asked["image"] * 255) / np.float32(255)}


def test_edited_facts_are_asked_for_and_found_in_edited_items():
    edited = DATA.world.edited(1)
    before, after = DATA.evaluation("held_out", 1), DATA.evaluation("held_out", 1, edited)
    assert (before["answer"][:, 0] != after["answer"][:, 0]).all()
    assert_equal([{**before, "answer": 0}], [{**after, "answer": 0}])
    items = DATA.items.updated(DATA.items_about(DATA.world.sets["held_out"], edited))
    assert len(items) == len(DATA.items)
    read = answered(tokens_of(items, after["gold"]), after["relation"])
    np.testing.assert_array_equal(read, after["answer"][:, 0])


def test_names():
    entity = 37 * len(RELATIONS) + 1
    assert DATA.names([entity]) == ["food of de nu ro (entity 37, striped orange ring)"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(batch_size=0), ["batch_size 0"]),
        (dict(size=8), ["size 8", "16 or more"]),
        (dict(near=18), ["near 18", "lower near"]),
        (dict(near=-1), ["near -1"]),
        (dict(newcomers=60), ["60 newcomers"]),
        (dict(batch_size=2000), ["2000", "1025", "lower it"]),
    ],
)
def test_values_that_cannot_be(changes, words):
    with pytest.raises(ValueError) as error:
        WorldConfig(**changes).batches(0)
    assert all(word in one_line(error) for word in words)


def test_a_set_that_is_none():
    with pytest.raises(ValueError, match=r"'valid'.*train, held_out, newcomers") as error:
        DATA.evaluation("valid")
    assert one_line(error)
    with pytest.raises(ValueError, match="batch_size 16 cannot be split"):
        DATA.batches(0, 0, 3)
