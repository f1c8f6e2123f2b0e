"""Intersection over union of masks: does the thing in an image cover the area that it should?

For images of one thing on a plain ground (emoji, clip art, drawn shapes) `plugins.conditions.mask.foreground` finds the
mask. Noise of the size of its threshold is taken for the thing: with 20/255 of it, held-out images of data/captioned64
have a mean IoU of 0.68 with themselves, and two different clean ones 0.40.

**Empty masks.** IoU of two empty masks is 1 (nothing was asked for, nothing came), of an empty one and another 0.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

Mask = Bool[np.ndarray, "h w"]


def iou(predicted: Mask, target: Bool[np.ndarray, "_h _w"]) -> float:
    """Intersection over union, in [0, 1]. Raises ValueError for masks of two sizes."""
    if predicted.shape != target.shape:
        shapes = f"{predicted.shape} and {target.shape}"
        raise ValueError(f"masks of {shapes} cannot be compared; resize the pictures to one size first")
    union = np.count_nonzero(predicted | target)
    return np.count_nonzero(predicted & target) / union if union else 1.0
