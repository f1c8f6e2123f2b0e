"""Faces as lines: oval and lips white, the left eye, eyebrow and iris green, the right ones blue.

As MediaPipe renders the condition of its face plugin: 132 of the mesh's edges, one pixel wide at any size of picture,
on black, with no points, no nose and no triangles. The plugin was trained with one face a picture.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from plugins.conditions import drawing
from plugins.conditions.connections import FACE
from plugins.conditions.landmarks import Landmarks


def draw_face(landmarks: Landmarks, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """All faces of `landmarks` on a picture of `size` = (height, width). Raises ValueError when there are none."""
    if not len(landmarks.faces):
        raise ValueError("the landmarks hold no face, and a face's condition shows one; find or give one")
    canvas = drawing.black(size)
    for face in landmarks.faces[::-1]:  # the largest is drawn last, over the others
        drawing.draw(canvas, face, FACE)
    return drawing.finished(canvas)
