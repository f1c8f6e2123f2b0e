"""Evaluation on the countries: questions about held-out countries, and changes of the memory.

The memory has all items of the 250 real countries and of no invented one (`recipes.memory_evaluation`).

| row | what is done | expected |
| --- | --- | --- |
| held out | no training question is about them; questions about languages and currency contain the true name | high |
| held out, two hops | languages and currency of a flag; a first question finds the name for the second | high |
| training countries | real countries with training questions | high |
| chance | always the most frequent answer about training countries | |
| no memory | held out without items | chance |
| shuffled memory | items keep their keys, but have the values of other countries | chance |
| without SOURCE | one source is not searched | its relations at chance, the others unchanged |
| edited, new facts | held-out countries have exchanged their facts, in the memory only | as held out |
| edited, old facts | the same memory, the former answers | chance |

**Right answers.** The whole text, ignoring case and repeated blanks. Of several right answers (languages, neighbours,
...) any one is right; two of them, or extra words, are wrong. The edited rows have only questions whose old and new
answers are disjoint. `recall_K_SOURCE` is the recall of questions that the source answers. `answers.png` shows right
and wrong answers with the items that were read and their shares of the question's attention.
"""

import collections
import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw, ImageFont

from common.evaluation.evaluation import Output
from common.io.images import contact_sheet, from_uint8
from recipes.countries.augmentation import BLANK
from recipes.countries.data import CountriesConfig
from recipes.countries.facts import RELATIONS, Atlas
from recipes.countries.phrases import BY_FLAG, ITEM_KINDS, QUESTIONS, SOURCES
from recipes.memory_evaluation import MemoryEvaluation, Scores, select
from recipes.questions import Example
from reveal.assistant import BEAMS
from reveal.evidence_sheet import bare
from reveal.metrics.retrieval import recall_at_k
from reveal.network.generator import Decoding
from reveal.reader import Reader, ReaderOutput

SHUFFLE = 0x73687566  # seeds the exchange of values
SIDE, LINES, LETTERS = 192, 6, 34  # of `answers.png`: pixels of a cell, lines of its caption, letters
ROWS, ITEMS = 5, 3  # questions answered right, and as many wrong; items of each
GREY = np.full((3, 4, 3), 0.5, np.float32)


