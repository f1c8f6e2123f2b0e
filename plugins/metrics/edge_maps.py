"""Edge agreement of an image with its condition: precision, recall, F1 and chamfer distance.

A picture's edges are a binary map, `h w`, found by one extractor with fixed settings: grey, a Gaussian blur of 1.5
pixels, then Canny ("A computational approach to edge detection", 1986) with thresholds 120 and 240 on the L1 norm of
OpenCV's 3x3 Sobel gradients of 8-bit values. Two such maps are compared:

| number | range | what it is |
| --- | --- | --- |
| precision | [0, 1] | share of the predicted edge pixels with a target's one within the tolerance |
| recall | [0, 1] | share of the target's edge pixels with a predicted one within the tolerance |
| F1 | [0, 1] | harmonic mean of both |
| chamfer | pixels, from 0 | mean distance to the nearest edge of the other map, averaged over both directions |

The tolerance is in pixels along rows and columns (chessboard distance): one map is dilated by a square of side
2 x tolerance + 1, the other is not, so no pixel counts twice. Chamfer distances are Euclidean and exact. Dilation and
distance transform are OpenCV's; it has no score of two maps.

**Why the blur.** Generated pictures are noisy, and Canny alone makes edges of noise in all of them, whether they obey
or not: the score then says little. On the 275 held-out pictures of data/captioned64 (64x64), mean F1 with tolerance 1
of each picture's edges beside those of the same picture with noise, and beside those of another picture:

| extractor | noise 20/255 | noise 40/255 | another picture |
| --- | ---: | ---: | ---: |
| Canny 100/200, no blur | 0.947 | 0.698 | 0.393 |
| Canny 120/240, no blur | 0.960 | 0.791 | 0.381 |
| this one | 0.958 | 0.927 | 0.225 |

What it costs: edges of low contrast are lost (3 % of those pictures have none left), so an empty map is no rarity; what
it scores is said below. The settings are no part of a condition: a network may be given finer edges than are scored.

**Empty maps.** Both empty: precision, recall and F1 are 1, chamfer is 0. One empty: precision, recall and F1 are 0,
chamfer is the picture's diagonal, which no distance inside it exceeds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float

from common.io.images import to_uint8

BLUR = 1.5  # standard deviation in pixels
LOW, HIGH = 120, 240  # Canny's thresholds
TOLERANCE = 1  # pixels

Edges = Bool[np.ndarray, "h w"]
AnyEdges = Bool[np.ndarray, "_h _w"]  # has to be as large as the other map, which is checked with a better message


class EdgeScore(NamedTuple):
    """How well two edge maps agree; each in [0, 1], higher is better."""

    precision: float
    recall: float
    f1: float


def edges(
    image: Float[np.ndarray, "h w 3"], blur: int | float = BLUR, low: int | float = LOW, high: int | float = HIGH
) -> Edges:
    """The edges of a picture, RGB in [0, 1]; `blur` 0 leaves the blur out. Raises ValueError for what is no setting.

    Scores are comparable only if they were made with the same settings: change the defaults for experiments only."""
    if blur < 0 or not 0 <= low <= high:
        raise ValueError(f"blur={blur}, low={low}, high={high}: take blur >= 0 and 0 <= low <= high, or leave them out")
    grey = cv2.cvtColor(np.asarray(image, np.float32), cv2.COLOR_RGB2GRAY)
    if blur:
        side = 2 * math.ceil(3 * blur) + 1  # said here: OpenCV's own choice depends on the type of the values
        grey = cv2.GaussianBlur(grey, (side, side), blur)
    return cv2.Canny(to_uint8(grey), low, high) > 0


def lines(condition: Float[np.ndarray, "h w 3"]) -> Edges:
    """The edge map that a condition picture shows: whatever is brighter than the middle in any colour."""
    return np.asarray(condition).max(axis=-1) > 0.5


def edge_f1(predicted: Edges, target: AnyEdges, tolerance: int = TOLERANCE) -> EdgeScore:
    """Precision, recall and F1, as the module says. Raises ValueError for maps of two sizes or a tolerance below 0."""
    _check(predicted, target)
    if tolerance < 0:
        raise ValueError(f"tolerance={tolerance} pixels has to be 0 or more; 1 is customary")
    if not predicted.any() or not target.any():
        both = float(predicted.any() == target.any())
        return EdgeScore(both, both, both)
    precision = float(dilate(target, tolerance)[predicted].mean())
    recall = float(dilate(predicted, tolerance)[target].mean())
    total = precision + recall
    return EdgeScore(precision, recall, 2 * precision * recall / total if total else 0.0)


def dilate(mask: Edges, radius: int) -> Edges:
    """What lies within `radius` of the mask along rows and columns."""
    square = np.ones((2 * radius + 1, 2 * radius + 1), np.uint8)
    return cv2.dilate(mask.astype(np.uint8), square) > 0


def chamfer(predicted: Edges, target: AnyEdges) -> float:
    """Mean distance in pixels to the nearest edge of the other map, the mean of both directions.

    Raises ValueError for maps of two sizes."""
    _check(predicted, target)
    if not predicted.any() or not target.any():
        return 0.0 if predicted.any() == target.any() else math.hypot(*predicted.shape)
    there, back = distance_to(target)[predicted], distance_to(predicted)[target]
    return (float(there.mean(dtype=np.float64)) + float(back.mean(dtype=np.float64))) / 2


def distance_to(mask: Edges) -> Float[np.ndarray, "h w"]:
    """Euclidean distance of each pixel to the nearest one of a mask that is not empty."""
    return cv2.distanceTransform((~mask).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)


def _check(predicted: np.ndarray, target: np.ndarray) -> None:
    if predicted.shape != target.shape:
        shapes = f"{predicted.shape} and {target.shape}"
        raise ValueError(f"edge maps of {shapes} cannot be compared; resize the pictures to one size first")
