"""Both worlds' evaluations with untrained networks: right answers, scores, changes of the memory, search engines."""

import dataclasses
import json
import types

import numpy as np
import pytest
from flax import nnx
from little_worlds import COUNTRIES_NETWORK, WORLD, WORLD_NETWORK, number_of
from refusal import refused

from common.io.images import image_size
from recipes.countries.data import CountriesConfig
from recipes.countries.evaluation import CountriesEvaluation, captioned, diverse, normalized
from recipes.countries.facts import RELATIONS
from recipes.countries.forgetting import ATTACKS, ForgettingEvaluation, area
from recipes.countries.phrases import QUESTIONS
from recipes.small_world import engines
from recipes.small_world.evaluation import RandomEngine, WorldEvaluation
from reveal.memory.engines.engine import SearchResult
from reveal.network import weights
from reveal.network.model import Reveal
from reveal.reader import Reader, ReaderOutput

COUNTRIES = CountriesConfig(size=16, invented=0)
EVALUATION = CountriesEvaluation(COUNTRIES, renderings=1, beams=1)
FEW = dataclasses.replace(EVALUATION, data=dataclasses.replace(COUNTRIES, held_out=10))
HELD_OUT = COUNTRIES.evaluation("held_out", 1)


def answers(tokens) -> ReaderOutput:
    tokens = np.asarray(tokens)
    nothing, ids = np.zeros((len(tokens), 0), np.float32), np.zeros((len(tokens), 0), np.int64)
    gate, each = np.zeros((len(tokens), 4), np.float32), np.zeros(len(tokens), np.float32)
    return ReaderOutput(tokens, SearchResult(ids, nothing, ids, 1), nothing, nothing, gate, *[each] * 4, gate)


def written(texts) -> ReaderOutput:
    return answers([COUNTRIES.answer_tokens(text) for text in texts])


def save(folder, network):
    params = nnx.to_pure_dict(nnx.state(Reveal(network, rngs=nnx.Rngs(0))))
    return str(weights.save(folder / "weights.safetensors", params, network))


def test_in_the_world_an_answer_has_to_be_complete():
    questions, evaluation = {"answer": np.array([[7, 1], [7, 1], [7, 1]])}, WorldEvaluation(WORLD)
    right = evaluation.correct(answers([[7, 1, 0], [7, 9, 1], [8, 1, 0]]), questions)
    np.testing.assert_array_equal(right, [True, False, False])
    assert not evaluation.correct(answers([[7], [7], [8]]), questions).any()


def test_of_several_right_answers_any_one_is_right():
    for country, relation, text, right in (
        ("South Africa", "capital", "Cape  Town", True),
        ("South Africa", "capital", "Pretoria, Cape Town", False),
        ("South Africa", "capital", "Lima", False),
        ("Peru", "borders", "brazil", True),
        ("Peru", "borders", "Argentina", False),
    ):
        number = number_of(COUNTRIES.atlas, country) * len(RELATIONS) + RELATIONS.index(relation)
        assert EVALUATION.correct(written([text]), {"id": np.array([number])}).tolist() == [right], text
    assert normalized(" Port  Louis ") == "port louis"


def test_chance_is_the_most_frequent_answer_about_training_countries():
    chance = EVALUATION.chance(HELD_OUT)
    languages = [COUNTRIES.atlas.answers(number, "languages") for number in COUNTRIES.atlas.held_out]
    assert chance["languages"] == np.mean(["English" in texts for texts in languages])
    assert chance["name"] == 0 and chance["region"] < 0.3 and 0 < chance["accuracy"] < 0.2


class Oracle(Reader):
    """Knows all languages and currencies, and answers questions about flags with `names`."""

    def __init__(self, names):
        self.names = names

    def ask(self, tokens, image=None, k=4, *, sources=None, decoding=None):
        texts = [COUNTRIES.vocabulary.decode(row) for row in tokens]
        if not any("language" in text or "currency" in text for text in texts):
            return written(self.names)
        assert (image == 0.5).all()
        relation = "languages" if "language" in texts[0] else "currency"
        before = f"Question: {QUESTIONS[relation][0].removesuffix('{}?')}"
        names = [text.removeprefix(before).removesuffix("?") for text in texts]
        atlas = COUNTRIES.atlas
        return written([(atlas.answers(number_of(atlas, name), relation) or ("",))[0] for name in names])


