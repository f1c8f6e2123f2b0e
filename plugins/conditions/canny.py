"""The edges of a picture, white on black (Canny, "A computational approach to edge detection", 1986).

As MediaPipe's plugin for edges was trained: the picture in grey, OpenCV's Canny with thresholds 100 and 200, stretched
to [0, 1]. An edge starts where the gradient of the bytes is above `high` and goes on while it is above `low`; the
gradient is |dx| + |dy|, or with `l2` the root of the squares' sum. Lower thresholds show more.
"""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Float

from common.io.images import to_uint8

LOW, HIGH = 100.0, 200.0
APERTURES = (3, 5, 7)


def canny(
    image: Float[np.ndarray, "h w 3"],
    low: int | float = LOW,
    high: int | float = HIGH,
    *,
    aperture: int = 3,
    l2: bool = False,
) -> Float[np.ndarray, "h w 3"]:
    """Edges of an RGB picture in [0, 1]; `aperture` is the side of the Sobel filters. Raises ValueError."""
    if not 0 <= low <= high < np.inf:
        raise ValueError(
            f"thresholds {low:g} and {high:g}: low may not be below 0 nor above high; {LOW:g} and {HIGH:g}"
            " are customary"
        )
    if aperture not in APERTURES:
        raise ValueError(f"aperture {aperture} is not one of {', '.join(map(str, APERTURES))}")
    grey = cv2.cvtColor(to_uint8(image), cv2.COLOR_RGB2GRAY)
    edges = cv2.Canny(grey, low, high, apertureSize=aperture, L2gradient=l2)
    # Edges are 0 or 255 already, so that stretching is a threshold; a picture without any stays black.
    return np.repeat((edges > 0)[..., None], 3, axis=-1).astype(np.float32)
