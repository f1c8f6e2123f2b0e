"""Anchors of a fidelity score: the same score without control, and with a wrong condition.

An edge F1 of 0.6 is good where images without control get 0.3, and nothing where they get 0.6. So one set of targets is
compared with three sets of images from the same prompts and seeds:

| row | generated with | how to read it |
| --- | --- | --- |
| with control | its own condition | the score |
| no control | the base alone | what the prompt gives; control must be well above |
| wrong control | another image's condition | no better than "no control", and far below the first |

    wrong = draw(prompts, conditions[derangement(len(conditions))])
    rows = score_rows({"edge F1": EdgeF1()}, images, {WITH: controlled, WITHOUT: uncontrolled, WRONG: wrong})
    print(table(rows)); log(flat(rows))         # {"edge F1/with control": 0.71, ...}

A score of NaN (no face found, say) is left out of its mean; `count` is the number of others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from common.evaluation.score_table import markdown

WITH, WITHOUT, WRONG = "with control", "no control", "wrong control"

Score = Callable[[Any, Any], float]  # (image, target) -> number
Examples = Sequence[Any] | np.ndarray


class Mean(NamedTuple):
    """The mean of `count` scores and its standard error, NaN below two."""

    value: float
    error: float
    count: int

    def text(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


Rows = dict[str, dict[str, Mean]]  # {row: {score: its mean}}


def derangement(n: int, seed: int = 0) -> Int[np.ndarray, " n"]:
    """A permutation of n indices without fixed points: a random cycle through all (Sattolo, 1986)."""
    cycle = np.random.default_rng(seed).permutation(n)
    found = np.empty(n, np.int64)
    found[cycle] = np.roll(cycle, 1)
    return found


def score_rows(scores: Mapping[str, Score], targets: Examples, sets: Mapping[str, Examples]) -> Rows:
    """Means by set of images and score; each set has an image for each target, wrongly controlled ones too."""

    def mean(score: Score, images: Examples) -> Mean:
        values = np.array([float(score(*pair)) for pair in zip(images, targets, strict=True)])
        values = values[~np.isnan(values)]
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return Mean(float(np.mean(values)) if len(values) else math.nan, error, len(values))

    return {name: {key: mean(score, images) for key, score in scores.items()} for name, images in sets.items()}


def flat(rows: Rows) -> dict[str, float]:
    """{"score/row": mean}, as a logger takes them."""
    return {f"{key}/{name}": mean.value for name, means in rows.items() for key, mean in means.items()}


def table(rows: Rows) -> str:
    """Markdown: mean ± standard error, and the number of images where not all could be scored."""
    most = max(mean.count for means in rows.values() for mean in means.values())

    def cell(mean: Mean) -> str:
        return mean.text() + (f" ({mean.count} of {most})" if mean.count < most else "")

    titles = next(iter(rows.values()))
    return markdown(["pictures", *titles], [[name, *map(cell, means.values())] for name, means in rows.items()])
