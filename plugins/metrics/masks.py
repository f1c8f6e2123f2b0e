"""Does what a picture shows cover the area that it should?

For pictures of one thing on a plain ground (emoji, clip art, drawn shapes), the thing's mask is what differs from the
ground, and masks are compared by intersection over union.

The ground's colour is the median of the pixels on the picture's border, each channel by itself: right as long as less
than half of the border is covered. A pixel belongs to the thing if one of its channels is more than 0.1 away from the
ground (26 of 255: well above the rounding of a decoder, well below pale yellow on white). Noise of that size is
taken for the thing: with 20/255 of it, held-out pictures of data/captioned64 have a mean IoU of 0.68 with themselves,
and two different clean ones 0.40.

**Empty masks.** IoU of two empty masks is 1 (nothing was asked for, nothing came), of an empty one and another 0.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

THRESHOLD = 0.1

Mask = Bool[np.ndarray, "h w"]


def iou(predicted: Mask, target: Bool[np.ndarray, "_h _w"]) -> float:
    """Intersection over union, in [0, 1]. Raises ValueError for masks of two sizes."""
    if predicted.shape != target.shape:
        shapes = f"{predicted.shape} and {target.shape}"
        raise ValueError(f"masks of {shapes} cannot be compared; resize the pictures to one size first")
    union = np.count_nonzero(predicted | target)
    return np.count_nonzero(predicted & target) / union if union else 1.0


def foreground(
    image: Float[np.ndarray, "h w 3"], background: Float[np.ndarray, " 3"] | None = None, threshold: float = THRESHOLD
) -> Mask:
    """The mask of what is not ground, in a picture with RGB in [0, 1]. `background`: the ground's colour, if known."""
    ground = ground_colour(image) if background is None else background
    return np.abs(image - ground).max(axis=-1) > threshold


def ground_colour(image: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, " 3"]:
    """The median colour of the outermost pixels."""
    inner = np.zeros(image.shape[:2], bool)
    inner[1:-1, 1:-1] = True
    return np.median(image[~inner], axis=0)
