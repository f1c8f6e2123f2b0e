"""The data of the small world: its questions, and the items of its memory (`recipes.questions` has the batch).

A question is "food ?", two tokens, and so is an answer: a word and the end. `permutation` permutes the 32 answers of
each relation: the word "cave" of an item becomes "mill" in the whole batch.

The first three hard negatives are the other sources' items about the same entity. The others are the same source's
items about entities that share two of the three attributes. None is about a held-out entity: such an item would only
ever be a negative, and its key would be pushed away from all questions.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int

from common.checked import NotNegative, whole
from recipes.questions import Example, Questions
from recipes.small_world import drawing, entities
from recipes.small_world.facts import EVALUATION, GOLD_SOURCE, RELATIONS, SOURCE_OF, SOURCES, World, item_id
from recipes.small_world.items import LENGTH, WorldVocabulary, items_about
from reveal.memory.items import Item
from reveal.processing.processor import network_input
from reveal.processing.tokenizers import END
from reveal.training.own_batches import ItemArrays, arrays_of


@dataclass(frozen=True)
class WorldConfig(Questions):
    """A small world and the questions about it."""

    relations = RELATIONS
    sources = SOURCES
    source_of = SOURCE_OF
    evaluation_stream = EVALUATION

    size: Annotated[int, whole(16)] = 32  # side of the pictures
    held_out: int = 51  # entities that training does not ask about
    newcomers: int = 5  # those of them that are not in its memory either
    distractors: int = 0  # entities beyond the 256, for a larger memory; four items each
    near: NotNegative = 4  # hard negatives that share two attributes with the entity

    def __post_init__(self) -> None:
        super().__post_init__()
        least = min(len(self.world.near[entity]) for entity in self.splits["train"])
        if self.near > least:
            raise ValueError(f"near {self.near}: an entity shares two attributes with {least}; lower near or held_out")

    def processor(self) -> dict[str, Any]:
        lengths = {"item_length": LENGTH, "question_length": 2, "answer_length": 2}
        return lengths | {"prompt": "{}", "sources": list(SOURCES), "words": list(self.vocabulary.words)}

    @functools.cached_property
    def world(self) -> World:
        return World.create(self.seed, self.held_out, self.newcomers, self.distractors)

    @property
    def splits(self) -> Mapping[str, Int[np.ndarray, " n"]]:
        return self.world.splits

    @functools.cached_property
    def vocabulary(self) -> WorldVocabulary:
        return WorldVocabulary.of_world()

    @functools.cached_property
    def items(self) -> ItemArrays:
        return arrays_of(self.memory_items(), SOURCES, self.vocabulary, LENGTH, self.size)

    def memory_items(self, about: Iterable[int | np.integer] | None = None, world: World | None = None) -> list[Item]:
        """Items about some entities (default: all but the newcomers) with the facts of `world` (default: this one)."""
        if about is None:
            about = np.setdiff1d(np.arange(len(self.world.facts)), self.world.newcomers)
        return items_about(world or self.world, about, self.size)

    def read_item(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        return network_input(items, self.vocabulary, LENGTH, self.size)

    def training_questions(self) -> Int[np.ndarray, " n"]:
        return self.questions_about(self.splits["train"])

    def questions_about(self, subjects: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        return (subjects[:, None] * len(RELATIONS) + np.arange(len(RELATIONS))).reshape(-1).astype(np.int64)

    def ask(self, question: int, rng: np.random.Generator, facts: World | None = None) -> Example:
        entity, relation = divmod(question, len(RELATIONS))
        answer = self.vocabulary.answers[relation, (facts or self.world).facts[entity, relation]]
        numbers = {
            "relation": relation,
            "source": GOLD_SOURCE[relation],
            "gold": item_id(entity, GOLD_SOURCE[relation]),
        }
        return {
            "image": drawing.draw(entities.attributes(np.array([entity]))[0], rng, self.size),
            "tokens": self.vocabulary.encode(f"{RELATIONS[relation]} ?", 2),
            "answer": np.array([answer, END], np.int32),
            **{name: np.int32(number) for name, number in numbers.items()},
            "id": np.int64(question),
        }

    def negatives(self, question: int, rng: np.random.Generator) -> Int[np.ndarray, " h"]:
        entity, relation = divmod(question, len(RELATIONS))
        gold = int(GOLD_SOURCE[relation])
        others = np.setdiff1d(np.arange(len(SOURCES)), gold)
        near = rng.permutation(self.world.near[entity])[: self.near]
        return np.concatenate([item_id(entity, others), item_id(near, gold)]).astype(np.int32)

    def permutation(self, seed: int, step: int) -> Int[np.ndarray, " v"]:
        return self.vocabulary.permutation(np.random.default_rng([seed, step]))

    def describe(self, subject: int) -> str:
        return f"{entities.name(subject)} (entity {subject}, {entities.description(subject)})"
