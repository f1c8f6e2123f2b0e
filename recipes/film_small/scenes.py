"""A scene: flat textured layers, rendered at any time, and the exact flow from any time to any other.

Each frame is sampled once from the textures, back to front, so all are equally sharp and occlusions exact. Texture
positions are computed exactly on a grid of `CELL` pixels and interpolated to pixels by Catmull-Rom splines, with an
error below 0.01 px. Textures have about two of their pixels per picture pixel and nothing finer than the picture can
show, so cubic sampling does not alias.

Flow is that of the front-most layer at the centre of each cell of `stride` x `stride` pixels. It is valid if the whole
cell shows one layer, not its soft edge, and the same point in the other frame is inside the picture and not covered.

Pixel (0, 0) has its centre at (0, 0). Times are in [0, 1]. Colours are 0 to 255 until the last step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from film.data.augment import CELL
from recipes.film_small.motions import Motion

OPAQUE = 250  # of 255: below it a pixel is on the layer's edge
CLEAR = 5  # of 255: below it a layer in front is ignored
PAD = 6.0  # px around the corners of a layer, for its waves and the resampling
EDGE = 2  # cells around those drawn, for the interpolation


@dataclass(frozen=True)
class Layer:
    texture: UInt8[np.ndarray, "h w c"]  # RGBA, or RGB for the background, which is mirrored beyond its border
    corner: tuple[float, float]  # of the texture, upper left, in the layer's coordinates u; px
    density: tuple[float, float]  # texture pixels per pixel of u, along x and y
    motion: Motion

    def cells(self, time: float, size: int) -> tuple[int, int, int, int]:
        """The visible cells (left, top, right, bottom) of the layer; may be empty."""
        if self.texture.shape[2] == 3:
            return 0, 0, size // CELL, size // CELL
        extent = np.array(self.texture.shape[1::-1]) / self.density
        steps = np.linspace(0, 1, 9)
        box = np.stack(np.meshgrid(steps, steps), axis=-1) * extent + self.corner
        places = self.motion.place(box, time).reshape(-1, 2)
        low = np.clip((places.min(axis=0) - PAD) // CELL, 0, size // CELL)
        high = np.clip((places.max(axis=0) + PAD) // CELL + 1, 0, size // CELL)
        return int(low[0]), int(low[1]), int(high[0]), int(high[1])

    def draw(self, time: float, cells: tuple[int, int, int, int]) -> UInt8[np.ndarray, "h w c"]:
        """The layer in these cells at `time`."""
        left, top, right, bottom = cells
        places = grid((right - left + 2 * EDGE, bottom - top + 2 * EDGE), CELL, (left - EDGE, top - EDGE))
        nodes = (self.motion.trace(places, time) - self.corner) * self.density - 0.5
        where = _to_pixels(nodes.astype(np.float32))
        where = np.ascontiguousarray(_to_pixels(where.swapaxes(0, 1)).swapaxes(0, 1))
        border = cv2.BORDER_REFLECT_101 if self.texture.shape[2] == 3 else cv2.BORDER_CONSTANT
        return cv2.remap(self.texture, straightened(where), None, cv2.INTER_CUBIC, borderMode=border)  # pyright: ignore


class View(NamedTuple):
    """A scene at one time: colours 0 to 255, and the opacity of each layer but the background."""

    image: Float[np.ndarray, "s s 3"]
    covers: UInt8[np.ndarray, "n s s"]


@dataclass(frozen=True)
class Scene:
    size: int  # side of the picture, px; a multiple of 4
    layers: tuple[Layer, ...]  # back to front; the first is the background
    exposure: float = 0.0  # duration around each time, of which `moments` are averaged
    moments: int = 1
    light: tuple[float, float] = (0.0, 0.0)  # logarithms of the growth of gain and gamma from t = 0 to t = 1

    def view(self, time: float) -> View:
        offsets = self.exposure * ((np.arange(self.moments) + 0.5) / self.moments - 0.5)
        views = [self._sharp(time + float(offset)) for offset in offsets]
        image, covers = views[0]
        if self.moments > 1:
            image = np.stack([view.image for view in views]).mean(axis=0)
            covers = np.rint(np.stack([view.covers for view in views]).mean(axis=0)).astype(np.uint8)
        if any(self.light):
            gain, gamma = np.exp((time - 0.5) * np.array(self.light))
            image = 255 * gain * (np.clip(image, 0, 255) / 255) ** np.float32(gamma)
        return View(image.astype(np.float32), covers)

    def flow(
        self, start: float, end: float, here: View, there: View, stride: int = CELL
    ) -> tuple[Float[np.ndarray, "c c 2"], Bool[np.ndarray, "c c"]]:
        """From time `start`, viewed as `here`, to `end`, viewed as `there`: px per cell, and where it is valid."""
        front, clean = _front(here.covers, stride)
        cells = self.size // stride
        centres = grid((cells, cells), stride)
        flow, visible = np.zeros((cells, cells, 2)), np.zeros((cells, cells), bool)
        above = np.zeros((self.size, self.size), np.uint8)
        for number in reversed(range(len(self.layers))):
            mine = front == number
            if mine.any():
                flow[mine] = self.layers[number].motion.flow(centres[mine], start, end)
                places = centres[mine] + flow[mine]
                free = _at(cv2.dilate(above, np.ones((stride + 1, stride + 1), np.uint8)), places) < CLEAR
                whole = _at(there.covers[number - 1], places) >= OPAQUE if number else True
                margin = (stride - 1) / 2
                inside = ((places >= margin) & (places <= self.size - 1 - margin)).all(axis=-1)
                visible[mine] = free & whole & inside
            if number:
                above = np.maximum(above, there.covers[number - 1])
        return flow, visible & clean

    def _sharp(self, time: float) -> View:
        image = self.layers[0].draw(time, self.layers[0].cells(time, self.size)).astype(np.float32)
        covers = np.zeros((len(self.layers) - 1, self.size, self.size), np.uint8)
        for cover, layer in zip(covers, self.layers[1:], strict=True):
            cells = left, top, right, bottom = layer.cells(time, self.size)
            if left >= right or top >= bottom:
                continue
            box = np.s_[CELL * top : CELL * bottom, CELL * left : CELL * right]
            drawn = layer.draw(time, cells)
            cover[box] = drawn[..., 3]
            share = cv2.merge([drawn[..., 3]] * 3).astype(np.float32) * np.float32(1 / 255)
            image[box] += share * (drawn[..., :3] - image[box])
        return View(image, covers)


def grid(shape: tuple[int, int], stride: int = 1, first: tuple[int, int] = (0, 0)) -> Float[np.ndarray, "h w 2"]:
    """Centres (x, y) of `shape` = (columns, rows) cells of `stride` px, from cell `first` = (column, row) on."""
    xs, ys = (stride * (np.arange(count) + start) + (stride - 1) / 2 for count, start in zip(shape, first, strict=True))
    return np.stack(np.meshgrid(xs, ys), axis=-1)


def straightened(places: Float[np.ndarray, "h w 2"]) -> Float[np.ndarray, "h w 2"]:
    """Positions corrected for OpenCV's cubic kernel (a = -3/4), which does not preserve linear functions: at the
    fraction f of a pixel it is off by f (f - 1/2) (f - 1), up to 0.05 px. The correction leaves less than 0.01 px."""
    f = places - np.floor(places)
    return places - f * (f - 0.5) * (f - 1)


def _front(covers: UInt8[np.ndarray, "n s s"], stride: int) -> tuple[np.ndarray, Bool[np.ndarray, "c c"]]:
    """Per cell: the front-most layer at its centre, and whether it covers the whole cell."""
    size = covers.shape[1]
    front, clean = np.zeros((size, size), np.int8), np.ones((size, size), bool)
    for number, cover in enumerate(covers, 1):
        front[cover > 127] = number
        clean &= cover <= CLEAR
        clean |= cover >= OPAQUE
    shape = (size // stride, stride, size // stride, stride)
    blocks = front.reshape(shape)
    one = blocks.max(axis=(1, 3)) == blocks.min(axis=(1, 3))
    return front[stride // 2 :: stride, stride // 2 :: stride], one & clean.reshape(shape).all(axis=(1, 3))


def _at(picture: UInt8[np.ndarray, "s s"], places: Float[np.ndarray, "n 2"]) -> UInt8[np.ndarray, " n"]:
    """The picture at these places, nearest pixel, clamped to the border."""
    x, y = np.clip(np.rint(places), 0, len(picture) - 1).astype(np.intp).T
    return picture[y, x]


def _to_pixels(nodes: Float[np.ndarray, "n m 2"]) -> Float[np.ndarray, "p m 2"]:
    """Catmull-Rom interpolation (Catmull and Rom 1974) along the first axis, from cell centres, with `EDGE` extra cells
    on either side, to pixels. Not a matrix product, for which the readers' threads would compete for BLAS."""
    cells = len(nodes) - 2 * EDGE
    return np.stack(
        [
            np.sum([w * nodes[start + k : start + k + cells] for k, w in enumerate(weights)], axis=0)
            for start, weights in TAPS
        ],
        axis=1,
    ).reshape(CELL * cells, *nodes.shape[1:])


def _taps(pixel: int) -> tuple[int, Float[np.ndarray, " 4"]]:
    """The first of the four nodes of a cell's pixel, relative to the cell's own minus `EDGE`, and their weights."""
    place = (pixel - (CELL - 1) / 2) / CELL + EDGE
    first = int(np.floor(place))
    f = place - first
    weights = [-f + 2 * f**2 - f**3, 2 - 5 * f**2 + 3 * f**3, f + 4 * f**2 - 3 * f**3, -(f**2) + f**3]
    return first - 1, np.array(weights, np.float32) / 2


TAPS = [_taps(pixel) for pixel in range(CELL)]
