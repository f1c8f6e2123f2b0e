"""The square crop of an image for training, and the same crop of its condition.

    frame = square(image.shape, rng)                     the largest: in the centre, or with `rng` at random
    cut(image, frame, 512)                               uint8 [512 512 3]
    cut(condition, frame.within(condition.shape), 512)   the same part of a larger or smaller condition

Downscaling averages areas, upscaling is linear: neither overshoots at the edge of a line.
"""

from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import UInt8

TOLERANCE = 0.02  # of the aspect ratio: tools that make conditions round sizes to multiples


class Frame(NamedTuple):
    """A rectangle in an image of `size` (height, width), in its pixels."""

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]

    def within(self, shape: tuple[int, ...]) -> "Frame":
        """The same part of an image of another size. Raises ValueError for another aspect ratio."""
        (height, width), (old_height, old_width) = shape[:2], self.size
        difference = abs(height * old_width - width * old_height)  # 0 for the very same aspect ratio
        if difference > max(TOLERANCE * width * old_height, *self.size):
            found = f"its condition of {width}x{height} has another aspect ratio than its {old_width}x{old_height}"
            raise ValueError(f"{found}; make it of the whole image")
        y, x = height / old_height, width / old_width
        tall, wide = max(1, round(self.height * y)), max(1, round(self.width * x))
        top, left = min(round(self.top * y), height - tall), min(round(self.left * x), width - wide)
        return Frame(top, left, tall, wide, (height, width))


def square(shape: tuple[int, ...], rng: np.random.Generator | None = None) -> Frame:
    """The largest square in an image of that shape: in the centre, or with `rng` at random."""
    height, width = shape[:2]
    side = min(height, width)
    if rng is None:
        top, left = (height - side) // 2, (width - side) // 2
    else:
        top, left = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    return Frame(top, left, side, side, (height, width))


def cut(image: UInt8[np.ndarray, "_h _w 3"], frame: Frame, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """The crop, resized to a square of `size` pixels."""
    part = image[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    method = cv2.INTER_AREA if min(part.shape[:2]) >= size else cv2.INTER_LINEAR
    return cv2.resize(part, (size, size), interpolation=method)
