"""Calibration: whether answers of probability p are right in a share p of the cases.

The probabilities are sorted and divided into groups of equal size, so that no group is empty or of one answer (Nguyen
& O'Connor, EMNLP 2015, "adaptive"); groups of equal width are mostly empty where most answers are sure.
"""

import numpy as np
from jaxtyping import Bool, Float

GROUPS = 10


def reliability(
    probability: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"], groups: int = GROUPS
) -> list[tuple[float, float, int]]:
    """(mean probability, share of right answers, answers) of each group, from the least sure. Raises ValueError for
    fewer answers than groups."""
    if len(probability) < groups:
        raise ValueError(f"{len(probability)} answers in {groups} groups: give as many answers or more")
    order = np.argsort(probability, kind="stable")
    parts = np.array_split(order, groups)
    return [(float(probability[part].mean()), float(right[part].mean()), len(part)) for part in parts]


def calibration_error(
    probability: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"], groups: int = GROUPS
) -> float:
    """The mean over all answers of the distance between probability and share of right answers of their group."""
    parts = reliability(probability, right, groups)
    return sum(count * abs(mean - share) for mean, share, count in parts) / len(probability)
