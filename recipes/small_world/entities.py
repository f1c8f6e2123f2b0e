"""The entities of the small world: all combinations of 8 shapes, 8 colours and 4 textures, each with a name.

Entity e < 256 has shape e // 32, colour e // 4 % 8, texture e % 4. A name is three syllables, one for each attribute:
entity 37, ring, orange, striped, is "de nu ro". So the name of a held-out entity follows from its picture.

Distractors, from 256 on, enlarge the memory; no question is about them. They have the same colours and textures, but
shapes of their own: 256 blobs, each named by two syllables that no other name has.
"""

import numpy as np
from jaxtyping import Bool, Int

SHAPES = {"disc": "ba", "ring": "de", "square": "fi", "triangle": "gu", "star": "ho", "cross": "ja", "moon": "ke"}
SHAPES |= {"hourglass": "li"}
COLOURS = {"red": "mo", "orange": "nu", "yellow": "pa", "green": "re"}
COLOURS |= {"turquoise": "si", "blue": "tu", "purple": "va", "white": "wo"}
TEXTURES = {"plain": "ti", "striped": "ro", "dotted": "ye", "rimmed": "zu"}
BLOB_SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in ("kr", "bl", "st", "fl") for vowel in "aeiu")

Number = int | np.integer
SIZES = (len(SHAPES), len(COLOURS), len(TEXTURES))
COUNT = int(np.prod(SIZES))  # of the entities that questions are about
BLOBS = len(BLOB_SYLLABLES) ** 2
MAX_DISTRACTORS = BLOBS * SIZES[1] * SIZES[2]
SCATTER = 5063  # odd and near the golden section: consecutive distractors differ in every attribute
MAX_HELD_OUT = COUNT - max(SIZES)


def attributes(entities: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n 3"]:
    """Shape, colour and texture; blobs are shapes from 8 on. Raises ValueError for a number that is no entity's."""
    entities = np.asarray(entities)
    if entities.size and not 0 <= entities.min() <= entities.max() < COUNT + MAX_DISTRACTORS:
        raise ValueError(f"entities {entities.min()} to {entities.max()}: give 0 to {COUNT + MAX_DISTRACTORS - 1}")
    distractors = (entities - COUNT) * SCATTER % MAX_DISTRACTORS + COUNT
    numbers = np.where(entities < COUNT, entities, distractors)
    return np.stack([numbers // (SIZES[1] * SIZES[2]), numbers // SIZES[2] % SIZES[1], numbers % SIZES[2]], axis=-1)


def name(entity: Number) -> str:
    shape, colour, texture = attributes(np.array([entity]))[0]
    first, second = divmod(int(shape) - len(SHAPES), len(BLOB_SYLLABLES))
    figure = f"{BLOB_SYLLABLES[first]} {BLOB_SYLLABLES[second]}" if first >= 0 else list(SHAPES.values())[shape]
    return f"{figure} {list(COLOURS.values())[colour]} {list(TEXTURES.values())[texture]}"


def description(entity: Number) -> str:
    """For people: "striped orange ring"."""
    shape, colour, texture = attributes(np.array([entity]))[0]
    figure = list(SHAPES)[shape] if shape < len(SHAPES) else f"blob {shape - len(SHAPES)}"
    return f"{list(TEXTURES)[texture]} {list(COLOURS)[colour]} {figure}"


def neighbours() -> Bool[np.ndarray, "256 256"]:
    """Which entities share exactly two attributes: 7 + 7 + 3 for each."""
    own = attributes(np.arange(COUNT))
    return (own[:, None] == own[None]).sum(-1) == 2


def held_out(rng: np.random.Generator, count: int) -> Int[np.ndarray, " n"]:
    """`count` random entities, sorted; never those eight which keep every shape, colour and texture in training. Raises
    ValueError for a count above the rest."""
    if not 0 <= count <= MAX_HELD_OUT:
        raise ValueError(f"{count} entities held out: keep to 0 to {MAX_HELD_OUT}, so that every attribute stays")
    shapes, colours, textures = (rng.permutation(np.arange(max(SIZES)) % values) for values in SIZES)
    kept = (shapes * SIZES[1] + colours) * SIZES[2] + textures
    return np.sort(rng.permutation(np.setdiff1d(np.arange(COUNT), kept))[:count])
