"""Questions about the small world: the endless stream that training reads, and the sets that evaluation asks.

A batch of b questions about pictures of s pixels, with h hard negatives each and a vocabulary of v words:

    image         float32 [b s s 3]  RGB in [0, 1]: the entity, drawn for this question
    tokens        int32   [b 2]      "food ?"
    answer        int32   [b 2]      the answer, end; in the batch's language (below)
    relation      int32   [b]        number in `facts.RELATIONS`
    source        int32   [b]        number of the source that knows: what the gate should choose
    gold          int32   [b]        id of the item that has the answer
    negatives     int32   [b h]      ids of items that have not, and are easily taken for it
    permutation   int32   [b v]      the batch's language
    id            int64   [b]        entity * 5 + relation: `names` tells it

**The answer shuffle.** Facts that stay as they are get learnt by heart within a few hundred steps, and then nobody
looks anything up. So in each batch the 32 answers of each relation are permuted: where an item says "cave" the batch
means "mill". `permutation` is a table from token to token. `answer` has gone through it; the tokens of whatever items
the task reads for a row have to go through the row's table too:

    tokens = jnp.take_along_axis(batch["permutation"], items.tokens[rows], axis=1)

It is the same for all rows of a batch, over all processes, and stands in every row because a batch may be divided.
What the memory holds, and all evaluation, is in the world's own language.

**Hard negatives.** The first three are the other sources' items about the same entity: the right figure, but nothing
about what was asked. The others are the same source's items about entities that share two of the three parts: the
right relation of nearly the right figure. None is about an entity that training does not ask about, or being nobody's
answer ever would teach that their keys are to be kept away from all questions.

The same seed gives the same batches, the state of the iterator is small and plain, and after `set_state` the very next
batch follows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from common.training.batches import batches
from recipes.small_world import drawing, entities
from recipes.small_world.facts import EVALUATION, GOLD_SOURCE, RELATIONS, SOURCES, World, item_id
from recipes.small_world.items import LENGTH, Items, items_of
from recipes.small_world.vocabulary import WorldVocabulary
from reveal.processing.vocabulary import END

Example = dict[str, Any]


@dataclass(frozen=True)
class WorldConfig:
    """A small world and the questions about it.

    Attributes:
      seed: of the world; the stream has one of its own.
      size: side of the pictures, 16 or more.
      held_out: entities that training does not ask about. newcomers: those of them that it keeps out of memory too.
      distractors: entities beyond the 256, for a larger memory; four items each.
      batch_size: questions per batch, over all processes.
      near: hard negatives that share two parts with the entity.
      shuffle: permute the answers in each batch.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    seed: int = 0
    size: int = 32
    held_out: int = 51
    newcomers: int = 5
    distractors: int = 0
    batch_size: int = 32
    near: int = 4
    shuffle: bool = True
    threads: int = 1
    buffer: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for values that make no world."""
        if min(self.batch_size, self.threads, self.buffer) < 1 or self.size < 16 or self.near < 0:
            raise ValueError(
                f"batch_size {self.batch_size}, threads {self.threads}, buffer {self.buffer} must be 1 or more,"
                f" size {self.size} 16 or more, near {self.near} not negative"
            )
        least = min(len(self.world.near[entity]) for entity in self.world.sets["train"])
        if self.near > least:
            raise ValueError(f"near {self.near}: an entity has {least} that share two parts; lower near or held_out")

    def processor(self) -> dict[str, Any]:
        """How a network of this data reads, for the header of its weights (`reveal.processing.processor`)."""
        lengths = {"item_length": LENGTH, "question_length": 2, "answer_length": 2}
        return lengths | {"prompt": "{}", "sources": list(SOURCES), "words": list(self.vocabulary.words)}

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (defaults: what JAX says).

        Raises ValueError for a batch that is larger than all questions or cannot be divided."""
        questions = self.questions_about(self.world.sets["train"])
        if self.batch_size > len(questions):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(questions)} questions there are: lower it")
        dataset = grain.MapDataset.source(questions.tolist()).seed(seed).shuffle().repeat().random_map(self._prepare)
        dataset = dataset.map_with_index(functools.partial(self._translate, seed))
        return batches(dataset, self.batch_size, self.threads, self.buffer, process_index, process_count)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """The questions with these ids."""
        asked = [divmod(int(number), len(RELATIONS)) for number in ids]
        return [f"{RELATIONS[r]} of {entities.name(e)} (entity {e}, {entities.looks(e)})" for e, r in asked]

    @functools.cached_property
    def world(self) -> World:
        return World.create(self.seed, self.held_out, self.newcomers, self.distractors)

    @functools.cached_property
    def vocabulary(self) -> WorldVocabulary:
        return WorldVocabulary.of_world()

    @functools.cached_property
    def items(self) -> Items:
        """What memory holds while training goes on: everything but the newcomers."""
        return self.items_about(np.setdiff1d(np.arange(len(self.world.facts)), self.world.newcomers))

    def items_about(self, about: Iterable[int | np.integer], world: World | None = None) -> Items:
        """The items about some entities, such as newcomers, with the facts of `world` (default: this one)."""
        return items_of(world or self.world, about, self.vocabulary, self.size)

    def evaluation(self, which: str, renderings: int = 4, world: World | None = None) -> Example:
        """Every question about the entities of a set (`World.sets`), about `renderings` pictures each.

        The arrays are those of a batch, without negatives and permutation; answers are those of `world` (default: this
        one; give an edited one where memory was edited). Raises ValueError for an unknown set."""
        world = world or self.world
        if which not in world.sets or renderings < 1:
            raise ValueError(f"{renderings} renderings of {which!r}: give 1 or more of {', '.join(world.sets)}")
        ids = self.questions_about(world.sets[which]).repeat(renderings)
        views = np.tile(np.arange(renderings), len(ids) // renderings)
        seeds = [[self.seed, EVALUATION, *(int(n) for n in pair)] for pair in zip(ids, views, strict=True)]
        return self._ask(ids, [np.random.default_rng(seed) for seed in seeds], world)

    @staticmethod
    def questions_about(about: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """The ids of all questions, entity by entity."""
        return (about[:, None] * len(RELATIONS) + np.arange(len(RELATIONS))).reshape(-1).astype(np.int64)

    def negatives(self, entity: int, relation: int, rng: np.random.Generator) -> Int[np.ndarray, " h"]:
        """Hard ones, as in the module's docstring."""
        gold = int(GOLD_SOURCE[relation])
        others = [source for source in range(len(SOURCES)) if source != gold]
        near = rng.permutation(self.world.near[entity])[: self.near]
        return np.concatenate([item_id(entity, np.array(others)), item_id(near, gold)]).astype(np.int32)

    @functools.cached_property
    def _questions(self) -> Int[np.ndarray, "5 2"]:
        return np.stack([self.vocabulary.encode(f"{relation} ?", 2) for relation in RELATIONS])

    def _ask(self, ids: Int[np.ndarray, " n"], rngs: list[np.random.Generator], world: World) -> Example:
        entity, relation = np.divmod(ids, len(RELATIONS))
        answer = self.vocabulary.answers[relation, world.facts[entity, relation]]
        return {
            "image": drawing.draw(entities.parts(entity), rngs, self.size),
            "tokens": self._questions[relation],
            "answer": np.stack([answer, np.full_like(answer, END)], axis=-1),
            "relation": relation.astype(np.int32),
            "source": GOLD_SOURCE[relation].astype(np.int32),
            "gold": item_id(entity, GOLD_SOURCE[relation]).astype(np.int32),
            "id": ids,
        }

    def _prepare(self, question: int, rng: np.random.Generator) -> Example:
        example = {name: rows[0] for name, rows in self._ask(np.array([question]), [rng], self.world).items()}
        return {**example, "negatives": self.negatives(*divmod(question, len(RELATIONS)), rng)}

    def _translate(self, seed: int, index: int, example: Example) -> Example:
        """Into the language of the batch that the example with this number is in."""
        table = self._language(seed, index // self.batch_size)
        return {**example, "answer": table[example["answer"]], "permutation": table}

    def _language(self, seed: int, step: int) -> Int[np.ndarray, " v"]:
        if not self.shuffle:
            return np.arange(len(self.vocabulary), dtype=np.int32)
        return self.vocabulary.permutation(np.random.default_rng([seed, step]))
