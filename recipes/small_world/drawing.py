"""Pictures of the small world's entities: a figure on grey, drawn anew for every look at it.

    draw(parts, rngs, size)      float32 [n s s 3], RGB in [0, 1]

What belongs to the entity is its shape, its colour and the dark texture on it. What a look adds is where the figure
is, how large, how far turned (so little that no shape becomes another), how bright, on how dark a ground, and noise.
Row i depends on `rngs[i]` alone, whatever is drawn beside it.

A figure is a function of the plane that is positive inside and about the distance to its border there; lengths are in
radii of the figure. So borders are smooth without drawing more finely: a pixel is covered by its distance, in pixels,
plus a half. Functions work on all pixels of all pictures of a shape at once.

    python -m recipes.small_world.drawing sheet.png        writes every shape and texture, and some blobs
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tyro
from jaxtyping import Float, Int

from common import terminal
from common.io.images import contact_sheet, write_image
from recipes.small_world import entities

RGB = {
    "red": (0.88, 0.12, 0.12),
    "orange": (0.98, 0.52, 0.08),
    "yellow": (0.98, 0.90, 0.16),
    "green": (0.14, 0.66, 0.18),
    "turquoise": (0.20, 0.82, 0.82),
    "blue": (0.16, 0.30, 0.92),
    "purple": (0.62, 0.18, 0.78),
    "white": (0.96, 0.96, 0.96),
}
PALETTE = np.array(list(RGB.values()), np.float32)
DARK = 0.15  # of the colour, where a texture is
PLACE = 0.08  # how far from the middle, in halves of the picture, along each axis
RADIUS = (0.76, 0.88)  # in halves of the picture
TURN = 0.15  # radians, either way
BRIGHTNESS = (0.8, 1.1)
GROUND = (0.38, 0.55)
NOISE = 0.02  # standard deviation
PERIOD = 0.52  # of stripes and dots
RIM = 0.17
AT_ONCE = 256  # pictures; more take no less time each, and much memory

Plane = Float[np.ndarray, "n s s"]


def draw(
    parts: Int[np.ndarray, "n 3"], rngs: Sequence[np.random.Generator], size: int
) -> Float[np.ndarray, "n size size 3"]:
    """One picture for each row of `entities.parts`."""
    pictures = np.empty((len(parts), size, size, 3), np.float32)
    for start in range(0, len(parts), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        pictures[some] = _draw(parts[some], rngs[some], size)
    return pictures


def _draw(parts: Int[np.ndarray, "n 3"], rngs: Sequence[np.random.Generator], size: int) -> np.ndarray:
    chances = np.stack([rng.random(6, np.float32) for rng in rngs])[..., None, None]
    noise = np.stack([rng.standard_normal((size, size, 3), np.float32) for rng in rngs])
    right, down, scale, turn, bright, grey = np.moveaxis(chances, 1, 0)
    radius = _between(scale, RADIUS)
    u, v = _plane(size, (2 * right - 1) * PLACE, (2 * down - 1) * PLACE, radius, (2 * turn - 1) * TURN)
    pixels = radius * size / 2  # of a radius

    inside, dark = np.empty_like(u), np.zeros_like(u)
    for shape in set(parts[:, 0].tolist()):
        rows = parts[:, 0] == shape
        inside[rows] = _figure(shape)(u[rows], v[rows])
    for number in set(parts[:, 2].tolist()):
        rows = parts[:, 2] == number
        dark[rows] = _cover(TEXTURES[number](u[rows], v[rows], inside[rows]) * pixels[rows])

    colours = PALETTE[parts[:, 1]][:, None, None]
    figure = colours * (_between(bright, BRIGHTNESS) * (1 - (1 - DARK) * dark))[..., None]
    ground = _between(grey, GROUND)[..., None]
    picture = ground + _cover(inside * pixels)[..., None] * (figure - ground)
    return np.clip(picture + NOISE * noise, 0, 1)


def _between(share: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    return ends[0] + (ends[1] - ends[0]) * share


def _cover(pixels: Plane) -> Plane:
    """How much of each pixel lies inside a border that is so many pixels away."""
    return np.clip(pixels + 0.5, 0, 1)


def _plane(size: int, x: np.ndarray, y: np.ndarray, radius: np.ndarray, turn: np.ndarray) -> tuple[Plane, Plane]:
    """Places of the pixels' middles as the figure sees them, u to its right and v down."""
    line = ((2 * np.arange(size) + 1) / size - 1).astype(np.float32)
    across, along = (line[None, None] - x) / radius, (line[None, :, None] - y) / radius
    cos, sin = np.cos(turn), np.sin(turn)
    return cos * across + sin * along, cos * along - sin * across


# ---- shapes


