"""Evaluation on countries: questions about real ones that training never asked about, and changes of the memory.

The memory has all items of the 250 real countries, and no invented one. It is a real one on the disk, in a folder that
goes when the evaluation ends.

| row | what is done | what should follow |
| --- | --- | --- |
| held out | countries that training never asked about; languages and currency are asked for by the true name | high |
| held out, two hops | languages and currency of a flag: its name is asked for and put into the second question | high |
| training countries | those that training did ask about, real ones | high |
| chance | always the commonest answer about training countries | |
| no memory | the questions of held out, no items | chance |
| shuffled memory | items are found by their own keys, but hold another country's value | chance |
| without SOURCE | one source is not searched | its relations at chance, the others as before |
| edited, new facts | held-out countries have exchanged their facts, in the memory only | as held out |
| edited, old facts | the same memory, the answers from before | chance |

**What is right.** The whole text as written, but for capital letters and blanks. Where several answers are right
(languages, neighbours, currencies, capitals) any one that the item names is; two of them, or one and more words, are
wrong. Questions of the edited rows are those whose old and new answers have none in common.

`recall_1` and `recall_K` say how often the item with the answer is the first, or among all, that were found;
`recall_1_SOURCE` and `recall_K_SOURCE` of the questions that this source answers; `gate`: how often that source is the
most trusted. In two hops the last answer counts, so a wrong name may still lead to a right language.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.training.task import Params
from recipes import memory_scores
from recipes.countries.data import CountriesConfig, Example
from recipes.countries.facts import RELATIONS, Atlas
from recipes.countries.items import items_about
from recipes.countries.phrases import SEEN, SLOTS, SOURCE_OF, SOURCES, asked_of
from recipes.countries.sheet import answer_sheet
from recipes.memory_scores import Scores
from reveal.assistant import BEAMS
from reveal.memory.engines.engine import Engine
from reveal.metrics.retrieval import recall_at_k
from reveal.network import weights as files
from reveal.network.generator import likeliest
from reveal.network.model import Reveal
from reveal.reader import Reader, ReaderOutput

SHUFFLE = 0x73687566  # seeds which items exchange their values


@dataclasses.dataclass(frozen=True)
class CountriesEvaluation(Evaluation):
    """Questions and settings.

    Attributes:
      data: the world.
      k: items that are read; 0: no memory.
      renderings: of each question, by `run`. training_renderings: during training.
      engine: that searches; None: the exact one.
      seed: of the edits and of what is shuffled.
      beams: as `reveal ask` has them; 1: greedily.
    """

    data: CountriesConfig
    k: int = 4
    renderings: int = 2
    training_renderings: int = 1
    engine: Engine | None = None
    seed: int = 0
    beams: int = BEAMS

    def prepare(self) -> Sequence[str]:
        return memory_scores.training_scores(self.k)

    def score(self, task: Any, params: Params) -> Mapping[str, float]:
        """Of held-out countries; `train_accuracy` is about the other real ones."""
        with tempfile.TemporaryDirectory() as folder:
            reader = self.reader(task.model(params), Path(folder) / "memory")
            held_out = self.ask(reader, self.data.evaluation("held_out", self.training_renderings))
            seen = self.ask(reader, self.data.evaluation("train", 1))
            return held_out | {"train_accuracy": seen["accuracy"]}

    def files(self) -> Sequence[str]:
        return ("results.json", "results.md", "answers.png")

    def evaluate(self, weights: str, output: Output) -> str:
        """All rows of the module's docstring; right and wrong answers with the items that they were read from go into
        answers.png."""
        model = files.load(weights)
        with tempfile.TemporaryDirectory() as folder:
            reader = self.reader(model, Path(folder) / "memory")
            rows = self.examine(reader)
            if self.k:
                questions = self.data.evaluation("held_out", 1)
                answers = self.answer(reader, questions)
                sheet = answer_sheet(self.data, reader, questions, answers, self.right(answers, questions))
                output.write_image("answers.png", sheet)
        about = {name: getattr(self, name) for name in ("k", "beams", "renderings")}
        output.write_json("results.json", provenance(weights) | about | {"rows": rows})
        output.write_text("results.md", table(rows))
        return table(rows)

    def reader(self, model: Reveal, folder: Path) -> Reader:
        """The network with a new memory of the real countries."""
        reader = Reader(model, read_item=self.data.read_item)
        reader.build(folder, self.data.real_items(), SOURCES, self.engine)
        return reader

    def examine(self, reader: Reader) -> dict[str, Scores]:
        """Every row. The memory is at the end what it was."""
        data, held_out = self.data, self.data.evaluation("held_out", self.renderings)
        rows = {"held out": self.ask(reader, held_out), "held out, two hops": self.two_hops(reader, held_out)}
        rows["training countries"] = self.ask(reader, data.evaluation("train", 1))
        rows["chance"] = self.chance(held_out)
        rows["no memory"] = self.ask(reader, held_out, k=0)
        if not self.k:
            return rows
        for source in SOURCES:
            others = [name for name in SOURCES if name != source]
            rows[f"without {source}"] = self.ask(reader, held_out, sources=others)
        self.exchange_values(reader)
        rows["shuffled memory"] = self.ask(reader, held_out)
        reader.edit(data.real_items())
        return rows | self.edited(reader)

    def edited(self, reader: Reader) -> dict[str, Scores]:
        """Both rows about facts that were exchanged."""
        data, atlas = self.data, self.data.atlas.edited(self.seed)
        about = data.atlas.held_out
        reader.edit(items_about(atlas, about))
        questions = data.evaluation("held_out", self.renderings, atlas)
        changed = [set(atlas.answers(*data.of(n))).isdisjoint(data.atlas.answers(*data.of(n))) for n in questions["id"]]
        questions = {name: array[np.array(changed)] for name, array in questions.items()}
        rows = {
            "edited, new facts": self.ask(reader, questions, atlas=atlas),
            "edited, old facts": self.ask(reader, questions),
        }
        reader.edit(items_about(data.atlas, about))
        return rows

    def exchange_values(self, reader: Reader) -> None:
        """Every item gets the value of the same kind of item about another country, and keeps its key."""
        items, rng = self.data.real_items(), np.random.default_rng([SHUFFLE, self.seed])
        keys, values = reader.encode(items)
        slot, others = np.array([item.id for item in items], int) % len(SLOTS), values.copy()
        for kind in range(len(SLOTS)):
            rows = rng.permutation(np.flatnonzero(slot == kind))
            others[rows] = values[np.roll(rows, 1)]
        assert reader.memory is not None  # `reader` built one
        reader.memory.edit(items, keys, others)

    def answer(self, reader: Reader, questions: Example, k: int | None = None, **how: Any) -> ReaderOutput:
        how = {"how": likeliest(self.data.answer_length, self.beams)} | how
        return reader.ask(questions["tokens"], questions["image"], self.k if k is None else k, **how)

    def right(self, answers: ReaderOutput, questions: Example, atlas: Atlas | None = None) -> Bool[np.ndarray, " n"]:
        """Which answers are right, as the module's docstring says."""
        world, written = atlas or self.data.atlas, map(self.data.vocabulary.decode, answers.tokens)
        return np.array([
            plain(text) in {plain(answer) for answer in world.answers(*self.data.of(number))}
            for text, number in zip(written, questions["id"], strict=True)
        ])  # fmt: skip

    def ask(
        self, reader: Reader, questions: Example, k: int | None = None, atlas: Atlas | None = None, **how: Any
    ) -> Scores:
        """Accuracy over all and by relation; and where there is a memory, recall and gate."""
        answers = self.answer(reader, questions, k, **how)
        scores = memory_scores.accuracy(self.right(answers, questions, atlas), questions, RELATIONS)
        if k == 0 or self.k == 0:
            return scores
        scores |= memory_scores.retrieval(answers, questions, self.k)
        ranked, gold = answers.retrieved.ids, questions["gold"][:, None]
        for number, source in enumerate(SOURCES):
            chosen = questions["source"] == number
            for k in (1, self.k) if chosen.any() else ():
                scores[f"recall_{k}_{source}"] = recall_at_k(ranked[chosen], gold[chosen], k)
        return scores

    def two_hops(self, reader: Reader, questions: Example) -> Scores:
        """Languages and currency of the flags of the questions about names, in the words of the first phrasing."""
        data, names_asked = self.data, questions["relation"] == RELATIONS.index("name")
        flags = {name: array[names_asked] for name, array in questions.items()}
        names = [data.vocabulary.decode(tokens) for tokens in self.answer(reader, flags).tokens]
        grey = np.broadcast_to(np.float32(0.5), flags["image"].shape)
        parts, scores = [], {}
        for relation in (relation for relation in RELATIONS if relation not in SEEN):
            number = RELATIONS.index(relation)
            second = {
                "tokens": np.stack([data.question(asked_of(relation, name, 0)) for name in names]),
                "image": grey,
                "id": flags["id"] + number,
            }
            known = data.askable[second["id"] // len(RELATIONS), number]
            second = {name: array[known] for name, array in second.items()}
            parts.append(self.right(self.answer(reader, second), second))
            scores[relation] = float(parts[-1].mean())
        return {"accuracy": float(np.concatenate(parts).mean()), **scores}

    def chance(self, questions: Example) -> Scores:
        """Always the answer that is right most often about real training countries."""
        atlas, commonest = self.data.atlas, {}
        for relation in RELATIONS:
            answers = [answer for number in atlas.sets["train"] for answer in atlas.answers(number, relation)]
            commonest[relation] = collections.Counter(answers).most_common(1)[0][0]
        pairs = map(self.data.of, questions["id"])
        right = np.array([commonest[relation] in atlas.answers(country, relation) for country, relation in pairs])
        return memory_scores.accuracy(right, questions, RELATIONS)


def plain(text: str) -> str:
    """As texts are compared."""
    return " ".join(text.casefold().split())


def table(rows: Mapping[str, Scores]) -> str:
    return memory_scores.table(rows, SOURCE_OF)
