"""Landmarks as lines on a black image: the conditions `face` and `holistic`.

**Face.** As MediaPipe renders the condition of its face plugin: 132 of the mesh's edges, one pixel wide at any image
size, without points, nose or triangles. The plugin was trained with one face an image.

**Holistic.** Body, hands and face together. MediaPipe does not state how its holistic plugin's were drawn. Here:

| part | colours (left, right) | width at 512 px |
| --- | --- | --- |
| face | white; eyes, eyebrows and irises green, blue | 1 |
| hands | yellow, magenta | 2 |
| body | trunk red; arms orange, rose; legs lime, violet | 4 |

Widths grow with the image's shorter side, except the face's: a plugin sees the image at an eighth of its size and less,
where a limb of one pixel would vanish. Points of the body that are probably hidden (visibility below 0.5) are left out
with their lines. The pose's own points of head and hands are drawn where the finer landmarks are missing.

A point's pixel is x * width and y * height, rounded, as MediaPipe renders it: half a pixel to the right of and below
the point, kept because plugins were trained with it. A flipped drawing and the drawing of flipped landmarks may differ
by one pixel. Lines are not smoothed.
"""

import dataclasses
from collections.abc import Callable, Sequence

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from common.io.images import from_uint8
from plugins.conditions.connections import BODY, FACE, HEAD, LEFT_HAND, LEFT_PALM, RIGHT_HAND, RIGHT_PALM, Group
from plugins.conditions.detection import find_faces, find_holistic
from plugins.conditions.landmarks import Landmarks, by_size

VISIBLE = 0.5  # MediaPipe's threshold
BODY_SHARE, HAND_SHARE = 128, 256  # the shorter side divided by these is a line's width


def face(
    image: Float[np.ndarray, "h w 3"],
    *,
    landmarks: Landmarks | None = None,
    most: int | None = 1,
    note: Callable[[str], None] | None = None,
) -> Float[np.ndarray, "h w 3"]:
    """The `most` largest faces, detected if no landmarks are given; `note` gets a line about faces left out."""
    if most is not None and most < 1:
        raise ValueError(f"most is {most} faces: give 1 or more")
    found = find_faces(image, most) if landmarks is None else landmarks
    total = len(found.faces)
    if most is not None and total > most:
        if note is not None:
            kept = "the largest is drawn" if most == 1 else f"the {most} largest are drawn"
            note(f"{total} faces, {kept}; --faces {total} draws all")
        found = dataclasses.replace(found, faces=by_size(found.faces)[:most])
    return draw_face(found, image.shape[:2])


def holistic(image: Float[np.ndarray, "h w 3"], *, landmarks: Landmarks | None = None) -> Float[np.ndarray, "h w 3"]:
    """One person, detected if no landmarks are given."""
    return draw_holistic(find_holistic(image) if landmarks is None else landmarks, image.shape[:2])


def draw_face(landmarks: Landmarks, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """All faces on an image of `size` = (height, width). Raises ValueError when there are none."""
    if not len(landmarks.faces):
        raise ValueError("the landmarks hold no face to draw; find or give one")
    canvas = np.zeros((*size, 3), np.uint8)
    for face in landmarks.faces[::-1]:  # the largest is drawn last, over the others
        _draw(canvas, face, FACE)
    return from_uint8(canvas)


def draw_holistic(landmarks: Landmarks, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """The person on an image of `size` = (height, width). Raises ValueError when there is nothing to draw."""
    if landmarks.empty:
        raise ValueError("the landmarks hold no body, hand or face to draw; find or give one")
    canvas = np.zeros((*size, 3), np.uint8)
    wide, fine = (max(1, round(min(size) / share)) for share in (BODY_SHARE, HAND_SHARE))
    hands = ((landmarks.left_hand, LEFT_HAND, LEFT_PALM), (landmarks.right_hand, RIGHT_HAND, RIGHT_PALM))
    if landmarks.pose is not None:
        visible = landmarks.pose[:, 3] >= VISIBLE
        _draw(canvas, landmarks.pose, BODY, wide, visible)
        if not len(landmarks.faces):
            _draw(canvas, landmarks.pose, HEAD, fine, visible)
        for hand, _, palm in hands:
            if hand is None:
                _draw(canvas, landmarks.pose, palm, fine, visible)
    for hand, groups, _ in hands:
        if hand is not None:
            _draw(canvas, hand, groups, fine)
    for face in landmarks.faces[::-1]:
        _draw(canvas, face, FACE)
    return from_uint8(canvas)


def _draw(
    canvas: UInt8[np.ndarray, "h w 3"],
    points: Float[np.ndarray, "n c"],
    groups: Sequence[Group],
    width: int = 1,
    visible: Bool[np.ndarray, " n"] | None = None,
) -> None:
    """Draws the groups' edges between visible points onto `canvas`, `width` px wide."""
    size = np.array(canvas.shape[1::-1])
    pixels = np.rint(points[:, :2].astype(np.float64) * size).astype(int).tolist()
    for group in groups:
        colour = [round(255 * value) for value in group.colour]
        for start, end in group.edges:
            if visible is None or (visible[start] and visible[end]):
                cv2.line(canvas, pixels[start], pixels[end], colour, width)
