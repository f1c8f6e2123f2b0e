"""Triplets that the code draws: textured shapes that move straight over a moving, textured background.

No download, no disk, exact middle frames: enough to see a recipe run and its loss fall (`debug=cpu`), and for tests.
"""

from dataclasses import dataclass
from typing import Annotated

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.checked import AtLeast0, NotNegative, Positive, whole
from common.io.images import from_uint8
from film.data.triplet import Frames, Source, Triplet

TIMES = (0.0, 0.5, 1.0)
Vector = Float[np.ndarray, "2"]


@dataclass(frozen=True)
class MovingShapes(Source):
    """`count` scenes of `size` x `size` pixels; record i is always the same scene."""

    count: Positive = 256
    size: Annotated[int, whole(16)] = 128
    shapes: NotNegative = 4  # moving discs and rectangles in front of the background
    motion: AtLeast0 = 12.0  # largest length of a motion between the outer frames, pixels
    seed: int = 0  # of all scenes

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"scene {index} of seed {self.seed}"

    def frames(self, index: int) -> Frames:
        return Frames(self.name(index), self._draw(np.random.default_rng([self.seed, index])))

    def __getitem__(self, index: int) -> Triplet:
        x0, y, x1 = map(from_uint8, self.frames(index).images)
        return Triplet(self.name(index), x0, y, x1)

    def _draw(self, rng: np.random.Generator) -> UInt8[np.ndarray, "3 s s 3"]:
        size, margin = self.size, int(np.ceil(self.motion))
        wide = size + 2 * margin
        layers = [(texture(rng, wide), np.ones((wide, wide), np.float32), np.zeros(2), velocity(rng, self.motion))]
        for _ in range(self.shapes):
            side = int(rng.integers(size // 6, size // 2))
            position = rng.uniform(-side / 2, size - side / 2, 2)
            layers.append((texture(rng, side), outline(rng, side), position + margin, velocity(rng, self.motion)))
        frames = []
        for time in TIMES:
            canvas = np.zeros((wide, wide, 3), np.float32)
            for image, mask, position, speed in layers:
                canvas = paint(canvas, image, mask, position + (time - 0.5) * speed)
            frames.append(canvas[margin : margin + size, margin : margin + size])
        return (255 * np.clip(np.stack(frames), 0, 1) + 0.5).astype(np.uint8)


def texture(rng: np.random.Generator, side: int) -> Float[np.ndarray, "s s 3"]:
    """Noise of several scales around one colour."""
    total = np.tile(rng.uniform(0.2, 0.8, 3).astype(np.float32), (side, side, 1))
    for cell, strength in ((3, 0.15), (8, 0.25), (24, 0.35)):
        coarse = rng.standard_normal((side // cell + 2, side // cell + 2, 3)).astype(np.float32)
        total += 0.5 * strength * cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    return total


def outline(rng: np.random.Generator, side: int) -> Float[np.ndarray, "s s"]:
    """Mask of a disc or a rectangle that fills the square, with a soft edge of a pixel."""
    mask = np.zeros((side, side), np.float32)
    if rng.random() < 0.5:
        cv2.circle(mask, (side // 2, side // 2), side // 2 - 1, 1.0, -1, cv2.LINE_AA)
    else:
        inset = int(rng.integers(1, max(2, side // 4)))
        mask[1:-1, inset:-inset] = 1
    return cv2.GaussianBlur(mask, (3, 3), 0.6)


def velocity(rng: np.random.Generator, largest: float) -> Vector:
    """Random direction; length uniform up to `largest`."""
    angle, length = rng.uniform(0, 2 * np.pi), rng.uniform(0, largest)
    return length * np.array([np.cos(angle), np.sin(angle)])


def paint(canvas: np.ndarray, image: np.ndarray, mask: np.ndarray, position: Vector) -> np.ndarray:
    """`canvas` with `image` over it at `position` (x, y), to a fraction of a pixel."""
    size = canvas.shape[1::-1]
    shift = np.array([[1, 0, position[0]], [0, 1, position[1]]], np.float32)
    alpha = cv2.warpAffine(mask, shift, size, flags=cv2.INTER_LINEAR)[..., None]
    moved = cv2.warpAffine(image, shift, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return canvas * (1 - alpha) + moved * alpha
