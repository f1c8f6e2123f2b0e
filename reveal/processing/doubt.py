"""How far an answer is to be trusted: the calibrated probability that it is right.

A logistic regression of a few numbers that every answer comes with (`FEATURES`), of their squares and products, fitted
once on questions that no training has asked (`fit`) and kept in the header of the weights:

    score       of the best item: its key times the query, plus the log-probability of its source
    picture     the part of that score which is the similarity of the two pictures; 0 without a tower
    no_picture  what that part would be of an item without a picture: high where the question's shows nothing known
    gate        the largest log-probability of a source
    likelihood  log-probability of the answer per token
    empty       log-odds that the generator says nothing, as it has learnt to do where no item answers
    question    log-probability that this is a kind of question that items answer, which another logistic regression
                reads off the mean of the encoded question's tokens (`fit_probe`)

A log-probability is near 0 for all questions of a known kind, and falls with strangeness: a strange question is doubted
even where the picture is well known. Numbers without bound count up to `RANGE`, so that no square is far from those of
the fit. Below `threshold` the answer is doubted: the memory does not seem to have it. An empty answer is always
doubted. (Platt, "Probabilistic outputs for support vector machines", 1999.)
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

FEATURES = ("score", "picture", "no_picture", "gate", "likelihood", "empty", "question")
PAIRS = tuple(itertools.combinations_with_replacement(FEATURES, 2))
TERMS = (*FEATURES, *(f"{a} {b}" for a, b in PAIRS))
RANGE = {"likelihood": (-3.0, 0.0), "empty": (-16.0, 8.0), "question": (-4.0, 0.0)}
RIDGE, PROBE_RIDGE = 3e-4, 1e-2  # penalties of standardised weights: of few features, and of a state's many numbers
STEPS = 50  # of Newton's method
LARGEST = 30.0  # magnitude of log-odds
DIGITS = 5  # of the probe's weights in a header


class Signals(NamedTuple):
    """What every answer comes with, for any number of them: all of `FEATURES` but the last, and the question."""

    score: Float[np.ndarray, "*n"]
    picture: Float[np.ndarray, "*n"]
    no_picture: Float[np.ndarray, "*n"]
    gate: Float[np.ndarray, "*n"]
    likelihood: Float[np.ndarray, "*n"]
    empty: Float[np.ndarray, "*n"]
    text: Float[np.ndarray, "*n d"]  # mean of the encoded question's tokens


@dataclasses.dataclass(frozen=True)
class Logistic:
    weights: tuple[float, ...]
    bias: float

    def log_odds(self, x: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n"]:
        odds = np.asarray(x, np.float64) @ np.array(self.weights) + self.bias
        return np.asarray(np.clip(odds, -LARGEST, LARGEST))


@dataclasses.dataclass(frozen=True)
class Doubt:
    """sigmoid(weights . terms + bias) is the probability of a right answer; below `threshold` it is doubted."""

    weights: tuple[float, ...]  # of `TERMS`
    bias: float
    threshold: float
    question: Logistic | None = None

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> "Doubt":
        """The inverse of `as_json`; a term without a weight does not count. Raises ValueError for other fields."""
        try:
            weights, question = mapping["weights"], mapping.get("question")
            if unknown := set(weights) - set(TERMS):
                raise ValueError(f"doubt has weights of {', '.join(unknown)}, not of {', '.join(FEATURES)} and pairs")
            if question is not None:
                question = Logistic(tuple(map(float, question["weights"])), float(question["bias"]))
            values = tuple(float(weights.get(name, 0)) for name in TERMS)
            return cls(values, float(mapping["bias"]), float(mapping["threshold"]), question)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"doubt has weights, bias and threshold, not {mapping}") from error

    def as_json(self) -> dict[str, Any]:
        weights = dict(zip(TERMS, self.weights, strict=True))
        found = {"weights": weights, "bias": self.bias, "threshold": self.threshold}
        return found if self.question is None else {**found, "question": dataclasses.asdict(self.question)}

    def probability(self, signals: Signals) -> Float[np.ndarray, "*n"]:
        """Raises ValueError for a question of another width than the regression's."""
        odds = Logistic(self.weights, self.bias).log_odds(with_pairs(features(signals, self.question)))
        return np.asarray(1 / (1 + np.exp(-odds)))


