"""What a picture's thing covers, white on black: its silhouette, for pictures of one thing on a plain ground.

The ground's colour is the median of the pixels on the image's border, each channel by itself: right as long as less
than half of the border is covered. A pixel belongs to the thing if one of its channels is more than 0.1 away from the
ground (26 of 255: well above the rounding of a decoder, well below pale yellow on white). Noise is taken for the thing.
Where a mask is known (a segmentation, a drawing, an alpha channel) it is better than a found one, and taken as it is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from common.io.images import READABLE, read_image

SUFFIXES = tuple(READABLE)
THRESHOLD = 0.1


def mask(
    image: Float[np.ndarray, "h w 3"],
    threshold: int | float = THRESHOLD,
    *,
    mask: Float[np.ndarray, "h2 w2"] | None = None,
) -> Float[np.ndarray, "h w 3"]:
    """The silhouette in an RGB picture in [0, 1]: pixels with a channel further than `threshold` from the ground's.

    mask: the thing's share of each pixel, if known: white from one half on. Raises ValueError."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold {threshold:g} is not between 0 and 1; {THRESHOLD:g} is customary")
    if mask is not None and mask.shape != image.shape[:2]:
        raise ValueError(f"mask is {mask.shape}, the picture {image.shape[:2]}; resize one of them")
    thing = foreground(image, threshold=float(threshold)) if mask is None else mask >= 0.5
    return np.repeat(thing[..., None], 3, axis=-1).astype(np.float32)


def read_mask(path: Path) -> Float[np.ndarray, "h w"]:
    """A mask from a picture, white where the thing is: the mean of its channels. Raises as `read_image`."""
    return read_image(path).mean(axis=-1)


def foreground(
    image: Float[np.ndarray, "h w 3"], background: Float[np.ndarray, " 3"] | None = None, threshold: float = THRESHOLD
) -> Bool[np.ndarray, "h w"]:
    """The mask of what is not ground, in a picture with RGB in [0, 1]. `background`: the ground's colour, if known."""
    ground = ground_colour(image) if background is None else background
    return np.abs(image - ground).max(axis=-1) > threshold


def ground_colour(image: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, " 3"]:
    """The median colour of the outermost pixels."""
    inner = np.zeros(image.shape[:2], bool)
    inner[1:-1, 1:-1] = True
    return np.median(image[~inner], axis=0)
