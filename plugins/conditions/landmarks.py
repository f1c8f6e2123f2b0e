"""Landmarks of faces and of one person: numbered points of a picture, as MediaPipe numbers them.

x and y are fractions of the picture's width and height, 0 at the left and the top; a point may lie outside, where the
picture cuts a face off. z points away from the camera, on the scale of x. Points of a pose have a fourth number, how
likely they are to be seen, 0 to 1. As fractions, landmarks found in a small copy are those of the picture itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from plugins.conditions.connections import FACE_POINTS, FACE_SWAP, HAND_POINTS, HAND_SWAP, POSE_POINTS, POSE_SWAP

FARTHEST = 10.0  # widths of the picture; beyond are not fractions but pixels
SHAPES = {
    "faces": (FACE_POINTS, 3),
    "pose": (POSE_POINTS, 4),
    "left_hand": (HAND_POINTS, 3),
    "right_hand": (HAND_POINTS, 3),
}


def no_faces() -> Float[np.ndarray, "0 478 3"]:
    return np.zeros((0, FACE_POINTS, 3), np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Landmarks:
    """What was found in one picture; parts that were not found are empty or None.

    Attributes:
      faces: largest first.
      pose, left_hand, right_hand: of one person; left is their own left.
    """

    faces: Float[np.ndarray, "n 478 3"] = dataclasses.field(default_factory=no_faces)
    pose: Float[np.ndarray, "33 4"] | None = None
    left_hand: Float[np.ndarray, "21 3"] | None = None
    right_hand: Float[np.ndarray, "21 3"] | None = None

    @classmethod
    def of(cls, parts: Mapping[str, object], source: str = "landmarks") -> Landmarks:
        """From arrays or lists by name, checked; None and missing names are parts that were not found.

        Raises ValueError that begins with `source`: an unknown name, a wrong shape, NaN, pixels in place of fractions.
        """
        unknown = sorted(set(parts) - set(SHAPES))
        if unknown:
            raise ValueError(f"{source}: {unknown[0]!r} is not one of {', '.join(SHAPES)}; rename or remove it")
        return cls(**{name: _checked(source, name, value) for name, value in parts.items() if value is not None})

    @property
    def empty(self) -> bool:
        """Whether nothing at all was found."""
        return not len(self.faces) and self.pose is None and self.left_hand is None and self.right_hand is None

    def largest(self, most: int) -> Landmarks:
        """With only the `most` largest faces."""
        return dataclasses.replace(self, faces=by_size(self.faces)[:most])

    def mirrored(self) -> Landmarks:
        """Those of the picture flipped left to right: a left eye becomes a right one, a left hand the right hand."""
        return Landmarks(
            faces=_flip(self.faces)[:, FACE_SWAP],
            pose=None if self.pose is None else _flip(self.pose)[POSE_SWAP],
            left_hand=None if self.right_hand is None else _flip(self.right_hand)[HAND_SWAP],
            right_hand=None if self.left_hand is None else _flip(self.left_hand)[HAND_SWAP],
        )


def boxes(faces: Float[np.ndarray, "n 478 3"]) -> Float[np.ndarray, "n 4"]:
    """left, top, right, bottom of each face, as fractions of the picture."""
    return np.concatenate([faces[..., :2].min(axis=1), faces[..., :2].max(axis=1)], axis=-1)


def by_size(faces: Float[np.ndarray, "n 478 3"]) -> Float[np.ndarray, "n 478 3"]:
    """The faces sorted by the area of their boxes, largest first."""
    box = boxes(faces)
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return faces[np.argsort(-area, kind="stable")]


def _flip(points: Float[np.ndarray, "*n c"]) -> Float[np.ndarray, "*n c"]:
    flipped = points.copy()
    flipped[..., 0] = 1 - flipped[..., 0]
    return flipped


def _checked(source: str, name: str, value: object) -> np.ndarray:
    try:
        points = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{source}: {name} is no array of numbers; write lists of [x, y, z]") from None
    shape = SHAPES[name]
    if name == "faces":
        points = no_faces() if not points.size else points[None] if points.ndim == 2 else points
    if points.shape[-2:] != shape or points.ndim != (3 if name == "faces" else 2):
        more = "; with 468 points the irises are missing: refine_landmarks=True" if 468 in points.shape else ""
        wanted = ("n", *shape) if name == "faces" else shape
        raise ValueError(f"{source}: {name} has shape {list(points.shape)}, expected {_list(wanted)}{more}")
    if not np.isfinite(points).all():
        raise ValueError(f"{source}: {name} holds values that are NaN or infinite; leave out a part not found")
    worst = np.abs(points[..., :2]).max(initial=0)
    if worst > FARTHEST:
        raise ValueError(f"{source}: {name} reaches {worst:g}; x and y are fractions: divide by width and height")
    return points


def _list(shape: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