def test_two_hops_need_both_answers():
    ids = HELD_OUT["id"][HELD_OUT["relation"] == RELATIONS.index("name")]
    names = [COUNTRIES.atlas.countries[number // len(RELATIONS)].name for number in ids]
    assert EVALUATION.two_hops(Oracle(names), HELD_OUT) == {"accuracy": 1, "languages": 1, "currency": 1}
    wrong = EVALUATION.two_hops(Oracle(names[1:] + names[:1]), HELD_OUT)
    assert wrong["languages"] < 0.4 and wrong["currency"] < 0.2  # some countries share them


def test_scores_by_relation_and_their_table():
    scores = EVALUATION.accuracy(np.array([True, False, True]), {"relation": np.array([0, 0, 5])})
    assert scores == {"accuracy": 2 / 3, "name": 0.5, "capital": 1.0}
    cells = [line.split(" | ") for line in EVALUATION.table({"a": scores, "b": {"gate": 0.25}}).splitlines()]
    assert cells[0][2] == "name (passages)" and cells[2][1:4] == ["66.7", "50.0", "100.0"] and cells[3][-1] == "25.0 |"


@pytest.mark.long
@pytest.mark.parametrize(("evaluation", "network", "zero"), [
    (FEW, COUNTRIES_NETWORK, {"without vqa": "recall_1_vqa"}),
    (WorldEvaluation(WORLD, renderings=1), WORLD_NETWORK, {"deleted": "recall_4", "newcomers, before": "recall_4"}),
], ids=["countries", "world"])  # fmt: skip
def test_every_row_is_written(evaluation, network, zero, tmp_path):
    path, out = save(tmp_path, network), tmp_path / "out"
    table = evaluation.run(path, out)
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [line.split(" | ")[0][2:] for line in table.splitlines()[2:]] == list(rows)
    assert (out / "results.md").read_text() == table + "\n"
    assert {path.name for path in out.iterdir()} == set(evaluation.files())
    assert "recall_1" not in rows["no memory"] and all(rows[row][score] == 0 for row, score in zero.items())
    assert rows["held out"]["gate"] == rows["without vqa"]["gate"]
    if evaluation is FEW:
        assert rows["held out"]["recall_4"] == rows["shuffled memory"]["recall_4"]
        width, height = image_size(out / "answers.png")
        assert width > 4 * 192 and height > 5 * 192
    refused(FileExistsError, evaluation.run, path, out, match=r"results\.json")


def test_an_attackers_area_under_the_curve():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 9, 20).astype(float), rng.integers(2, 9, 30).astype(float)
    pairs = np.sign(members[:, None] - others)
    assert area(members, others) == pytest.approx((1 + pairs.mean()) / 2) != 0.5
    assert area(members, members) == 0.5 and area(members + 9, others) == 1


@pytest.mark.long
def test_what_is_deleted_cannot_be_told_from_what_never_was(tmp_path):
    """Of an untrained network, which knows nothing about anyone."""
    evaluation, out = ForgettingEvaluation(COUNTRIES, renderings=1, beams=1, resamples=20), tmp_path / "out"
    groups = evaluation.groups()
    assert {name: len(group) for name, group in groups.items()} == {"held out": 25, "training": 100, "never seen": 25}
    assert len(np.unique(np.concatenate(list(groups.values())))) == 150
    table = evaluation.run(save(tmp_path, COUNTRIES_NETWORK), out)
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [line.split(" | ")[0][2:] for line in table.splitlines()[2:]] == list(rows)
    for scores in rows.values():
        for attack in ATTACKS:
            error = max(scores[f"auc_{attack}_error"], 0.01)
            assert abs(scores[f"auc_{attack}"] - 0.5) < 4 * error < 0.4


@pytest.mark.long
def test_scores_during_training():
    evaluation, model = WorldEvaluation(WORLD), Reveal(WORLD_NETWORK, rngs=nnx.Rngs(0))
    scores = evaluation.score(types.SimpleNamespace(model=lambda _: model), {})
    assert set(evaluation.prepare()) <= set(scores) and len(evaluation.seen()["id"]) == 256


def test_values_are_exchanged_within_their_kind(tmp_path):
    reader = EVALUATION.reader(Reveal(COUNTRIES_NETWORK, rngs=nnx.Rngs(0)), tmp_path / "memory")
    items = COUNTRIES.memory_items()
    ids = np.array([item.id for item in items])
    before = np.asarray(reader.memory.values(ids))
    EVALUATION.exchange_values(reader)
    after = np.asarray(reader.memory.values(ids))
    for kind in range(5):
        rows = ids % 5 == kind
        np.testing.assert_array_equal(*(np.sort(x[rows].reshape(rows.sum(), -1).sum(-1)) for x in (before, after)))
    assert (before == after).all(axis=(1, 2)).mean() < 0.05
    assert reader.memory.items(ids[:3])[1].fields == items[1].fields


def test_random_items_are_of_the_chosen_sources(tmp_path):
    model = Reveal(WORLD_NETWORK, rngs=nnx.Rngs(0))
    reader = WorldEvaluation(WORLD, engine=RandomEngine()).reader(model, tmp_path / "memory")
    found = reader.memory.search(np.zeros((50, 8), np.float32), 4, sources=["captions"])
    assert set(found.sources.ravel().tolist()) == {2} and np.isin(found.ids, WORLD.items.id).all()
    assert all(len(set(row)) == 4 for row in found.ids.tolist()) and len(np.unique(found.ids)) > 50


@pytest.mark.long
def test_exact_engines_agree(tmp_path):
    """FAISS HNSW is exact for so few items."""
    rows = engines.compare(save(tmp_path, WORLD_NETWORK), distractors=3, renderings=1)
    assert list(rows) == list(engines.ENGINES)
    exact = rows["exact, in the graph"]
    for name, scores in rows.items():
        for column in ("accuracy", "recall_1", "recall_4", "mrr"):
            np.testing.assert_allclose(scores[column], exact[column], atol=1e-6, err_msg=name)
    assert len(engines.table(rows).splitlines()) == 2 + len(rows)


def test_rows_of_a_sheet_are_diverse():
    kinds = np.array([0, 0, 0, 1, 1, 2])
    chosen = diverse(np.arange(6), kinds, 4)
    assert sorted(kinds[chosen[:3]]) == [0, 1, 2] and len(set(chosen)) == 4 and kinds[chosen[3]] == 0
    assert diverse(np.arange(0), kinds, 4) == []
    shown = captioned(np.zeros((3, 4, 3), np.float32), ["one", "two " * 100])
    assert shown.shape == (192 + 84, 192, 3) and (shown[:144] == 0).all() and (shown[192:] < 0.5).any()
