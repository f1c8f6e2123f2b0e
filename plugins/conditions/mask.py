"""What a picture's thing covers, white on black: its silhouette, for pictures of one thing on a plain ground.

What is ground is found by its colour, as `plugins/metrics/masks.py` says; noise in the picture is taken for the thing.
Where a mask is known (a segmentation, a drawing, an alpha channel) it is better than a found one, and taken as it is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from common.io.images import READABLE, read_image
from plugins.metrics.masks import THRESHOLD, foreground

SUFFIXES = tuple(READABLE)


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
