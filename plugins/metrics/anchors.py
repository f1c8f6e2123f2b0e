"""What a number about control means: the same number without control, and with the wrong one.

An edge F1 of 0.6 is good where pictures without control get 0.3, and nothing where they get 0.6. So control is never
scored alone. One set of targets, three sets of pictures for the same prompts and seeds:

| row | the picture was drawn with | how to read it |
| --- | --- | --- |
| with control | its own condition | the score |
| no control | none: the base alone | what the prompt gives by itself; control must be well above |
| wrong control | another picture's condition | should be no better than "no control", and far below the first |

Wrong conditions are dealt by a fixed `derangement`, so that none keeps its own and two evaluations compare alike.
Where the first and the third row are close, the plugin changes pictures but does not steer them.

    other = derangement(len(conditions), seed=0)
    wrong = draw(prompts, conditions[other])
    rows = with_anchors({"edge F1": EdgeF1()}, pictures, controlled, uncontrolled, wrong)
    print(table(rows))                          # for people
    log(flat(rows))                             # {"edge F1/with control": 0.71, ...}

A score that is NaN (no face found, say) is left out of its mean; `count` says how many were not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from common.evaluation.score_table import markdown

WITH, WITHOUT, WRONG = "with control", "no control", "wrong control"

Score = Callable[[Any, Any], float]  # (picture, target) -> number


class Mean(NamedTuple):
    """The mean of `count` scores and its standard error, NaN below two."""

    value: float
    error: float
    count: int

    def text(self, digits: int = 3) -> str:
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"


class Row(NamedTuple):
    """One kind of pictures and its mean of each score."""

    name: str
    scores: dict[str, Mean]


def derangement(n: int, seed: int = 0) -> Int[np.ndarray, " n"]:
    """For each of n places another one, no place twice: a random cycle through all (Sattolo, 1986).

    The same for the same seed. Raises ValueError for n below 2."""
    if n < 2:
        raise ValueError(f"{n} conditions cannot be exchanged; a wrong one for each takes 2 or more")
    cycle = np.random.default_rng(seed).permutation(n)
    found = np.empty(n, np.int64)
    found[cycle] = np.roll(cycle, 1)
    return found


def with_anchors(
    scores: Mapping[str, Score],
    targets: Sequence[Any] | np.ndarray,
    controlled: Sequence[Any] | np.ndarray,
    uncontrolled: Sequence[Any] | np.ndarray,
    wrong: Sequence[Any] | np.ndarray,
) -> list[Row]:
    """The three rows of the table above: each picture scored against its own target, also the wrongly controlled.

    Raises ValueError unless there are as many pictures of each kind as targets, and some."""
    kinds = {WITH: controlled, WITHOUT: uncontrolled, WRONG: wrong}
    counts = {"targets": len(targets), **{name: len(pictures) for name, pictures in kinds.items()}}
    if len(set(counts.values())) > 1 or not len(targets):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"{listed}: give one picture of each kind for each target, and at least one")
    return score_rows(scores, targets, kinds)


def score_rows(
    scores: Mapping[str, Score], targets: Sequence[Any] | np.ndarray, kinds: Mapping[str, Sequence[Any] | np.ndarray]
) -> list[Row]:
    """A row for each kind of pictures, one picture for each target."""
    return [
        Row(name, {key: mean_score(score, pictures, targets) for key, score in scores.items()})
        for name, pictures in kinds.items()
    ]


def mean_score(score: Score, pictures: Sequence[Any] | np.ndarray, targets: Sequence[Any] | np.ndarray) -> Mean:
    """The mean over pairs, without those that are NaN; NaN if all are."""
    values = np.array([float(score(*pair)) for pair in zip(pictures, targets, strict=True)])
    values = values[~np.isnan(values)]
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Mean(float(np.mean(values)) if len(values) else math.nan, error, len(values))


def flat(rows: Sequence[Row]) -> dict[str, float]:
    """{"score/row": mean}, as a logger takes them."""
    return {f"{key}/{row.name}": mean.value for row in rows for key, mean in row.scores.items()}


def table(rows: Sequence[Row], digits: int = 3) -> str:
    """Rows for people, in Markdown: mean ± standard error, and how many pictures where not all could be scored."""
    most = max(mean.count for row in rows for mean in row.scores.values())
    lines = []
    for row in rows:
        short = [f" ({mean.count} of {most})" if mean.count < most else "" for mean in row.scores.values()]
        cells = [mean.text(digits) + note for mean, note in zip(row.scores.values(), short, strict=True)]
        lines.append([row.name, *cells])
    return markdown(["pictures", *rows[0].scores], lines)
