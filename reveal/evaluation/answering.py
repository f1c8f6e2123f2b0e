"""Batched answering: many questions with images to a network and its memory.

    answering = Answering(assistant, k=4, how=Greedy(32))
    for example, prediction in answering(examples, skips): ...

Predictions are those of `Assistant.ask` with the same `how`, without each item's share. Questions that cannot be asked
(too long for the network, a damaged image) are left out and counted. Images of the next batch are read while one is
answered. Questions in two hops are asked one at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from reveal.assistant import Assistant
from reveal.evaluation.benchmarks import Example
from reveal.network.generator import Decoding
from reveal.processing.processor import Processor
from reveal.reader import Reader
from reveal.sources.records import Skips


class Prediction(NamedTuple):
    """The answer, and the ids of the items that it was read from, best first."""

    text: str
    items: list[int]


Input = tuple[Int[np.ndarray, " n"], Float[np.ndarray, "s s 3"]]  # tokens and image, as the network reads them
Batch = list[tuple[Example, Future[Input | str]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Answering:
    """A network, its memory and the settings.

    Attributes:
      assistant: a network, with a memory unless k is 0.
      k: items to read; 0: none.
      how: the decoding.
      sources: names of those to search; None: all.
      batch: questions at a time. threads: that read images.
    """

    assistant: Assistant
    k: int
    how: Decoding
    sources: Sequence[str] | None = None
    batch: int = 32
    threads: int = 2

    def __call__(self, examples: Sequence[Example], skips: Skips) -> Iterator[tuple[Example, Prediction | None]]:
        """Each question with its prediction, in their order; None for one that cannot be asked, which is counted."""
        for batch in self._batches(examples):
            inputs = [(example, future.result()) for example, future in batch]
            together = [read for one, read in inputs if isinstance(read, tuple) and not self._two_hops(one)]
            predictions = iter(self._together(together))
            for example, read in inputs:
                if isinstance(read, str):
                    skips.add(read, f"question {example.id}")
                    yield example, None
                else:
                    yield example, self._alone(example, read) if self._two_hops(example) else next(predictions)

    def _batches(self, examples: Sequence[Example]) -> Iterator[Batch]:
        """Batches in turn; the inputs of the next one are already being read."""
        with ThreadPoolExecutor(self.threads) as pool:
            read = functools.partial(read_input, self.assistant.processor)
            starts = range(0, len(examples), self.batch)
            begun: Iterator[Batch] = (
                [(one, pool.submit(read, one)) for one in examples[start : start + self.batch]] for start in starts
            )
            for batch, _ in itertools.pairwise(itertools.chain(begun, [[]])):
                yield batch

    def _together(self, inputs: Sequence[Input]) -> list[Prediction]:
        if not inputs:
            return []
        tokens, images = (np.stack(column) for column in zip(*inputs, strict=True))
        answers = self._reader.ask(tokens, images, self.k, sources=self.sources, how=self.how)
        texts = map(self.assistant.processor.tokenizer.decode, answers.tokens)
        found = zip(texts, answers.retrieved.ids, answers.retrieved.present, strict=True)
        return [Prediction(text, ids[present].tolist()) for text, ids, present in found]

    def _alone(self, example: Example, read: Input) -> Prediction:
        answer = self.assistant.ask(read[1], example.question.text, self.k, self.sources, self.how)
        return Prediction(answer.answer, [one.item.id for one in answer.items if one.item.id is not None])

    def _two_hops(self, example: Example) -> bool:
        return self.assistant.processor.two_hops(example.question.text) is not None

    @functools.cached_property
    def _reader(self) -> Reader:
        return self.assistant.reader(self.batch)


def read_input(processor: Processor, example: Example) -> Input | str:
    """A question as the network reads it, or why it cannot."""
    try:
        tokens = processor.question(example.question.text)
    except ValueError:
        return f"longer than the {processor.question_length} tokens that the network reads"
    image = example.question.image
    assert isinstance(image, Path), "published benchmarks keep their images in folders"
    try:
        return tokens, processor.image(image)
    except (OSError, ValueError):
        return "whose picture cannot be read"
