"""Layers of drawn scenes (`drawn_scenes.py`): where each point of a layer is at any time, and what it looks like.

All of it is arithmetic on arrays, so that one compiled program draws a batch:

    place     points u of a layer -> places in the picture at a time, as `motions.Motion` has them
    trace     places in the picture at a time -> points u, the inverse
    sample    points u -> colours, from the photographs at the mipmap that fits their size; opacities, from the outlines
    visible   flow of the front-most layer from one time to another, and where its end is seen
"""

from typing import NamedTuple

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from film.data.augment import CELL
from film.ops.resample import resize_bilinear
from recipes.film_small.motions import homography, project
from recipes.film_small.textures import PSF

OUTLINE_SIDE = 160  # px
MIPMAPS = 3
INVERSIONS = 6
OPAQUE, CLEAR = 0.98, 0.02
Points = Float[Array, "*n 2"]


class Textures(NamedTuple):
    photographs: UInt8[Array, "n s s2 3"]  # square, mirrored to it, with smaller and smaller copies at the right
    outlines: UInt8[Array, "m o o"]
    film: UInt8[Array, "f h w 3"]  # frames in a row
    shots: Int[Array, " f"]  # the number of each frame's shot


class Layers(NamedTuple):
    """Layers of a scene, back to front; a first axis of n. Lengths in px, angles in radians."""

    centre: Float[Array, "n 2"]
    shift: Float[Array, "n 3 2"]  # of the camera (scaled by nearness), of the layer that this one hangs on, its own
    turn: Float[Array, "n 3"]
    zoom: Float[Array, "n 3"]
    shear: Float[Array, "n 3"]
    tilt: Float[Array, "n 3 2"]
    pivot: Float[Array, "n 3 2"]  # about which each of the three turns, zooms, shears and tilts
    bend: Float[Array, " n"]
    heights: Float[Array, "n k 2"]  # of the waves
    waves: Float[Array, "n k 2"]
    phases: Float[Array, "n k"]
    photograph: Int[Array, " n"]
    origin: Float[Array, "n 2"]  # of the texture, pixels of the photograph
    density: Float[Array, " n"]  # pixels of the photograph per px
    period: Float[Array, "n 2"]  # of a repeated pattern, px; 0: none
    angle: Float[Array, " n"]  # of the pattern
    outline: Int[Array, " n"]
    side: Float[Array, " n"]  # of the outline; 0: no outline, as the background; negative: there is no such layer


