"""Questions come in batches that are right, in the batch's spelling, repeatable, and about nobody who is held out."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_countries import COUNTRIES, NETWORK
from reveal_networks import one_line

from common.training.task import Context
from recipes.countries.data import CountriesConfig
from recipes.countries.facts import RELATIONS
from recipes.countries.items import items_about, spellings
from recipes.countries.phrases import QUESTIONS, SEEN, SLOT_OF, SLOTS, SOURCE_OF, SOURCES, fixed_texts
from reveal.training.joint import Joint
from reveal.training.warm_start import WarmStart

DATA = COUNTRIES
PLAIN = CountriesConfig(size=16, invented=40, batch_size=8, own=2, near=2, shuffle=0)
WORDS = DATA.vocabulary


def take(iterator, count) -> list[dict[str, np.ndarray]]:
    return [next(iterator) for _ in range(count)]


def assert_equal(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


@functools.cache
def first() -> dict[str, np.ndarray]:
    """Several batches as one."""
    batches = take(DATA.batches(0), 12)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@functools.cache
def rows() -> dict[int, int]:
    return {int(number): row for row, number in enumerate(DATA.items.id)}


def told(item: int, table=None) -> str:
    tokens = DATA.items.tokens[rows()[item]]
    return WORDS.decode(tokens if table is None else table[tokens])


# ---- items


def test_items_of_the_real_memory():
    items = DATA.real_items()
    assert len(items) == 250 + 249 + 165 + 249 + 246
    assert [item.id for item in items] == sorted({item.id for item in items})
    for item in items:
        assert (item.picture is None) == (item.source == "graph") and item.fields["text"]
    edited = items_about(DATA.atlas.edited(0), DATA.atlas.held_out)
    before = items_about(DATA.atlas, DATA.atlas.held_out)
    assert [item.id for item in edited] == [item.id for item in before]
    assert np.mean([a.fields != b.fields for a, b in zip(edited, before, strict=True)]) > 0.9


def test_items_as_the_network_reads_them():
    items, knowledge = DATA.items, items_about(DATA.atlas, range(290))
    assert len(items) == len(knowledge) and items.tokens.shape[1] == 40 and items.image.shape[1:] == (16, 16, 3)
    assert (items.tokens[:, -1] == 0).all()  # nothing is cut
    np.testing.assert_array_equal(items.has_image, items.source > 0)
    for item in knowledge[::97]:
        assert told(item.id) == item.fields["text"]


def test_questions_that_are_too_long_to_answer_are_not_asked():
    """A few names that were made up take more than 11 pieces; of real ones none does."""
    known = np.array([[bool(country.told[r]) for r in RELATIONS] for country in DATA.atlas.countries])
    cut = known & ~DATA.askable & (DATA.atlas.alone[:, None] | np.array([r not in SEEN for r in RELATIONS]))
    assert cut[:250].sum() == 0 < cut.sum() < 10
    assert DATA.askable[:250].sum(0).tolist() == [227, 227, 249, 227, 154, 224, 246]


# ---- batches


def test_a_batch_is_what_the_docstring_says():
    assert {name: (array.shape, str(array.dtype)) for name, array in next(DATA.batches(0)).items()} == {
        "image": ((8, 16, 16, 3), "float32"),
        "tokens": ((8, 28), "int32"),
        "answer": ((8, 12), "int32"),
        "relation": ((8,), "int32"),
        "source": ((8,), "int32"),
        "gold": ((8,), "int32"),
        "negatives": ((8, 4), "int32"),
        "permutation": ((8, 2048), "int32"),
        "id": ((8,), "int64"),
    }
    assert "permutation" not in next(PLAIN.batches(0))
    batch = first()
    assert batch["image"].min() >= 0 and batch["image"].max() <= 1
    grey = (batch["image"] == 0.5).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(grey, [RELATIONS[r] not in SEEN for r in batch["relation"]])


def test_the_gold_item_has_the_answer_in_the_spelling_of_the_batch():
    batch = first()
    for row in range(len(batch["id"])):
        answer = WORDS.decode(batch["answer"][row])
        assert answer and answer in told(int(batch["gold"][row]), batch["permutation"][row])
        assert WORDS.eos in batch["answer"][row]
        assert batch["source"][row] == SOURCES.index(SOURCE_OF[RELATIONS[batch["relation"][row]]])
    plain = next(PLAIN.batches(0))
    for number, tokens, answer in zip(plain["id"], plain["tokens"], plain["answer"], strict=True):
        country, relation = PLAIN.of(number)
        assert WORDS.decode(answer) == PLAIN.atlas.answers(country, relation)[0]
        name = PLAIN.atlas.countries[country].name
        assert WORDS.decode(tokens) in {f"Question: {text.format(name)}" for text in QUESTIONS[relation]}


def test_a_batch_has_a_spelling_of_its_own_that_leaves_the_phrasings_alone():
    tables = first()["permutation"].reshape(12, 8, -1)
    assert (tables == tables[:, :1]).all() and len({table.tobytes() for table in tables[:, 0]}) == 12
    table = tables[0, 0]
    np.testing.assert_array_equal(np.sort(table), np.arange(2048))
    for text in (*fixed_texts(), "0123456789, (.)"):
        tokens = WORDS.encode(text, 99)
        np.testing.assert_array_equal(table[tokens], tokens)
    inner, begins = DATA.movable
    assert (table[begins] != begins).mean() > 0.9 and len(inner) > 300 and len(begins) > 300
    assert set(table[begins]) == set(begins)


def test_half_of_the_batches_keep_their_spelling():
    half = CountriesConfig(invented=0, shuffle=0.5)
    own = [(half.language(3, step) == np.arange(2048)).all() for step in range(200)]
    assert 70 < sum(own) < 130


def test_hard_negatives_are_near_and_never_right_nor_about_a_held_out_country():
    batch, held_out = first(), set(DATA.atlas.held_out)
    for number, gold, negatives in zip(batch["id"], batch["gold"], batch["negatives"], strict=True):
        country, relation = DATA.of(number)
        of, slot = np.divmod(negatives, len(SLOTS))
        assert len(set(negatives)) == 4 and gold not in negatives and not held_out & set(of)
        own = of == country
        assert own.sum() == min(2, DATA.confusion.there[country].sum() - 1)
        assert (slot[~own] == SLOT_OF[relation]).all() and (slot[own] != SLOT_OF[relation]).all()
        table = DATA.confusion.by_flag if relation in SEEN else DATA.confusion.by_name
        assert set(of[~own]) <= set(table[country]) or not DATA.confusion.there[table[country], SLOT_OF[relation]].all()
        assert all(int(item) in rows() for item in negatives)


def test_flags_and_names_that_are_alike():
    atlas, confusion = DATA.atlas, DATA.confusion
    near = {atlas.countries[number].name for number in confusion.by_flag[atlas.number_of["New Zealand"]][:4]}
    assert near & {"Australia", "Pitcairn Islands", "Montserrat", "Heard Island and McDonald Islands"}
    near = {atlas.countries[number].name for number in confusion.by_name[atlas.number_of["Guinea"]][:4]}
    assert near & {"Guinea-Bissau", "Equatorial Guinea", "Papua New Guinea"}
    one, two, other = spellings(["Guinea", "guinea", "Peru"])
    assert one @ two > 0.999 and one @ other < 0.1


def test_nobody_held_out_is_asked_about_and_real_ones_come_more_often():
    ids = np.concatenate([batch["id"] for batch in take(PLAIN.batches(1), 40)])
    country = ids // len(RELATIONS)
    assert not set(country) & set(PLAIN.atlas.held_out)
    assert 0.9 < (country < 250).mean() < 1  # 4 times 200 real ones, 40 invented ones


def test_the_seed_decides_for_any_number_of_threads():
    threaded = CountriesConfig(size=16, invented=40, batch_size=8, own=2, near=2, shuffle=1, threads=3)
    assert_equal(take(threaded.batches(1), 3), take(DATA.batches(1), 3))
    ids = [next(PLAIN.batches(seed))["id"].tolist() for seed in (1, 2)]
    assert ids[0] != ids[1]


def test_a_new_iterator_goes_on_where_the_state_says():
    whole = DATA.batches(7)
    take(whole, 2)
    state = json.loads(json.dumps(whole.get_state()))
    expected = take(whole, 2)
    resumed = DATA.batches(7)
    resumed.set_state(state)
    assert_equal(take(resumed, 2), expected)


def test_processes_share_each_batch_of_one():
    whole = take(DATA.batches(5, 0, 1), 2)
    parts = [take(DATA.batches(5, index, 2), 2) for index in (0, 1)]
    together = [{name: np.concatenate([a[name], b[name]]) for name in a} for a, b in zip(*parts, strict=True)]
    assert_equal(together, whole)


def test_both_tasks_read_a_batch():
    """As the trainer traces them, without compiling."""
    for data, task in ((DATA, WarmStart(DATA, NETWORK)), (PLAIN, Joint(PLAIN, NETWORK))):
        frozen, batch = task.frozen(), {name: jnp.asarray(array) for name, array in next(data.batches(0)).items()}
        rows = len(frozen["contents"].id)
        refreshed = {"keys": jnp.zeros((rows, 8)), "values": jnp.zeros((rows, 2, 16))}
        context = Context(jnp.int32(0), jax.random.key(1), frozen, refreshed)
        params = jax.eval_shape(task.init, jax.random.key(0))
        loss, metrics = jax.eval_shape(
            lambda params, task=task, batch=batch, context=context: task.loss(params, batch, context), params
        )
        assert loss.shape == () and set(metrics) >= {"generation", "accuracy"}


# ---- evaluation


@pytest.mark.parametrize(("which", "least", "most"), [("held_out", 320, 350), ("train", 1150, 1250)])
def test_a_set_asks_everything_about_its_countries(which, least, most):
    data = CountriesConfig(size=16, invented=0)
    asked = data.evaluation(which, renderings=1)
    assert least < len(asked["id"]) < most and set(asked["relation"]) == set(range(len(RELATIONS)))
    silent = set(data.atlas.sets[which]) - set(asked["id"] // len(RELATIONS))
    assert {data.atlas.countries[number].name for number in silent} <= {"Heard Island and McDonald Islands"}
    assert {"negatives", "permutation"}.isdisjoint(asked)


def test_the_evaluations_pictures_differ_and_are_fixed():
    two, one = (PLAIN.evaluation("held_out", renderings) for renderings in (2, 1))
    np.testing.assert_array_equal(two["image"][::2], one["image"])
    seen = np.isin(two["relation"], [RELATIONS.index(relation) for relation in SEEN])
    assert len({image.tobytes() for image in two["image"][seen]}) == seen.sum()


def test_edited_facts_are_asked_for():
    edited = PLAIN.atlas.edited(0)
    before, after = PLAIN.evaluation("held_out", 1), PLAIN.evaluation("held_out", 1, edited)
    assert_equal([{**before, "answer": 0}], [{**after, "answer": 0}])
    for number, answer in zip(after["id"], after["answer"], strict=True):
        expected = edited.answers(*PLAIN.of(number))[0]
        assert WORDS.decode(answer) == expected or len(WORDS.encode(expected, 99).nonzero()[0]) >= 16


def test_names():
    number = PLAIN.atlas.number_of["Peru"]
    assert PLAIN.names([number * 7 + 5]) == [f"capital of Peru (country {number})"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(batch_size=0), ["batch_size 0"]),
        (dict(size=8), ["size 8", "16 or more"]),
        (dict(shuffle=2), ["shuffle is 2"]),
        (dict(sources=("graph",)), ["graph", "passages"]),
        (dict(invented=0, batch_size=99000), ["99000", "lower it"]),
        (dict(invented=0, held_out=200), ["200 held out"]),
    ],
)
def test_values_that_cannot_be(changes, words):
    with pytest.raises(ValueError) as error:
        CountriesConfig(**changes).batches(0)
    assert all(word in one_line(error) for word in words)


def test_a_set_that_is_none():
    with pytest.raises(ValueError, match=r"'valid'.*train, held_out, invented"):
        PLAIN.evaluation("valid")
    with pytest.raises(ValueError, match="nothing to ask about 'invented'"):
        CountriesConfig(invented=0).evaluation("invented")
