"""Landmark errors of face and body: NME and PCK (plain numpy; no dependency has them).

Landmarks are found again in the generated picture and compared with those of the condition, point by point: `k 2`, (x,
y) in pixels, in the same order; a point that was not found is NaN.

| number | what it is |
| --- | --- |
| NME | normalised mean error: mean distance / size of the target; lower is better, 0.05 is a good face |
| PCK | percentage of correct keypoints, as a share: distance at most `threshold` x size of the target |

The size of the target is one of

- "eyes": between the outer corners of the eyes (inter-ocular; Sagonas et al., "300 faces in-the-wild", 2013). Which two
  points these are depends on the model: 33 and 263 of MediaPipe's 478, 36 and 45 of the 68 of 300-W.
- "box": the diagonal of the box around the target's points. For bodies. Yang and Ramanan's PCK (2013) takes the longer
  side in its place, so it is not the same number.

**Missing points.** NME is the mean over the points that were found, and NaN where there are none, so it says little
where few images have a face: give it beside the share that has one (`estimated.FaceFound`). To PCK a missing point is
a wrong one. Points of the target that are NaN (outside the image) are left out of both; without any other, both are NaN.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

EYES = (33, 263)  # of MediaPipe's face mesh
THRESHOLD = 0.1

Points = Float[np.ndarray, "k 2"]
AnyPoints = Float[np.ndarray, "_k 2"]  # as many as the others, which is checked with a better message
Size = Literal["eyes", "box"]


def nme(predicted: Points, target: AnyPoints, normalise: Size = "eyes", eyes: tuple[int, int] = EYES) -> float:
    """Normalised mean error of one picture. Raises ValueError as `size`, or for two numbers of points."""
    distances = _distances(predicted, target) / size(target, normalise, eyes)
    return float(np.nanmean(distances)) if np.isfinite(distances).any() else float("nan")


def pck(
    predicted: Points,
    target: AnyPoints,
    threshold: float = THRESHOLD,
    normalise: Size = "box",
    eyes: tuple[int, int] = EYES,
) -> float:
    """Share of the target's points that were found within `threshold` sizes. Raises as `nme`."""
    close = _distances(predicted, target) <= threshold * size(target, normalise, eyes)  # NaN is not close
    known = _known(target)
    return float(np.mean(close[known])) if known.any() else float("nan")


def size(target: Points, normalise: Size, eyes: tuple[int, int] = EYES) -> float:
    """By what distances are divided. Raises ValueError for a size that is unknown or 0."""
    if normalise not in ("eyes", "box"):
        raise ValueError(f"normalise={normalise!r} is no size; choose eyes or box")
    if normalise == "eyes" and max(eyes) >= len(target):
        raise ValueError(f"eyes={eyes} are not among {len(target)} points; give their numbers, or normalise='box'")
    known = target[_known(target)]
    ends = target[list(eyes)] if normalise == "eyes" else np.stack([known.min(0), known.max(0)]) if len(known) else None
    if ends is None:
        return float("nan")
    found = float(np.linalg.norm(ends[1] - ends[0]))
    if not found > 0:
        raise ValueError(f"the target's {normalise} measure {found}; NME and PCK need a size above 0: leave it out")
    return found


def _known(points: np.ndarray) -> Bool[np.ndarray, " k"]:
    return np.all(np.isfinite(points), axis=-1)


def _distances(predicted: Points, target: AnyPoints) -> Float[np.ndarray, " k"]:
    """Of each point to its target, NaN where either is unknown."""
    if predicted.shape != target.shape:
        shapes = f"{predicted.shape} and {target.shape}"
        raise ValueError(f"landmarks of {shapes} cannot be compared; both have to come from one model")
    return np.linalg.norm(predicted.astype(np.float64) - target, axis=-1)
