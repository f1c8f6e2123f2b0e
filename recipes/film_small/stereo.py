"""The view half-way between the cameras of a rectified stereo pair with true disparity.

A point at (x, y) of the left view is at (x - d, y) of the right one, d its measured disparity, so at (x - d/2, y) for a
camera half-way. That view was not photographed; it is computed where both views confirm it:

1. Forward splatting: each left pixel carries its d to x - d/2, to both neighbouring pixels. The largest d (the nearest
   point) wins. Pixels that nothing reaches are unknown.
2. Both views are sampled bilinearly, left at x + d/2 and right at x - d/2. The middle view is their mean.
3. A pixel is `known` if the right view sees the same point (the splat of d to the right view has the same disparity to
   within DEPTH_LIMIT), both samples are inside, their colours agree to within COLOUR_LIMIT (unlike in a mirror), and
   all this holds for its eight neighbours (edges are mixtures).

Occluded ground, where methods have to invent, is mostly left out for all methods alike. Pictures are RGB in [0, 1];
disparity is in pixels, not finite where it was not measured.
"""

from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float

DEPTH_LIMIT = 1.0  # pixels of disparity
COLOUR_LIMIT = 16 / 255  # mean over the colours of a 3x3 box; above it the views disagree

Picture = Float[np.ndarray, "h w 3"]
Disparity = Float[np.ndarray, "h w"]


class MiddleView(NamedTuple):
    """`image` is NaN where not `known`; `motion` is the disparity, in pixels from view to view."""

    image: Picture
    known: Bool[np.ndarray, "h w"]
    motion: Disparity


def middle_view(left: Picture, right: Float[np.ndarray, "_ _ 3"], disparity: Float[np.ndarray, "_ _"]) -> MiddleView:
    """The view half-way between two rectified ones; `disparity` is of the left view. ValueError for different sizes."""
    if not left.shape == right.shape == (*disparity.shape, 3):
        sizes = ", ".join(f"{x.shape[1]}x{x.shape[0]}" for x in (left, right, disparity))
        raise ValueError(f"left, right and disparity of {sizes} pixels: a rectified pair has one size")
    at_middle, at_right = splat(disparity, 0.5), splat(disparity, 1.0)
    from_left, from_right = _look_up(left, at_middle / 2), _look_up(right, -at_middle / 2)
    difference = np.nan_to_num(np.abs(from_left - from_right).mean(axis=-1), nan=1.0)
    same_depth = np.abs(_look_up(at_right, -at_middle / 2) - at_middle) < DEPTH_LIMIT  # False for NaN
    sure = same_depth & (cv2.blur(difference, (3, 3)) < COLOUR_LIMIT)
    known = cv2.erode(sure.astype(np.uint8), np.ones((3, 3), np.uint8)) == 1
    image = np.where(known[..., None], (from_left + from_right) / 2, np.nan)
    return MiddleView(image.astype(np.float32), known, np.where(known, at_middle, np.nan).astype(np.float32))


def splat(disparity: Disparity, share: float) -> Disparity:
    """The disparity of the view at `share` of the way from left to right; NaN where unknown."""
    height, width = disparity.shape
    y, x = np.nonzero(np.isfinite(disparity))
    d = disparity[y, x]
    moved = np.full((height, width), -np.inf, np.float32)
    for place in (np.floor(x - share * d), np.ceil(x - share * d)):
        inside = (place >= 0) & (place < width)
        np.maximum.at(moved, (y[inside], place[inside].astype(int)), d[inside])
    return np.where(np.isfinite(moved), moved, np.nan)


def _look_up(picture: np.ndarray, shift: Disparity) -> np.ndarray:
    """picture(y, x + shift), bilinear; NaN outside and where `shift` is NaN."""
    height, width = shift.shape
    x = np.arange(width, dtype=np.float32) + shift
    inside = (x >= 0) & (x <= width - 1)  # False for NaN
    rows = np.repeat(np.arange(height, dtype=np.float32)[:, None], width, axis=1)
    found = cv2.remap(picture, np.where(inside, x, 0).astype(np.float32), rows, cv2.INTER_LINEAR)
    return np.where(inside if found.ndim == 2 else inside[..., None], found, np.nan)
