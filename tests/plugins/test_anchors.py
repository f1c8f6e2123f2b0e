"""Anchors: a wrong condition for each image, three rows, and means with the number of their scores."""

import numpy as np
import pytest
from refusal import refused

from plugins.metrics import Mean, derangement, flat, score_rows, table

TARGETS = np.array([1.0, 2.0, 4.0, 8.0])
NAMES = ("with control", "no control", "wrong control")
SCORES = {"error": lambda image, target: abs(image - target), "ratio": lambda image, target: image / target}


def sets_of(*images):
    return dict(zip(NAMES, images, strict=True))


@pytest.mark.parametrize("n", [2, 3, 100])
def test_a_derangement_has_no_fixed_point(n):
    found = [derangement(n, seed) for seed in range(20)]
    for seed, each in enumerate(found):
        assert sorted(each) == list(range(n)) and not np.any(each == np.arange(n))
        np.testing.assert_array_equal(each, derangement(n, seed))
    assert len({tuple(each) for each in found}) >= min(n - 1, 10)


def test_three_rows_scored_against_the_same_targets():
    rows = score_rows(SCORES, TARGETS, sets_of(TARGETS, 2 * TARGETS, TARGETS[[1, 0, 3, 2]]))
    assert tuple(rows) == NAMES
    assert [row["error"].value for row in rows.values()] == [0, 15 / 4, (1 + 1 + 4 + 4) / 4]
    assert [row["ratio"].value for row in rows.values()] == [1, 2, (2 + 0.5 + 2 + 0.5) / 4]
    assert rows["no control"]["error"].error == pytest.approx(np.std([1, 2, 4, 8], ddof=1) / 2)
    assert flat(rows)["error/wrong control"] == 2.5 and len(flat(rows)) == 6
    lines = table(rows).splitlines()
    assert lines[0] == "| pictures | error | ratio |"
    assert lines[2] == "| with control | 0.000 ± 0.000 | 1.000 ± 0.000 |"
    assert lines[3].startswith("| no control | 3.750 ± 1.548 | 2.000") and len(lines) == 5


def test_a_score_of_nan_is_left_out_and_counted():
    score = {"face": lambda image, target: image if image > 0 else float("nan")}
    rows = score_rows(score, [0] * 3, sets_of([1.0, 2.0, 3.0], [4.0, -1.0, -1.0], [-1.0] * 3))
    expected = [Mean(2, 1 / np.sqrt(3), 3), Mean(4, float("nan"), 1), Mean(float("nan"), float("nan"), 0)]
    for row, mean in zip(rows.values(), expected, strict=True):
        assert row["face"] == pytest.approx(mean, nan_ok=True)
    assert "4.000 ± nan (1 of 3)" in table(rows) and "(0 of 3)" in table(rows) and "(3 of" not in table(rows)


@pytest.mark.parametrize(("call", "value"), [
    (lambda: derangement(1), "^1 "),
    (lambda: score_rows(SCORES, TARGETS, sets_of(*(np.ones(n) for n in (4, 3, 4)))), "3 no control"),
    (lambda: score_rows(SCORES, TARGETS, sets_of(*(np.ones(n) for n in (4, 4, 5)))), "5 wrong control"),
    (lambda: score_rows(SCORES, [], sets_of([], [], [])), "0 targets"),
])  # fmt: skip
def test_every_target_needs_an_image_of_each_set(call, value):
    refused(ValueError, call, match=value)
