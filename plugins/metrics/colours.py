"""Colour names: does an object have the colour that its prompt names?

Each pixel of the foreground (`plugins.conditions.mask.foreground`) is assigned to the named colour nearest to it in
CIELAB (CIE 1976, white D65), where Euclidean distances approximate perceived ones; the most frequent name is the
image's colour. Names are the eleven basic colour terms of English (Berlin and Kay, 1969) with typical sRGB values. An
image without foreground has no colour, and is wrong for every prompt.
"""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int

from plugins.conditions.mask import foreground

COLOURS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "red": (230, 25, 25),
    "green": (30, 160, 50),
    "blue": (30, 70, 220),
    "yellow": (255, 225, 25),
    "orange": (245, 130, 30),
    "pink": (250, 160, 190),
    "purple": (130, 40, 160),
    "brown": (125, 75, 30),
}


def lab(rgb: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """sRGB in [0, 1] as L* in [0, 100], a* and b*."""
    return cv2.cvtColor(np.ascontiguousarray(rgb, np.float32)[None], cv2.COLOR_RGB2LAB)[0]


def nearest_colours(rgb: Float[np.ndarray, "n 3"]) -> Int[np.ndarray, " n"]:
    """Indices in COLOURS of the nearest to each colour in [0, 1]."""
    named = lab(np.array(list(COLOURS.values()), np.float32) / 255)
    return np.linalg.norm(lab(rgb)[:, None] - named, axis=-1).argmin(axis=1)


def dominant_colour(image: Float[np.ndarray, "h w 3"], mask: Bool[np.ndarray, "h w"] | None = None) -> str | None:
    """The most frequent name in the mask (default: the foreground), the first in COLOURS among equals; None for an
    empty one."""
    chosen = image[foreground(image) if mask is None else mask]
    return list(COLOURS)[int(np.bincount(nearest_colours(chosen)).argmax())] if len(chosen) else None
