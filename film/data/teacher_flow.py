"""A classical optical-flow teacher for training triplets: from the middle frame to both neighbours.

Training sees the true middle frame. Flow from it to either neighbour is half as long as between the neighbours and has
far fewer occlusions, so a classical method is often right; a network that starts from it learns large motion in a small
fraction of the steps. On the half-size luma (a 1280x720 film gives 640x360 maps):

1. DIS flow (Kroeger et al. 2016, "Fast Optical Flow using Dense Inverse Search"), middle to each neighbour.
2. A pixel is `valid` when the neighbour, warped by that flow, looks the same there (photometric test), the
   flow back from the neighbour returns close to where it started, and it points inside the image.

Flow is (dx, dy) in pixels of the *full* image; added to a middle pixel's position it gives the position of the same
thing in the neighbour. Index 0 is the earlier neighbour (x0), index 1 the later (x1).
"""

from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

PHOTOMETRIC_LIMIT = 10.0  # levels of 255, after a 5x5 box: above it, occlusion, light change or wrong flow
ROUND_TRIP_LIMIT = 1.0  # half-size pixels, plus 5 % of the flow's length


class MiddleFlow(NamedTuple):
    """`flows`: full-size pixels on the half-size grid. `error`: mean warp error of the worse side, 0..255."""

    flows: Float[np.ndarray, "2 h w 2"]
    valid: Bool[np.ndarray, "2 h w"]
    error: float

    def motion(self) -> Float[np.ndarray, "h w"]:
        """Length, in full-size pixels, of the motion between the two *outer* frames."""
        return _length(self.flows[1] - self.flows[0])


class FlowTeacher:
    """Callable that holds DIS's buffers: not for two threads at once (OpenCV has its own inside)."""

    def __init__(self) -> None:
        self._fine = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        self._check = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def __call__(
        self, before: UInt8[np.ndarray, "h w"], middle: UInt8[np.ndarray, "h w"], after: UInt8[np.ndarray, "h w"]
    ) -> MiddleFlow:
        """Half-size lumas of three frames in time order -> flow from the middle one to the other two."""
        flows, valid, errors = [], [], []
        grid = _grid(*middle.shape)
        limit = np.array(middle.shape[::-1]) - 1
        for neighbour in (before, after):
            flow = np.asarray(self._fine.calc(middle, neighbour, np.zeros((*middle.shape, 2), np.float32)))
            back = np.asarray(self._check.calc(neighbour, middle, np.zeros((*middle.shape, 2), np.float32)))
            difference = cv2.absdiff(warp(neighbour, flow), middle).astype(np.float32)
            alike = cv2.blur(difference, (5, 5)) < PHOTOMETRIC_LIMIT
            returns = _length(flow + warp(back, flow)) < ROUND_TRIP_LIMIT + 0.05 * _length(flow)
            inside = ((flow + grid >= 0) & (flow + grid <= limit)).all(axis=-1)
            valid.append(alike & returns & inside)
            flows.append(2.0 * flow)
            errors.append(float(difference.mean()))
        return MiddleFlow(np.stack(flows), np.stack(valid), max(errors))


def half_luma(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2"]:
    """The teacher's input from an RGB image: luma, averaged over 2x2 blocks."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.resize(grey, (grey.shape[1] // 2, grey.shape[0] // 2), interpolation=cv2.INTER_AREA))


def warp(image: np.ndarray, flow: Float[np.ndarray, "h w 2"]) -> np.ndarray:
    """Backward warp, bilinear, edges repeated: out(y, x) = image(y + dy, x + dx), flow in its pixels."""
    position = flow + _grid(*flow.shape[:2])
    return cv2.remap(image, position, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)  # pyright: ignore


@lru_cache(maxsize=4)
def _grid(height: int, width: int) -> Float[np.ndarray, "h w 2"]:
    xs, ys = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return np.stack([xs, ys], axis=-1)


def _length(flow: Float[np.ndarray, "h w 2"]) -> Float[np.ndarray, "h w"]:
    return np.asarray(cv2.magnitude(flow[..., 0], flow[..., 1]))
