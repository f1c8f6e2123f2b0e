"""What a published set is to an evaluation: questions that can be scored, and how the answers to them are.

    for one in published.asked(skips): ...                 # with its picture and what counts as right
    published.score(asked, predictions)                    # one prediction for each
    published.evaluator                                    # whose rules that was

`evaluation_sets.py` has the sets that there are, `evaluation.py` asks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from common.io.files import require_file
from reveal.sources.records import Question, Skips


class Asked(NamedTuple):
    """A question that can be scored.

    Attributes:
      question: with its picture.
      name: its number or name in the published file.
      answers: what counts as right.
      about: what else its score needs.
    """

    question: Question
    name: int | str
    answers: tuple[str, ...]
    about: Mapping[str, Any] = {}


class Score(NamedTuple):
    """Of a set; papers print all numbers times 100.

    Attributes:
      metric: what `value` is.
      value: the number of the set.
      parts: further ones, by what they are.
      each: of each question, in their order.
    """

    metric: str
    value: float
    parts: dict[str, float]
    each: list[float]


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """What all sets have in common.

    Attributes:
      path: of the questions, as their authors published them.
      images: folder of the pictures, and below it.
    """

    path: str
    images: str

    FILES: ClassVar[Sequence[str]] = ("path",)

    def check(self) -> None:
        """Raises OSError for files and folders that are not there, and ValueError for empty files."""
        for name in self.FILES:
            paths = getattr(self, name) or ()
            for path in [paths] if isinstance(paths, str) else paths:
                require_file(path)
        if not Path(self.images).is_dir():
            raise FileNotFoundError(f"{self.images}: no such folder of pictures; check the name")

    @property
    def evaluator(self) -> str:
        """Whose rules the numbers follow, and where they are others."""
        raise NotImplementedError

    def asked(self, skips: Skips) -> Iterator[Asked]:
        """The questions; what is left out is counted. Raises OSError and ValueError for files that are of no use."""
        raise NotImplementedError

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        """Of one prediction for each question, at least one."""
        raise NotImplementedError
