"""The view from half-way between two cameras, made of a rectified stereo pair and its true disparity.

A camera that slides to the right sees near things slide to the left: a pair of photographs taken side by side is a pair
of frames with large motion, and with much that one of them sees and the other does not. Laboratories measure the
disparity d of such pairs: what is at (x, y) of the left view is at (x - d, y) of the right one, and so at (x - d/2, y)
for an eye between the two. No camera was there, so the middle view is made, and only where both views vouch for it:

1. Forward splatting. Each left pixel carries its d to x - d/2 and, since that lies between two pixels, to both. Where
   several arrive the nearest is seen: the one with the largest d (z-order). What nothing reaches stays unknown.
2. Both views are looked up, bilinearly, where that disparity says the thing is: left at x + d/2, right at x - d/2. The
   middle view is the mean of the two.
3. A pixel is `known` if the right view sees the thing too (the splat of d to the right view, z-order again, finds the
   same disparity there to within DEPTH_LIMIT), both look-ups fall inside, the two colours agree to within COLOUR_LIMIT
   (a mirror shows each eye something else), and so for all of its eight neighbours: the rims of things are mixtures.

What this leaves out, it leaves out for all: half-hidden ground, where methods invent, is mostly not judged here. And a
mean of two look-ups is a little soft, as the answers of methods that warp both frames are.

Conventions: pictures are RGB in [0, 1]; disparity is in pixels, not finite where it was not measured.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float

DEPTH_LIMIT = 1.0  # pixels of disparity
COLOUR_LIMIT = 16 / 255  # mean over colours of a 3x3 box: above it a view sees something else, or another light

Picture = Float[np.ndarray, "h w 3"]
Disparity = Float[np.ndarray, "h w"]


class MiddleView(NamedTuple):
    """`image` is NaN where it is not `known`; `motion` is the disparity there, in pixels from view to view."""

    image: Picture
    known: Bool[np.ndarray, "h w"]
    motion: Disparity


def middle_view(left: Picture, right: Float[np.ndarray, "_ _ 3"], disparity: Float[np.ndarray, "_ _"]) -> MiddleView:
    """The view half-way between two rectified ones, as far as both know it; `disparity` is of the left view.

    Raises ValueError when the three differ in size."""
    if not left.shape == right.shape == (*disparity.shape, 3):
        sizes = ", ".join(f"{x.shape[1]}x{x.shape[0]}" for x in (left, right, disparity))
        raise ValueError(f"left, right and disparity of {sizes} pixels: a rectified pair has one size")
    at_middle, at_right = splat(disparity, 0.5), splat(disparity, 1.0)
    seen_left, seen_right = _look_up(left, at_middle / 2), _look_up(right, -at_middle / 2)
    difference = np.nan_to_num(np.abs(seen_left - seen_right).mean(axis=-1), nan=1.0)
    same_depth = np.abs(_look_up(at_right, -at_middle / 2) - at_middle) < DEPTH_LIMIT  # False for NaN
    sure = same_depth & (cv2.blur(difference, (3, 3)) < COLOUR_LIMIT)
    known = cv2.erode(sure.astype(np.uint8), np.ones((3, 3), np.uint8)) == 1
    image = np.where(known[..., None], (seen_left + seen_right) / 2, np.nan)
    return MiddleView(image.astype(np.float32), known, np.where(known, at_middle, np.nan).astype(np.float32))


def splat(disparity: Disparity, share: float) -> Disparity:
    """The disparity of the view that is `share` of the way from left to right; NaN where nothing is known."""
    height, width = disparity.shape
    y, x = np.nonzero(np.isfinite(disparity))
    d = disparity[y, x]
    moved = np.full((height, width), -np.inf, np.float32)
    for place in (np.floor(x - share * d), np.ceil(x - share * d)):
        inside = (place >= 0) & (place < width)
        np.maximum.at(moved, (y[inside], place[inside].astype(int)), d[inside])
    return np.where(np.isfinite(moved), moved, np.nan)


def _look_up(picture: np.ndarray, shift: Disparity) -> np.ndarray:
    """picture(y, x + shift), bilinear; NaN where that is outside or `shift` is."""
    height, width = shift.shape
    x = np.arange(width, dtype=np.float32) + shift
    inside = (x >= 0) & (x <= width - 1)  # False for NaN
    rows = np.repeat(np.arange(height, dtype=np.float32)[:, None], width, axis=1)
    found = cv2.remap(picture, np.where(inside, x, 0).astype(np.float32), rows, cv2.INTER_LINEAR)
    return np.where(inside if found.ndim == 2 else inside[..., None], found, np.nan)
