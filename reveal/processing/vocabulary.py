"""A vocabulary of whole words: lower-case text <-> token ids.

    0 <pad>   1 </s> (end)   2 <s> (start)   3 <extra_id_0> ...   then the words

Start and end have the ids of `RevealConfig.tiny`. The sentinels are T5's, to separate and to mask with. A vocabulary is
saved as JSON beside the weights that were trained with it: ids mean nothing without it.
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

PAD, END, START = 0, 1, 2
SPECIAL = ("<pad>", "</s>", "<s>", *(f"<extra_id_{number}>" for number in range(4)))


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A word's id is its position. Raises ValueError unless `SPECIAL` comes first and words are unique."""

    words: tuple[str, ...]

    def __post_init__(self):
        repeated = sorted({word for word in self.words if self.words.count(word) > 1})
        if self.words[: len(SPECIAL)] != SPECIAL or repeated:
            raise ValueError(f"a vocabulary begins with {' '.join(SPECIAL)} and has unique words; repeated: {repeated}")

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
        """Word -> id."""
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        """Ids, padded. Raises ValueError for an unknown word, or a text that is too long."""
        words = text.lower().replace("?", " ? ").replace(",", " , ").replace(".", " . ").split()
        if unknown := [word for word in words if word not in self.numbers]:
            raise ValueError(f"{text!r}: {', '.join(unknown)} is none of the {len(self)} words; ask like 'food ?'")
        if len(words) > length:
            raise ValueError(f"{text!r} has {len(words)} words, of which {length} are read: shorten it")
        return np.array([self.numbers[word] for word in words] + [PAD] * (length - len(words)), np.int32)

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        """The words before the end token; padding, start and ids beyond the vocabulary are skipped."""
        ids = until_end(tokens, END, (PAD, START))
        return " ".join(self.words[number] for number in ids if number < len(self))


def until_end(tokens: Iterable[int | np.integer], end: int, skipped: Iterable[int]) -> list[int]:
    """The tokens before `end`, without the `skipped` ones."""
    kept: list[int] = []
    for token in map(int, tokens):
        if token == end:
            break
        if token not in skipped:
            kept.append(token)
    return kept
