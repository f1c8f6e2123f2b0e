"""Anchors: wrong conditions for all, three rows, and means that say how many they are of."""

import numpy as np
import pytest
from networks import one_line

from plugins.metrics import Mean, derangement, flat, table, with_anchors

TARGETS = np.array([1.0, 2.0, 4.0, 8.0])
SCORES = {"error": lambda picture, target: abs(picture - target), "ratio": lambda picture, target: picture / target}


@pytest.mark.parametrize("n", [2, 3, 5, 100])
def test_none_keeps_its_own(n):
    for seed in range(20):
        found = derangement(n, seed)
        assert sorted(found) == list(range(n)) and not np.any(found == np.arange(n))
        np.testing.assert_array_equal(found, derangement(n, seed))
    assert len({tuple(derangement(n, seed)) for seed in range(20)}) >= min(n - 1, 10)


def test_all_cycles_are_dealt():
    """Of four places there are six cycles; each comes about equally often."""
    dealt = [tuple(derangement(4, seed)) for seed in range(1200)]
    counts = np.unique(dealt, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and counts.min() > 150


@pytest.mark.parametrize("n", [0, 1])
def test_one_condition_has_no_wrong_one(n):
    with pytest.raises(ValueError, match=f"{n} conditions") as error:
        derangement(n)
    one_line(error)


def test_three_rows_scored_against_the_same_targets():
    rows = with_anchors(SCORES, TARGETS, TARGETS, 2 * TARGETS, TARGETS[[1, 0, 3, 2]])
    assert [row.name for row in rows] == ["with control", "no control", "wrong control"]
    assert [row.scores["error"].value for row in rows] == [0, 15 / 4, (1 + 1 + 4 + 4) / 4]
    assert [row.scores["ratio"].value for row in rows] == [1, 2, (2 + 0.5 + 2 + 0.5) / 4]
    assert rows[1].scores["error"].error == pytest.approx(np.std([1, 2, 4, 8], ddof=1) / 2)
    assert flat(rows)["error/wrong control"] == 2.5 and len(flat(rows)) == 6


def test_a_score_that_is_none_is_left_out_and_counted():
    score = {"face": lambda picture, target: picture if picture > 0 else float("nan")}
    rows = with_anchors(score, [0] * 3, [1.0, 2.0, 3.0], [4.0, -1.0, -1.0], [-1.0] * 3)
    assert rows[0].scores["face"] == pytest.approx(Mean(2, 1 / np.sqrt(3), 3))
    assert rows[1].scores["face"] == pytest.approx(Mean(4, float("nan"), 1), nan_ok=True)
    assert rows[2].scores["face"] == pytest.approx(Mean(float("nan"), float("nan"), 0), nan_ok=True)
    assert "4.000 ± nan (1 of 3)" in table(rows) and "(0 of 3)" in table(rows) and "(3 of" not in table(rows)


def test_the_table_is_for_people():
    said = table(with_anchors(SCORES, TARGETS, TARGETS, 2 * TARGETS, TARGETS), digits=2).splitlines()
    assert said[:3] == [
        "| pictures | error | ratio |",
        "| --- | ---: | ---: |",
        "| with control | 0.00 ± 0.00 | 1.00 ± 0.00 |",
    ]
    assert said[3].startswith("| no control | 3.75 ± 1.55 | 2.00") and len(said) == 5


@pytest.mark.parametrize(("kinds", "said"), [((4, 3, 4), "3 no control"), ((4, 4, 5), "5 wrong control")])
def test_every_target_needs_a_picture_of_each_kind(kinds, said):
    with pytest.raises(ValueError, match=said) as error:
        with_anchors(SCORES, TARGETS, *(np.ones(n) for n in kinds))
    one_line(error)
    with pytest.raises(ValueError, match="0 targets"):
        with_anchors(SCORES, [], [], [], [])
