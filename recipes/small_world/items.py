"""Knowledge of the small world as items, the form in which a memory takes any knowledge: arrays of one row each.

    tokens      int32 [n 16]       the text, padded                      ba mo ti home cave
    mask        bool [n 16]        where there is text
    image       uint8 [n s s 3]    the picture; black where there is none
    has_image   bool [n]
    source      uint8 [n]          number in `facts.SOURCES`
    id          int64 [n]          entity * 4 + source: the same item has the same number in every world and memory
    entity      int32 [n]

Everything about an item but its answers follows from the world's seed and its id. So after a fact is edited the item's
picture, order and fillers are what they were.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, UInt8

from common.io.images import to_uint8
from recipes.small_world import drawing, entities
from recipes.small_world.facts import ITEMS, RELATIONS, SOURCES, World, item_id, relations_in
from recipes.small_world.vocabulary import FILLERS
from reveal.processing.vocabulary import PAD, Vocabulary

LENGTH = 16  # four syllables, two facts and three gaps of two fillers at most are 14
MOST_FILLERS = 2  # in a gap


@dataclasses.dataclass(frozen=True, eq=False)
class Items:
    """The arrays of the module's docstring, in any order. No id is there twice."""

    tokens: Int[np.ndarray, "n l"]
    mask: Bool[np.ndarray, "n l"]
    image: UInt8[np.ndarray, "n s s 3"]
    has_image: Bool[np.ndarray, " n"]
    source: UInt8[np.ndarray, " n"]
    id: Int[np.ndarray, " n"]
    entity: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.id)

    def select(self, rows: Sequence[int] | Int[np.ndarray, " m"] | Bool[np.ndarray, " n"]) -> Items:
        """Some of them, by number or mask."""
        return Items(**{name: array[rows] for name, array in self.arrays.items()})

    def without(self, ids: Iterable[int | np.integer]) -> Items:
        """All but those; deleting what is not there changes nothing."""
        return self.select(~np.isin(self.id, np.fromiter(ids, np.int64)))

    def updated(self, others: Items) -> Items:
        """With `others` at the end; where both have an id, the one of `others` counts."""
        kept = self.without(others.id)
        return Items(**{name: np.concatenate([array, others.arrays[name]]) for name, array in kept.arrays.items()})

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def row_of(self) -> Int[np.ndarray, " most"]:
        """`row_of[id]` is where an item is, -1 for one that is not here; ids beyond the table are not here either."""
        table = np.full(self.id.max(initial=-1) + 1, -1, np.int32)
        table[self.id] = np.arange(len(self), dtype=np.int32)
        return table


def items_of(world: World, about: Iterable[int | np.integer], vocabulary: Vocabulary, size: int = 32) -> Items:
    """All sources' items about some entities, entity by entity."""
    numbers = np.fromiter(about, np.int64)
    entity, source = (array.reshape(-1) for array in np.meshgrid(numbers, np.arange(len(SOURCES)), indexing="ij"))
    ids = item_id(entity, source).astype(np.int64)
    rngs = [np.random.default_rng([world.seed, ITEMS, int(number)]) for number in ids]
    texts = [text(world, int(e), int(s), rng) for e, s, rng in zip(entity, source, rngs, strict=True)]
    tokens = np.array([vocabulary.encode(words, LENGTH) for words in texts], np.int32).reshape(-1, LENGTH)
    has_image = source != SOURCES.index("graph")
    image = np.zeros((len(ids), size, size, 3), np.uint8)
    drawn = [rng for rng, there in zip(rngs, has_image, strict=True) if there]
    image[has_image] = to_uint8(drawing.draw(entities.parts(entity[has_image]), drawn, size))
    return Items(tokens, tokens != PAD, image, has_image, source.astype(np.uint8), ids, entity.astype(np.int32))


def text(world: World, entity: int, source: int, rng: np.random.Generator) -> str:
    """What the source says about the entity (the package's docstring)."""
    facts = [f"{RELATIONS[relation]} {world.answer(entity, relation)}" for relation in relations_in(source)]
    if SOURCES[source] == "graph":
        return f"{entities.name(entity)} {facts[0]}"
    if SOURCES[source] == "vqa":
        return facts[0].replace(" ", " ? ")
    facts = [facts[place] for place in rng.permutation(len(facts))]
    words = [_fillers(rng), *(part for fact in facts for part in (fact, _fillers(rng)))]
    begin = [entities.name(entity)] if SOURCES[source] == "passages" else []
    return " ".join(part for part in [*begin, *words] if part)


def _fillers(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(FILLERS, rng.integers(MOST_FILLERS + 1)))
