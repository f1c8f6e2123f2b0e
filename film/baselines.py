"""What FILM has to beat: two methods without any training."""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Float

Frame = Float[np.ndarray, "h w 3"]


def average(x0: Frame, x1: Frame) -> Frame:
    """The mean of the neighbours: what a network gives that has learnt to blend and not to move."""
    return 0.5 * (x0 + x1)


def dis_flow(x0: Frame, x1: Frame) -> Frame:
    """Half-way warp by OpenCV's DIS optical flow (medium preset, full resolution): each frame moved half of the flow
    towards the other, and the mean of the two."""
    flow01, flow10 = dis(x0, x1), dis(x1, x0)
    return 0.5 * (_warp(x0, 0.5 * flow10) + _warp(x1, 0.5 * flow01))


def dis(a: Frame, b: Frame) -> Float[np.ndarray, "h w 2"]:
    """Optical flow (dx, dy) in pixels such that a(p) ~ b(p + flow)."""
    grey = [cv2.cvtColor(np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8), cv2.COLOR_RGB2GRAY) for x in (a, b)]
    estimator = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return estimator.calc(grey[0], grey[1], None)  # type: ignore[call-overload]


def _warp(image: Frame, flow: Float[np.ndarray, "h w 2"]) -> Frame:
    height, width = flow.shape[:2]
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    position = grid + flow
    return cv2.remap(image, position, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[call-overload]
