"""Retrieval metrics: the fixture, double loops, pseudo-relevance and the gate."""

import json
from pathlib import Path

import numpy as np
import pytest

from reveal import metrics

FIXTURE = json.loads((Path(__file__).parents[1] / "data/reveal/metrics.json").read_text())["retrieval"]
RANKED, RELEVANT = FIXTURE["ranked"], FIXTURE["relevant"]
RNG = np.random.default_rng(0)


def test_the_fixture():
    for k, expected in FIXTURE["hit_recall"].items():
        assert metrics.recall_at_k(RANKED, RELEVANT, int(k)) == pytest.approx(expected)
    for k, expected in FIXTURE["fraction_recall"].items():
        assert metrics.fraction_recall_at_k(RANKED, RELEVANT, int(k)) == pytest.approx(expected)
    assert metrics.mrr(RANKED, RELEVANT) == pytest.approx(FIXTURE["mrr"])


@pytest.mark.parametrize("k", [1, 3, 12])
def test_by_double_loops(k):
    ranked = np.stack([RNG.permutation(30)[:12] for _ in range(40)])
    relevant = [set(RNG.permutation(30)[: RNG.integers(1, 5)].tolist()) for _ in range(40)]
    hits = [[item in wanted for item in row[:k].tolist()] for row, wanted in zip(ranked, relevant, strict=True)]
    recall = metrics.recall_at_k(ranked, relevant, k)
    assert recall == pytest.approx(np.mean([any(row) for row in hits]))
    shares = [sum(row) / min(k, len(wanted)) for row, wanted in zip(hits, relevant, strict=True)]
    assert metrics.fraction_recall_at_k(ranked, relevant, k) == pytest.approx(np.mean(shares))
    assert metrics.recall_at_k(ranked.tolist(), relevant, k) == recall
    assert metrics.recall_at_k(ranked[:, :k], relevant, 99) == recall


def test_a_repeated_item_counts_once():
    assert metrics.fraction_recall_at_k([[7, 7, 1]], [[7, 8]], 3) == 0.5


def test_a_passage_with_an_answer_is_relevant():
    passages = [["A party by the sea.", "Surfing is a sport."], ["It is Blue", "red"], ["nothing", "at all"]]
    answers = [["art"], ["blue", "navy"], ["something"]]
    assert metrics.pr_recall_at_k(passages, answers, 1) == pytest.approx(2 / 3)
    assert metrics.pr_recall_at_k(passages, answers, 2, whole_words=True) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("text", "answers", "part", "word"),
    [
        ("The City of New York", ["new york"], True, True),
        ("party", ["art"], True, False),
        ("C++ code", ["c++"], True, True),
        ("a.b", ["axb"], False, False),
        ("anything", ["", "  "], False, False),
        ("state-of-the-art", [" Art "], True, True),
    ],
)
def test_contains_answer(text, answers, part, word):
    assert metrics.contains_answer(text, answers) == part
    assert metrics.contains_answer(text, answers, whole_words=True) == word


def test_gate_accuracy():
    gates = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [np.nan, 0.5, 0.5]])
    assert metrics.gate_accuracy(gates, np.array([0, 2, 2, 0])) == 0.5
    assert metrics.gate_accuracy(gates[:3] * 9, np.array([0, 1, 2])) == 1


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.recall_at_k(RANKED, RELEVANT, 0), "k=0"),
        (lambda: metrics.recall_at_k([], [], 1), "0 ranked lists"),
        (lambda: metrics.fraction_recall_at_k(RANKED, RELEVANT[:2], 1), "3 ranked lists"),
        (lambda: metrics.mrr(RANKED, [[1], [], []]), "2 queries"),
        (lambda: metrics.gate_accuracy(np.ones((2, 3)), np.array([0, 3])), r"\[0, 3\]"),
        (lambda: metrics.gate_accuracy(np.ones((0, 3)), np.array([], int)), r"\(0, 3\)"),
        (lambda: metrics.pr_recall_at_k([["a"]], [["a"]], -1), "k=-1"),
    ],
)
def test_refusals(call, value):
    with pytest.raises(ValueError, match=value):
        call()
