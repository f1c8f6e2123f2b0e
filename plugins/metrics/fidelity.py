"""Agreement of an image with its condition: F1 and chamfer distance of edges, IoU of foregrounds.

    metrics:
      edges: {_target_: plugins.metrics.fidelity.EdgeF1}
      area:  {_target_: plugins.metrics.fidelity.MaskIou}

| object | better | what it is |
| --- | --- | --- |
| `EdgeF1` | higher, to 1 | harmonic mean of precision and recall of edge pixels within a tolerance |
| `EdgeDistance` | lower, px | chamfer: mean distance to the nearest edge of the other map, both ways |
| `MaskIou` | higher, to 1 | intersection over union of the foregrounds (`plugins.conditions.mask.foreground`) |

An object compares a generated image with the real one that its condition was made of, both RGB in [0, 1]. Where only
the condition exists, `EdgeF1(target="condition")` reads it as an edge map, bright on dark; even the real image then
stays below 1, as the extractors differ. An image with NaN scores NaN.

Edges are binary maps of one extractor: grey, a Gaussian blur of 1.5 px, without which Canny makes edges of the noise in
generated images, Canny with thresholds 120 and 240. On the 275 held-out images of data/captioned64 the mean F1 with the
same image under noise of 40/255 is 0.927 (0.791 without blur), with another image 0.225 (0.381). Noise of the size of
the mask's threshold counts as foreground: with 20/255 of it, those images have a mean IoU of 0.68 with themselves.

Two empty maps score 1 and distance 0; an empty one and another score 0 and the image's diagonal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float

from common.evaluation.metrics import Metric, Picture
from common.io.images import to_uint8
from plugins.conditions.mask import THRESHOLD, foreground

BLUR = 1.5  # standard deviation in pixels
LOW, HIGH = 120, 240  # Canny's thresholds
TOLERANCE = 1  # pixels

Mask = Bool[np.ndarray, "h w"]
AnyMask = Bool[np.ndarray, "_h _w"]  # must have the other's size, which is checked with a better message


class EdgeScore(NamedTuple):
    """Agreement of two edge maps, in [0, 1]."""

    precision: float  # share of predicted edge pixels with a target pixel within the tolerance
    recall: float  # share of target edge pixels with a predicted pixel within the tolerance
    f1: float  # their harmonic mean


def edges(image: Float[np.ndarray, "h w 3"]) -> Mask:
    """The edges of an RGB image in [0, 1]."""
    grey = cv2.cvtColor(np.asarray(image, np.float32), cv2.COLOR_RGB2GRAY)
    side = 2 * math.ceil(3 * BLUR) + 1  # OpenCV's own choice depends on the type of the values
    return cv2.Canny(to_uint8(cv2.GaussianBlur(grey, (side, side), BLUR)), LOW, HIGH) > 0


def edge_f1(predicted: Mask, target: AnyMask, tolerance: int = TOLERANCE) -> EdgeScore:
    """Precision, recall and F1 of edge pixels."""
    if not predicted.any() or not target.any():
        both = float(predicted.any() == target.any())
        return EdgeScore(both, both, both)
    square = np.ones((2 * tolerance + 1, 2 * tolerance + 1), np.uint8)
    near_target, near_predicted = (cv2.dilate(edges.astype(np.uint8), square) > 0 for edges in (target, predicted))
    precision, recall = float(near_target[predicted].mean()), float(near_predicted[target].mean())
    total = precision + recall
    return EdgeScore(precision, recall, 2 * precision * recall / total if total else 0.0)


def chamfer(predicted: Mask, target: AnyMask) -> float:
    """Mean Euclidean distance in pixels to the nearest edge of the other map, the mean of both directions."""
    if not predicted.any() or not target.any():
        return 0.0 if predicted.any() == target.any() else math.hypot(*predicted.shape)
    to_predicted, to_target = (
        cv2.distanceTransform((~edges).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        for edges in (predicted, target)
    )
    return float(to_target[predicted].mean(dtype=np.float64) + to_predicted[target].mean(dtype=np.float64)) / 2


def iou(predicted: Mask, target: AnyMask) -> float:
    """Intersection over union of two masks, in [0, 1]."""
    union = np.count_nonzero(predicted | target)
    return np.count_nonzero(predicted & target) / union if union else 1.0


@dataclass(frozen=True)
class _EdgeMetric(Metric):
    compare: ClassVar[Callable[..., float]]
    target: Literal["picture", "condition"] = "picture"  # what the second argument is; a condition is an edge map

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        drawn = edges(target) if self.target == "picture" else target.max(axis=-1) > 0.5
        return self.compare(edges(prediction), drawn)


@dataclass(frozen=True)
class EdgeF1(_EdgeMetric):
    """The F1 of `edge_f1`."""

    tolerance: int = TOLERANCE
    higher_is_better: ClassVar[bool] = True

    def compare(self, prediction: Mask, target: AnyMask) -> float:
        return edge_f1(prediction, target, self.tolerance).f1


@dataclass(frozen=True)
class EdgeDistance(_EdgeMetric):
    """`chamfer`."""

    compare: ClassVar = staticmethod(chamfer)
    higher_is_better: ClassVar[bool] = False
    digits: ClassVar[int] = 2
    unit: ClassVar[str] = "px"


@dataclass(frozen=True)
class MaskIou(Metric):
    """`iou` of both foregrounds."""

    threshold: float = THRESHOLD
    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        return iou(*(foreground(image, threshold=self.threshold) for image in (prediction, target)))