def mipmaps(photograph: UInt8[np.ndarray, "h w 3"], side: int) -> UInt8[np.ndarray, "s s2 3"]:
    """The photograph, mirrored to a square; at its right the same at half the size, and so on, each blurred a little
    (`textures.PSF`), so that a lookup at one to two of its pixels per pixel does not alias."""
    height, width = photograph.shape[:2]
    level = np.pad(photograph, ((0, side - height), (0, side - width), (0, 0)), mode="symmetric")
    atlas = np.zeros((side, side + side // 2, 3), np.uint8)
    left, top = 0, 0
    for _ in range(MIPMAPS):
        size = len(level)
        atlas[top : top + size, left : left + size] = cv2.GaussianBlur(level, (5, 5), PSF)
        left, top = (side, 0) if left == 0 else (left, top + size)
        level = cv2.resize(level, (size // 2, size // 2), interpolation=cv2.INTER_AREA)
    return atlas


def matrix(layer: Layers, time: Array) -> Float[Array, "3 3"]:
    """The homography of one layer at `time`: that of its three poses, the own one applied first."""
    fields = (layer.pivot, layer.shift, layer.turn, layer.zoom, layer.shear, layer.tilt)
    camera, below, own = (homography(_progress(layer, time), *(x[i] for x in fields), xp=jnp) for i in range(3))
    return camera @ below @ own


def place(layer: Layers, points: Points, time: Array) -> Points:
    """Positions of the layer's points in the picture; px."""
    s = _progress(layer, time)
    return project(matrix(layer, time), points + s * _waves(layer, points))


def trace(layer: Layers, places: Points, time: Array) -> Points:
    s = _progress(layer, time)
    rigid = project(jnp.linalg.inv(matrix(layer, time)), places)
    points = rigid
    for _ in range(INVERSIONS):
        points = rigid - s * _waves(layer, points)
    return points


def trace_pixels(layer: Layers, size: int, time: Array) -> Float[Array, "s s 2"]:
    """`trace` of all pixels: exact at the centres of cells, bilinear between them, off by less than a tenth of a pixel
    where waves are steepest."""
    cells = grid(size // CELL + 2, CELL) - CELL  # one more on each side
    wide = CELL * len(cells)
    points = resize_bilinear(trace(layer, cells, time)[None], (wide, wide))[0]
    return points[CELL:-CELL, CELL:-CELL]


def sample(textures: Textures, layer: Layers, points: Points) -> tuple[Float[Array, "*n 3"], Float[Array, "*n"]]:
    """Colours in [0, 1] and opacities of a layer at its points."""
    side, density = textures.photographs.shape[1], jnp.abs(layer.density)
    u = points - layer.centre
    cos, sin = jnp.cos(layer.angle), jnp.sin(layer.angle)
    turned = jnp.stack([cos * u[..., 0] + sin * u[..., 1], cos * u[..., 1] - sin * u[..., 0]], axis=-1)
    period = jnp.maximum(layer.period, 1.0)
    u = jnp.where(layer.period > 0, turned % period, u)
    texel = u * jnp.stack([layer.density, density]) + layer.origin
    texel = (side - 1) - jnp.abs(texel % (2 * side - 2) - (side - 1))  # mirrored at the photograph's border
    level = jnp.floor(jnp.log2(density)).astype(jnp.int32)
    # Of `mipmaps`: the square itself, and from its upper right corner downwards those of half, a quarter, ...
    left = jnp.where(level > 0, side, 0)
    top = jnp.where(level > 1, side // 2, 0)
    size = side >> level
    texel = jnp.clip((texel + 0.5) / 2.0**level - 0.5, 0, size - 1.001) + jnp.stack([left, top])
    colour = _lookup(textures.photographs, layer.photograph, texel) / 255
    # So that no two cells of a pattern are quite alike.
    colour = colour * (1 + 0.15 * jnp.sin(0.03 * turned.sum(-1, keepdims=True)) * (layer.period.sum() > 0))

    reach = jnp.maximum(layer.side, 1.0)
    place, most = ((points - layer.centre) / reach + 0.5) * OUTLINE_SIDE - 0.5, OUTLINE_SIDE - 1.001
    inside = jnp.all((place >= 0) & (place <= most), axis=-1)
    opacity = inside * _lookup(textures.outlines[..., None], layer.outline, jnp.clip(place, 0, most))[..., 0] / 255
    return colour, jnp.where(layer.side == 0, 1.0, jnp.where(layer.side < 0, 0.0, opacity))


def visible(
    textures: Textures, layers: Layers, front: tuple[Array, Array], time: Array, end: Array, size: int
) -> tuple[Float[Array, "c c 2"], Float[Array, "c c"]]:
    """Flow of the front-most layer of each cell from `time` to `end`, px; 1 where its end is seen, else 0."""
    number, clean = front
    centres = grid(len(number), CELL)

    def move(layer: Layers) -> Array:
        return place(layer, trace(layer, centres, time), end)

    ends = jnp.take_along_axis(jax.lax.map(move, layers), number[None, ..., None], axis=0)[0]

    def covered(_: None, layer_and_number: tuple[Layers, Array]) -> tuple[None, Array]:
        layer, own = layer_and_number
        opacity = sample(textures, layer, trace(layer, ends, end))[1]
        return None, jnp.where(own > number, opacity > CLEAR, jnp.where(own == number, opacity < OPAQUE, False))

    _, hidden = jax.lax.scan(covered, None, (layers, jnp.arange(len(layers.side))))
    margin = (CELL - 1) / 2
    inside = jnp.all((ends >= margin) & (ends <= size - 1 - margin), axis=-1)
    return ends - centres, (inside & clean & ~hidden.any(axis=0)).astype(jnp.float32)


def front_cells(opacities: Float[Array, "n c c"]) -> tuple[Int[Array, "d d"], Array]:
    """Per cell of CELL px: the front-most layer at its centre, and whether it is all that the cell shows."""
    numbers = jnp.arange(len(opacities))[:, None, None]
    front = jnp.max(jnp.where(opacities > 0.5, numbers, 0), axis=0)
    soft = jnp.any((opacities > CLEAR) & (opacities < OPAQUE) & (numbers >= front), axis=0)
    cells = len(front) // CELL
    blocks = front.reshape(cells, CELL, cells, CELL)
    clean = ~soft.reshape(blocks.shape).any(axis=(1, 3)) & (blocks.max(axis=(1, 3)) == blocks.min(axis=(1, 3)))
    return blocks[:, CELL // 2, :, CELL // 2], clean


def grid(cells: int, stride: int) -> Float[Array, "c c 2"]:
    """Centres (x, y) of cells of `stride` px."""
    places = stride * jnp.arange(cells, dtype=jnp.float32) + (stride - 1) / 2
    return jnp.stack(jnp.meshgrid(places, places), axis=-1)


def _progress(layer: Layers, time: Array) -> Array:
    return time - 0.5 + layer.bend * time * (time - 1)


def _waves(layer: Layers, points: Points) -> Points:
    return jnp.sin(points @ layer.waves.T + layer.phases) @ layer.heights


def _lookup(images: UInt8[Array, "n h w c"], number: Array, places: Points) -> Float[Array, "*n c"]:
    """Bilinear, at places inside the image of this number."""
    corner = jnp.floor(places).astype(jnp.int32)
    (x, y), (fx, fy) = jnp.moveaxis(corner, -1, 0), jnp.moveaxis(places - corner, -1, 0)[..., None]

    def tap(down: int, right: int) -> Array:
        return images.at[number, y + down, x + right].get(mode="promise_in_bounds").astype(jnp.float32)

    above, below = (left + fx * (right - left) for left, right in ((tap(i, 0), tap(i, 1)) for i in (0, 1)))
    return above + fy * (below - above)
