"""How far an answer is to be trusted: the calibrated probability that it is right.

A logistic regression of a few numbers that every answer comes with (`FEATURES`), fitted once on questions that no
training has asked (`fit`) and kept in the header of the weights:

    score       of the best item: cosine of its key with the query, plus the log-probability of its source
    gate        the largest log-probability of a source
    likelihood  log-probability of the answer per token
    empty       log-odds that the generator says nothing, as it has learnt to do where no item answers

Below `threshold` the answer is doubted: the memory does not seem to have it. An empty answer is always doubted.
(Platt, "Probabilistic outputs for support vector machines", 1999.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

FEATURES = ("score", "gate", "likelihood", "empty")
RIDGE, STEPS = 1e-2, 50  # of the fit: penalty of standardised weights, Newton steps
LARGEST = 30.0  # magnitude of log-odds


@dataclasses.dataclass(frozen=True)
class Doubt:
    """sigmoid(weights . features + bias) is the probability of a right answer; below `threshold` it is doubted."""

    weights: tuple[float, ...]
    bias: float
    threshold: float

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES) or not 0 <= self.threshold <= 1:
            raise ValueError(f"{self}: there are {len(FEATURES)} weights, and the threshold is 0 to 1")

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> Doubt:
        """The inverse of `as_json`. Raises ValueError for other features or fields."""
        if set(mapping) != {"weights", "bias", "threshold"} or set(mapping["weights"]) != set(FEATURES):
            raise ValueError(f"doubt is {mapping}: it has bias, threshold, and weights of {', '.join(FEATURES)}")
        weights = tuple(float(mapping["weights"][name]) for name in FEATURES)
        return cls(weights, float(mapping["bias"]), float(mapping["threshold"]))

    def as_json(self) -> dict[str, Any]:
        weights = dict(zip(FEATURES, self.weights, strict=True))
        return {"weights": weights, "bias": self.bias, "threshold": self.threshold}

    def probability(self, features: Float[np.ndarray, "*n f"]) -> Float[np.ndarray, "*n"]:
        return _sigmoid(features @ np.array(self.weights) + self.bias)


def fit(features: Float[np.ndarray, "n f"], right: Bool[np.ndarray, " n"], lost: float = 0.03) -> Doubt:
    """Weights of the least cross-entropy, and the threshold that doubts a share `lost` of the right answers.

    Raises ValueError unless some answers are right and some wrong."""
    if right.all() or not right.any():
        raise ValueError(f"{right.sum()} of {len(right)} answers are right: calibration needs right and wrong ones")
    mean, deviation = features.mean(0), features.std(0) + 1e-6
    inputs = np.concatenate([(features - mean) / deviation, np.ones((len(features), 1))], axis=1)
    penalty, solution = RIDGE * np.diag([1.0] * features.shape[1] + [0.0]), np.zeros(inputs.shape[1])
    for _ in range(STEPS):  # Newton's method
        probability = _sigmoid(inputs @ solution)
        gradient = inputs.T @ (probability - right) / len(right) + penalty @ solution
        hessian = (inputs.T * (probability * (1 - probability))) @ inputs / len(right) + penalty
        solution = solution - np.linalg.solve(hessian + 1e-9 * np.eye(len(hessian)), gradient)
    weights = solution[:-1] / deviation
    bias = float(solution[-1] - weights @ mean)
    threshold = float(np.quantile(_sigmoid(features[right] @ weights + bias), lost))
    return Doubt(tuple(map(float, weights)), bias, min(threshold, 0.5))


def _sigmoid(x: Any) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -LARGEST, LARGEST))))
