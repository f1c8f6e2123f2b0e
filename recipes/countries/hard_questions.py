"""Questions for the second stage: other drawings and photographs, other wordings, and some without an answer.

As `data.py` has them, except that in training a real flag is one of nine drawings, before a photograph (`pairs.py`),
and an invented one before a photograph; a question has one of ten or more wordings, and so have the items of invented
countries (`wordings.py`); a share `unanswerable` of the questions has no answer: a flag with a question that no item
answers, a picture without a flag, or a name that nobody has. Its answer is empty, its gold item -1, and its source
drawn at random, so that the gate learns to be undecided.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from recipes.countries import augmentation, wordings
from recipes.countries.data import CountriesConfig
from recipes.countries.facts import ITEMS
from recipes.countries.pairs import FlagPairs
from recipes.countries.phrases import BY_FLAG, ITEM_KINDS, SOURCES
from recipes.questions import Example
from reveal.memory.items import Item

BEFORE = 0.6  # share of the pictures before a photograph


@dataclass(frozen=True)
class HardQuestions(CountriesConfig):
    drawings: str = "data/flag_drawings"  # folders, as in `FlagPairs`
    photographs: str = "data/photographs"
    scenery: str = "data/flag_scenery"
    unanswerable: float = 0.2  # share of the questions

    @functools.cached_property
    def pairs(self) -> FlagPairs:
        cv2.setNumThreads(1)
        return FlagPairs(world=self, drawings=self.drawings, photographs=self.photographs, scenery=self.scenery)

    def memory_items(self, about: Iterable[int | np.integer] | None = None, atlas: Any = None) -> list[Item]:
        """As `CountriesConfig.memory_items`; items about invented countries in one wording of many."""
        items = super().memory_items(about, atlas)
        return [self._reworded(item) if (item.id or 0) >= self.atlas.real * len(ITEM_KINDS) else item for item in items]

    def _reworded(self, item: Item) -> Item:
        assert item.id is not None
        country, kind = divmod(item.id, len(ITEM_KINDS))
        facts, rng = self.atlas.countries[country].facts, np.random.default_rng([self.atlas.seed, ITEMS, item.id, 1])
        answers = {relation: ", ".join(texts) for relation, texts in facts.items()}
        texts = {
            "passage": [text.format(**answers) for text in wordings.PASSAGES if answers["capital"]],
            "caption": [text.format(answers["area"]) for text in wordings.AREAS],
            "vqa": [text.format(answers["borders"]) for text in wordings.NEIGHBOURS],
        }.get(ITEM_KINDS[kind], [])
        if not texts or rng.random() < 0.3:
            return item
        return Item(item.source, {"text": texts[rng.integers(len(texts))]}, item.picture, item.id)

    def _example(self, question: int, rng: np.random.Generator) -> Example:
        example = super()._example(question, rng)
        country, relation = self.subject_and_relation(question)
        name = self.atlas.countries[country].name
        texts = wordings.every(relation)
        text, by_flag = texts[rng.integers(len(texts))], relation in BY_FLAG
        shows_flag, answered = by_flag, rng.random() >= self.unanswerable
        if not answered:
            kind = rng.random()
            if kind < 0.6:
                text, shows_flag = wordings.unanswerable(rng), rng.random() < 0.7
            elif by_flag:
                shows_flag = False
            else:
                name = "".join(rng.permutation(list(name))).strip().capitalize() or "Xy"
        if by_flag or not answered:
            ground = None
            if rng.random() < BEFORE:
                ground = self.pairs.grounds[rng.integers(len(self.pairs.grounds))]
            if shows_flag:
                drawing, aspect = self.pairs.drawing(country, rng)
                example["image"] = augmentation.photograph(drawing, aspect, ground, self.size, rng)
            elif by_flag:
                example["image"] = augmentation.without_flag(ground, self.size, rng)
        example["tokens"] = self.question_tokens(text.replace("{}", name))
        if not answered:
            example["answer"] = self.answer_tokens("")
            example["gold"] = np.int32(-1)
            example["source"] = np.int32(rng.integers(len(SOURCES)))
        return example
