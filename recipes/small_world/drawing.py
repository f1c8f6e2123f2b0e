"""Pictures of the small world's entities: a figure on grey, drawn anew for every question and item.

    draw(attributes, rng, size)  float32 [s s 3], RGB in [0, 1]

An entity decides shape, colour and the dark texture. `rng` decides position, size, rotation, brightness, ground and
noise. A figure is a signed distance function of the plane, positive inside; lengths are in radii of the figure. A
pixel's coverage is its distance in pixels plus a half, so edges are smooth without oversampling.

    python -m recipes.small_world.drawing sheet.png        a sheet of all shapes and textures, and some blobs
"""

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
DARK = 0.15  # brightness of the texture, as a share of the colour
SHIFT = 0.08  # largest distance from the middle along each axis, in halves of the picture
RADIUS = (0.76, 0.88)  # in halves of the picture
ROTATION = 0.15  # radians, either way
BRIGHTNESS = (0.8, 1.1)
GROUND = (0.38, 0.55)
NOISE = 0.02  # standard deviation
PERIOD = 0.52  # of stripes and dots
RIM = 0.17

Plane = Float[np.ndarray, "s s"]
Attributes = Int[np.ndarray, "3"]
Figure = Callable[[Plane, Plane], Plane]


def draw(attributes: Attributes, rng: np.random.Generator, size: int) -> Float[np.ndarray, "{size} {size} 3"]:
    shape, colour, texture = attributes.tolist()
    right, down, scale, turn, bright, grey = rng.random(6, np.float32)
    noise = rng.standard_normal((size, size, 3), np.float32)
    radius = _between(scale, RADIUS)
    line = ((2 * np.arange(size) + 1) / size - 1).astype(np.float32)
    x, y = (line[None] - (2 * right - 1) * SHIFT) / radius, (line[:, None] - (2 * down - 1) * SHIFT) / radius
    cos, sin = np.cos((2 * turn - 1) * ROTATION), np.sin((2 * turn - 1) * ROTATION)
    u, v = cos * x + sin * y, cos * y - sin * x  # in the figure's axes: right, down
    pixels = radius * size / 2  # per radius

    inside = (FIGURES[shape] if shape < len(FIGURES) else blob(shape - len(FIGURES)))(u, v)
    dark = _cover(TEXTURES[texture](u, v, inside) * pixels)
    figure = PALETTE[colour] * (_between(bright, BRIGHTNESS) * (1 - (1 - DARK) * dark))[..., None]
    ground = _between(grey, GROUND)
    picture = ground + _cover(inside * pixels)[..., None] * (figure - ground)
    return np.clip(picture + NOISE * noise, 0, 1)


def _between(share: np.floating, ends: tuple[float, float]) -> np.floating:
    return ends[0] + (ends[1] - ends[0]) * share


def _cover(pixels: Plane) -> Plane:
    """Coverage of pixels whose middles are so many pixels inside a border."""
    return np.clip(pixels + 0.5, 0, 1)


def triangle(u: Plane, v: Plane) -> Plane:
    v = v - 0.2
    return np.minimum(0.58 - v, 0.58 - 0.866 * np.abs(u) + 0.5 * v)


def star(u: Plane, v: Plane) -> Plane:
    """Five points: the angle is folded into the tenth of the plane between a tip and a notch."""
    angle = np.abs((np.arctan2(u, -v) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    r = np.hypot(u, v)
    tip, x, y = 1.05, 0.50 * math.cos(math.pi / 5), 0.50 * math.sin(math.pi / 5)  # the notch is at (x, y)
    length = math.hypot(tip - x, y)
    return (y * tip - r * (y * np.cos(angle) + (tip - x) * np.sin(angle))) / length


def cross(u: Plane, v: Plane) -> Plane:
    u, v = np.abs(u), np.abs(v)
    return np.minimum(0.92 - np.maximum(u, v), 0.31 - np.minimum(u, v))


@functools.lru_cache(maxsize=entities.BLOBS)
def blob(number: int) -> Figure:
    """A closed curve whose radius has two to five random waves."""
    rng = np.random.default_rng(number)
    swings, phases = rng.uniform(-0.22, 0.22, 4).astype(np.float32), rng.uniform(0, 2 * np.pi, 4).astype(np.float32)

    def figure(u: Plane, v: Plane) -> Plane:
        angle = np.arctan2(v, u)
        waves = sum(swings[k - 2] * np.cos(k * angle + phases[k - 2]) for k in range(2, 6))
        return 0.7 * (1 + waves) - np.hypot(u, v)

    return figure


def dotted(u: Plane, v: Plane, inside: Plane) -> Plane:
    """Each row is shifted by half a period."""
    row = np.floor(v / PERIOD + 0.5)
    across = (u / PERIOD + 0.5 * (row % 2) + 0.5) % 1 - 0.5
    return 0.32 * PERIOD - PERIOD * np.hypot(across, v / PERIOD - row)


FIGURES: tuple[Figure, ...] = (  # in the order of entities.SHAPES
    lambda u, v: 0.88 - np.hypot(u, v),
    lambda u, v: 0.27 - np.abs(np.hypot(u, v) - 0.69),
    lambda u, v: 0.78 - np.maximum(np.abs(u), np.abs(v)),
    triangle,
    star,
    cross,
    lambda u, v: np.minimum(0.94 - np.hypot(u, v), np.hypot(u - 0.52, v) - 0.6),
    lambda u, v: np.minimum(0.88 - np.abs(v), 0.75 * (np.abs(v) + 0.12 - np.abs(u))),
)
TEXTURES: tuple[Callable[[Plane, Plane, Plane], Plane], ...] = (  # distance into what is dark; as entities.TEXTURES
    lambda u, v, inside: np.full_like(u, -1),
    lambda u, v, inside: np.abs((v / PERIOD) % 1 - 0.5) * PERIOD - PERIOD / 4,
    dotted,
    lambda u, v, inside: RIM - inside,
)


def sheet(numbers: Sequence[int], seed: int = 0, size: int = 32, larger: int = 1) -> Float[np.ndarray, "h w 3"]:
    """Entities, 8 in a row; each pixel becomes `larger` x `larger` pixels."""
    rngs = [np.random.default_rng([seed, place]) for place in range(len(numbers))]
    pictures = map(draw, entities.attributes(np.asarray(numbers)), rngs, [size] * len(rngs))
    return contact_sheet([picture.repeat(larger, 0).repeat(larger, 1) for picture in pictures], columns=8)


def main(
    output: tyro.conf.Positional[Path], seed: int = 0, size: int = 32, larger: int = 3, overwrite: bool = False
) -> None:
    """Write a sheet: shapes across, textures down in all colours, then blobs."""
    shapes, colours, textures = entities.SIZES
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
