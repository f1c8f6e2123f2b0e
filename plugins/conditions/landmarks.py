"""Landmarks of faces and of one person: numbered points of a picture, as MediaPipe numbers them.

x and y are fractions of the picture's width and height, 0 at the left and the top; a point may lie outside, where the
picture cuts a face off. z points away from the camera, on the scale of x. Points of a pose have a fourth number, how
likely they are to be seen, 0 to 1. As fractions, landmarks found in a small copy are those of the picture itself.

On disk they are JSON, to be read by people and other programs, or a small npz:

    {"faces": [[[0.43, 0.27, -0.02], ...]], "pose": [[0.43, 0.25, -0.83, 0.99], ...], "left_hand": null}

Both hold the fields of `Landmarks` by name; a part that was not found is null, or missing. Nothing pickled is read.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from common.io.files import atomic_output, require_file
from plugins.conditions.connections import FACE_POINTS, FACE_SWAP, HAND_POINTS, HAND_SWAP, POSE_POINTS, POSE_SWAP

SUFFIXES = (".json", ".npz")
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


def read_landmarks(path: str | Path) -> Landmarks:
    """Raises FileNotFoundError; ValueError when it is damaged or holds something else."""
    path = require_file(path)
    _check_suffix(path)
    return Landmarks.of(_read_json(path) if path.suffix.lower() == ".json" else _read_npz(path), source=str(path))


def write_landmarks(path: str | Path, landmarks: Landmarks, overwrite: bool = False) -> None:
    """The suffix decides between JSON and npz. Raises ValueError, FileExistsError and other OSErrors."""
    path = Path(path)
    _check_suffix(path)
    parts = {name: getattr(landmarks, name) for name in SHAPES}
    with atomic_output(path, overwrite) as temporary:
        if path.suffix.lower() == ".npz":
            with temporary.open("wb") as file:
                np.savez_compressed(file, **{name: part for name, part in parts.items() if part is not None})
            return
        # Six digits: a thousandth of a pixel in a picture of 1,000.
        lists = {
            name: None if part is None else np.round(part.astype(float), 6).tolist() for name, part in parts.items()
        }
        temporary.write_text(json.dumps(lists) + "\n", "utf-8")


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: suffix {path.suffix!r} is not one of {' '.join(SUFFIXES)}, as landmarks have")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:  # no UTF-8, or no JSON
        raise ValueError(f"{path} is not JSON ({error}); write the landmarks again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object with {', '.join(SHAPES)}, found a {type(content).__name__}")
    return content


def _read_npz(path: Path) -> dict[str, object]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("one array without a name")
        with loaded as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is no npz of plain arrays ({reason[:100]}); write the landmarks again") from None


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
