"""What counts as right, what chance is, both hops; what is done to the memory, with a network that knows nothing."""

import json
import warnings

import numpy as np
import pytest
from flax import nnx
from little_countries import NETWORK

from common.io.images import image_size
from recipes.countries.data import CountriesConfig
from recipes.countries.facts import RELATIONS
from recipes.countries.phrases import asked_of
from reveal.memory.engines.engine import SearchResult
from reveal.network import weights
from reveal.network.model import Reveal
from reveal.reader import Reader, ReaderOutput

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from recipes.countries.evaluation import CountriesEvaluation, plain, table
    from recipes.countries.sheet import noted, spread
    from recipes.memory_scores import accuracy

DATA = CountriesConfig(size=16, invented=0)
EVALUATION = CountriesEvaluation(DATA, renderings=1)
HELD_OUT = DATA.evaluation("held_out", 1)


def answers(texts) -> ReaderOutput:
    """As if these had been written."""
    tokens = np.stack([DATA.ended(text) for text in texts])
    nothing, ids = np.zeros((len(tokens), 0), np.float32), np.zeros((len(tokens), 0), np.int64)
    return ReaderOutput(
        tokens, SearchResult(ids, nothing, ids, 1), nothing, nothing, np.zeros((len(tokens), 4), np.float32)
    )


def question(name, relation) -> int:
    return DATA.atlas.number_of[name] * len(RELATIONS) + RELATIONS.index(relation)


class Oracle(Reader):
    """Knows every language and currency, and calls flags what it is told to."""

    def __init__(self, names):
        self.names = names

    def ask(self, tokens, image=None, k=4, *, sources=None, how=None):
        texts = [DATA.vocabulary.decode(row) for row in tokens]
        if not any("language" in text or "currency" in text for text in texts):
            return answers(self.names)
        assert (image == 0.5).all()
        relation = "languages" if "language" in texts[0] else "currency"
        begins = f"Question: {asked_of(relation, '', 0).removesuffix('?')}"
        asked = [text.removeprefix(begins).removesuffix("?") for text in texts]
        return answers([(DATA.atlas.answers(DATA.atlas.number_of[name], relation) or ("",))[0] for name in asked])


@pytest.fixture(scope="module")
def model():
    return Reveal(NETWORK, rngs=nnx.Rngs(0))


def test_any_of_several_answers_is_right_and_two_of_them_are_not():
    ids = [question("South Africa", "capital")] * 4 + [question("Peru", "borders")] * 2 + [question("Peru", "name")]
    told = answers(["pretoria", "Cape  Town", "Pretoria, Cape Town", "Lima", "Brazil", "Argentina", "Peru"])
    right = EVALUATION.right(told, {"id": np.array(ids)})
    assert right.tolist() == [True, True, False, False, True, False, True]
    assert plain(" Port  Louis ") == "port louis"


def test_edited_answers_are_right_in_the_edited_world():
    edited = DATA.atlas.edited(0)
    capital = HELD_OUT["relation"] == RELATIONS.index("capital")
    ids = HELD_OUT["id"][capital]
    new = answers([edited.answers(*DATA.of(number))[0] for number in ids])
    assert EVALUATION.right(new, {"id": ids}, edited).all() and not EVALUATION.right(new, {"id": ids}).any()


def test_chance_is_the_commonest_answer_about_training_countries():
    chance = EVALUATION.chance(HELD_OUT)
    languages = [DATA.atlas.answers(number, "languages") for number in DATA.atlas.held_out]
    assert chance["languages"] == np.mean(["English" in texts for texts in languages])
    assert chance["name"] == 0 and chance["region"] < 0.3 and 0 < chance["accuracy"] < 0.2


def test_two_hops_need_both_answers():
    named = HELD_OUT["relation"] == RELATIONS.index("name")
    names = [DATA.atlas.countries[DATA.of(number)[0]].name for number in HELD_OUT["id"][named]]
    assert EVALUATION.two_hops(Oracle(names), HELD_OUT) == {"accuracy": 1, "languages": 1, "currency": 1}
    wrong = EVALUATION.two_hops(Oracle(names[1:] + names[:1]), HELD_OUT)
    assert wrong["languages"] < 0.4 and wrong["currency"] < 0.2  # some speak, some pay alike


def test_scores_by_relation():
    scores = accuracy(np.array([True, False, True]), {"relation": np.array([0, 0, 5])}, RELATIONS)
    assert scores == {"accuracy": 2 / 3, "name": 0.5, "capital": 1.0}
    assert table({"a": scores, "b": {"gate": 0.25}}).splitlines() == [
        "|  | accuracy | name (passages) | capital (passages) | gate |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| a | 66.7 | 50.0 | 100.0 |  |",
        "| b |  |  |  | 25.0 |",
    ]


def test_every_row_is_there_and_the_memory_is_what_it_was(model, tmp_path):
    path = weights.save(tmp_path / "weights.safetensors", nnx.to_pure_dict(nnx.state(model)), NETWORK)
    told = EVALUATION.run(str(path), tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [line.split(" | ")[0][2:] for line in told.splitlines()[2:]] == list(rows)
    assert (tmp_path / "out" / "results.md").read_text() == told + "\n"
    assert "recall_1" not in rows["no memory"] and rows["without vqa"]["recall_1_vqa"] == 0
    assert rows["held out"]["recall_4"] == rows["shuffled memory"]["recall_4"]
    assert rows["held out"]["gate"] == rows["without vqa"]["gate"]
    width, height = image_size(tmp_path / "out" / "answers.png")
    assert width > 4 * 192 and height > 5 * 192
    with pytest.raises(FileExistsError, match=r"results\.json"):
        EVALUATION.run(str(path), tmp_path / "out")


def test_exchanged_values_stay_with_their_kind(model, tmp_path):
    reader = EVALUATION.reader(model, tmp_path / "memory")
    items = DATA.real_items()
    ids = np.array([item.id for item in items])
    before = np.asarray(reader.memory.values(ids))
    EVALUATION.exchange_values(reader)
    after = np.asarray(reader.memory.values(ids))
    for slot in range(5):
        rows = ids % 5 == slot
        np.testing.assert_array_equal(*(np.sort(x[rows].reshape(rows.sum(), -1).sum(-1)) for x in (before, after)))
    assert (before == after).all(axis=(1, 2)).mean() < 0.05
    assert reader.memory.items(ids[:3])[1].fields == items[1].fields


def test_rows_of_a_sheet_are_of_different_kinds():
    kinds = np.array([0, 0, 0, 1, 1, 2])
    chosen = spread(np.arange(6), kinds, 4)
    assert sorted(kinds[chosen[:3]]) == [0, 1, 2] and len(set(chosen)) == 4 and kinds[chosen[3]] == 0
    assert spread(np.arange(0), kinds, 4) == []


def test_texts_stand_under_their_picture():
    shown = noted(np.zeros((3, 4, 3), np.float32), ["one", "two " * 100])
    assert shown.shape == (192 + 84, 192, 3) and (shown[:144] == 0).all() and (shown[192:] < 0.5).any()
