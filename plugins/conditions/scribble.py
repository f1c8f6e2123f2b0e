"""Coarse outlines of an image, white on black, as a person scribbles them.

ControlNet's scribbles are edges that are thinned and drawn thickly (2302.05543, section 4). Here they are the edges of
the blurred image, so that only large contours are left:

1. Blur. The gradient of a pixel is that of the colour channel where it is largest.
2. Canny's edges: one starts where the gradient exceeds a share of the largest in the image, and continues above half of
   that. A share, because a scribble has no contrast.
3. A hand is not exact: `wobble` shifts the lines by a smooth random field of `seed`.
4. Lines are drawn `width` wide.

A drawing, strokes on a plain ground, has its lines already: with `drawing`, what differs from the ground is white.
"""

import math

import cv2
import numpy as np
from jaxtyping import Bool, Float

from plugins.conditions.mask import foreground

WIDTH, BLUR, THRESHOLD = 0.03, 0.02, 0.25
BENDS = 8  # of the random field along the shorter side
FAINT = 1 / 255  # gradients below are none
SCALE = 2**14  # gradients as OpenCV's 16-bit integers


def scribble(
    image: Float[np.ndarray, "h w 3"],
    width: int | float = WIDTH,
    blur: int | float = BLUR,
    *,
    threshold: int | float = THRESHOLD,
    wobble: int | float = 0.0,
    seed: int | float = 0,
    drawing: bool = False,
) -> Float[np.ndarray, "h w 3"]:
    """The outlines in an RGB image in [0, 1], or the strokes of a `drawing`. `width`, `blur` (a standard deviation) and
    `wobble` (the largest shift) are shares of the shorter side."""
    for name, share in {"width": width, "blur": blur, "wobble": wobble, "threshold": threshold}.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} {share:g} is a share: give 0 or more, and less than 1")
    image, side = image.astype(np.float32), min(image.shape[:2])
    if drawing:
        lines = foreground(image)
    else:
        brush = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (max(round(width * side), 1),) * 2)
        found = bend(contours(image, blur * side, threshold), wobble * side, int(seed))
        lines = cv2.dilate(found.astype(np.uint8), brush) > 0
    return np.repeat(lines[..., None], 3, axis=-1).astype(np.float32)


def contours(image: Float[np.ndarray, "h w 3"], sigma: float, threshold: float) -> Bool[np.ndarray, "h w"]:
    """Edges of the image after a blur of `sigma` pixels; none in a plain one."""
    smooth = cv2.GaussianBlur(image, (0, 0), sigma) if sigma else image
    slopes = np.stack([cv2.Sobel(smooth, cv2.CV_32F, *axis) for axis in ((1, 0), (0, 1))])  # 2 h w 3
    steepness = np.hypot(*slopes)
    if steepness.max() < FAINT:
        return np.zeros(image.shape[:2], bool)
    steepest = np.take_along_axis(slopes, steepness.argmax(axis=-1)[None, ..., None], axis=-1)[..., 0]
    x, y = (steepest / steepness.max() * SCALE).astype(np.int16)
    high = threshold * SCALE
    return cv2.Canny(x, y, high / 2, high, L2gradient=True) > 0


def bend(lines: Bool[np.ndarray, "h w"], most: float, seed: int) -> Bool[np.ndarray, "h w"]:
    """Lines shifted by a smooth random field of at most `most` pixels."""
    height, width = lines.shape
    cells = [math.ceil(BENDS * side / min(height, width)) for side in (height, width)]
    field = np.random.default_rng(seed).uniform(-most, most, (2, *cells)).astype(np.float32)
    y, x = (cv2.resize(shift, (width, height)) for shift in field)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    return cv2.remap(lines.astype(np.float32), columns + x, rows + y, cv2.INTER_LINEAR) > 0.25
