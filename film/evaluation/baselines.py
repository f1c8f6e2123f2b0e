"""Baselines without training, and oracles as upper bounds.

A method, trained or not, is a function of two frames and a time that returns a `Prediction`; `METHODS` lists the
baselines by the names that a command knows them by. An oracle of `ORACLES` sees the true frame in between:

* "true-flow" warps both frames by DIS flow from the true frame and takes their mean: the best that a warp can give;
* "steady-flow" knows the path as well, but not the position along it: it takes the path for a straight line and the
  speed for constant. What it loses by that, two frames hardly tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Float

Frame = Float[np.ndarray, "h w 3"]
Flow = Float[np.ndarray, "h w 2"]


class Prediction(NamedTuple):
    """The frame between two others, RGB, not clipped; and the motion from x0 to x1 in pixels, if the method has it."""

    image: Frame
    flow: Flow | None = None


Method = Callable[[Frame, Frame, float], Prediction]  # (x0, x1, time from 0 to 1)


def average(x0: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    """The mean of the neighbours: what a network returns that has learnt to blend and not to move."""
    return Prediction((1 - time) * x0 + time * x1)


def dis_flow(x0: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    """A warp by OpenCV's DIS optical flow (medium preset, full resolution): each frame moved along its flow towards the
    other by `time`, and the weighted mean of the two."""
    flow01, flow10 = dis(x0, x1), dis(x1, x0)
    moved0, moved1 = _warp(x0, time * flow10), _warp(x1, (1 - time) * flow01)
    return Prediction((1 - time) * moved0 + time * moved1, flow01)


def true_flow(x0: Frame, y: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    """An oracle (see the module)."""
    to_x0, to_x1 = dis(y, x0), dis(y, x1)
    return Prediction((1 - time) * _warp(x0, to_x0) + time * _warp(x1, to_x1), to_x1 - to_x0)


def steady_flow(x0: Frame, y: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    """An oracle (see the module)."""
    flow = dis(y, x1) - dis(y, x0)
    moved0, moved1 = _warp(x0, -time * flow), _warp(x1, (1 - time) * flow)
    return Prediction((1 - time) * moved0 + time * moved1, flow)


METHODS: dict[str, Method] = {"dis-flow": dis_flow, "average": average}
ORACLES: dict[str, Callable[[Frame, Frame, Frame, float], Prediction]] = {  # (x0, y, x1, time)
    "steady-flow": steady_flow,
    "true-flow": true_flow,
}


def dis(a: Frame, b: Frame) -> Flow:
    """Optical flow (dx, dy) in pixels such that a(p) ~ b(p + flow)."""
    grey = [cv2.cvtColor(np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8), cv2.COLOR_RGB2GRAY) for x in (a, b)]
    estimator = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return estimator.calc(grey[0], grey[1], None)  # type: ignore[call-overload]


def _warp(image: Frame, flow: Flow) -> Frame:
    height, width = flow.shape[:2]
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    position = grid + flow
    return cv2.remap(image, position, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[call-overload]
