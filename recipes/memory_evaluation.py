"""Evaluation of a network that answers from a memory: the base of both worlds' evaluations.

`score` asks during training. `evaluate` changes the memory, in a folder that is deleted at the end, and not the
network, and asks again; each world lists its rows. `recall_1` and `recall_K`: share of questions whose gold item is
first, or among the K items retrieved. `gate`: share of questions whose source has the highest gate.
"""

import dataclasses
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.score_table import percent_table
from common.training.task import Params
from recipes.questions import Example
from reveal.memory.engines.engine import Engine
from reveal.memory.items import Item
from reveal.metrics.retrieval import gate_accuracy, mrr, recall_at_k
from reveal.network import weights as files
from reveal.network.model import Reveal
from reveal.reader import Reader, ReaderOutput

Scores = dict[str, float]


@dataclasses.dataclass(frozen=True)
class MemoryEvaluation(Evaluation):
    """Questions and settings."""

    data: Any  # the world (`recipes.questions.Questions`)
    k: int = 4  # items read per question; 0: no memory
    renderings: int = 4  # pictures per question after training
    training_renderings: int = 1  # and during training
    engine: Engine | None = None  # None: exact
    seed: int = 0  # of the edits

    @abstractmethod
    def rows(self, reader: Reader) -> dict[str, Scores]:
        """Scores of every row; the memory ends as it began, unless a row has deleted from it."""

    @abstractmethod
    def correct(self, answers: ReaderOutput, questions: Example, facts: Any = None) -> Bool[np.ndarray, " n"]:
        """Which answers are right."""

    def seen(self) -> Example:
        """Questions about training subjects, for `train_accuracy`."""
        return self.data.evaluation("train", 1)

    def settings(self) -> dict[str, Any]:
        return {"k": self.k, "renderings": self.renderings}

    def files(self) -> Sequence[str]:
        return ("results.json", "results.md")

    def prepare(self) -> Sequence[str]:
        return ["accuracy", "recall_1", f"recall_{max(self.k, 1)}", "gate", "train_accuracy"]

    def score(self, task: Any, params: Params) -> Mapping[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            reader = self.reader(task.model(params), Path(folder) / "memory")
            held_out = self.ask(reader, self.data.evaluation("held_out", self.training_renderings))
            return held_out | {"train_accuracy": self.ask(reader, self.seen())["accuracy"]}

    def evaluate(self, weights: str, output: Output) -> str:
        model = files.load(weights)
        with tempfile.TemporaryDirectory() as folder:
            reader = self.reader(model, Path(folder) / "memory")
            rows = self.rows(reader)
            self.illustrate(reader, output)
        table = self.table(rows)
        output.write_json("results.json", provenance(weights) | self.settings() | {"rows": rows})
        output.write_text("results.md", table)
        return table

    def illustrate(self, reader: Reader, output: Output) -> None:
        """Writes further files."""

    def items(self) -> list[Item]:
        return self.data.memory_items()

    def reader(self, model: Reveal, folder: Path) -> Reader:
        reader = Reader(model, read_item=self.data.read_item)
        reader.build(folder, self.items(), self.data.sources, self.engine)
        return reader

    def answer(self, reader: Reader, questions: Example, k: int | None = None, **options: Any) -> ReaderOutput:
        """`options` are those of `Reader.ask`."""
        return reader.ask(questions["tokens"], questions["image"], self.k if k is None else k, **options)

    def ask(
        self, reader: Reader, questions: Example, k: int | None = None, facts: Any = None, **options: Any
    ) -> Scores:
        """Accuracy over all questions and by relation; with a memory, recall and gate too."""
        answers = self.answer(reader, questions, k, **options)
        scores = self.accuracy(self.correct(answers, questions, facts), questions)
        return scores if k == 0 or self.k == 0 else scores | self.retrieval(answers, questions)

    def without_each_source(self, reader: Reader, questions: Example) -> dict[str, Scores]:
        """A row for each source, which is not searched."""
        sources = self.data.sources
        return {
            f"without {source}": self.ask(reader, questions, sources=[name for name in sources if name != source])
            for source in sources
        }

    def accuracy(self, correct: Bool[np.ndarray, " n"], questions: Example) -> Scores:
        scores = {"accuracy": float(correct.mean())}
        for number, relation in enumerate(self.data.relations):
            chosen = questions["relation"] == number
            if chosen.any():
                scores[relation] = float(correct[chosen].mean())
        return scores

    def retrieval(self, answers: ReaderOutput, questions: Example) -> Scores:
        ranked, gold = answers.retrieved.ids, questions["gold"][:, None]
        recall = {f"recall_{k}": recall_at_k(ranked, gold, k) for k in (1, self.k)}
        return recall | {"mrr": mrr(ranked, gold), "gate": gate_accuracy(answers.log_gate, questions["source"])}

    def table(self, rows: Mapping[str, Scores]) -> str:
        """In Markdown, in percent; a relation is shown with its source."""
        return percent_table(rows, {name: f"{name} ({source})" for name, source in self.data.source_of.items()})


def select(questions: Example, rows: np.ndarray) -> Example:
    return {name: array[rows] for name, array in questions.items()}
