"""Retrieval metrics: does the memory return the items that answer the question?

`ranked` has each query's items, best first; `relevant` has those that would help. Items are ids of any kind.

| function | what it is |
| --- | --- |
| `recall_at_k` | share of queries with a relevant item among the first k ("hit" recall); a shorter list counts whole |
| `mrr` | mean reciprocal rank: 1 / rank of the first relevant item, 0 if it is missing |
| `pr_recall_at_k` | hit recall without relevance labels: a passage that contains an answer is relevant |
| `gate_accuracy` | share of queries whose gate is highest for the correct source |

**Pseudo-relevance.** OK-VQA has no labelled passages. What is published as PRRecall@k (Luo et al., EMNLP 2021; also
RA-VQA) counts a passage as relevant if an answer is a substring, in lower case: "art" is found in "party".
"""

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Ranked = Sequence[Sequence[Any]] | Int[np.ndarray, "n k"]
Relevant = Sequence[Collection[Any]] | Int[np.ndarray, "n r"]


def recall_at_k(ranked: Ranked, relevant: Relevant, k: int) -> float:
    """Raises ValueError for k below 1, and unless each query has a relevant item."""
    _check(ranked, relevant, k)
    pairs = zip(ranked, map(_as_set, relevant), strict=True)
    return statistics.fmean(not wanted.isdisjoint(_as_set(items[:k])) for items, wanted in pairs)


def mrr(ranked: Ranked, relevant: Relevant) -> float:
    """The mean reciprocal rank, over the whole lists. Raises as `recall_at_k`."""
    _check(ranked, relevant)
    pairs = zip(ranked, map(_as_set, relevant), strict=True)
    first = (next((n for n, item in enumerate(items, 1) if item in wanted), math.inf) for items, wanted in pairs)
    return statistics.fmean(1 / rank for rank in first)


def pr_recall_at_k(passages: Sequence[Sequence[str]], answers: Sequence[Sequence[str]], k: int) -> float:
    """Raises as `recall_at_k`."""
    _check(passages, answers, k)
    return statistics.fmean(
        any(contains_answer(text, known) for text in texts[:k]) for texts, known in zip(passages, answers, strict=True)
    )


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the non-empty answers is a substring of the text, in lower case."""
    text = text.lower()
    return any(answer.strip().lower() in text for answer in answers if answer.strip())


def gate_accuracy(gates: Float[np.ndarray, "n sources"], correct: Int[np.ndarray, " n"]) -> float:
    """Share of rows with their maximum at the correct source's column; a row with NaN is wrong. Raises ValueError
    without rows and for a source without a column."""
    if not len(gates) or correct.min() < 0 or correct.max() >= gates.shape[1]:
        raise ValueError(f"gates {gates.shape}, sources {sorted(set(correct.tolist()))}: each is a column, from 0")
    return float(np.mean((np.argmax(gates, axis=1) == correct) & np.isfinite(gates).all(axis=1)))


def _as_set(items: Collection[Any] | np.ndarray) -> set[Any]:
    return set(items.tolist()) if isinstance(items, np.ndarray) else set(items)


def _check(ranked: Sequence[Any] | np.ndarray, relevant: Sequence[Any] | np.ndarray, k: int = 1) -> None:
    if k < 1:
        raise ValueError(f"k={k} has to be 1 or more")
    if not len(ranked) or len(ranked) != len(relevant):
        raise ValueError(f"{len(ranked)} ranked lists for {len(relevant)} queries: give one for each, and at least one")
    if empty := [query for query, wanted in enumerate(relevant) if not len(wanted)]:
        raise ValueError(f"{len(empty)} queries have nothing relevant, the first is {empty[0]}: leave them out")
