"""VQA accuracy: the public evaluator's own results, and what each of its rules does alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from reveal import metrics
from reveal.metrics.vqa import CONTRACTIONS, NUMBERS, digits_and_articles, normalise, strip_punctuation

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())["vqa_accuracy"]
CASES = FIXTURE["cases"]


def ten(**counts: int) -> list[str]:
    return [answer for answer, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize("case", CASES, ids=[str(case["question_id"]) for case in CASES])
def test_the_public_evaluators_result(case):
    prediction, answers = case["prediction"], case["answers"]
    assert 100 * metrics.vqa_accuracy(prediction, answers) == pytest.approx(case["official_vqa_accuracy"], abs=1e-9)
    short = 100 * metrics.vqa_accuracy(prediction, answers, "short")
    assert short == pytest.approx(case["simple_min_n_over_3_on_normalised"], abs=1e-4)
    assert normalise(prediction) == case["normalised_prediction"]


def annotations() -> list[dict]:
    return [
        {
            "question_id": case["question_id"],
            "question_type": "what" if case["question_id"] <= 5 else "other",
            "answer_type": "number" if any(answer.isdigit() for answer in case["answers"]) else "other",
            "answers": [{"answer_id": i, "answer": answer} for i, answer in enumerate(case["answers"], 1)],
        }
        for case in CASES
    ]


def test_a_set_and_its_types():
    predictions = {case["question_id"]: case["prediction"] for case in CASES}
    found = metrics.vqa_scores(predictions, annotations())
    assert 100 * found.accuracy == pytest.approx(FIXTURE["overall"])
    assert 100 * found.each[2] == pytest.approx(90) and found.each[7] == 0
    assert found.by_question_type["what"] == pytest.approx((1 + 0.9 + 0.6 + 0.3 + 1) / 5)
    assert set(found.by_question_type) == {"what", "other"} and set(found.by_answer_type) == {"number", "other"}
    untyped = [{key: item[key] for key in ("question_id", "answers")} for item in annotations()]
    assert metrics.vqa_scores(predictions, untyped) == (found.accuracy, found.each, {}, {})
    del predictions[1]
    with pytest.raises(ValueError, match=r"\(1\)"):
        metrics.vqa_scores(predictions, untyped)
    missing = metrics.vqa_scores(predictions, untyped, strict=False)
    assert missing.accuracy == pytest.approx(found.accuracy - 1 / 20) and missing.each[1] == 0


def test_leaving_one_out_by_the_definition():
    """Each of ten left out once, the rest compared: against the short form, which leaves nobody out."""
    for agree in range(11):
        answers = ten(right=agree, wrong=10 - agree)
        others = [answers[:i] + answers[i + 1 :] for i in range(10)]
        expected = np.mean([min(1, other.count("right") / 3) for other in others])
        assert metrics.vqa_accuracy("right", answers) == pytest.approx(expected)
        assert metrics.vqa_accuracy("right", answers, "short") == min(1, agree / 3) >= expected - 1e-12


def test_the_older_evaluator():
    mixed = ["the dog"] * 9 + ["cat"]
    assert metrics.vqa_accuracy("the dog", mixed) == 1
    assert metrics.vqa_accuracy("the dog", mixed, "older") == 0  # "dog" is not "the dog", whose article stays
    assert metrics.vqa_accuracy("Yes", ["yes"] * 10, "older") == 1 and metrics.vqa_accuracy("Yes", ["yes"] * 10) == 0
    assert metrics.vqa_accuracy("red/white", ["red/white"] * 9 + ["red"], "older") == 1
    assert metrics.vqa_accuracy("red/white", ["red/white"] * 10, "older") == 0  # only the prediction is normalised
    assert metrics.vqa_accuracy("yes", ["yes "] * 10) == 1 and metrics.vqa_accuracy("yes", ["yes "] * 10, "older") == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red/white", "red white"),
        ("red / white", "red  white"),
        ("yes!", "yes "),
        ("(a) b!", "a b"),  # the space beside one bracket is none beside the mark of exclamation: that gives one, too
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


def test_ok_vqa_counts_five_people_twice():
    people = [{"answer": "surf", "raw_answer": "surfing"}] + [{"answer": "swim", "raw_answer": "swimming"}] * 4
    item = {"question_id": 5, "answers": people}
    assert metrics.ten_answers(item) == ["surf"] * 2 + ["swim"] * 8
    assert metrics.ten_answers({"answers": [each for each in people for _ in range(2)]}) == metrics.ten_answers(item)
    assert metrics.vqa_scores({5: "surf"}, [item]).accuracy == pytest.approx(0.6)
    assert metrics.vqa_scores({5: "swim"}, [item]).accuracy == 1
    assert metrics.vqa_scores({5: "surfing"}, [item]).accuracy == 0
    assert metrics.vqa_scores({5: "surfing"}, [item], field="raw_answer").accuracy == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.vqa_accuracy("a", ["a"] * 3), "4 or more"),
        (lambda: metrics.vqa_accuracy("a", ["a"] * 2, "short"), "3 or more"),
        (lambda: metrics.vqa_accuracy("a", "answer"), "answers='answer'"),
        (lambda: metrics.vqa_scores({}, []), "0 questions"),
        (lambda: metrics.vqa_scores({1: "a"}, annotations()[:1] * 2), "2 questions"),
        (lambda: metrics.ten_answers(annotations()[0], "raw_answer"), "raw_answer"),
    ],
)
def test_refusals(call, value):
    with pytest.raises(ValueError, match=value):
        call()


def test_every_name_of_the_room_is_there():
    assert all(hasattr(metrics, name) for name in metrics.__all__) and set(metrics.__all__) <= set(dir(metrics))
    with pytest.raises(AttributeError, match="nothing"):
        _ = metrics.nothing
