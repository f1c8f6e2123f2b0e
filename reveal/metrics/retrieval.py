"""Retrieval metrics: does the memory return the items that answer the question?

`ranked` has a query's items, best first; `relevant` has those that would help. Items are ids of any kind.

| function | what it is |
| --- | --- |
| `recall_at_k` | share of queries with a relevant item among the first k ("hit" recall) |
| `fraction_recall_at_k` | mean of relevant ones among the first k / as many as could be: min(k, all relevant) |
| `mrr` | mean reciprocal rank: 1 / place of the first relevant item, 0 if it is missing |
| `by_source` | any of these for the items of each source by itself |
| `pr_recall_at_k` | the hit recall where nothing is marked as relevant: a text that contains an answer is |
| `gate_accuracy` | share of queries whose gate is highest for the right source |

The first two are the same number if each query has one relevant item. Papers call both "recall@k": say which. A list
shorter than k is taken whole, so a recall at 10 of 5 items is that of 5.

**Pseudo-relevance.** OK-VQA has no marked passages. What is published as PRRecall@k (Luo et al., "Weakly-Supervised
Visual-Retriever-Reader for Knowledge-based Question Answering", EMNLP 2021; also RA-VQA) takes a passage for relevant
if an answer is a part of it, in small letters. It flatters: "art" is found in "party", and "no" almost everywhere.
`whole_words=True` searches the answer between word boundaries, which is stricter and not the published number.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

Ranked = Sequence[Sequence[Any]] | Int[np.ndarray, "n k"]
Relevant = Sequence[Collection[Any]] | Int[np.ndarray, "n r"]


class SourceScore(NamedTuple):
    """The score of one source's items and the number of queries that need one."""

    value: float
    queries: int


def recall_at_k(ranked: Ranked, relevant: Relevant, k: int) -> float:
    """Share of queries with a hit. Raises ValueError for k below 1, and unless each query has something relevant."""
    return statistics.fmean(found > 0 for found, _ in _counts(ranked, relevant, k))


def fraction_recall_at_k(ranked: Ranked, relevant: Relevant, k: int) -> float:
    """Mean share of what could be found. Raises as `recall_at_k`."""
    return statistics.fmean(found / min(k, there) for found, there in _counts(ranked, relevant, k))


def mrr(ranked: Ranked, relevant: Relevant) -> float:
    """Mean reciprocal rank over the whole lists. Raises as `recall_at_k`."""
    _check(ranked, relevant)
    pairs = zip(ranked, map(_as_set, relevant), strict=True)
    return statistics.fmean(
        next((1 / place for place, item in enumerate(items, 1) if item in wanted), 0.0) for items, wanted in pairs
    )


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
    groups: dict[Hashable, list[tuple[list[Any], set[Any]]]] = defaultdict(list)
    for items, wanted in zip(ranked, map(_as_set, relevant), strict=True):
        for source in dict.fromkeys(map(source_of, wanted)):
            groups[source].append((list(items), {item for item in wanted if source_of(item) == source}))
    return {
        source: SourceScore(score([items for items, _ in group], [wanted for _, wanted in group]), len(group))
        for source, group in groups.items()
    }


def pr_recall_at_k(
    passages: Sequence[Sequence[str]], answers: Sequence[Sequence[str]], k: int, whole_words: bool = False
) -> float:
    """PRRecall: share of queries of whose first k passages one contains an answer. Raises as `recall_at_k`."""
    _check(passages, answers, k)
    return statistics.fmean(
        any(contains_answer(text, known, whole_words) for text in texts[:k])
        for texts, known in zip(passages, answers, strict=True)
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
    if empty := [query for query, wanted in enumerate(relevant) if not len(wanted)]:
        raise ValueError(f"{len(empty)} queries have nothing relevant, the first is {empty[0]}: leave them out")
