"""The vocabulary of the small world: one token per word (`reveal.processing.vocabulary`), so an answer is one token."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Int

from recipes.small_world import entities, facts
from reveal.processing.vocabulary import SPECIAL, Vocabulary

MARKS = ("?", ".", ",")
FILLERS = ("here", "there", "now", "then", "often", "once", "also", "seen", "today", "indeed", "said", "known", "again")


class WorldVocabulary(Vocabulary):
    """All words of the small world, with the tokens of its answers."""

    @classmethod
    def of_world(cls) -> WorldVocabulary:
        """The same for every seed and number of distractors."""
        syllables = (entities.SHAPES, entities.COLOURS, entities.TEXTURES)
        names = [syllable for attribute in syllables for syllable in attribute.values()]
        answers = [word for words in facts.ANSWERS.values() for word in words]
        return cls((*SPECIAL, *MARKS, *facts.RELATIONS, *FILLERS, *names, *entities.BLOB_SYLLABLES, *answers))

    @functools.cached_property
    def answers(self) -> Int[np.ndarray, "5 32"]:
        """`answers[r, a]` is the token of answer a of relation r."""
        return np.array([[self.numbers[word] for word in words] for words in facts.ANSWERS.values()], np.int32)

    def permutation(self, rng: np.random.Generator) -> Int[np.ndarray, " v"]:
        """A table that permutes the answers of each relation and maps all other tokens to themselves."""
        table = np.arange(len(self), dtype=np.int32)
        table[self.answers] = rng.permuted(self.answers, axis=1)
        return table
