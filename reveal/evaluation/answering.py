"""Batched inference over the questions of a benchmark.

    answering = Answering(assistant, k=4, decoding=Decoding(32))
    for example, prediction in answering(examples, skips): ...

Predictions equal those of `Assistant.ask` with the same decoding. Questions that the network cannot take (too long, a
damaged image) are skipped and counted. Images of the next batch are read while one is answered. Two-hop questions run
one at a time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
    """The answer, and the ids of the items that were read, best first."""

    text: str
    items: list[int]


Input = tuple[Int[np.ndarray, " n"], Float[np.ndarray, "s s 3"]]  # tokens and image
Batch = list[tuple[Example, Future[Input | str]]]


@dataclass(frozen=True, eq=False)
class Answering:
    """A network, its memory and the settings."""

    assistant: Assistant  # with a memory unless k is 0
    k: int  # items to read
    decoding: Decoding
    sources: Sequence[str] | None = None  # names of those to search; None: all
    batch: int = 32  # questions at a time
    threads: int = 2  # for reading images

    def __call__(self, examples: Sequence[Example], skips: Skips) -> Iterator[tuple[Example, Prediction | None]]:
        """Each question with its prediction, in order; None for one that is skipped."""
        two_hops = self.assistant.processor.two_hops
        for batch in self._batches(examples):
            inputs = [(example, future.result()) for example, future in batch]
            single = [read for one, read in inputs if not isinstance(read, str) and two_hops(one.question.text) is None]
            predictions = iter(self._predict(single))
            for example, read in inputs:
                if isinstance(read, str):
                    skips.add(read, f"question {example.id}")
                    yield example, None
                elif two_hops(example.question.text) is None:
                    yield example, next(predictions)
                else:
                    answer = self.assistant.ask(read[1], example.question.text, self.k, self.sources, self.decoding)
                    ids = [one.item.id for one in answer.items if one.item.id is not None]
                    yield example, Prediction(answer.answer, ids)

    def _batches(self, examples: Sequence[Example]) -> Iterator[Batch]:
        """Batches in order; the inputs of the next one are already being read."""
        with ThreadPoolExecutor(self.threads) as pool:
            read = functools.partial(read_input, self.assistant.processor)
            starts = range(0, len(examples), self.batch)
            begun: Iterator[Batch] = (
                [(one, pool.submit(read, one)) for one in examples[start : start + self.batch]] for start in starts
            )
            for batch, _ in itertools.pairwise(itertools.chain(begun, [[]])):
                yield batch

    def _predict(self, inputs: Sequence[Input]) -> list[Prediction]:
        if not inputs:
            return []
        tokens, images = (np.stack(column) for column in zip(*inputs, strict=True))
        answers = self._reader.ask(tokens, images, self.k, sources=self.sources, decoding=self.decoding)
        texts = map(self.assistant.processor.tokenizer.decode, answers.tokens)
        found = zip(texts, answers.retrieved.ids, answers.retrieved.present, strict=True)
        return [Prediction(text, ids[present].tolist()) for text, ids, present in found]

    @functools.cached_property
    def _reader(self) -> Reader:
        return self.assistant.reader(self.batch)


def read_input(processor: Processor, example: Example) -> Input | str:
    """The network's input, or the reason why there is none."""
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
