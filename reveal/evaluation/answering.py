"""Many questions with pictures to a network and its memory, some at a time.

    answering = Answering(assistant, k=4, how=Greedy(32))
    for question, answer in answering(asked, skips): ...

Answers are those of `Assistant.ask` with the same `how`, without what each item did to them. Questions that cannot be
asked (too long for the network, a damaged picture) are left out and counted. Pictures of the next batch are read while
one is answered. Questions in two hops are asked one at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from reveal.assistant import Assistant
from reveal.evaluation.published import Asked
from reveal.network.generator import Decoding
from reveal.processing.processor import Inputs
from reveal.reader import Reader
from reveal.sources.records import Skips


class Answer(NamedTuple):
    """What was written, and the ids of the items that were read, best first."""

    text: str
    items: list[int]


class Input(NamedTuple):
    """What the network reads of a question."""

    tokens: Int[np.ndarray, " n"]
    image: Float[np.ndarray, "s s 3"]


@dataclasses.dataclass(frozen=True, eq=False)
class Answering:
    """How questions are asked.

    Attributes:
      assistant: a network, with a memory unless k is 0.
      k: items to read; 0: none.
      how: to write.
      sources: names of those to look in; None: all.
      batch: questions at a time. threads: that read pictures.
    """

    assistant: Assistant
    k: int
    how: Decoding
    sources: Sequence[str] | None = None
    batch: int = 32
    threads: int = 2

    def __call__(self, asked: Sequence[Asked], skips: Skips) -> Iterator[tuple[Asked, Answer | None]]:
        """Each question with its answer, in their order; None for one that cannot be asked, which is counted."""
        for part, found in self._inputs(asked):
            ready = [(one, read) for one, read in zip(part, found, strict=True) if isinstance(read, Input)]
            at_once = [read for one, read in ready if not self._in_hops(one)]
            answers = iter(self._together(at_once))
            for one, read in zip(part, found, strict=True):
                if isinstance(read, str):
                    skips.add(read, f"question {one.name}")
                    yield one, None
                else:
                    yield one, self._alone(one, read) if self._in_hops(one) else next(answers)

    def _inputs(self, asked: Sequence[Asked]) -> Iterator[tuple[Sequence[Asked], list[Input | str]]]:
        """The questions of a batch, and what the network reads of each, or why it cannot."""
        begun: collections.deque[tuple[Sequence[Asked], list[Future[Input | str]]]] = collections.deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(asked), self.batch):
                part = asked[start : start + self.batch]
                begun.append((part, [pool.submit(read_input, self.assistant.inputs, one) for one in part]))
                if len(begun) > 1:
                    before, reading = begun.popleft()
                    yield before, [one.result() for one in reading]
            for part, reading in begun:
                yield part, [one.result() for one in reading]

    def _together(self, rows: Sequence[Input]) -> list[Answer]:
        if not rows:
            return []
        tokens, images = (np.stack(column) for column in zip(*rows, strict=True))
        told = self._reader.ask(tokens, images, self.k, sources=self.sources, how=self.how)
        texts = map(self.assistant.inputs.tokenizer.decode, told.tokens)
        found = zip(told.found.ids, told.found.present, strict=True)
        return [Answer(text, ids[there].tolist()) for text, (ids, there) in zip(texts, found, strict=True)]

    def _alone(self, asked: Asked, read: Input) -> Answer:
        told = self.assistant.ask(read.image, asked.question.text, self.k, self.sources, self.how)
        return Answer(told.answer, [piece.item.id for piece in told.pieces if piece.item.id is not None])

    def _in_hops(self, asked: Asked) -> bool:
        steps = self.assistant.inputs.steps
        return steps is not None and steps(asked.question.text) is not None

    @functools.cached_property
    def _reader(self) -> Reader:
        return self.assistant.reader(self.batch)


def read_input(inputs: Inputs, asked: Asked) -> Input | str:
    """What the network reads of a question, or why it cannot."""
    try:
        tokens = inputs.question(asked.question.text)
    except ValueError:
        return f"longer than the {inputs.question_length} tokens that the network reads"
    image = asked.question.image
    assert isinstance(image, Path), "published sets keep their pictures in folders"
    try:
        return Input(tokens, inputs.picture(image))
    except (OSError, ValueError):
        return "whose picture cannot be read"
