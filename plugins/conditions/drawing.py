"""Landmarks as lines on a black image: the conditions `face` and `holistic`.

**Face.** As MediaPipe renders the condition of its face plugin: 132 of the mesh's edges, one pixel wide at any image
size, without points, nose or triangles. Oval and lips are white, the left eye, eyebrow and iris green, the right ones
blue. The plugin was trained with one face an image.

**Holistic.** Body, hands and face together. MediaPipe states that its holistic plugin was conditioned on "body pose,
hands, and face mesh", not how they were drawn. Here:

| part | colours (left, right) | width at 512 px |
| --- | --- | --- |
| face | as above: white, green, blue | 1 |
| hands | yellow, magenta | 2 |
| body | trunk red; arms orange, rose; legs lime, violet | 4 |

Widths grow with the image's shorter side, except the face's. A plugin looks at the image at an eighth of its size and
less, so a limb of one pixel would be gone; a face is a small thing full of lines, and wider ones would fill its eyes.
Points of the body that are probably hidden or outside (visibility below 0.5) are left out with their lines. The pose
has a few points of the head and the hands too: they are drawn where the finer landmarks are missing.

A point's pixel is x * width and y * height, rounded, as MediaPipe renders it. That is half a pixel to the right of and
below where the point is (pixel 0 reaches from 0 to 1), which is kept, since plugins were trained with it: so a flipped
drawing and the drawing of flipped landmarks may differ by one pixel. Lines are not smoothed; later groups lie on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from common.io.images import from_uint8
from plugins.conditions.connections import BODY, FACE, HEAD, LEFT_HAND, LEFT_PALM, RIGHT_HAND, RIGHT_PALM, Group
from plugins.conditions.landmarks import Landmarks

SEEN = 0.5  # points less likely to be seen than this are not drawn; MediaPipe's threshold
BODY_SHARE, HAND_SHARE = 128, 256  # of the shorter side is a line's width

Canvas = UInt8[np.ndarray, "h w 3"]


def draw_face(landmarks: Landmarks, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """All faces of `landmarks` on a picture of `size` = (height, width). Raises ValueError when there are none."""
    if not len(landmarks.faces):
        raise ValueError("the landmarks hold no face, and a face's condition shows one; find or give one")
    canvas = _black(size)
    for face in landmarks.faces[::-1]:  # the largest is drawn last, over the others
        _draw(canvas, face, FACE)
    return from_uint8(canvas)


def draw_holistic(landmarks: Landmarks, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """The person on a picture of `size` = (height, width). Raises ValueError when there is nothing to draw."""
    if landmarks.empty:
        raise ValueError("the landmarks hold no body, hand or face to draw; find or give one")
    canvas = _black(size)
    wide, fine = (max(1, round(min(size) / share)) for share in (BODY_SHARE, HAND_SHARE))
    if landmarks.pose is not None:
        seen = landmarks.pose[:, 3] >= SEEN
        _draw(canvas, landmarks.pose, BODY, wide, seen)
        missing = (
            (len(landmarks.faces) == 0, HEAD),
            (landmarks.left_hand is None, LEFT_PALM),
            (landmarks.right_hand is None, RIGHT_PALM),
        )
        for is_missing, groups in missing:
            if is_missing:
                _draw(canvas, landmarks.pose, groups, fine, seen)
    for hand, groups in ((landmarks.left_hand, LEFT_HAND), (landmarks.right_hand, RIGHT_HAND)):
        if hand is not None:
            _draw(canvas, hand, groups, fine)
    for face in landmarks.faces[::-1]:
        _draw(canvas, face, FACE)
    return from_uint8(canvas)


def _black(size: tuple[int, int]) -> Canvas:
    """An empty canvas of (height, width). Raises ValueError."""
    height, width = size
    if height < 1 or width < 1:
        raise ValueError(f"a canvas of {width}x{height}; both have to be 1 or more")
    return np.zeros((height, width, 3), np.uint8)


def _draw(
    canvas: Canvas,
    points: Float[np.ndarray, "n c"],
    groups: Sequence[Group],
    width: int = 1,
    seen: Bool[np.ndarray, " n"] | None = None,
) -> None:
    """Draws `groups` of edges between `points` onto `canvas`, `width` px wide, but not to those not `seen`."""
    size = np.array(canvas.shape[1::-1])
    pixels = np.rint(points[:, :2].astype(np.float64) * size).astype(int).tolist()
    for group in groups:
        colour = [round(255 * value) for value in group.colour]
        for start, end in group.edges:
            if seen is None or (seen[start] and seen[end]):
                cv2.line(canvas, pixels[start], pixels[end], colour, width)
