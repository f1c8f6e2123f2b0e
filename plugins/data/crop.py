"""The square of a picture that training sees, and the very same one of its condition.

    frame = square(image.shape, rng)                     as large as fits: in the middle, or with `rng` anywhere
    cut(image, frame, 512)                               uint8 [512 512 3]
    cut(condition, frame.within(condition.shape), 512)   the same part, be the condition larger or smaller

`Squares` are the middles of a whole source. Making smaller averages areas, making larger is linear: neither overshoots
at the edge of a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import UInt8

from plugins.data.record import Source

TOLERANCE = 0.02  # of the aspect: tools that make conditions round sizes to multiples


class Frame(NamedTuple):
    """A rectangle in a picture of `size` (height, width), in its pixels."""

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]

    def within(self, shape: tuple[int, ...]) -> Frame:
        """The same part of a picture of another size. Raises ValueError when that has another aspect."""
        size = (shape[0], shape[1])
        (height, width), (old_height, old_width) = size, self.size
        apart = abs(height * old_width - width * old_height)  # 0 for the very same aspect
        if apart > max(TOLERANCE * width * old_height, *self.size):
            raise ValueError(
                f"its condition of {width}x{height} pixels has another aspect than its {old_width}x{old_height};"
                " make it of the whole picture"
            )
        y, x = height / old_height, width / old_width
        tall, wide = max(1, round(self.height * y)), max(1, round(self.width * x))
        return Frame(min(round(self.top * y), height - tall), min(round(self.left * x), width - wide), tall, wide, size)


def square(shape: tuple[int, ...], rng: np.random.Generator | None = None) -> Frame:
    """The largest square in a picture of that shape: in the middle, or with `rng` anywhere."""
    height, width = shape[:2]
    side = min(height, width)
    if rng is None:
        top, left = (height - side) // 2, (width - side) // 2
    else:
        top, left = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    return Frame(top, left, side, side, (height, width))


def cut(image: UInt8[np.ndarray, "_h _w 3"], frame: Frame, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """What the frame shows, resized to a square of `size` pixels."""
    part = image[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    method = cv2.INTER_AREA if min(part.shape[:2]) >= size else cv2.INTER_LINEAR
    return cv2.resize(part, (size, size), interpolation=method)


class Squares:
    """The middle of each picture of a source, as if in one array uint8 [n size size 3]."""

    def __init__(self, source: Source, size: int) -> None:
        self.source, self.shape = source, (len(source), size, size, 3)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: Iterable[int | np.integer]) -> UInt8[np.ndarray, "_n _s _s 3"]:
        images = [self.source[int(row)].image for row in rows]
        return np.stack([cut(image, square(image.shape), self.shape[1]) for image in images])
