"""Baselines without training, and oracles as upper bounds.

A method, trained or not, is a function of two frames and a time that returns a `Prediction`; `METHODS` lists the
baselines by their names in a command. An oracle of `ORACLES` sees the true frame in between:

* "true-flow" warps both frames by DIS flow from the true frame and takes their mean: the best that a warp can give;
* "steady-flow" knows the path as well, but not the position along it: it takes the path for a straight line and the
  speed for constant. Two frames alone hardly tell what it loses by that.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import Float

from common.io.images import to_uint8
from film.data.teacher_flow import warp
from film.data.triplet import Prediction

Frame = Float[np.ndarray, "h w 3"]
Flow = Float[np.ndarray, "h w 2"]
Method = Callable[[Frame, Frame, float], Prediction]  # (x0, x1, time from 0 to 1)


def average(x0: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    """The mean of the neighbours: the output of a network that has learnt to blend and not to move."""
    return Prediction((1 - time) * x0 + time * x1)


def dis_flow(x0: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    """A warp by OpenCV's DIS optical flow (medium preset, full resolution): each frame moved along its flow towards the
    other by `time`, and the weighted mean of the two."""
    forward, backward = dis(x0, x1), dis(x1, x0)
    return Prediction(_mean_of_warps(x0, x1, time * backward, (1 - time) * forward, time), forward)


def true_flow(x0: Frame, y: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    to_x0, to_x1 = dis(y, x0), dis(y, x1)
    return Prediction(_mean_of_warps(x0, x1, to_x0, to_x1, time), to_x1 - to_x0)


def steady_flow(x0: Frame, y: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    flow = dis(y, x1) - dis(y, x0)
    return Prediction(_mean_of_warps(x0, x1, -time * flow, (1 - time) * flow, time), flow)


METHODS: dict[str, Method] = {"dis-flow": dis_flow, "average": average}
ORACLES: dict[str, Callable[[Frame, Frame, Frame, float], Prediction]] = {  # (x0, y, x1, time)
    "steady-flow": steady_flow,
    "true-flow": true_flow,
}


def dis(a: Frame, b: Frame) -> Flow:
    """Optical flow (dx, dy) in pixels such that a(p) ~ b(p + flow)."""
    grey = [cv2.cvtColor(to_uint8(x), cv2.COLOR_RGB2GRAY) for x in (a, b)]
    estimator = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return estimator.calc(grey[0], grey[1], None)  # type: ignore[call-overload]


def _mean_of_warps(x0: Frame, x1: Frame, to_x0: Flow, to_x1: Flow, time: float) -> Frame:
    return (1 - time) * warp(x0, to_x0) + time * warp(x1, to_x1)
