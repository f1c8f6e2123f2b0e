"""Evaluation on the small world: questions before and after changes of the memory (`recipes.memory_evaluation`).

| row | what is done | expected |
| --- | --- | --- |
| held out | nothing: no training question is about these entities | high |
| no memory | the same questions, no items | chance, 1 in 32 |
| without SOURCE | one source is not searched | its relations at chance, the others unchanged |
| edited | the facts of the held-out entities are replaced, in the memory only | new answers; old ones at chance |
| deleted | the items with the answers about every second held-out entity are deleted | at chance; others unchanged |
| newcomers, before, after | entities that were not in the memory are added | chance, then high |
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from recipes.memory_evaluation import MemoryEvaluation, Scores, select
from recipes.questions import Example
from recipes.small_world.data import WorldConfig
from recipes.small_world.facts import RELATIONS
from reveal.memory.engines.engine import Rows, SearchResult
from reveal.network.config import PAD
from reveal.reader import Reader, ReaderOutput


@dataclasses.dataclass(frozen=True)
class WorldEvaluation(MemoryEvaluation):
    """The rows of the module's docstring; attributes as in `MemoryEvaluation`."""

    data: WorldConfig

    def seen(self) -> Example:
        """At most 256, spread evenly."""
        questions = super().seen()
        count = len(questions["id"])
        return select(questions, np.linspace(0, count - 1, min(256, count)).astype(int))

    def rows(self, reader: Reader) -> dict[str, Scores]:
        data, splits = self.data, self.data.splits
        held_out = data.evaluation("held_out", self.renderings)
        rows = {"held out": self.ask(reader, held_out)}
        rows["training entities"] = self.ask(reader, data.evaluation("train", self.renderings))
        rows["no memory"] = self.ask(reader, held_out, k=0)
        rows |= self.without_each_source(reader, held_out)
        if len(splits["newcomers"]):
            newcomers = data.evaluation("newcomers", self.renderings)
            rows["newcomers, before"] = self.ask(reader, newcomers)
            reader.add(data.memory_items(splits["newcomers"]))
            rows["newcomers, after"] = self.ask(reader, newcomers)
        edited = data.world.edited(self.seed)
        reader.edit(data.memory_items(splits["held_out"], edited))
        rows["edited, new facts"] = self.ask(reader, data.evaluation("held_out", self.renderings, edited))
        rows["edited, old facts"] = self.ask(reader, held_out)
        reader.edit(data.memory_items(splits["held_out"]))
        deleted = np.isin(held_out["id"] // len(RELATIONS), splits["held_out"][::2])
        reader.delete(np.unique(held_out["gold"][deleted]).astype(np.int64))
        rows["deleted"] = self.ask(reader, select(held_out, deleted))
        rows["not deleted"] = self.ask(reader, select(held_out, ~deleted))
        return rows

    def correct(self, answers: ReaderOutput, questions: Example, facts: Any = None) -> Bool[np.ndarray, " n"]:
        """Whether the whole answer is the right one, end included; `questions` hold the right one."""
        right = questions["answer"]
        written = np.pad(answers.tokens, ((0, 0), (0, max(0, right.shape[1] - answers.tokens.shape[1]))))
        return ((written[:, : right.shape[1]] == right) | (right == PAD)).all(axis=1)


class RandomEngine:
    """Returns random items with score 0: the baseline without retrieval."""

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._rows, self._version = Rows.of(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 1))), 0

    def update(self, rows: Rows, sources: int, version: int) -> None:
        self._rows, self._version = rows, version

    def search(
        self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None
    ) -> SearchResult:
        rows = np.arange(len(self._rows))
        rows = rows if sources is None else rows[np.isin(self._rows.source, sources)]
        chosen = np.stack([self._rng.choice(rows, k, replace=False) for _ in range(len(queries))])
        scores, source = np.zeros(chosen.shape, np.float32), self._rows.source[chosen].astype(np.int64)
        return SearchResult(self._rows.ids[chosen], scores, source, self._version)
