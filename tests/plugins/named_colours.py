"""Colour names: does an object have the colour that its prompt names?

Each pixel is assigned to the named colour nearest to it in CIELAB (CIE 1976, white D65), where Euclidean distances
approximate perceived ones. Names are the eleven basic colour terms of English (Berlin and Kay, 1969) with typical sRGB
values.
"""

import cv2
import numpy as np

COLOURS = {"black": (0, 0, 0), "white": (255, 255, 255), "grey": (128, 128, 128), "red": (230, 25, 25)}
COLOURS |= {"green": (30, 160, 50), "blue": (30, 70, 220), "yellow": (255, 225, 25), "orange": (245, 130, 30)}
COLOURS |= {"pink": (250, 160, 190), "purple": (130, 40, 160), "brown": (125, 75, 30)}


def lab(rgb: np.ndarray) -> np.ndarray:
    """sRGB in [0, 1], n x 3, as L* in [0, 100], a* and b*."""
    return cv2.cvtColor(np.ascontiguousarray(rgb, np.float32)[None], cv2.COLOR_RGB2LAB)[0]


def dominant_colour(image: np.ndarray, mask: np.ndarray) -> str | None:
    """The most frequent name in the mask, the first in COLOURS among equals; None for an empty mask."""
    distances = np.linalg.norm(lab(image[mask])[:, None] - lab(np.array(list(COLOURS.values())) / 255), axis=-1)
    return list(COLOURS)[int(np.bincount(distances.argmin(axis=1)).argmax())] if mask.any() else None