@dataclasses.dataclass(frozen=True)
class CountriesEvaluation(MemoryEvaluation):
    """The rows of the module's docstring."""

    data: CountriesConfig
    renderings: int = 2
    beams: int = BEAMS  # beam width, by default that of `reveal ask`; 1: greedy

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("k", "beams", "renderings")}

    def files(self) -> Sequence[str]:
        return (*super().files(), "answers.png")

    def illustrate(self, reader: Reader, output: Output) -> None:
        if self.k:
            questions = self.data.evaluation("held_out", 1)
            answers = self.answer(reader, questions)
            sheet = answer_sheet(self.data, reader, questions, answers, self.correct(answers, questions))
            output.write_image("answers.png", sheet)

    def rows(self, reader: Reader) -> dict[str, Scores]:
        data, held_out = self.data, self.data.evaluation("held_out", self.renderings)
        rows = {"held out": self.ask(reader, held_out), "held out, two hops": self.two_hops(reader, held_out)}
        rows["training countries"] = self.ask(reader, self.seen())
        rows["chance"] = self.chance(held_out)
        rows["no memory"] = self.ask(reader, held_out, k=0)
        if not self.k:
            return rows
        rows |= self.without_each_source(reader, held_out)
        self.exchange_values(reader)
        rows["shuffled memory"] = self.ask(reader, held_out)
        reader.edit(data.memory_items())
        edited = data.atlas.edited(self.seed)
        reader.edit(data.memory_items(data.atlas.held_out, edited))
        questions = data.evaluation("held_out", self.renderings, edited)
        changed = [set(data.right_answers(n, edited)).isdisjoint(data.right_answers(n)) for n in questions["id"]]
        questions = select(questions, np.array(changed))
        rows["edited, new facts"] = self.ask(reader, questions, facts=edited)
        rows["edited, old facts"] = self.ask(reader, questions)
        reader.edit(data.memory_items(data.atlas.held_out))
        return rows

    def exchange_values(self, reader: Reader) -> None:
        """Each item keeps its key and gets the value of the same kind of item about another country."""
        items, rng = self.data.memory_items(), np.random.default_rng([SHUFFLE, self.seed])
        keys, values = reader.encode(items)
        kinds, others = np.array([item.id for item in items], int) % len(ITEM_KINDS), values.copy()
        for kind in range(len(ITEM_KINDS)):
            rows = rng.permutation(np.flatnonzero(kinds == kind))
            others[rows] = values[np.roll(rows, 1)]
        assert reader.memory is not None  # built by `MemoryEvaluation.reader`
        reader.memory.edit(items, keys, others)

    def answer(self, reader: Reader, questions: Example, k: int | None = None, **options: Any) -> ReaderOutput:
        options = {"decoding": Decoding(self.data.answer_length, self.beams)} | options
        return super().answer(reader, questions, k, **options)

    def correct(self, answers: ReaderOutput, questions: Example, facts: Atlas | None = None) -> Bool[np.ndarray, " n"]:
        return matches(self.data, answers, [self.data.right_answers(number, facts) for number in questions["id"]])

    def retrieval(self, answers: ReaderOutput, questions: Example) -> Scores:
        scores, gold = super().retrieval(answers, questions), questions["gold"][:, None]
        for number, source in enumerate(SOURCES):
            chosen = questions["source"] == number
            for k in (1, self.k) if chosen.any() else ():
                scores[f"recall_{k}_{source}"] = recall_at_k(answers.retrieved.ids[chosen], gold[chosen], k)
        return scores

    def two_hops(self, reader: Reader, questions: Example) -> Scores:
        """Languages and currency for the flags of the name questions, in the first phrasing."""
        data, scores, correct = self.data, {}, []
        flags = select(questions, questions["relation"] == RELATIONS.index("name"))
        names = [data.vocabulary.decode(tokens) for tokens in self.answer(reader, flags).tokens]
        for number, relation in enumerate(RELATIONS):
            if relation in BY_FLAG:
                continue
            second = {
                "tokens": np.stack([data.question_tokens(QUESTIONS[relation][0].format(name)) for name in names]),
                "image": np.broadcast_to(np.float32(BLANK), flags["image"].shape),
                "id": flags["id"] + number,
            }
            second = select(second, data.askable[second["id"] // len(RELATIONS), number])
            correct.append(self.correct(self.answer(reader, second), second))
            scores[relation] = float(correct[-1].mean())
        return {"accuracy": float(np.concatenate(correct).mean()), **scores}

    def chance(self, questions: Example) -> Scores:
        """Always the most frequent answer about training countries."""
        atlas, frequent = self.data.atlas, {}
        for relation in RELATIONS:
            answers = [answer for number in atlas.splits["train"] for answer in atlas.answers(number, relation)]
            frequent[relation] = collections.Counter(answers).most_common(1)[0][0]
        relations = [RELATIONS[number] for number in questions["relation"]]
        right = map(self.data.right_answers, questions["id"])
        correct = [frequent[relation] in answers for relation, answers in zip(relations, right, strict=True)]
        return self.accuracy(np.array(correct), questions)


def matches(data: CountriesConfig, answers: ReaderOutput, right: Sequence[Sequence[str]]) -> Bool[np.ndarray, " n"]:
    """Which answers are one of the right ones of their questions."""
    written = [normalized(data.vocabulary.decode(tokens)) for tokens in answers.tokens]
    return np.array([text in map(normalized, texts) for text, texts in zip(written, right, strict=True)])


def normalized(text: str) -> str:
    return " ".join(text.casefold().split())


def answer_sheet(
    data: Any, reader: Reader, questions: dict[str, np.ndarray], answers: ReaderOutput, right: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "h w 3"]:
    """`ROWS` right answers, then as many wrong ones, of as many relations as possible; `data`: a `CountriesConfig`.
    Raises ValueError without questions."""
    assert reader.memory is not None  # the items come from it
    rows = [row for rows in (right, ~right) for row in diverse(np.flatnonzero(rows), questions["relation"], ROWS)]
    cells, best = [], min(ITEMS, answers.retrieved.ids.shape[1])
    for row in rows:
        texts = [
            data.vocabulary.decode(questions["tokens"][row]),
            f"{'RIGHT' if right[row] else 'WRONG'}: {data.vocabulary.decode(answers.tokens[row])}",
            f"known: {', '.join(data.right_answers(questions['id'][row]))}",
        ]
        cells.append(captioned(questions["image"][row], texts))
        items = reader.memory.items(answers.retrieved.ids[row, :best])
        for item, share in zip(items, answers.shares[row, :best], strict=True):
            pixels = item.pixels()
            picture = GREY if pixels is None else from_uint8(pixels)
            texts = [f"{item.source}, {100 * float(share):.0f} %", str(item.fields.get("text", ""))]
            cells.append(captioned(picture, texts))
    return contact_sheet(cells, columns=1 + best, gap=8)


def diverse(rows: Int[np.ndarray, " n"], kind: Int[np.ndarray, " m"], count: int) -> list[int]:
    """`count` of the rows in random order: one of each kind, then a second of each."""
    seen: collections.Counter[int] = collections.Counter()
    order = []
    for row in np.random.default_rng(0).permutation(rows).tolist():
        order.append((seen[int(kind[row])], int(kind[row]), row))
        seen[int(kind[row])] += 1
    return [row for _, _, row in sorted(order)[:count]]


def captioned(picture: Float[np.ndarray, "h w 3"], texts: Sequence[str]) -> Float[np.ndarray, "h2 w2 3"]:
    """A picture with wrapped texts below, cut after `LINES` lines."""
    height = round(SIDE * picture.shape[0] / picture.shape[1])
    shown = cv2.resize(picture, (SIDE, height), interpolation=cv2.INTER_NEAREST)
    font = ImageFont.load_default()
    strip = Image.new("RGB", (SIDE, 14 * LINES), "white")
    lines = [line for text in texts for line in textwrap.wrap(bare(text), LETTERS)][:LINES]
    ImageDraw.Draw(strip).multiline_text((2, 1), "\n".join(lines), fill="black", font=font, spacing=3)
    square = np.ones((SIDE, SIDE, 3), np.float32)
    square[:height] = shown[:SIDE]
    return np.concatenate([square, from_uint8(np.asarray(strip))])
