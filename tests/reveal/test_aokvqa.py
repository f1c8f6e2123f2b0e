"""A-OKVQA: the official script's results, and which questions count for which task."""

import json
from pathlib import Path

import pytest

from reveal.metrics import aokvqa

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())["aokvqa"]
QUESTIONS = FIXTURE["dataset"]
ANSWERS, CHOICES = FIXTURE["direct_answer_predictions"], FIXTURE["multiple_choice_predictions"]


def without(predictions: dict[str, str], question: str) -> dict[str, str]:
    return {name: text for name, text in predictions.items() if name != question}


def test_the_official_results():
    assert 100 * aokvqa.direct_answer(QUESTIONS, ANSWERS) == pytest.approx(FIXTURE["direct_answer"], abs=1e-9)
    assert 100 * aokvqa.multiple_choice(QUESTIONS, CHOICES) == FIXTURE["multiple_choice"]
    missing = 100 * aokvqa.direct_answer(QUESTIONS, without(ANSWERS, "b"), strict=False)
    assert missing == pytest.approx(FIXTURE["direct_answer_missing_b_nonstrict"], abs=1e-9)


def test_difficult_questions_count_for_choices_only():
    assert aokvqa.direct_answer(QUESTIONS, without(ANSWERS, "c")) == aokvqa.direct_answer(QUESTIONS, ANSWERS)
    assert aokvqa.multiple_choice(QUESTIONS, CHOICES | {"c": "1"}) == 0.5
    assert aokvqa.multiple_choice(QUESTIONS, without(CHOICES, "c"), strict=False) == 0.5


def test_nobody_is_left_out_and_nothing_is_normalised():
    only = [question for question in QUESTIONS if question["question_id"] == "a"]
    assert aokvqa.direct_answer(only, {"a": "dog"}) == 1  # 3 of 10; VQA's own rule gives 0.9
    assert aokvqa.direct_answer(only, {"a": "Dog"}) == aokvqa.direct_answer(only, {"a": "a dog"}) == 0


def test_free_text_maps_to_the_most_similar_choice():
    predictions = {"a": "The Dog", "b": "blue", "c": "nothing", "d": "a tram, not a bus"}
    questions = [*QUESTIONS[:3], QUESTIONS[3] | {"choices": ["car", "city bus", "van", "tram"]}]
    # "nothing" shares no word and takes the first; the tram has 1 of 5 words, the city bus 1 of 6
    assert aokvqa.to_choices(questions, predictions) == {"a": "dog", "b": "blue", "c": "1", "d": "tram"}
    assert aokvqa.to_choices(questions, {"c": "nothing"}, lambda text, choice: float(choice)) == {"c": "4"}
    assert aokvqa.to_choices(questions, {"a": "cat"}, lambda text, choice: float(choice == "dog")) == {"a": "cat"}
    wrong = CHOICES | {"a": "a dog"}
    assert aokvqa.multiple_choice(QUESTIONS, wrong, strict=False) == 0.5
    assert aokvqa.multiple_choice(QUESTIONS, aokvqa.to_choices(QUESTIONS, wrong)) == 0.75


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [("a red bus", "red bus", 2 / 3), ("Bus!", "bus", 1), ("bus", "buses", 0), ("", "", 0), ("red red", "red", 1)],
)
def test_word_overlap(a, b, expected):
    assert aokvqa.word_overlap(a, b) == aokvqa.word_overlap(b, a) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: aokvqa.multiple_choice(QUESTIONS, CHOICES | {"a": "a dog"}), "a dog"),
        (lambda: aokvqa.multiple_choice(QUESTIONS, without(CHOICES, "c")), r"\('c'\)"),
        (lambda: aokvqa.multiple_choice(QUESTIONS[:1] * 2, CHOICES), "2 questions"),
        (lambda: aokvqa.direct_answer(QUESTIONS[2:3], ANSWERS), "0 questions"),  # only a difficult one
        (lambda: aokvqa.to_choices(QUESTIONS, {"x": "dog"}), "'x'"),
    ],
)
def test_refusals(call, value):
    with pytest.raises(ValueError, match=value):
        call()
