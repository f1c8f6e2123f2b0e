"""Who lives in the small world: every figure that 8 shapes, 8 colours and 4 textures make, with a name that says so.

Entity e < 256 is shape e // 32, colour e // 4 % 8, texture e % 4. A name is three syllables, one for each part, so the
name of an entity that was never asked about is made of syllables that were, and can be read off its picture.

    entity 0      disc, red, plain            ba mo ti
    entity 37     ring, orange, striped       de nu ro

Distractors fill a memory up and nothing is asked about them. They are numbered from 256 on, have the same colours and
textures but shapes of their own, blobs, of which there are 256; a blob takes two syllables that no other name has.

`held_out` draws the entities of which training asks nothing. Every part's every value stays in training.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

SHAPES = {"disc": "ba", "ring": "de", "square": "fi", "triangle": "gu", "star": "ho", "cross": "ja", "moon": "ke"}
SHAPES |= {"hourglass": "li"}
COLOURS = {"red": "mo", "orange": "nu", "yellow": "pa", "green": "re"}
COLOURS |= {"turquoise": "si", "blue": "tu", "purple": "va", "white": "wo"}
TEXTURES = {"plain": "ti", "striped": "ro", "dotted": "ye", "rimmed": "zu"}
FOREIGN = tuple(f"{consonant}{vowel}" for consonant in ("kr", "bl", "st", "fl") for vowel in "aeiu")

Number = int | np.integer
PARTS = (len(SHAPES), len(COLOURS), len(TEXTURES))
COUNT = int(np.prod(PARTS))  # of the entities that can be asked about
BLOBS = len(FOREIGN) ** 2
MOST_DISTRACTORS = BLOBS * PARTS[1] * PARTS[2]
SCATTER = 5063  # odd, and near the golden section of all: distractors that follow each other differ in every part
MOST_HELD_OUT = COUNT - max(PARTS)


def parts(entities: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n 3"]:
    """Shape, colour and texture of entities; blobs are shapes from 8 on. Raises ValueError for no entity's number."""
    entities = np.asarray(entities)
    if entities.size and not 0 <= entities.min() <= entities.max() < COUNT + MOST_DISTRACTORS:
        raise ValueError(
            f"entities {entities.min()} to {entities.max()}: give numbers from 0 to {COUNT + MOST_DISTRACTORS - 1}"
        )
    distractors = (entities - COUNT) * SCATTER % MOST_DISTRACTORS + COUNT
    numbers = np.where(entities < COUNT, entities, distractors)
    return np.stack([numbers // (PARTS[1] * PARTS[2]), numbers // PARTS[2] % PARTS[1], numbers % PARTS[2]], axis=-1)


def name(entity: Number) -> str:
    """Its syllables with blanks between them."""
    shape, colour, texture = parts(np.array([entity]))[0]
    first, second = divmod(int(shape) - len(SHAPES), len(FOREIGN))
    figure = list(SHAPES.values())[shape] if shape < len(SHAPES) else f"{FOREIGN[first]} {FOREIGN[second]}"
    return f"{figure} {list(COLOURS.values())[colour]} {list(TEXTURES.values())[texture]}"


def looks(entity: Number) -> str:
    """What a picture of it shows, for people: "striped orange ring"."""
    shape, colour, texture = parts(np.array([entity]))[0]
    figure = list(SHAPES)[shape] if shape < len(SHAPES) else f"blob {shape - len(SHAPES)}"
    return f"{list(TEXTURES)[texture]} {list(COLOURS)[colour]} {figure}"


def near() -> Bool[np.ndarray, "256 256"]:
    """Which entities share exactly two parts: 7 + 7 + 3 for each."""
    own = parts(np.arange(COUNT))
    return (own[:, None] == own[None]).sum(-1) == 2


def held_out(rng: np.random.Generator, count: int) -> Int[np.ndarray, " n"]:
    """`count` entities, in order. Eight that have every shape, colour and texture among them are never chosen.

    Raises ValueError if more are asked for than there are others."""
    if not 0 <= count <= MOST_HELD_OUT:
        raise ValueError(f"{count} entities held out: keep to 0 to {MOST_HELD_OUT}, so that every part stays")
    shapes, colours, textures = (rng.permutation(np.arange(max(PARTS)) % values) for values in PARTS)
    kept = (shapes * PARTS[1] + colours) * PARTS[2] + textures
    return np.sort(rng.permutation(np.setdiff1d(np.arange(COUNT), kept))[:count])
