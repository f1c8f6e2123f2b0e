"""Depth errors after the best scale and shift: RMSE and abs-rel (closed form; no dependency has it).

An estimator's depth of the generated picture is compared with the depth that was asked for. Estimators give relative
depth, of unknown unit and zero, so each picture's prediction p is first brought to the target y by the best scale s and
shift t (Ranftl et al., "Towards robust monocular depth estimation", 1907.01341, section 5):

    s, t = argmin mean (s p + t - y)^2 with s >= 0         RMSE = sqrt mean (s p + t - y)^2
                                                           abs-rel = mean |s p + t - y| / y

The scale must not be negative: with a negative one, near taken for far would be as good as the truth. The best scale
is then 0, and the shift is the target's mean; so it is for a prediction that is the same everywhere. RMSE is therefore
at most the target's own standard deviation, and that is the score of knowing nothing.

Both maps have the same sign, near high or near low. Targets are in [0, 1] where they were conditions; RMSE is in their
unit. abs-rel divides by the target, so it leaves out pixels where that is below 0.01, and is NaN where all are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

SMALLEST = 0.01  # of a target that abs-rel divides by


class DepthErrors(NamedTuple):
    """Errors after the fit, lower is better, and the fit."""

    rmse: float
    abs_rel: float
    scale: float
    shift: float


def depth_errors(
    predicted: Float[np.ndarray, "h w"], target: Float[np.ndarray, "_h _w"], mask: Bool[np.ndarray, "h w"] | None = None
) -> DepthErrors:
    """The errors over the pixels of `mask` (all of them by default).

    Raises ValueError for maps of two sizes, a mask without pixels, values that are not finite."""
    if predicted.shape != target.shape:
        shapes = f"{predicted.shape} and {target.shape}"
        raise ValueError(f"depths of {shapes} cannot be compared; resize one of them first")
    chosen = np.ones(target.shape, bool) if mask is None else mask
    p, y = (depth[chosen].astype(np.float64) for depth in (predicted, target))
    if not len(y) or not np.isfinite([p, y]).all():
        raise ValueError(f"{len(y)} pixels of depth: there have to be some, all finite; mask out what is unknown")
    scale, shift = fit(p, y)
    off, far = np.abs(scale * p + shift - y), y >= SMALLEST
    relative = float(np.mean(off[far] / y[far])) if far.any() else float("nan")
    return DepthErrors(float(np.sqrt(np.mean(off**2))), relative, scale, shift)


def fit(p: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The scale, 0 or more, and the shift that bring p closest to y in least squares."""
    centred = p - p.mean()
    spread = float(centred @ centred)
    # Rounding leaves a constant map with some spread, by which a division would be noise.
    flat = spread <= len(p) * (np.finfo(np.float64).eps * np.abs(p).max()) ** 2
    scale = 0.0 if flat else max(0.0, float(centred @ (y - y.mean())) / spread)
    return scale, float(y.mean() - scale * p.mean())
