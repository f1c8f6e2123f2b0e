"""Metrics of answers and of retrieval: the public evaluators' results, and each of their rules by itself."""

import json
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from reveal import metrics
from reveal.metrics import aokvqa, evqa, infoseek
from reveal.metrics.vqa import CONTRACTIONS, NUMBERS, digits_and_articles, normalise, strip_punctuation

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())
QUESTIONS = FIXTURE["aokvqa"]["dataset"]
ANSWERS, CHOICES = (FIXTURE["aokvqa"][f"{task}_predictions"] for task in ("direct_answer", "multiple_choice"))
RANKED, RELEVANT = FIXTURE["retrieval"]["ranked"], FIXTURE["retrieval"]["relevant"]


def test_vqa_accuracy_of_the_public_evaluator():
    each = []
    for case in FIXTURE["vqa_accuracy"]["cases"]:
        prediction, answers = case["prediction"], case["answers"]
        each.append(100 * metrics.vqa_accuracy(prediction, answers))
        assert each[-1] == pytest.approx(case["official_vqa_accuracy"], abs=1e-9), case["question_id"]
        short = 100 * metrics.vqa_accuracy(prediction, answers, "short")
        assert short == pytest.approx(case["simple_min_n_over_3_on_normalised"], abs=1e-4), case["question_id"]
        assert normalise(prediction) == case["normalised_prediction"]
    assert np.mean(each) == pytest.approx(FIXTURE["vqa_accuracy"]["overall"])


@pytest.mark.parametrize(("prediction", "answers", "current", "older"), [
    ("the dog", ["the dog"] * 9 + ["cat"], 1, 0),  # "dog" is not "the dog", whose article stays
    ("Yes", ["yes"] * 10, 0, 1),
    ("red/white", ["red/white"] * 9 + ["red"], 1, 1),
    ("red/white", ["red/white"] * 10, 1, 0),  # only the prediction is normalised
    ("yes", ["yes "] * 10, 1, 0),
])  # fmt: skip
def test_the_older_evaluator(prediction, answers, current, older):
    assert metrics.vqa_accuracy(prediction, answers) == current
    assert metrics.vqa_accuracy(prediction, answers, "older") == older


def test_punctuation():
    """A space touches one bracket of "(a) b!", but not the "!"; a number's comma decides for every mark."""
    texts = {"red/white": "red white", "red / white": "red  white", "yes!": "yes", "(a) b!": "a b", "u.s.": "us"}
    texts |= {"1,000 (ft)": "1000 ft", "1,000!x": "1000x", "3.5 feet.": "3.5 feet", "it's 5:30": "it's 5:30"}
    texts |= {"." * 40: "." * 8}  # 32 are dropped
    assert {text: strip_punctuation(text).strip() for text in texts} == texts


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


def without(predictions: dict[str, str], question: str) -> dict[str, str]:
    return {name: text for name, text in predictions.items() if name != question}


def test_aokvqa_of_the_official_script():
    """Difficult questions count for choices only; nobody is left out, and nothing is normalised."""
    assert 100 * aokvqa.direct_answer(QUESTIONS, ANSWERS) == pytest.approx(FIXTURE["aokvqa"]["direct_answer"], abs=1e-9)
    assert 100 * aokvqa.multiple_choice(QUESTIONS, CHOICES) == FIXTURE["aokvqa"]["multiple_choice"]
    missing = 100 * aokvqa.direct_answer(QUESTIONS, without(ANSWERS, "b"), strict=False)
    assert missing == pytest.approx(FIXTURE["aokvqa"]["direct_answer_missing_b_nonstrict"], abs=1e-9)
    assert aokvqa.direct_answer(QUESTIONS, without(ANSWERS, "c")) == aokvqa.direct_answer(QUESTIONS, ANSWERS)
    assert aokvqa.multiple_choice(QUESTIONS, without(CHOICES, "c"), strict=False) == 0.5
    assert aokvqa.direct_answer(QUESTIONS[:1], {"a": "dog"}) == 1  # 3 of 10; VQA's own rule gives 0.9
    assert aokvqa.direct_answer(QUESTIONS[:1], {"a": "Dog"}) == 0


def test_free_text_maps_to_the_most_similar_choice():
    predictions = {"a": "The Dog", "b": "blue", "c": "nothing", "d": "a tram, not a bus"}
    questions = [*QUESTIONS[:3], QUESTIONS[3] | {"choices": ["car", "city bus", "van", "tram"]}]
    # "nothing" shares no word and takes the first; the tram has 1 of 5 words, the city bus 1 of 6
    assert aokvqa.to_choices(questions, predictions) == {"a": "dog", "b": "blue", "c": "1", "d": "tram"}
    assert aokvqa.to_choices(questions, {"c": "nothing"}, lambda text, choice: float(choice)) == {"c": "4"}
    assert aokvqa.to_choices(questions, {"a": "cat"}, lambda text, choice: float(choice == "dog")) == {"a": "cat"}
    for a, b, overlap in (("a red bus", "red bus", 2 / 3), ("Bus!", "bus", 1), ("bus", "buses", 0), ("", "", 0)):
        assert aokvqa.word_overlap(a, b) == aokvqa.word_overlap(b, a) == pytest.approx(overlap)


def test_exact_match_of_encyclopedic_vqa():
    right = {
        "The answer is two.": "2",
        "Two": "2",
        "t-shirt": "tshirt",
        "dont": "don't",
        "false": "no",
        "КЁЛЬН": "Кёльн",
    }
    for prediction, reference in (right | {"<extra_id_0> heron": "Heron"}).items():
        assert all(evqa.exact_match(prediction, ["a pair", reference], kind) for kind in evqa.KINDS)
    assert not evqa.exact_match("", ["heron"], "templated")
    assert not evqa.exact_match("fish, seeds", ["fish&&seeds"], "automatic")
    lists = {"fish, seeds and moss": True, "fish & moss": False, "fish": False, "fish & seeds": True, "": False}
    found = {text: evqa.exact_match(text, ["Seeds && fish && worms&&"], "multi_answer") for text in lists}
    assert found == lists and evqa.exact_match("fish", ["fish&&seeds&&"], "multi_answer")


