"""Scores of a network that answers questions from a memory: accuracy by relation, recall and gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from common.evaluation.score_table import percent_table
from reveal.metrics.retrieval import gate_accuracy, mrr, recall_at_k

Scores = dict[str, float]


def training_scores(k: int) -> list[str]:
    """Names of the scores during training; k is 0 without a memory."""
    return ["accuracy", "recall_1", f"recall_{max(k, 1)}", "gate", "train_accuracy"]


def accuracy(right: Bool[np.ndarray, " n"], questions: Mapping[str, np.ndarray], relations: Sequence[str]) -> Scores:
    """Over all questions, and of each relation that there are questions about."""
    scores = {"accuracy": float(right.mean())}
    for number, relation in enumerate(relations):
        chosen = questions["relation"] == number
        if chosen.any():
            scores[relation] = float(right[chosen].mean())
    return scores


def retrieval(answers: Any, questions: Mapping[str, np.ndarray], k: int) -> Scores:
    """How often the item with the answer was found, and how often its source was trusted the most.

    `answers` is what `Reader.ask` returned with k items."""
    ranked, gold = answers.retrieved.ids, questions["gold"][:, None]
    return {
        "recall_1": recall_at_k(ranked, gold, 1),
        f"recall_{k}": recall_at_k(ranked, gold, k),
        "mrr": mrr(ranked, gold),
        "gate": gate_accuracy(answers.log_gate, questions["source"]),
    }


def table(rows: Mapping[str, Scores], source_of: Mapping[str, str]) -> str:
    """The rows in Markdown, in percent; a relation is shown with the source that answers it."""
    return percent_table(rows, {relation: f"{relation} ({source})" for relation, source in source_of.items()})
