"""Lines between landmarks on a black picture: what `face` and `holistic` share.

A point's pixel is x * width and y * height, rounded, as MediaPipe renders it. That is half a pixel to the right of and
below where the point is (pixel 0 reaches from 0 to 1), which is kept, since plugins were trained with it: so a flipped
drawing and the drawing of flipped landmarks may differ by one pixel. Lines are not smoothed; later groups lie on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from common.io.images import from_uint8
from plugins.conditions.connections import Group

SEEN = 0.5  # points less likely to be seen than this are not drawn; MediaPipe's threshold

Canvas = UInt8[np.ndarray, "h w 3"]


def black(size: tuple[int, int]) -> Canvas:
    """An empty canvas of (height, width). Raises ValueError."""
    height, width = size
    if height < 1 or width < 1:
        raise ValueError(f"a canvas of {width}x{height}; both have to be 1 or more")
    return np.zeros((height, width, 3), np.uint8)


def finished(canvas: Canvas) -> Float[np.ndarray, "h w 3"]:
    """The canvas as a condition picture."""
    return from_uint8(canvas)


def draw(
    canvas: Canvas,
    points: Float[np.ndarray, "n c"],
    groups: Sequence[Group],
    width: int = 1,
    seen: Bool[np.ndarray, " n"] | None = None,
) -> None:
    """Draws `groups` of edges between `points` onto `canvas`, `width` px wide, but not to those not `seen`."""
    size = np.array(canvas.shape[1::-1])
    pixels = np.rint(points[:, :2].astype(np.float64) * size).astype(int).tolist()
    for group in groups:
        colour = [round(255 * value) for value in group.colour]
        for start, end in group.edges:
            if seen is None or (seen[start] and seen[end]):
                cv2.line(canvas, pixels[start], pixels[end], colour, width)
