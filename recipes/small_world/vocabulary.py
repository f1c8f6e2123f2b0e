"""The words of the small world, each one token: text in small letters with blanks between words <-> numbers.

    0 <pad>   1 </s> (end)   2 <s> (start)   3 <extra_id_0> ...   then the words

Start and end have the numbers that `RevealConfig.tiny` expects. The sentinels are T5's, to separate and to mask with.
An answer is one token too, so a question is answered in one step, and then the end.

A vocabulary is saved as JSON beside the weights that were trained with it: numbers mean nothing without it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Int

from common.io.files import atomic_output, require_file
from recipes.small_world import entities, facts

PAD, END, START = 0, 1, 2
SPECIAL = ("<pad>", "</s>", "<s>", *(f"<extra_id_{number}>" for number in range(4)))
MARKS = ("?", ".", ",")
FILLERS = ("here", "there", "now", "then", "often", "once", "also", "seen", "today", "indeed", "said", "known", "again")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """All words; a word's number is its place. Raises ValueError unless `SPECIAL` comes first and no word is twice."""

    words: tuple[str, ...]

    def __post_init__(self):
        twice = sorted({word for word in self.words if self.words.count(word) > 1})
        if self.words[: len(SPECIAL)] != SPECIAL or twice:
            raise ValueError(f"a vocabulary begins with {' '.join(SPECIAL)}, and has no word twice; here {twice}")

    @classmethod
    def of_world(cls) -> Vocabulary:
        """The same whatever the world's seed and its number of distractors are."""
        syllables = (entities.SHAPES, entities.COLOURS, entities.TEXTURES)
        named = [syllable for part in syllables for syllable in part.values()]
        answers = [word for words in facts.ANSWERS.values() for word in words]
        return cls((*SPECIAL, *MARKS, *facts.RELATIONS, *FILLERS, *named, *entities.FOREIGN, *answers))

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Raises OSError, and ValueError for a file that holds something else."""
        try:
            return cls(tuple(json.loads(require_file(path).read_text("utf-8"))["words"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no vocabulary ({error}): give a file that `Vocabulary.save` wrote") from None

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Raises FileExistsError."""
        with atomic_output(path, overwrite) as temporary:
            temporary.write_text(json.dumps({"words": self.words}, indent=0) + "\n", "utf-8")

    def __len__(self) -> int:
        return len(self.words)

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @functools.cached_property
    def answers(self) -> Int[np.ndarray, "5 32"]:
        """`answers[r, a]` is the token of answer a of relation r."""
        return np.array([[self.numbers[word] for word in words] for words in facts.ANSWERS.values()], np.int32)

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        """Numbers, padded. Raises ValueError for a word that there is not, and for a text that is too long."""
        words = text.lower().replace("?", " ? ").replace(",", " , ").replace(".", " . ").split()
        unknown = [word for word in words if word not in self.numbers]
        if unknown:
            raise ValueError(f"{text!r}: {', '.join(unknown)} is none of the {len(self)} words; ask like 'food ?'")
        if len(words) > length:
            raise ValueError(f"{text!r} has {len(words)} words, of which {length} are read: shorten it")
        return np.array([self.numbers[word] for word in words] + [PAD] * (length - len(words)), np.int32)

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        """The words up to the end; padding and start are left out."""
        words: list[str] = []
        for token in tokens:
            if token == END:
                break
            if token not in (PAD, START):
                words.append(self.words[int(token)])
        return " ".join(words)

    def permutation(self, rng: np.random.Generator) -> Int[np.ndarray, " v"]:
        """A table that gives every answer another answer's place among its relation's, and leaves all else alone."""
        table = np.arange(len(self), dtype=np.int32)
        table[self.answers] = rng.permuted(self.answers, axis=1)
        return table
