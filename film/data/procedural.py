"""Triplets that the code draws itself: textured shapes that move straight over a moving, textured background.

No download, no disk, exact middle frames: enough to see a recipe run and its loss fall (`debug=cpu`), and for tests.
Pictures are drawn at the three moments from the same textures, so what is hidden and uncovered is right as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from film.data.triplet import Encoded, Frames, Source, encode

MOMENTS = (0.0, 0.5, 1.0)
Vector = Float[np.ndarray, "2"]


@dataclass(frozen=True)
class MovingShapes(Source):
    """`count` scenes of `size` x `size` pixels; record i is always the same scene.

    Attributes:
      shapes: moving discs and rectangles before the background.
      motion: largest length of a motion between the outer frames, pixels.
      seed: of all scenes.
    """

    count: int = 256
    size: int = 128
    shapes: int = 4
    motion: float = 12.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.size < 16 or self.shapes < 0 or self.motion < 0:
            raise ValueError(f"{self}: count has to be at least 1, size 16, shapes and motion 0")

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"scene {index} of seed {self.seed}"

    def frames(self, index: int) -> Frames:
        return Frames(self.name(index), scene(self, np.random.default_rng([self.seed, index])))

    def encoded(self, index: int) -> Encoded:
        first, middle, last = (encode(image) for image in self.frames(index).images)
        return Encoded(self.name(index), (first, middle, last))


def scene(config: MovingShapes, rng: np.random.Generator) -> UInt8[np.ndarray, "3 s s 3"]:
    """The three frames of one scene."""
    size, reach = config.size, int(np.ceil(config.motion))
    layers: list[tuple[np.ndarray, np.ndarray | None, Vector, Vector]] = [
        (texture(rng, size + 2 * reach), None, np.zeros(2), motion(rng, config.motion))
    ]
    for _ in range(config.shapes):
        side = int(rng.integers(size // 6, size // 2))
        where = rng.uniform(-side / 2, size - side / 2, 2)
        layers.append((texture(rng, side), outline(rng, side), where + reach, motion(rng, config.motion)))
    frames = []
    for moment in MOMENTS:
        canvas = np.zeros((size + 2 * reach, size + 2 * reach, 3), np.float32)
        for picture, mask, place, velocity in layers:
            canvas = paint(canvas, picture, mask, place + (moment - 0.5) * velocity)
        frames.append(canvas[reach : reach + size, reach : reach + size])
    return (255 * np.clip(np.stack(frames), 0, 1) + 0.5).astype(np.uint8)


def texture(rng: np.random.Generator, side: int) -> Float[np.ndarray, "s s 3"]:
    """Noise of several scales around one colour."""
    total = np.tile(rng.uniform(0.2, 0.8, 3).astype(np.float32), (side, side, 1))
    for cell, strength in ((3, 0.15), (8, 0.25), (24, 0.35)):
        coarse = rng.standard_normal((side // cell + 2, side // cell + 2, 3)).astype(np.float32)
        total += 0.5 * strength * cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    return total


def outline(rng: np.random.Generator, side: int) -> Float[np.ndarray, "s s"]:
    """A disc or a rectangle that fills the square, with a soft edge of a pixel."""
    mask = np.zeros((side, side), np.float32)
    if rng.random() < 0.5:
        cv2.circle(mask, (side // 2, side // 2), side // 2 - 1, 1.0, -1, cv2.LINE_AA)
    else:
        inset = int(rng.integers(1, max(2, side // 4)))
        mask[1:-1, inset:-inset] = 1
    return cv2.GaussianBlur(mask, (3, 3), 0.6)


def motion(rng: np.random.Generator, largest: float) -> Vector:
    """A direction, and a length that is as likely small as large."""
    angle, length = rng.uniform(0, 2 * np.pi), rng.uniform(0, largest)
    return length * np.array([np.cos(angle), np.sin(angle)])


def paint(canvas: np.ndarray, picture: np.ndarray, mask: np.ndarray | None, place: Vector) -> np.ndarray:
    """`canvas` with `picture` at `place` (x, y), to a fraction of a pixel; without a mask it fills the canvas."""
    size = canvas.shape[1::-1]
    shift = np.array([[1, 0, place[0]], [0, 1, place[1]]], np.float32)
    if mask is None:
        return cv2.warpAffine(picture, shift, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    cover = cv2.warpAffine(mask, shift, size, flags=cv2.INTER_LINEAR)[..., None]
    moved = cv2.warpAffine(picture, shift, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return canvas * (1 - cover) + moved * cover
