"""VQA accuracy: the public evaluator's results, and each of its rules by itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from reveal import metrics
from reveal.metrics.vqa import CONTRACTIONS, NUMBERS, digits_and_articles, normalise, strip_punctuation

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())["vqa_accuracy"]


def test_the_public_evaluators_results():
    each = []
    for case in FIXTURE["cases"]:
        prediction, answers = case["prediction"], case["answers"]
        each.append(100 * metrics.vqa_accuracy(prediction, answers))
        assert each[-1] == pytest.approx(case["official_vqa_accuracy"], abs=1e-9), case["question_id"]
        short = 100 * metrics.vqa_accuracy(prediction, answers, "short")
        assert short == pytest.approx(case["simple_min_n_over_3_on_normalised"], abs=1e-4), case["question_id"]
        assert normalise(prediction) == case["normalised_prediction"]
    assert np.mean(each) == pytest.approx(FIXTURE["overall"])


def test_leaving_one_out_by_the_definition():
    """Each of ten left out once, the rest compared: against the short form, which leaves nobody out."""
    for agree in range(11):
        answers = ["right"] * agree + ["wrong"] * (10 - agree)
        others = [answers[:i] + answers[i + 1 :] for i in range(10)]
        expected = np.mean([min(1, other.count("right") / 3) for other in others])
        assert metrics.vqa_accuracy("right", answers) == pytest.approx(expected)
        assert metrics.vqa_accuracy("right", answers, "short") == min(1, agree / 3) >= expected - 1e-12


@pytest.mark.parametrize(
    ("prediction", "answers", "current", "older"),
    [
        ("the dog", ["the dog"] * 9 + ["cat"], 1, 0),  # "dog" is not "the dog", whose article stays
        ("Yes", ["yes"] * 10, 0, 1),
        ("red/white", ["red/white"] * 9 + ["red"], 1, 1),
        ("red/white", ["red/white"] * 10, 1, 0),  # only the prediction is normalised
        ("yes", ["yes "] * 10, 1, 0),
    ],
)
def test_the_older_evaluator(prediction, answers, current, older):
    assert metrics.vqa_accuracy(prediction, answers) == current
    assert metrics.vqa_accuracy(prediction, answers, "older") == older


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red/white", "red white"),
        ("red / white", "red  white"),
        ("yes!", "yes "),
        ("(a) b!", "a b"),  # a space touches one bracket, but not the exclamation mark, which becomes one
        ("1,000 (ft)", "1000 ft"),
        ("1,000!x", "1000x"),  # a number's comma decides for every mark
        ("3.5 feet.", "3.5 feet"),
        ("u.s.", "us"),
        ("it's 5:30", "it's 5:30"),
        ("." * 40, "." * 8),  # 32 are dropped
    ],
)
def test_punctuation(text, expected):
    assert strip_punctuation(text).strip() == expected.strip()


def test_words():
    assert digits_and_articles("The  Ten an a none") == "10 0"
    assert digits_and_articles("dont hed've Im yall'd've") == "don't he'd've im y'all'd've"
    assert len(NUMBERS) == 12 and len(CONTRACTIONS) == 118
    assert CONTRACTIONS["couldnt've"] == CONTRACTIONS["couldn'tve"] == "couldn't've" and "couldntve" not in CONTRACTIONS
    assert CONTRACTIONS["'ow'sat"] == "'ow's'at" and CONTRACTIONS["somebody'd"] == "somebodyd"
    assert "its" not in CONTRACTIONS and "let's" not in CONTRACTIONS


def test_ok_vqa_counts_five_annotators_twice():
    answers = metrics.ten_answers(["surf"] + ["swim"] * 4)
    assert answers == metrics.ten_answers(answers) == ["surf"] * 2 + ["swim"] * 8
    assert metrics.vqa_accuracy("surf", answers) == pytest.approx(0.6)
    assert metrics.vqa_accuracy("swim", answers) == 1 and metrics.vqa_accuracy("surfing", answers) == 0


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("a", ["a"] * 3), "4 or more"),
        (("a", ["a"] * 2, "short"), "3 or more"),
        (("a", "answer"), "answers='answer'"),
    ],
)
def test_refusals(arguments, value):
    with pytest.raises(ValueError, match=value):
        metrics.vqa_accuracy(*arguments)


def test_lazy_names():
    assert all(hasattr(metrics, name) for name in metrics.__all__) and set(metrics.__all__) <= set(dir(metrics))
    with pytest.raises(AttributeError, match="nothing"):
        _ = metrics.nothing
