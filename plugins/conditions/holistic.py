"""A person as lines: body, hands and face together.

MediaPipe tells that its holistic plugin was conditioned on "body pose, hands, and face mesh", not how they were drawn.
Here, on black:

| part | colours (left, right) | width at 512 px |
| --- | --- | --- |
| face | as in `face`: white, green, blue | 1 |
| hands | yellow, magenta | 2 |
| body | trunk red; arms orange, rose; legs lime, violet | 4 |

Widths grow with the picture's shorter side, except the face's, which is that of `face`. A plugin looks at the picture
at an eighth of its size and less, so a limb of one pixel would be gone; a face is a small thing full of lines, and
wider ones would fill its eyes. Left and right differ only by green and blue changing places, so that `mirror` is exact.

Points of the body that are probably hidden or outside (visibility below 0.5) are left out with their lines. The pose
has a few points of the head and the hands too: they are drawn where the finer landmarks are missing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from plugins.conditions import drawing
from plugins.conditions.connections import BODY, FACE, HEAD, LEFT_HAND, LEFT_PALM, RIGHT_HAND, RIGHT_PALM
from plugins.conditions.landmarks import Landmarks

BODY_SHARE, HAND_SHARE = 128, 256  # of the shorter side is a line's width


def draw_holistic(landmarks: Landmarks, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """The person on a picture of `size` = (height, width). Raises ValueError when there is nothing to draw."""
    if landmarks.empty:
        raise ValueError("the landmarks hold no body, hand or face to draw; find or give one")
    canvas = drawing.black(size)
    wide, fine = (max(1, round(min(size) / share)) for share in (BODY_SHARE, HAND_SHARE))
    if landmarks.pose is not None:
        seen = landmarks.pose[:, 3] >= drawing.SEEN
        drawing.draw(canvas, landmarks.pose, BODY, wide, seen)
        missing = (
            (len(landmarks.faces) == 0, HEAD),
            (landmarks.left_hand is None, LEFT_PALM),
            (landmarks.right_hand is None, RIGHT_PALM),
        )
        for is_missing, groups in missing:
            if is_missing:
                drawing.draw(canvas, landmarks.pose, groups, fine, seen)
    for hand, groups in ((landmarks.left_hand, LEFT_HAND), (landmarks.right_hand, RIGHT_HAND)):
        if hand is not None:
            drawing.draw(canvas, hand, groups, fine)
    for face in landmarks.faces[::-1]:
        drawing.draw(canvas, face, FACE)
    return drawing.finished(canvas)
