"""Optical flow as a picture: the hue is the direction, the saturation the speed (white is standing still)."""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Float


def flow_picture(flow: Float[np.ndarray, "h w 2"], largest: float | None = None) -> Float[np.ndarray, "h w 3"]:
    """RGB in [0, 1] of flow (dx, dy) in pixels; full colour at speed `largest` (99th percentile if None)."""
    flow = np.asarray(flow, np.float32)
    speed = np.hypot(flow[..., 0], flow[..., 1])
    limit = max(largest or float(np.percentile(speed, 99)), 1e-3)
    hue = np.degrees(np.arctan2(flow[..., 1], flow[..., 0])) % 360
    hsv = np.stack([hue, np.clip(speed / limit, 0, 1), np.ones_like(speed)], axis=-1)
    return cv2.cvtColor(hsv.astype(np.float32), cv2.COLOR_HSV2RGB)
