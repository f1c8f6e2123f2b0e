"""The items of the small world: what each source writes about an entity, and the vocabulary, in which a word is a
token.

All about an item except its answers is drawn from the world's seed and the item's id. So after a fact is edited the
item's picture, the order of its facts and its fillers are unchanged.
"""

import functools
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int

from common.io.images import to_uint8
from recipes.small_world import drawing, entities
from recipes.small_world.facts import ANSWERS, ITEMS, RELATIONS, SOURCES, World, item_id, relations_in
from reveal.memory.items import Item
from reveal.processing.tokenizers import SPECIAL, Words

LENGTH = 16  # tokens: four syllables, two facts and three gaps of two fillers are at most 14
MAX_FILLERS = 2  # in a gap
MARKS = ("?", ".", ",")
FILLERS = ("here", "there", "now", "then", "often", "once", "also", "seen", "today", "indeed", "said", "known", "again")


class WorldVocabulary(Words):
    """All words of the small world, with the tokens of its answers."""

    @classmethod
    def of_world(cls) -> "WorldVocabulary":
        """The same for every seed and number of distractors."""
        syllables = (entities.SHAPES, entities.COLOURS, entities.TEXTURES)
        names = [syllable for attribute in syllables for syllable in attribute.values()]
        answers = [word for words in ANSWERS.values() for word in words]
        return cls((*SPECIAL, *MARKS, *RELATIONS, *FILLERS, *names, *entities.BLOB_SYLLABLES, *answers))

    @functools.cached_property
    def answers(self) -> Int[np.ndarray, "5 32"]:
        """`answers[r, a]` is the token of answer a of relation r."""
        return np.array([[self.numbers[word] for word in words] for words in ANSWERS.values()], np.int32)

    def permutation(self, rng: np.random.Generator) -> Int[np.ndarray, " v"]:
        """A table that permutes the answers of each relation and maps all other tokens to themselves."""
        table = np.arange(len(self), dtype=np.int32)
        table[self.answers] = rng.permuted(self.answers, axis=1)
        return table


def items_about(world: World, about: Iterable[int | np.integer], size: int = 32) -> list[Item]:
    """The items of all sources about some entities, in order of entity and source; pictures uint8 [size size 3]."""
    items = []
    for entity in map(int, about):
        for source, name in enumerate(SOURCES):
            number = item_id(entity, source)
            rng = np.random.default_rng([world.seed, ITEMS, number])
            text = item_text(world, entity, source, rng)
            picture = None
            if name != "graph":
                picture = to_uint8(drawing.draw(entities.attributes(np.array([entity]))[0], rng, size))
            items.append(Item(name, {"text": text}, picture, number))
    return items


def item_text(world: World, entity: int, source: int, rng: np.random.Generator) -> str:
    facts = [f"{RELATIONS[relation]} {world.answer(entity, relation)}" for relation in relations_in(source)]
    if SOURCES[source] == "graph":
        return f"{entities.name(entity)} {facts[0]}"
    if SOURCES[source] == "vqa":
        return facts[0].replace(" ", " ? ")
    words = entities.name(entity).split() if SOURCES[source] == "passages" else []
    order = rng.permutation(len(facts))
    words += _fillers(rng)
    for place in order:
        words += [facts[place], *_fillers(rng)]
    return " ".join(words)


def _fillers(rng: np.random.Generator) -> list[str]:
    return rng.choice(FILLERS, rng.integers(MAX_FILLERS + 1)).tolist()
