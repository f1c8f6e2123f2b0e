"""The edges of an image, white on black (Canny, "A computational approach to edge detection", 1986).

The condition of MediaPipe's edge plugin: the image in grey, OpenCV's Canny with thresholds 100 and 200, scaled to
[0, 1]. An edge starts where the gradient of the 8-bit values exceeds `high` and continues while it exceeds `low`: lower
thresholds give more edges. The gradient is |dx| + |dy|, or the Euclidean norm with `l2`.
"""

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
    """The edges of an RGB image in [0, 1]; `aperture` is the side of the Sobel filters."""
    if not 0 <= low <= high < np.inf:
        raise ValueError(f"thresholds {low:g} and {high:g}: must rise from 0; defaults: {LOW:g}, {HIGH:g}")
    if aperture not in APERTURES:
        raise ValueError(f"aperture {aperture} is not one of {', '.join(map(str, APERTURES))}")
    grey = cv2.cvtColor(to_uint8(image), cv2.COLOR_RGB2GRAY)
    edges = cv2.Canny(grey, low, high, apertureSize=aperture, L2gradient=l2)
    # Edges are 0 or 255, so MediaPipe's min-max scaling is a threshold; an image without edges stays black.
    return np.repeat((edges > 0)[..., None], 3, axis=-1).astype(np.float32)
