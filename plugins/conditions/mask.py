"""The silhouette of an object on a plain background, white on black.

The background's colour is the median of the border pixels, per channel, which is right while the object covers less
than half of the border. A pixel belongs to the object if one of its channels differs from the background by more than
0.1 (26 of 255: above a decoder's rounding, below pale yellow on white). Noise is taken for the object. A known mask (a
segmentation, a drawing, an alpha channel) is better than a found one and is used as it is.
"""

import numpy as np
from jaxtyping import Bool, Float

THRESHOLD = 0.1


def mask(
    image: Float[np.ndarray, "h w 3"],
    threshold: int | float = THRESHOLD,
    *,
    mask: Float[np.ndarray, "h2 w2"] | None = None,
) -> Float[np.ndarray, "h w 3"]:
    """The silhouette in an RGB image in [0, 1], or a known `mask`: white where that is 0.5 or more."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold {threshold:g} is not between 0 and 1; the default is {THRESHOLD:g}")
    if mask is not None and mask.shape != image.shape[:2]:
        raise ValueError(f"mask is {mask.shape}, the image {image.shape[:2]}; resize one of them")
    covered = foreground(image, threshold=float(threshold)) if mask is None else mask >= 0.5
    return np.repeat(covered[..., None], 3, axis=-1).astype(np.float32)


def foreground(
    image: Float[np.ndarray, "h w 3"], background: Float[np.ndarray, " 3"] | None = None, threshold: float = THRESHOLD
) -> Bool[np.ndarray, "h w"]:
    """Where an RGB image in [0, 1] differs from the `background` colour, by default the median of its border."""
    if background is None:
        border = np.ones(image.shape[:2], bool)
        border[1:-1, 1:-1] = False
        background = np.median(image[border], axis=0)
    return np.abs(image - background).max(axis=-1) > threshold
