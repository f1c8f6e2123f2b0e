"""Landmarks of faces and of one person: numbered points of an image, in MediaPipe's numbering.

x and y are fractions of the image's width and height from its top left; a point may lie outside, where the image cuts a
face off. z points away from the camera, on the scale of x. A point of a pose has a fourth number, the probability that
it is visible. As fractions, landmarks found in a downscaled image are those of the image itself.

A file is JSON or a small .npz and holds the fields of `Landmarks` by name; one that was not found is null, or missing:

    {"faces": [[[0.43, 0.27, -0.02], ...]], "pose": [[0.43, 0.25, -0.83, 0.99], ...], "left_hand": null}
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from common.io.arrays import open_arrays
from common.io.files import atomic_output, require_file
from common.io.tensor_files import read_json
from plugins.conditions.connections import FACE_POINTS, FACE_SWAP, HAND_POINTS, HAND_SWAP, POSE_POINTS, POSE_SWAP

SUFFIXES = (".json", ".npz")
FARTHEST = 10.0  # widths of the image; beyond that, values are pixels and not fractions
HAND = (HAND_POINTS, 3)
SHAPES = {"faces": (FACE_POINTS, 3), "pose": (POSE_POINTS, 4), "left_hand": HAND, "right_hand": HAND}


def no_faces() -> Float[np.ndarray, "0 478 3"]:
    return np.zeros((0, FACE_POINTS, 3), np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Landmarks:
    """The landmarks of one image; fields that were not found are empty or None."""

    faces: Float[np.ndarray, "n 478 3"] = dataclasses.field(default_factory=no_faces)  # largest first
    pose: Float[np.ndarray, "33 4"] | None = None  # of one person, as the hands; left is the person's own left
    left_hand: Float[np.ndarray, "21 3"] | None = None
    right_hand: Float[np.ndarray, "21 3"] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, object], source: str = "landmarks") -> "Landmarks":
        """From arrays or lists by name; None means not found. Raises ValueError that begins with `source`: an unknown
        name, a wrong shape, NaN, pixels instead of fractions."""
        if unknown := sorted(set(fields) - set(SHAPES)):
            raise ValueError(f"{source}: {unknown[0]!r} is not one of {', '.join(SHAPES)}; rename or remove it")
        found = {name: value for name, value in fields.items() if value is not None}
        return cls(**{name: _checked(f"{source}: {name}", name, value) for name, value in found.items()})

    @property
    def empty(self) -> bool:
        return not len(self.faces) and self.pose is None and self.left_hand is None and self.right_hand is None

    def mirrored(self) -> "Landmarks":
        """Those of the image flipped left to right: a left eye becomes a right eye, a left hand the right hand."""
        pose, left, right = (
            None if points is None else _flip(points)[table]
            for points, table in ((self.pose, POSE_SWAP), (self.right_hand, HAND_SWAP), (self.left_hand, HAND_SWAP))
        )
        return Landmarks(_flip(self.faces)[:, FACE_SWAP], pose, left, right)


def read_landmarks(path: str | Path) -> Landmarks:
    """Raises FileNotFoundError; ValueError for a file that is damaged or holds no landmarks."""
    path = _with_suffix(require_file(path))
    if path.suffix.lower() == ".json":
        return Landmarks.of(read_json(path), str(path))
    with open_arrays(path) as arrays:
        fields = dict(arrays)
    return Landmarks.of(fields, str(path))


def write_landmarks(path: str | Path, landmarks: Landmarks, overwrite: bool = False) -> None:
    """Writes JSON or npz, by the suffix. Raises ValueError for another suffix; FileExistsError, other OSErrors."""
    path = _with_suffix(Path(path))
    fields = {name: getattr(landmarks, name) for name in SHAPES}
    with atomic_output(path, overwrite) as temporary:
        if path.suffix.lower() == ".npz":
            with temporary.open("wb") as file:
                np.savez_compressed(file, **{name: value for name, value in fields.items() if value is not None})
            return
        # Six digits: a thousandth of a pixel in an image of 1,000.
        lists = {name: v if v is None else np.round(v.astype(float), 6).tolist() for name, v in fields.items()}
        temporary.write_text(json.dumps(lists) + "\n", "utf-8")


def boxes(faces: Float[np.ndarray, "n 478 3"]) -> Float[np.ndarray, "n 4"]:
    """left, top, right, bottom of each face, as fractions of the image."""
    return np.concatenate([faces[..., :2].min(axis=1), faces[..., :2].max(axis=1)], axis=-1)


def by_size(faces: Float[np.ndarray, "n 478 3"]) -> Float[np.ndarray, "n 478 3"]:
    """The faces sorted by the area of their boxes, largest first."""
    box = boxes(faces)
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return faces[np.argsort(-area, kind="stable")]


def _with_suffix(path: Path) -> Path:
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: suffix {path.suffix!r} is not one of {' '.join(SUFFIXES)}, as landmarks have")
    return path


def _flip(points: Float[np.ndarray, "*n c"]) -> Float[np.ndarray, "*n c"]:
    flipped = points.copy()
    flipped[..., 0] = 1 - flipped[..., 0]
    return flipped


def _checked(where: str, name: str, value: object) -> np.ndarray:
    """The points of one field. A single face may come without the axis of faces."""
    try:
        points = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{where} is no array of numbers; write lists of [x, y, z]") from None
    rank, expected = 2, ", ".join(map(str, SHAPES[name]))
    if name == "faces":
        rank, expected = 3, f"n, {expected}"
        points = no_faces() if not points.size else points[None] if points.ndim == 2 else points
    if points.ndim != rank or points.shape[-2:] != SHAPES[name]:
        hint = "; with 468 points the irises are missing: refine_landmarks=True" if 468 in points.shape else ""
        raise ValueError(f"{where} has shape {list(points.shape)}, expected [{expected}]{hint}")
    if not np.isfinite(points).all():
        raise ValueError(f"{where} has values that are NaN or infinite; leave out a field that was not found")
    largest = np.abs(points[..., :2]).max(initial=0)
    if largest > FARTHEST:
        raise ValueError(f"{where} reaches {largest:g}; x and y are fractions: divide by width and height")
    return points
