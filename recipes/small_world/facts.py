"""The facts of the small world: five relations of every entity, each held by one source (`SOURCE_OF`), so that the gate
has a target for every question, and without a source its relations, and no others, are lost.

A relation has 32 answers, each right equally often: a constant or random answer is right once in 32. A word is an
answer of one relation only.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Int

from recipes.small_world import entities

SOURCES = ("graph", "passages", "captions", "vqa")
ANSWERS = {
    "home": """attic bakery beach cabin canyon castle cave cellar desert factory farm forest garden glacier harbour
        island jungle library market meadow mill museum palace prairie quarry school stable station swamp theatre tower
        valley""",
    "food": """almond apple apricot bean bread butter cabbage carrot cheese cherry corn fig garlic ginger grape honey
        lemon lentil mango melon noodle olive onion peach pear pepper plum potato pumpkin rice tomato walnut""",
    "owner": """alice anna bruno carla clara david edgar elena felix frida george hanna hugo irene jonas julia karim
        laura lucas marta miles nadia nora oscar paula pedro robin sofia simon tessa victor yusuf""",
    "friend": """badger bear beaver camel cat cow crow deer dog duck eagle falcon ferret fox frog goat goose hare heron
        horse lion lizard mouse otter owl panda rabbit raven seal sheep tiger whale""",
    "music": """accordion balalaika banjo bassoon bell bugle castanets cello clarinet cornet cymbal drum fiddle flute
        gong guitar harmonica harp horn lute lyre mandolin oboe organ piano rattle sitar trumpet tuba ukulele viola
        zither""",
}
ANSWERS = {relation: tuple(words.split()) for relation, words in ANSWERS.items()}
RELATIONS = tuple(ANSWERS)
CHOICES = 32  # answers of a relation
FACTS, EDITS, ITEMS, EVALUATION = range(4)  # independent streams of the world's seed
SOURCE_OF = {"home": "graph", "food": "passages", "owner": "captions", "friend": "vqa", "music": "passages"}
GOLD_SOURCE = np.array([SOURCES.index(SOURCE_OF[relation]) for relation in RELATIONS])


def relations_in(source: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(source == GOLD_SOURCE).tolist())


def item_id(entity: Any, source: Any) -> Any:
    """The number of the one item of a source about an entity; for numbers, and for arrays that broadcast."""
    return entity * len(SOURCES) + source


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """Facts and splits."""

    seed: int  # of everything
    facts: Int[np.ndarray, "entities relations"]  # the number of each answer; distractors have some too
    held_out: Int[np.ndarray, " h"]  # entities that training does not ask about, sorted
    newcomers: Int[np.ndarray, " c"]  # those of them that are not in the memory during training

    @classmethod
    def create(cls, seed: int = 0, held_out: int = 51, newcomers: int = 5, distractors: int = 0) -> "World":
        if not 0 <= distractors <= entities.MAX_DISTRACTORS or not 0 <= newcomers <= held_out:
            most = f"at most {entities.MAX_DISTRACTORS}, and {held_out} as are held out"
            raise ValueError(f"{distractors} distractors, {newcomers} newcomers: give {most}")
        rng = np.random.default_rng([seed, FACTS])
        chosen = entities.held_out(rng, held_out)
        new = np.sort(rng.permutation(chosen)[:newcomers])
        facts = _facts(rng, entities.COUNT)  # before the distractors': it does not depend on their number
        return cls(seed, np.concatenate([facts, _facts(rng, distractors)]), chosen, new)

    def edited(self, seed: int) -> "World":
        """This world with another answer to every question about a held-out entity: for edits of the memory."""
        facts, rng = self.facts.copy(), np.random.default_rng([self.seed, EDITS, seed])
        other = rng.integers(1, CHOICES, (len(self.held_out), len(RELATIONS)))
        facts[self.held_out] = (facts[self.held_out] + other) % CHOICES
        return dataclasses.replace(self, facts=facts)

    @functools.cached_property
    def splits(self) -> dict[str, Int[np.ndarray, " n"]]:
        """Entities of train, held_out (in the memory) and newcomers (not in the memory)."""
        return {
            "train": np.setdiff1d(np.arange(entities.COUNT), self.held_out),
            "held_out": np.setdiff1d(self.held_out, self.newcomers),
            "newcomers": self.newcomers,
        }

    @functools.cached_property
    def near(self) -> list[Int[np.ndarray, " n"]]:
        """For every entity, the training entities that share exactly two attributes with it."""
        return [np.intersect1d(np.flatnonzero(row), self.splits["train"]) for row in entities.neighbours()]

    def answer(self, entity: entities.Number, relation: entities.Number) -> str:
        return ANSWERS[RELATIONS[relation]][self.facts[entity, relation]]


def _facts(rng: np.random.Generator, count: int) -> Int[np.ndarray, "count 5"]:
    """Each answer equally often, in random order."""
    return np.stack([rng.permutation(np.arange(count) % CHOICES) for _ in RELATIONS], axis=-1)