def features(signals: Signals, question: Logistic | None) -> Float[np.ndarray, "*n f"]:
    """`FEATURES`; the last is 0 without a regression."""
    odds = np.full(np.shape(signals.score), np.inf) if question is None else question.log_odds(signals.text)
    values = dict(zip(FEATURES, (*map(np.asarray, signals[:-1]), -np.logaddexp(0, -odds)), strict=True))
    return np.stack([np.clip(x, *RANGE.get(name, (-np.inf, np.inf))) for name, x in values.items()], axis=-1)


def with_pairs(x: Float[np.ndarray, "*n f"]) -> Float[np.ndarray, "*n t"]:
    first, second = np.triu_indices(x.shape[-1])
    return np.concatenate([x, x[..., first] * x[..., second]], axis=-1)


def fit(signals: Signals, right: Bool[np.ndarray, " n"], question: Logistic | None = None, lost: float = 0.03) -> Doubt:
    """Weights of the least cross-entropy, and the threshold that doubts a share `lost` of the right answers. Raises
    ValueError unless some answers are right and some wrong."""
    if right.all() or not right.any():
        raise ValueError(f"{right.sum()} of {len(right)} answers are right: calibration needs right and wrong ones")
    x = features(signals, question)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    found = regression(with_pairs((x - mean) / deviation), right, np.ones(len(right)), RIDGE)
    linear, square = np.array(found.weights[: len(FEATURES)]) / deviation, np.zeros((len(FEATURES), len(FEATURES)))
    square[np.triu_indices(len(FEATURES))] = found.weights[len(FEATURES) :]
    square /= np.outer(deviation, deviation)
    weights = [*(linear - (square + square.T) @ mean), *square[np.triu_indices(len(FEATURES))]]
    bias = found.bias - linear @ mean + mean @ square @ mean
    doubt = Doubt(tuple(map(float, weights)), float(bias), 0.5, question)
    chosen = Signals(*(values[right] for values in signals))
    return dataclasses.replace(doubt, threshold=min(float(np.quantile(doubt.probability(chosen), lost)), 0.5))


def fit_probe(known: Float[np.ndarray, "n d"], strange: Float[np.ndarray, "m d"]) -> Logistic:
    """Tells encoded questions that items answer from others, both groups of equal weight."""
    targets = np.arange(len(known) + len(strange)) < len(known)
    share = np.where(targets, len(strange), len(known)) * 2 / len(targets)
    found = regression(np.concatenate([known, strange]), targets, share, PROBE_RIDGE)
    return Logistic(tuple(round(weight, DIGITS) for weight in found.weights), round(found.bias, DIGITS))


def regression(
    x: Float[np.ndarray, "n d"], targets: Bool[np.ndarray, " n"], share: Float[np.ndarray, " n"], ridge: float
) -> Logistic:
    """Logistic regression of rows that count by their share, by Newton's method."""
    x = np.asarray(x, np.float64)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    inputs = np.concatenate([(x - mean) / deviation, np.ones((len(x), 1))], axis=1)
    penalty, solution = ridge * np.diag([1.0] * x.shape[1] + [0.0]), np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        probability = 1 / (1 + np.exp(-np.clip(inputs @ solution, -LARGEST, LARGEST)))
        gradient = inputs.T @ (share * (probability - targets)) / len(x) + penalty @ solution
        hessian = (inputs.T * (share * probability * (1 - probability))) @ inputs / len(x) + penalty
        solution = solution - np.linalg.solve(hessian + 1e-9 * np.eye(len(hessian)), gradient)
    weights = solution[:-1] / deviation
    return Logistic(tuple(map(float, weights)), float(solution[-1] - weights @ mean))
