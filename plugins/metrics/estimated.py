"""Fidelity by way of an estimator: is the depth right, are the face and the body where they should be?

What a generated picture shows has to be estimated: by a depth model (a user's ONNX file) or by MediaPipe (extra
`landmarks`). The same estimator reads the real picture, so that its own bias stands on both sides.

    scores:
      depth: {_target_: plugins.metrics.estimated.DepthRmse, model: midas.onnx}
      face:  {_target_: plugins.metrics.estimated.FaceNme}
      found: {_target_: plugins.metrics.estimated.FaceFound}

| object | better | what it is | home |
| --- | --- | --- | --- |
| `DepthRmse` | lower | RMSE of depth in [0, 1], after the best scale and shift | `depth.py` |
| `FaceNme` | lower | mean distance of 478 points, in distances between the eyes; NaN without a face | `landmarks.py` |
| `FaceFound` | higher | 1 if a face was found, else 0: to be read beside `FaceNme` | `landmarks.py` |
| `PosePck` | higher | share of the body's points within a tenth of its box; 0 where nobody was found | `landmarks.py` |

Where the real picture shows no face or nobody there is nothing to obey: NaN, which means leave out (`anchors.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from common.evaluation.metrics import Metric, Picture
from plugins.conditions import detection
from plugins.conditions.depth import normalise
from plugins.conditions.landmarks import Landmarks
from plugins.conditions.onnx_depth import OnnxDepth
from plugins.metrics.depth import depth_errors
from plugins.metrics.landmarks import THRESHOLD, nme, pck

Points = Float[np.ndarray, "k 2"]


@dataclass(frozen=True)
class DepthRmse(Metric):
    """`depth_errors` of `model`, an ONNX file, on both pictures."""

    model: str
    higher_is_better: ClassVar[bool] = False
    _loaded: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def prepare(self) -> None:
        if not self._loaded:
            self._loaded.append(OnnxDepth(self.model))

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        self.prepare()
        predicted, wanted = (self._loaded[0](image) for image in (prediction, target))
        return depth_errors(predicted, normalise(wanted)).rmse


@dataclass(frozen=True)
class _OfLandmarks(Metric):
    def prepare(self) -> None:
        detection.require_mediapipe()


@dataclass(frozen=True)
class FaceNme(_OfLandmarks):
    """`nme` of the largest faces."""

    higher_is_better: ClassVar[bool] = False

    def __call__(self, prediction: Picture, target: Picture) -> float:
        wanted, found = face_points(target), face_points(prediction)
        return float("nan") if wanted is None or found is None else nme(found, wanted)


@dataclass(frozen=True)
class FaceFound(_OfLandmarks):
    """Whether there is a face; its mean is the detection rate."""

    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        return float("nan") if face_points(target) is None else float(face_points(prediction) is not None)


@dataclass(frozen=True)
class PosePck(_OfLandmarks):
    """`pck` of the body, in sizes of its box."""

    threshold: float | int = THRESHOLD
    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        wanted, found = pose_points(target), pose_points(prediction)
        if wanted is None:
            return float("nan")
        return pck(np.full_like(wanted, np.nan) if found is None else found, wanted, float(self.threshold), "box")


def face_points(image: Picture) -> Points | None:
    """The largest face's points in pixels, None without a face."""
    found = _found(detection.find_faces, image)
    return None if found is None else in_pixels(found.faces[0], image)


def pose_points(image: Picture) -> Points | None:
    """The body's points in pixels, None without a body."""
    found = _found(detection.find_holistic, image)
    return None if found is None or found.pose is None else in_pixels(found.pose, image)


def in_pixels(points: Float[np.ndarray, "k _"], image: Picture) -> Points:
    """x and y of fractions of a picture."""
    height, width = image.shape[:2]
    return points[:, :2].astype(np.float32) * np.array([width, height], np.float32)


def _found(find: Callable[[Any], Landmarks], image: Picture) -> Landmarks | None:
    if not np.isfinite(image).all():
        return None
    try:
        return find(image)
    except ValueError:  # nothing is there
        return None
