"""Methods: functions that make a frame between two others; those without training, and an oracle.

A `Method` takes two frames once and then gives the frame at any time between them, so that what does not depend on the
time is not computed again. An oracle sees the true frame: "true-flow" warps both frames by DIS flow from the true frame
and takes their mean, the best that a warp by DIS flow without any choice between the frames can give.
"""

from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import Float

from common.io.images import to_uint8
from film.data.teacher_flow import warp
from film.data.triplet import Prediction

Frame = Float[np.ndarray, "h w 3"]
Flow = Float[np.ndarray, "h w 2"]
Between = Callable[[float], Prediction]  # time from 0 to 1 -> the frame there
Method = Callable[[Frame, Frame], Between]  # (x0, x1)


def average(x0: Frame, x1: Frame) -> Between:
    """The mean of the neighbours: the output of a network that has learnt to blend and not to move."""
    return lambda time: Prediction(mixed((x0, x1), time))


def dis_flow(x0: Frame, x1: Frame) -> Between:
    """A warp by DIS flow (medium preset): each frame moved towards the other by `time`, and their weighted mean."""
    forward, backward = dis(x0, x1), dis(x1, x0)
    return lambda time: Prediction(mixed((warp(x0, time * backward), warp(x1, (1 - time) * forward)), time), forward)


def true_flow(x0: Frame, y: Frame, x1: Frame, time: float = 0.5) -> Prediction:
    to_x0, to_x1 = dis(y, x0), dis(y, x1)
    return Prediction(mixed((warp(x0, to_x0), warp(x1, to_x1)), time), to_x1 - to_x0)


METHODS: dict[str, Method] = {"dis-flow": dis_flow, "average": average}
ORACLES: dict[str, Callable[[Frame, Frame, Frame, float], Prediction]] = {"true-flow": true_flow}  # (x0, y, x1, time)


def dis(a: Frame, b: Frame) -> Flow:
    """Optical flow (dx, dy) in pixels such that a(p) ~ b(p + flow)."""
    grey = [cv2.cvtColor(to_uint8(x), cv2.COLOR_RGB2GRAY) for x in (a, b)]
    estimator = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return estimator.calc(grey[0], grey[1], None)  # type: ignore[call-overload]


def mixed(frames: tuple[Frame, Frame], time: float) -> Frame:
    """The mean of two frames, each weighted by the nearness of its time, 0 or 1."""
    return (1 - time) * frames[0] + time * frames[1]