def test_numbers_as_infoseek_reads_them():
    single = {"about 1,234.5 m": 1234.5, "10 to 9": 10, "1e3": 1000, ".5": 5, "-.5.2": -5.2, "none": 0, "٣": 3}
    expected = {"9-10": (9, 10), "from -3 to 4": (-3, 4), "1 2 3": (1, 2)}
    expected |= {text: (number, number) for text, number in single.items()}
    assert {text: infoseek.numbers(text) for text in expected} == expected


def test_the_rules_of_infoseek():
    right = ["61", "54.9 metres", "55 - 60", "50 to 65"]  # the last has 10.1 of 17.1, "40 to 65" 10.1 of 27.1
    wrong = ["67.2", "40 to 65", "no idea"]
    assert [text for text in right + wrong if infoseek.relaxed(text, (54.9, 67.1))] == right
    assert infoseek.relaxed("no idea", (-1.0, 1.0))  # 0, as in the evaluator
    assert infoseek.exact_match("the Alps!", ["alps"]) and not infoseek.exact_match("alp", ["alps"])
    splits = ["unseen_question"] * 2 + ["unseen_entity"] * 4
    found = infoseek.scores([True, False, True, False, False, False], splits, ["time"] * 5 + ["string"])
    assert found.score == pytest.approx(2 / (1 / 0.5 + 1 / 0.25)) and found.accuracy == pytest.approx(1 / 3)
    assert found.by_split == {"unseen_question": 0.5, "unseen_entity": 0.25} and found.by_kind["string"] == 0
    assert infoseek.scores([True], splits[:1], ["time"]).score is None
    assert infoseek.scores([True, False], splits[1:3], ["time"] * 2).score < 1e-12


def test_retrieval_of_the_fixture():
    """As lists and as arrays; a list shorter than k is taken whole."""
    for ranked in (RANKED, np.array(RANKED)):
        for k, expected in FIXTURE["retrieval"]["hit_recall"].items():
            assert metrics.recall_at_k(ranked, RELEVANT, int(k)) == pytest.approx(expected)
        assert metrics.mrr(ranked, RELEVANT) == pytest.approx(FIXTURE["retrieval"]["mrr"])
        assert metrics.recall_at_k(ranked, RELEVANT, 99) == metrics.recall_at_k(ranked, RELEVANT, 4)


def test_a_passage_with_an_answer_is_relevant():
    words = {"The City of New York": ["new york"], "C++ code": ["c++"], "state-of-the-art": [" Art "]}
    for text, answers in words.items():
        assert metrics.contains_answer(text, answers)
    for text, answers in (("a.b", ["axb"]), ("anything", ["", "  "])):
        assert not metrics.contains_answer(text, answers)
    passages, answers = [["x", "A party"], ["x", "is blue"]], [["art"], ["blue"]]
    assert [metrics.pr_recall_at_k(passages, answers, k) for k in (1, 2)] == [0, 1]


def test_gate_accuracy():
    gates = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [np.nan, 0.5, 0.5]])
    assert metrics.gate_accuracy(gates, np.array([0, 2, 2, 0])) == 0.5


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.vqa_accuracy("a", ["a"] * 3), "4 or more"),
        (lambda: metrics.vqa_accuracy("a", ["a"] * 2, "short"), "3 or more"),
        (lambda: metrics.vqa_accuracy("a", "answer"), "answers='answer'"),
        (lambda: aokvqa.multiple_choice(QUESTIONS, CHOICES | {"a": "a dog"}), "a dog"),
        (lambda: aokvqa.multiple_choice(QUESTIONS, without(CHOICES, "c")), r"\('c'\)"),
        (lambda: aokvqa.multiple_choice(QUESTIONS[:1] * 2, CHOICES), "2 questions"),
        (lambda: aokvqa.direct_answer(QUESTIONS[2:3], ANSWERS), "0 questions"),  # only a difficult one
        (lambda: aokvqa.to_choices(QUESTIONS, {"x": "dog"}), "'x'"),
        (lambda: evqa.exact_match("x", [], "2_hop"), r"\[\]"),
        (lambda: evqa.exact_match("x", ["The"], "2_hop"), "The"),
        (lambda: evqa.exact_match("x", ["x"], "y"), "'y'"),
        (lambda: infoseek.exact_match("x", []), r"\[\]"),
        (lambda: infoseek.relaxed("1", (2.0, 1.0)), r"2\.0, 1\.0"),
        (lambda: infoseek.scores([], [], []), "0 questions"),
        (lambda: metrics.recall_at_k(RANKED, RELEVANT, 0), "k=0"),
        (lambda: metrics.recall_at_k([], [], 1), "0 ranked lists"),
        (lambda: metrics.recall_at_k(RANKED, RELEVANT[:2], 1), "3 ranked lists"),
        (lambda: metrics.mrr(RANKED, [[1], [], []]), "2 queries"),
        (lambda: metrics.gate_accuracy(np.ones((2, 3)), np.array([0, 3])), r"\[0, 3\]"),
        (lambda: metrics.gate_accuracy(np.ones((0, 3)), np.array([], int)), r"\(0, 3\)"),
        (lambda: metrics.pr_recall_at_k([["a"]], [["a"]], -1), "k=-1"),
    ],
)
def test_refusals(call, value):
    refused(ValueError, call, match=value)