def disc(u: Plane, v: Plane) -> Plane:
    return 0.88 - np.hypot(u, v)


def ring(u: Plane, v: Plane) -> Plane:
    return 0.27 - np.abs(np.hypot(u, v) - 0.69)


def square(u: Plane, v: Plane) -> Plane:
    return 0.78 - np.maximum(np.abs(u), np.abs(v))


def triangle(u: Plane, v: Plane) -> Plane:
    v = v - 0.2
    return np.minimum(0.58 - v, 0.58 - 0.866 * np.abs(u) + 0.5 * v)


def star(u: Plane, v: Plane) -> Plane:
    """Five points: the angle is folded to the tenth of the plane between a tip and a notch."""
    angle = np.abs((np.arctan2(u, -v) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    r = np.hypot(u, v)
    tip, x, y = 1.05, 0.50 * math.cos(math.pi / 5), 0.50 * math.sin(math.pi / 5)  # the notch is at (x, y)
    length = math.hypot(tip - x, y)
    return (y * tip - r * (y * np.cos(angle) + (tip - x) * np.sin(angle))) / length


def cross(u: Plane, v: Plane) -> Plane:
    u, v = np.abs(u), np.abs(v)
    return np.minimum(0.92 - np.maximum(u, v), 0.31 - np.minimum(u, v))


def moon(u: Plane, v: Plane) -> Plane:
    return np.minimum(0.94 - np.hypot(u, v), np.hypot(u - 0.52, v) - 0.6)


def hourglass(u: Plane, v: Plane) -> Plane:
    return np.minimum(0.88 - np.abs(v), 0.75 * (np.abs(v) + 0.12 - np.abs(u)))


@functools.lru_cache(maxsize=entities.BLOBS)
def blob(number: int) -> Callable[[Plane, Plane], Plane]:
    """A border whose distance from the middle swings two to five times on the way around."""
    rng = np.random.default_rng(number)
    swings, phases = rng.uniform(-0.22, 0.22, 4).astype(np.float32), rng.uniform(0, 2 * np.pi, 4).astype(np.float32)

    def figure(u: Plane, v: Plane) -> Plane:
        angle = np.arctan2(v, u)
        waves = sum(
            swing * np.cos(k * angle + phase) for k, swing, phase in zip(range(2, 6), swings, phases, strict=True)
        )
        return 0.7 * (1 + waves) - np.hypot(u, v)

    return figure


FIGURES = (disc, ring, square, triangle, star, cross, moon, hourglass)


def _figure(shape: int) -> Callable[[Plane, Plane], Plane]:
    return FIGURES[shape] if shape < len(FIGURES) else blob(shape - len(FIGURES))


# ---- textures: the distance into what is dark


def plain(u: Plane, v: Plane, inside: Plane) -> Plane:
    return np.full_like(u, -1)


def striped(u: Plane, v: Plane, inside: Plane) -> Plane:
    return np.abs((v / PERIOD) % 1 - 0.5) * PERIOD - PERIOD / 4


def dotted(u: Plane, v: Plane, inside: Plane) -> Plane:
    """In rows that are shifted by half a period each."""
    row = np.floor(v / PERIOD + 0.5)
    across = (u / PERIOD + 0.5 * (row % 2) + 0.5) % 1 - 0.5
    return 0.32 * PERIOD - PERIOD * np.hypot(across, v / PERIOD - row)


def rimmed(u: Plane, v: Plane, inside: Plane) -> Plane:
    return RIM - inside


TEXTURES = (plain, striped, dotted, rimmed)


def sheet(numbers: Sequence[int], seed: int = 0, size: int = 32, larger: int = 1) -> Float[np.ndarray, "h w 3"]:
    """Entities beside each other, 8 a row, each pixel `larger` wide."""
    rngs = [np.random.default_rng([seed, place]) for place in range(len(numbers))]
    pictures = draw(entities.parts(np.asarray(numbers)), rngs, size)
    return contact_sheet([picture.repeat(larger, 0).repeat(larger, 1) for picture in pictures], columns=8)


def main(
    output: tyro.conf.Positional[Path], seed: int = 0, size: int = 32, larger: int = 3, overwrite: bool = False
) -> None:
    """Write a sheet: shapes across, textures down in all colours, then blobs."""
    shapes, colours, textures = entities.PARTS
    grid = [
        (shape * colours + (shape + 2 * texture + row) % colours) * textures + texture
        for texture in range(textures)
        for row in range(2)
        for shape in range(shapes)
    ]
    blobs = range(entities.COUNT, entities.COUNT + 2 * shapes)
    write_image(output, sheet([*grid, *blobs], seed, size, larger), overwrite)


if __name__ == "__main__":
    terminal.program(main)
