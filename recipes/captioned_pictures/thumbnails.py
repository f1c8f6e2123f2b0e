"""Thumbnails: how a picture of any size becomes a small square one.

Transparent images are composited over white before they are resized by area averaging. As both are linear, this equals
resizing colours weighted by their alpha: no hidden colour bleeds into an edge.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.io.images import image_size, read_image, to_uint8

MAX_PIXELS = 20_000_000  # Open Clip Art has a few of 168 megapixels
INK = 0.97  # darker than this in any channel is not background
LEAST_INK = 48  # a smaller drawing would have to be enlarged
MARGIN = 1 / 32  # white on each side of a cropped drawing
COLOURLESS = 0.04  # mean difference of the largest and the smallest channel, over the foreground


@dataclass(frozen=True)
class Picture:
    """A thumbnail with its metadata. `mirror`: the caption fits its mirror image too."""

    image: UInt8[np.ndarray, "s s 3"]
    label: str
    style: str
    tags: tuple[str, ...]
    group: str
    source: str
    mirror: bool = True


def straight(text: str) -> str:
    """With straight apostrophes, no double quotes, single blanks."""
    return " ".join(text.translate({0x2018: "'", 0x2019: "'", 0x201C: "", 0x201D: "", 0x22: ""}).split())


def decode(content: bytes, size: int, trim: bool) -> UInt8[np.ndarray, "size size 3"] | None:
    """An image file in memory as a thumbnail; `trim`: crop to the drawing and centre it. None when it has more than
    MAX_PIXELS, cannot be read, or is empty or smaller than LEAST_INK when trimmed."""
    try:
        width, height = image_size(content)
        image = read_image(content) if width * height <= MAX_PIXELS else None
    except ValueError:  # damaged: a few clip arts are
        return None
    image = _drawing(image) if trim and image is not None else image
    return None if image is None else to_uint8(_square(image, size, MARGIN if trim else 0.0))


def is_colourless(image: UInt8[np.ndarray, "s s 3"]) -> bool:
    """Black, white and grey only."""
    pixels = image.reshape(-1, 3).astype(np.float32) / 255
    ink = pixels[pixels.min(axis=-1) < INK]
    return len(ink) > 0 and float(np.ptp(ink, axis=-1).mean()) < COLOURLESS


def _drawing(image: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, "h2 w2 3"] | None:
    """Without the white border; None when too little remains."""
    ink = image.min(axis=-1) < INK
    ys, xs = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not len(ys) or max(np.ptp(ys), np.ptp(xs)) + 1 < LEAST_INK:
        return None
    return image[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]


def _square(image: Float[np.ndarray, "h w 3"], size: int, margin: float) -> Float[np.ndarray, "size size 3"]:
    """Padded with white to a square, with `margin` (share of the side) on each side, then resized."""
    height, width = image.shape[:2]
    side = round(max(height, width) / (1 - 2 * margin))
    top, left = (side - height) // 2, (side - width) // 2
    square = np.ones((side, side, 3), np.float32)
    square[top : top + height, left : left + width] = image
    method = cv2.INTER_AREA if side >= size else cv2.INTER_CUBIC
    return np.clip(cv2.resize(square, (size, size), interpolation=method), 0, 1)
