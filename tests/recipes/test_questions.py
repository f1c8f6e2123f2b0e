"""Questions of both worlds: batches, their repeatability, hard negatives, permutations and evaluation splits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_worlds import COUNTRIES, COUNTRIES_NETWORK, number_of
from refusal import refused
from streams import assert_equal, check_stream, joined, take

from common.training.task import Context
from recipes.countries import facts as countries
from recipes.countries import phrases
from recipes.countries.data import CountriesConfig
from recipes.small_world import facts as world
from recipes.small_world.data import WorldConfig
from recipes.small_world.entities import attributes
from reveal.processing.tokenizers import END
from reveal.training.joint import Joint
from reveal.training.warm_start import WarmStart

WORLD = WorldConfig(size=16, batch_size=8, distractors=8)
PLAIN_WORLD = WorldConfig(size=16, batch_size=8, distractors=8, shuffle=False)
PLAIN_COUNTRIES = CountriesConfig(size=16, invented=40, batch_size=8, own=2, near=2, shuffle=0)
both = pytest.mark.parametrize("data", [WORLD, COUNTRIES])


@functools.cache
def first(data) -> dict[str, np.ndarray]:
    return joined(take(data.batches(0), 12))


def item_text(data, item, table=None) -> str:
    (row,) = np.flatnonzero(data.items.id == item)
    tokens = data.items.tokens[row]
    return data.vocabulary.decode(tokens if table is None else table[tokens])


@pytest.mark.parametrize(("data", "question", "answer", "negatives", "vocabulary"), [
    (WORLD, 2, 2, 7, len(WORLD.vocabulary)), (COUNTRIES, 28, 12, 4, 2048)
])  # fmt: skip
def test_arrays_of_a_batch(data, question, answer, negatives, vocabulary):
    shapes = dict(tokens=(question,), answer=(answer,), negatives=(negatives,), permutation=(vocabulary,))
    shapes = {name: ((8, *shape), "int32") for name, shape in (shapes | dict(relation=(), source=(), gold=())).items()}
    shapes |= {"image": ((8, 16, 16, 3), "float32"), "id": ((8,), "int64")}
    assert {name: (array.shape, str(array.dtype)) for name, array in next(data.batches(0)).items()} == shapes
    batch = first(data)
    assert batch["image"].min() >= 0 and batch["image"].max() <= 1
    subject, relation = np.divmod(batch["id"], len(data.relations))
    np.testing.assert_array_equal(batch["relation"], relation)
    sources = [data.source_of[data.relations[number]] for number in relation]
    assert [data.sources[number] for number in batch["source"]] == sources
    assert not set(subject) & set(data.splits["held_out"])


def test_questions_in_words():
    for tokens, relation in zip(first(WORLD)["tokens"], first(WORLD)["relation"], strict=True):
        assert WORLD.vocabulary.decode(tokens) == f"{world.RELATIONS[relation]} ?"
    assert (first(WORLD)["answer"][:, 1] == END).all()
    batch = next(PLAIN_COUNTRIES.batches(0))
    for number, tokens, answer in zip(batch["id"], batch["tokens"], batch["answer"], strict=True):
        country, relation = PLAIN_COUNTRIES.subject_and_relation(number)
        assert PLAIN_COUNTRIES.vocabulary.decode(answer) == PLAIN_COUNTRIES.right_answers(number)[0]
        name = PLAIN_COUNTRIES.atlas.countries[country].name
        texts = {f"Question: {text.format(name)}" for text in phrases.QUESTIONS[relation]}
        assert PLAIN_COUNTRIES.vocabulary.decode(tokens) in texts
    grey = (first(COUNTRIES)["image"] == 0.5).all(axis=(1, 2, 3))
    by_flag = [countries.RELATIONS[relation] in phrases.BY_FLAG for relation in first(COUNTRIES)["relation"]]
    np.testing.assert_array_equal(grey, ~np.array(by_flag))


@pytest.mark.long
@both
def test_the_gold_item_has_the_answer_after_the_permutation(data):
    batch = first(data)
    for row in range(len(batch["id"])):
        answer = data.vocabulary.decode(batch["answer"][row])
        assert answer and answer in item_text(data, batch["gold"][row], batch["permutation"][row])
    for plain in (PLAIN_WORLD, PLAIN_COUNTRIES):
        batch = next(plain.batches(0))
        assert "permutation" not in batch
        assert plain.vocabulary.decode(batch["answer"][0]) in item_text(plain, batch["gold"][0])


@both
def test_a_permutation_is_of_one_batch_and_leaves_words_of_the_phrasings(data):
    tables = first(data)["permutation"].reshape(12, 8, -1)
    assert (tables == tables[:, :1]).all() and len({table.tobytes() for table in tables[:, 0]}) == 12
    table = tables[0, 0]
    np.testing.assert_array_equal(np.sort(table), np.arange(len(data.vocabulary)))
    texts = [f"{relation} ?" for relation in world.RELATIONS]
    if data is COUNTRIES:
        texts = (*phrases.fixed_texts(), "0123456789, (.)")
        inner, initial = data.permuted_tokens
        assert min(len(inner), len(initial)) > 300 and (table[initial] != initial).mean() > 0.9
        assert set(table[initial]) == set(initial)
    for text in texts:
        tokens = data.vocabulary.encode(text, 99)
        np.testing.assert_array_equal(table[tokens], tokens)
    half = CountriesConfig(invented=0, shuffle=0.5)
    assert 70 < sum((half.permutation(3, step) == np.arange(2048)).all() for step in range(200)) < 130


def test_hard_negatives_of_the_world():
    batch = first(WORLD)
    entity, gold = batch["id"] // len(world.RELATIONS), batch["source"]
    of, source = np.divmod(batch["negatives"], len(world.SOURCES))
    assert (of[:, :3] == entity[:, None]).all()
    assert (np.sort(np.concatenate([source[:, :3], gold[:, None]], axis=1)) == np.arange(4)).all()
    assert (source[:, 3:] == gold[:, None]).all() and set(of.flat) <= set(WORLD.splits["train"])
    own, near = attributes(entity), attributes(of[:, 3:].reshape(-1)).reshape(len(entity), 4, 3)
    assert ((near == own[:, None]).sum(-1) == 2).all()
    assert set((near != own[:, None]).argmax(-1).reshape(-1)) == {0, 1, 2}
    assert all(len(set(row)) == 7 for row in batch["negatives"])
    assert next(WorldConfig(near=0, batch_size=4).batches(0))["negatives"].shape == (4, 3)


def test_hard_negatives_of_the_countries():
    batch, held_out, hard = first(COUNTRIES), set(COUNTRIES.atlas.held_out), COUNTRIES.hard_negatives
    for number, gold, negatives in zip(batch["id"], batch["gold"], batch["negatives"], strict=True):
        country, relation = COUNTRIES.subject_and_relation(number)
        of, kind = np.divmod(negatives, len(phrases.ITEM_KINDS))
        assert len(set(negatives)) == 4 and gold not in negatives and not held_out & set(of)
        own = of == country
        assert own.sum() == min(2, hard.exists[country].sum() - 1)
        assert (kind[~own] == phrases.KIND_OF[relation]).all() and (kind[own] != phrases.KIND_OF[relation]).all()
        table = hard.similar_flags if relation in phrases.BY_FLAG else hard.similar_names
        assert set(of[~own]) <= set(table[country]) or not hard.exists[table[country], phrases.KIND_OF[relation]].all()
        assert np.isin(negatives, COUNTRIES.items.id).all()


@both
def test_the_promises_of_a_stream(data):
    check_stream(functools.partial(dataclasses.replace, data), 3)
    refused(ValueError, data.batches, 0, 0, 3, match="batch_size 8")


def test_an_epoch_has_every_question_once_with_a_new_picture():
    data = WorldConfig(size=16, held_out=248, newcomers=0, near=0, batch_size=8)
    batches = joined(take(data.batches(0), 10))
    ids, images = batches["id"].reshape(2, 40), batches["image"].reshape(2, 40, -1)
    assert len(set(ids[0])) == len(set(ids[1])) == 40 and set(ids[0]) == set(ids[1]) and list(ids[0]) != list(ids[1])
    first, second = (epoch[order.argsort()] for epoch, order in zip(images, ids, strict=True))
    assert np.abs(first - second).mean(axis=1).min() > 0.02


def test_answers_that_are_too_long_are_not_asked():
    """A few invented names take more than 11 pieces, no real one does."""
    atlas, askable = COUNTRIES.atlas, COUNTRIES.askable
    known = np.array([[bool(country.facts[r]) for r in countries.RELATIONS] for country in atlas.countries])
    by_name = np.array([r not in phrases.BY_FLAG for r in countries.RELATIONS])
    cut = known & ~askable & (atlas.unique_flag[:, None] | by_name)
    assert cut[:250].sum() == 0 < cut.sum() < 10
    assert askable[:250].sum(0).tolist() == [227, 227, 249, 227, 154, 224, 246]


@pytest.mark.long
def test_tasks_accept_a_batch():
    """As the trainer traces them, without compiling."""
    for data, kind in ((COUNTRIES, WarmStart), (PLAIN_COUNTRIES, Joint)):
        task = kind(data, COUNTRIES_NETWORK)
        frozen, batch = task.frozen(), {name: jnp.asarray(array) for name, array in next(data.batches(0)).items()}
        rows = len(frozen["contents"].id)
        refreshed = {"keys": jnp.zeros((rows, 8)), "values": jnp.zeros((rows, 2, 16))}
        context = Context(jnp.int32(0), jax.random.key(1), frozen, refreshed)
        params = jax.eval_shape(task.init, jax.random.key(0))
        loss, metrics = jax.eval_shape(
            lambda params, task=task, batch=batch, context=context: task.loss(params, batch, context), params
        )
        assert loss.shape == () and set(metrics) >= {"generation", "accuracy"}


@pytest.mark.long
@pytest.mark.parametrize(("data", "split", "least", "most"), [
    (WORLD, "train", 1025, 1025),
    (WORLD, "held_out", 230, 230),
    (WORLD, "newcomers", 25, 25),
    (PLAIN_COUNTRIES, "held_out", 320, 350),
    (PLAIN_COUNTRIES, "train", 1150, 1250),
])  # fmt: skip
def test_a_split_has_every_question_about_its_subjects(data, split, least, most):
    questions, batch = data.evaluation(split, renderings=1), first(data)
    assert questions.keys() == batch.keys() - {"negatives", "permutation"}
    assert all(array.dtype == batch[name].dtype for name, array in questions.items())
    subjects = questions["id"] // len(data.relations)
    assert least <= len(subjects) <= most and set(questions["relation"]) == set(range(len(data.relations)))
    silent = {data.describe(number) for number in set(data.splits[split].tolist()) - set(subjects.tolist())}
    assert all(name.startswith("Heard Island") for name in silent)
    stored = np.isin(questions["gold"], data.items.id)
    assert not stored.any() if split == "newcomers" else stored.all()


@both
def test_pictures_of_an_evaluation_are_fixed_and_all_different(data):
    two, one = (data.evaluation("held_out", renderings) for renderings in (2, 1))
    np.testing.assert_array_equal(two["image"][::2], one["image"])
    shown = two["image"][(two["image"] != 0.5).any(axis=(1, 2, 3))]
    assert len({image.tobytes() for image in shown}) == len(shown) > 400
    if data is WORLD:
        items = {image.tobytes() for image in data.items.image}
        assert not items & {np.rint(image * 255).astype(np.uint8).tobytes() for image in shown}


@both
def test_edited_facts_change_the_answers_and_the_items(data):
    edited = (data.world if data is WORLD else data.atlas).edited(1)
    before, after = data.evaluation("held_out", 1), data.evaluation("held_out", 1, edited)
    assert_equal([{**before, "answer": 0}], [{**after, "answer": 0}])
    assert (before["answer"] != after["answer"]).any(axis=1).mean() > 0.8
    texts = {item.id: item.fields["text"] for item in data.memory_items(data.splits["held_out"], edited)}
    for gold, answer in zip(after["gold"], after["answer"], strict=True):
        assert data.vocabulary.decode(answer) in texts[gold]
    assert WORLD.names([37 * 5 + 1]) == ["food of de nu ro (entity 37, striped orange ring)"]
    number = number_of(COUNTRIES.atlas, "Peru")
    assert COUNTRIES.names([number * 7 + 5]) == [f"capital of Peru (country {number})"]


@pytest.mark.parametrize(("config", "changes", "value"), [
    (WorldConfig, dict(near=18), "near 18"),
    (WorldConfig, dict(newcomers=60), "60 newcomers"),
    (WorldConfig, dict(batch_size=2000), "2000"),
    (CountriesConfig, dict(invented=0, batch_size=99000), "99000"),
    (CountriesConfig, dict(invented=0, held_out=200), "200 held out"),
])  # fmt: skip
def test_refused_values(config, changes, value):
    refused(ValueError, lambda: config(**changes).batches(0), match=value)
    with pytest.raises(ValueError, match=r"'valid'.*train, held_out"):
        (WORLD if config is WorldConfig else COUNTRIES).evaluation("valid")
    refused(ValueError, lambda: CountriesConfig(invented=0).evaluation("invented"), match=r"'invented'.*data\.invented")
