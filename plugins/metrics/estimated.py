"""Fidelity by an estimator: depth errors by a depth model, landmark errors by MediaPipe.

| object | better | what it is |
| --- | --- | --- |
| `DepthRmse` | lower | RMSE of depth in [0, 1], after the best scale and shift; a user's ONNX file |
| `FaceNme` | lower | mean distance of 478 points, in distances between the eyes; NaN without a face; 0.05 is good |
| `FaceFound` | higher | 1 if a face was found, else 0; give it beside `FaceNme` |
| `PosePck` | higher | share of the body's points within a tenth of the box's diagonal; 0 where nobody was found |

The same estimator reads the generated and the real image, so its bias is in both. Where the real image shows no face or
nobody, the score is NaN, which means leave out (`anchors`).

**Depth.** Estimators give relative depth of unknown unit and zero, so a prediction p is first fitted to the target y
(Ranftl et al., 1907.01341, section 5):

    s, t = argmin mean (s p + t - y)^2 with s >= 0         RMSE = sqrt mean (s p + t - y)^2

A negative scale would make near for far as good as the truth; with 0 RMSE is the target's standard deviation, the score
of no information.

**Landmarks** are `k 2`, (x, y) in pixels, NaN where not found. Target points that are NaN are left out.

- NME, for faces: the mean distance over the points found, in distances between the outer corners of the eyes
  (inter-ocular; Sagonas et al., "300 faces in-the-wild", 2013).
- PCK, for bodies: the share of points within `threshold` diagonals of the target's bounding box, where a missing point
  is a wrong one. Yang and Ramanan's (2013) takes the longer side.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from common.evaluation.metrics import Metric, Picture
from plugins.conditions import detection
from plugins.conditions.depth import OnnxDepth, normalise
from plugins.conditions.landmarks import Landmarks

EYES = (33, 263)  # of MediaPipe's face mesh
THRESHOLD = 0.1

Points = Float[np.ndarray, "k 2"]
AnyPoints = Float[np.ndarray, "_k 2"]  # as many as the others, which is checked with a better message


def depth_rmse(predicted: Float[np.ndarray, "h w"], target: Float[np.ndarray, "h w"]) -> float:
    """The error of a map after the least-squares fit (module docstring) of one with the same sign."""
    p, y = (depth.astype(np.float64) for depth in (predicted, target))
    centred = p - p.mean()
    # The rounding of the mean leaves a constant map with some spread, and a division by it would amplify noise.
    flat = np.ptp(p) <= np.finfo(np.float64).eps * np.abs(p).max()
    scale = 0.0 if flat else max(0.0, float(np.vdot(centred, y - y.mean()) / np.vdot(centred, centred)))
    return float(np.sqrt(np.mean((scale * centred + y.mean() - y) ** 2)))


def nme(predicted: Points, target: AnyPoints) -> float:
    """Normalised mean error of one face; NaN without points."""
    distances = _distances(predicted, target, target[list(EYES)])
    return float(np.nanmean(distances)) if np.isfinite(distances).any() else float("nan")


def pck(predicted: Points, target: AnyPoints, threshold: float = THRESHOLD) -> float:
    """Share of correct keypoints, at most `threshold` boxes away; NaN without target points."""
    known = np.isfinite(target).all(axis=-1)
    if not known.any():
        return float("nan")
    box = np.stack([target[known].min(axis=0), target[known].max(axis=0)])
    return float(np.mean(_distances(predicted, target, box)[known] <= threshold))  # NaN is not close


def _distances(predicted: Points, target: AnyPoints, ends: Float[np.ndarray, "2 2"]) -> Float[np.ndarray, " k"]:
    """Of each point to its target, NaN where either is unknown, in distances of the two ends."""
    return np.linalg.norm(predicted.astype(np.float64) - target, axis=-1) / np.linalg.norm(ends[1] - ends[0])


@dataclass(frozen=True)
class DepthRmse(Metric):
    """`depth_rmse` by `model`, an ONNX file, on both images."""

    model: str
    higher_is_better: ClassVar[bool] = False

    @functools.cached_property
    def estimator(self) -> OnnxDepth:
        return OnnxDepth(self.model)

    def prepare(self) -> None:
        _ = self.estimator

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        return depth_rmse(self.estimator(prediction), normalise(self.estimator(target)))


class _LandmarkMetric(Metric):
    def prepare(self) -> None:
        detection.require_mediapipe()


@dataclass(frozen=True)
class FaceNme(_LandmarkMetric):
    """`nme` of the largest faces."""

    higher_is_better: ClassVar[bool] = False

    def __call__(self, prediction: Picture, target: Picture) -> float:
        wanted, found = face_points(target), face_points(prediction)
        return float("nan") if wanted is None or found is None else nme(found, wanted)


@dataclass(frozen=True)
class FaceFound(_LandmarkMetric):
    """Whether there is a face; its mean is the detection rate."""

    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        return float("nan") if face_points(target) is None else float(face_points(prediction) is not None)


@dataclass(frozen=True)
class PosePck(_LandmarkMetric):
    """`pck` of the body, in sizes of its box."""

    threshold: float | int = THRESHOLD
    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        wanted, found = pose_points(target), pose_points(prediction)
        if wanted is None:
            return float("nan")
        return pck(np.full_like(wanted, np.nan) if found is None else found, wanted, float(self.threshold))


def face_points(image: Picture) -> Points | None:
    """The largest face's points in pixels, None without a face."""
    found = _detect(detection.find_faces, image)
    return None if found is None else in_pixels(found.faces[0], image)


def pose_points(image: Picture) -> Points | None:
    """The body's points in pixels, None without a body."""
    found = _detect(detection.find_holistic, image)
    return None if found is None or found.pose is None else in_pixels(found.pose, image)


def in_pixels(points: Float[np.ndarray, "k _"], image: Picture) -> Points:
    """x and y from fractions of the image."""
    return points[:, :2].astype(np.float32) * np.array(image.shape[1::-1], np.float32)


def _detect(find: Callable[[Any], Landmarks], image: Picture) -> Landmarks | None:
    try:
        return find(image) if np.isfinite(image).all() else None
    except ValueError:  # nothing is there
        return None
