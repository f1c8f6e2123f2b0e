"""Evaluation on the small world: questions to a network with a real memory, before and after changes of the memory.

During training: accuracy about held-out and training entities, recall, gate. After it (`run`), what has to follow when
the memory is changed and the network is not:

| row | what is done | what should follow |
| --- | --- | --- |
| held out | nothing: the entities were never asked about in training | high |
| no memory | the same questions, no items | chance, 1 in 32 |
| without SOURCE | one source is not searched | its relations at chance, the others as before |
| edited | facts of the held-out entities are others, in the memory only | the new answers; the old ones at chance |
| deleted | the items with the answers about every second held-out entity go | those at chance, the others as before |
| newcomers, before, after | entities that memory had not are added | chance, then high |

The memory is one on the disk, in a folder that goes when the evaluation ends, changed by `add`, `edit` and `delete`.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.training.task import Params
from recipes import memory_scores
from recipes.memory_scores import Scores
from recipes.small_world.data import Example, WorldConfig
from recipes.small_world.facts import RELATIONS, SOURCE_OF, SOURCES
from recipes.small_world.knowledge import as_knowledge, read_items
from reveal.memory.engines.engine import Engine, Rows, SearchResult
from reveal.network import weights as files
from reveal.network.config import PAD
from reveal.network.model import Reveal
from reveal.reader import Reader, ReaderOutput


@dataclasses.dataclass(frozen=True)
class WorldEvaluation(Evaluation):
    """Questions and settings.

    Attributes:
      data: the world.
      k: items that are read; 0: no memory.
      renderings: pictures of each entity, by `run`. training_renderings: during training.
      engine: that searches; None: the exact one.
      seed: of the edits.
    """

    data: WorldConfig
    k: int = 4
    renderings: int = 4
    training_renderings: int = 1
    engine: Engine | None = None
    seed: int = 0

    def prepare(self) -> Sequence[str]:
        return memory_scores.training_scores(self.k)

    def score(self, task: Any, params: Params) -> Mapping[str, float]:
        """Of held-out entities; `train_accuracy` is about as many of the others."""
        with tempfile.TemporaryDirectory() as folder:
            reader = self.reader(task.model(params), Path(folder) / "memory")
            held_out = self.ask(reader, self.data.evaluation("held_out", self.training_renderings))
            seen = first(self.data.evaluation("train", 1), 256)
            return held_out | {"train_accuracy": self.ask(reader, seen)["accuracy"]}

    def files(self) -> Sequence[str]:
        return ("results.json",)

    def evaluate(self, weights: str, output: Output) -> str:
        """All rows of the module's docstring."""
        model = files.load(weights)
        with tempfile.TemporaryDirectory() as folder:
            rows = self.examine(model, Path(folder) / "memory")
        about = provenance(weights) | {"k": self.k, "renderings": self.renderings}
        output.write_json("results.json", about | {"rows": rows})
        return table(rows)

    def reader(self, model: Reveal, folder: Path) -> Reader:
        """The network with a new memory of the world's items."""
        read = functools.partial(read_items, self.data.vocabulary, self.data.size)
        reader = Reader(model, read_item=read)
        reader.build(folder, as_knowledge(self.data.items, self.data.vocabulary), SOURCES, self.engine)
        return reader

    def examine(self, model: Reveal, folder: Path) -> dict[str, Scores]:
        """Every row: accuracy by relation and over all, recall, gate."""
        data, reader = self.data, self.reader(model, folder)
        held_out, newcomers = (data.evaluation(which, self.renderings) for which in ("held_out", "newcomers"))
        rows = {"held out": self.ask(reader, held_out), "training entities": self.ask(reader, data.evaluation("train"))}
        rows["no memory"] = self.ask(reader, held_out, k=0)
        for source in SOURCES:
            others = [name for name in SOURCES if name != source]
            rows[f"without {source}"] = self.ask(reader, held_out, sources=others)
        if len(newcomers["id"]):
            rows["newcomers, before"] = self.ask(reader, newcomers)
            reader.add(self._items(data.world.newcomers))
            rows["newcomers, after"] = self.ask(reader, newcomers)
        edited = data.world.edited(self.seed)
        entities = data.world.sets["held_out"]
        reader.edit(as_knowledge(data.items_about(entities, edited), data.vocabulary))
        rows["edited, new facts"] = self.ask(reader, data.evaluation("held_out", self.renderings, edited))
        rows["edited, old facts"] = self.ask(reader, held_out)
        reader.edit(self._items(entities))
        of, gone = held_out["id"] // len(RELATIONS), entities[::2]
        reader.delete(np.unique(held_out["gold"][np.isin(of, gone)]).astype(np.int64))
        for name, chosen in (("deleted", np.isin(of, gone)), ("not deleted", ~np.isin(of, gone))):
            rows[name] = self.ask(reader, {key: array[chosen] for key, array in held_out.items()})
        return rows

    def _items(self, about: Any) -> Any:
        return as_knowledge(self.data.items_about(about), self.data.vocabulary)

    def ask(self, reader: Reader, questions: Example, k: int | None = None, **how: Any) -> Scores:
        """Accuracy of the whole answer, over all and by relation; and where there is a memory, recall and gate."""
        k = self.k if k is None else k
        answers = reader.ask(questions["tokens"], questions["image"], k, **how)
        scores = memory_scores.accuracy(correct(answers, questions), questions, RELATIONS)
        return scores | (memory_scores.retrieval(answers, questions, k) if k else {})


class RandomEngine:
    """Finds any items, with score 0: what reading is worth without looking things up."""

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
        at = np.stack([self._rng.choice(rows, k, replace=False) for _ in range(len(queries))])
        rows_found = self._rows.ids[at], np.zeros(at.shape, np.float32), self._rows.source[at].astype(np.int64)
        return SearchResult(*rows_found, self._version)


def correct(answers: ReaderOutput, questions: Example) -> np.ndarray:
    """Where the written answer is the right one, end included."""
    answer = questions["answer"]
    written = np.pad(answers.tokens, ((0, 0), (0, max(0, answer.shape[1] - answers.tokens.shape[1]))))
    same = (written[:, : answer.shape[1]] == answer) | (answer == PAD)
    return same.all(axis=1)


def first(questions: Example, count: int) -> Example:
    """Some of the questions, spread evenly."""
    chosen = np.linspace(0, len(questions["id"]) - 1, min(count, len(questions["id"]))).astype(int)
    return {name: array[chosen] for name, array in questions.items()}


def table(rows: Mapping[str, Scores]) -> str:
    return memory_scores.table(rows, SOURCE_OF)
