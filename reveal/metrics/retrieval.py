"""Does the memory give back what answers the question?

`ranked` has a query's items, best first; `relevant` has those that would help. Items are ids of any kind.

| function | what it is |
| --- | --- |
| `recall_at_k` | share of queries with a relevant item among the first k ("hit" recall) |
| `fraction_recall_at_k` | mean of relevant ones among the first k / as many as could be: min(k, all relevant) |
| `mrr` | mean reciprocal rank: 1 / place of the first relevant item, 0 if it is not there |
| `by_source` | any of these for the knowledge of each source by itself |
| `pr_recall_at_k` | the hit recall where nobody marked what is relevant: a text that contains an answer is |
| `gate_accuracy` | share of queries whose gate is highest for the right source |

The first two are the same number if each query has one relevant item. Papers call both "recall@k": say which. A list
shorter than k is taken whole, so a recall at 10 of 5 items is that of 5.

**Pseudo-relevance.** OK-VQA has no marked passages. What is published as PRRecall@k (Luo et al., "Weakly-Supervised
Visual-Retriever-Reader for Knowledge-based Question Answering", EMNLP 2021; also RA-VQA) takes a passage for relevant
if an answer is a part of it, in small letters. It flatters: "art" is found in "party", and "no" almost everywhere.
`whole_words=True` asks for the answer between word boundaries, which is stricter and not the published number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

Ranked = Sequence[Sequence[Any]] | Int[np.ndarray, "n k"]
Relevant = Sequence[Collection[Any]] | Int[np.ndarray, "n r"]


class SourceScore(NamedTuple):
    """The score of one source's knowledge and the number of queries that ask for it."""

    value: float
    queries: int


def recall_at_k(ranked: Ranked, relevant: Relevant, k: int) -> float:
    """Share of queries with a hit. Raises ValueError for k below 1, and unless each query has something relevant."""
    return _mean([bool(found) for found, _ in _counts(ranked, relevant, k)])


def fraction_recall_at_k(ranked: Ranked, relevant: Relevant, k: int) -> float:
    """Mean share of what could be found. Raises as `recall_at_k`."""
    return _mean([found / min(k, there) for found, there in _counts(ranked, relevant, k)])


def mrr(ranked: Ranked, relevant: Relevant) -> float:
    """Mean reciprocal rank over the whole lists. Raises as `recall_at_k`."""
    _check(ranked, relevant)
    places = (
        next((place for place, item in enumerate(items, 1) if item in wanted), None)
        for items, wanted in zip(ranked, map(_as_set, relevant), strict=True)
    )
    return _mean([1 / place if place else 0.0 for place in places])


def by_source(
    score: Callable[[list[Any], list[set[Any]]], float],
    ranked: Ranked,
    relevant: Relevant,
    source_of: Callable[[Any], Hashable],
) -> dict[Hashable, SourceScore]:
    """`score(ranked, relevant)` for each source: only its items are relevant, but all compete for the places.

        by_source(partial(recall_at_k, k=5), ranked, relevant, sources.__getitem__)

    A query counts for each source that has something relevant to it, and for no other. Raises as `recall_at_k`."""
    _check(ranked, relevant)
    groups: dict[Hashable, tuple[list[Any], list[set[Any]]]] = {}
    for items, wanted in zip(ranked, map(_as_set, relevant), strict=True):
        parts: dict[Hashable, set[Any]] = {}
        for item in wanted:
            parts.setdefault(source_of(item), set()).add(item)
        for source, part in parts.items():
            lists, sets = groups.setdefault(source, ([], []))
            lists.append(list(items))
            sets.append(part)
    return {source: SourceScore(score(*group), len(group[0])) for source, group in groups.items()}


def pr_recall_at_k(
    passages: Sequence[Sequence[str]], answers: Sequence[Sequence[str]], k: int, whole_words: bool = False
) -> float:
    """PRRecall: share of queries of whose first k passages one contains an answer. Raises as `recall_at_k`."""
    _check(passages, answers, k)
    return _mean(
        [
            any(contains_answer(text, known, whole_words) for text in texts[:k])
            for texts, known in zip(passages, answers, strict=True)
        ]
    )


def contains_answer(text: str, answers: Sequence[str], whole_words: bool = False) -> bool:
    """Whether one of the answers is a part of the text, in small letters; empty answers are in nothing."""
    text, known = text.lower(), [answer.strip().lower() for answer in answers if answer.strip()]
    if whole_words:
        return any(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) for answer in known)
    return any(answer in text for answer in known)


def gate_accuracy(gates: Float[np.ndarray, "n sources"], right: Int[np.ndarray, " n"]) -> float:
    """Share of rows that are highest at the right source's place; a row with NaN is wrong.

    Raises ValueError without rows and for a source that has no place."""
    if not len(gates) or right.min() < 0 or right.max() >= gates.shape[1]:
        raise ValueError(f"gates of {gates.shape} and sources {sorted(set(right.tolist()))}: each is a column, from 0")
    highest = np.argmax(gates, axis=1) == right
    return float(np.mean(highest & np.isfinite(gates).all(axis=1)))


def _counts(ranked: Ranked, relevant: Relevant, k: int) -> list[tuple[int, int]]:
    """For each query: how many relevant items are among the first k, and how many there are."""
    _check(ranked, relevant, k)
    pairs = zip(ranked, map(_as_set, relevant), strict=True)
    return [(len(_as_set(items[:k]) & wanted), len(wanted)) for items, wanted in pairs]


def _as_set(items: Collection[Any] | np.ndarray) -> set[Any]:
    return set(items.tolist()) if isinstance(items, np.ndarray) else set(items)


def _check(ranked: Sequence[Any] | np.ndarray, relevant: Sequence[Any] | np.ndarray, k: int = 1) -> None:
    if k < 1:
        raise ValueError(f"k={k} has to be 1 or more")
    if not len(ranked) or len(ranked) != len(relevant):
        raise ValueError(f"{len(ranked)} ranked lists for {len(relevant)} queries: give one for each, and at least one")
    empty = [query for query, wanted in enumerate(relevant) if not len(wanted)]
    if empty:
        raise ValueError(f"{len(empty)} queries have nothing relevant, the first is {empty[0]}: leave them out")


def _mean(values: Sequence[float | bool]) -> float:
    return sum(values) / len(values)
