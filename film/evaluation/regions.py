"""Where frames in between are hard: the pixels of the true frame that move, and those that one neighbour does not see.

A mean over the picture is a mean over its still ground, where all methods are equal. Where a set has no exact masks of
its own (`Triplet.regions`), they are estimated, the same for all methods, from DIS flow of the *true* frame to both
neighbours (`film.data.teacher_flow`), at half the size:

* "moving": the motion between the outer frames is at least `MOVING` px, and one of them looks different there by more
  than `CHANGE`: on a plain wall flow is noise, and nothing is seen to move.
* "occluded": of these, where in one or both neighbours the flow arrives outside the picture, at other colours, or at a
  point whose flow back does not return. That holds where flow failed for another reason, too.
"""

from collections.abc import Mapping

import cv2
import numpy as np
from jaxtyping import Bool

from common.io.images import to_uint8
from film.data.teacher_flow import FlowTeacher, half_luma
from film.evaluation.baselines import Frame

MOVING = 2.0  # px between the outer frames
CHANGE = 8.0  # levels of 255, after a 5x5 box
SMALLEST = 50  # pixels; a smaller region gives no score

Mask = Bool[np.ndarray, "h w"]


def estimated(x0: Frame, y: Frame, x1: Frame) -> Mapping[str, Mask]:
    """The regions "moving" and "occluded" of a true frame y without unknown pixels, half-way between x0 and x1."""
    before, middle, after = (half_luma(to_uint8(x)) for x in (x0, y, x1))
    flow = FlowTeacher()(before, middle, after)
    change = np.maximum(*(cv2.blur(cv2.absdiff(x, middle), (5, 5)) for x in (before, after)))
    moving = (flow.motion() >= MOVING) & (change > CHANGE)
    size = y.shape[1::-1]
    masks = {"moving": moving, "occluded": moving & ~flow.valid.all(axis=0)}
    return {
        name: cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) == 1
        for name, mask in masks.items()
    }
