"""Questions about a world whose facts are known: the base of `recipes.small_world.data` and `recipes.countries.data`.

A world has subjects (entities, countries) and relations ("food", "capital"); a question is a subject and a relation,
with id = subject * relations + relation. The items of one source hold each relation. A batch of b questions:

    image         float32 [b s s 3]  RGB in [0, 1]: a new picture of the subject
    tokens        int32   [b n]      the question, padded with 0
    answer        int32   [b o]      the answer, end, padded with 0
    relation      int32   [b]        index in `relations`
    source        int32   [b]        index of the source that has the answer: the target of the gate
    gold          int32   [b]        id of the item that has the answer
    negatives     int32   [b h]      ids of similar items without the answer
    permutation   int32   [b v]      the batch's permutation of the vocabulary; absent if `shuffle` is 0
    id            int64   [b]        of the question

**Permutation of tokens.** Facts that never change are memorised, and then the network no longer reads items. So each
batch permutes tokens, in questions and answers here, and in the items by the task:

    tokens = jnp.take_along_axis(batch["permutation"], items.tokens[rows], axis=1)

It is the same for all rows of a batch, over all processes, and repeated in each so that a batch can be split. The
memory and all evaluations keep the original tokens.
"""

import functools
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grain
import numpy as np
from jaxtyping import Int

from common.checked import Positive
from common.training.batches import Batched

Example = dict[str, Any]
Number = int | np.integer


@dataclass(frozen=True)
class Questions(Batched):
    """A world and the questions about it."""

    relations: ClassVar[Sequence[str]]
    evaluation_stream: ClassVar[int]  # seeds the pictures of evaluation, apart from what else the world's seed draws

    seed: int = 0  # of the world; the stream has a seed of its own
    shuffle: bool | int | float = True  # share of batches with a permutation of their own
    batch_size: Positive = field(default=32, kw_only=True)
    threads: Positive = field(default=1, kw_only=True)

    @property
    @abstractmethod
    def splits(self) -> Mapping[str, Int[np.ndarray, " n"]]:
        """Subjects by split: "train", "held_out" and others."""

    @property
    @abstractmethod
    def vocabulary(self) -> Any: ...

    @abstractmethod
    def training_questions(self) -> Int[np.ndarray, " n"]:
        """Question ids of an epoch."""

    @abstractmethod
    def questions_about(self, subjects: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """Ids of all questions about some subjects."""

    @abstractmethod
    def ask(self, question: int, rng: np.random.Generator, facts: Any = None) -> Example:
        """One row of a batch without `negatives` and `permutation`; answered by `facts` (default: this world's)."""

    @abstractmethod
    def negatives(self, question: int, rng: np.random.Generator) -> Int[np.ndarray, " h"]:
        """Ids of hard negative items."""

    @abstractmethod
    def permutation(self, seed: int, step: int) -> Int[np.ndarray, " v"]:
        """The permutation of the vocabulary of batch `step`."""

    @abstractmethod
    def describe(self, subject: int) -> str:
        """A subject for people."""

    def dataset(self, seed: int) -> grain.MapDataset:
        """Raises ValueError for a batch that is larger than an epoch."""
        questions = self.training_questions()
        if self.batch_size > len(questions):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(questions)} questions there are: lower it")
        dataset = grain.MapDataset.source(questions.tolist()).seed(seed).shuffle().repeat().random_map(self._example)
        return dataset.map_with_index(functools.partial(self._permuted, seed)) if self.shuffle else dataset

    def evaluation(self, split: str, renderings: int = 2, facts: Any = None) -> Example:
        """All questions about the subjects of a split, each with `renderings` pictures.

        The arrays are those of a batch without `negatives` and `permutation`; answers are those of `facts` (default:
        this world's). Raises ValueError for an unknown or empty split."""
        if split not in self.splits or renderings < 1:
            raise ValueError(f"{renderings} renderings of {split!r}: give 1 or more of {', '.join(self.splits)}")
        ids = self.questions_about(self.splits[split]).repeat(renderings)
        if not len(ids):
            raise ValueError(f"split {split!r} has no questions: raise data.{split}")
        rows = []
        for i, number in enumerate(ids.tolist()):
            rng = np.random.default_rng([self.seed, self.evaluation_stream, number, i % renderings])
            rows.append(self.ask(number, rng, facts))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def names(self, ids: Iterable[Number]) -> list[str]:
        pairs = [divmod(int(number), len(self.relations)) for number in ids]
        return [f"{self.relations[relation]} of {self.describe(subject)}" for subject, relation in pairs]

    def _example(self, question: int, rng: np.random.Generator) -> Example:
        return {**self.ask(question, rng), "negatives": self.negatives(question, rng)}

    def _permuted(self, seed: int, index: int, example: Example) -> Example:
        table = self.permutation(seed, index // self.batch_size)
        permuted = {name: table[example[name]] for name in ("tokens", "answer")}
        return {**example, **permuted, "permutation": table}
