"""Finding landmarks with MediaPipe 0.10.14, the last release whose package holds its models (extra `landmarks`).

Its face mesh looks for faces in the whole picture at 128 px, so that a face narrower than about a tenth of the picture
is missed: of a portrait that hardly matters, of a group it does. When fewer faces are found than asked for, squares of
a half and then of a quarter of the longer side are searched as well, overlapping by a half. Measured with one face on
plain grey, 512 px: all are found down to 60 px wide without squares, down to 20 px with them.

Many small squares are many chances to take something else for a face, so in them the detector has to be surer: of 60
photographs (animals, buildings, landscapes) 9 had a "face" in squares of a quarter at mediapipe's threshold of 0.5 and
2 at 0.75, one of them Mount Rushmore, while small faces were found all the same.

Pictures are shrunk to 1,280 px first; landmarks are fractions, so nothing else changes.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from common.io.images import shrink, to_uint8
from plugins.conditions.landmarks import Landmarks, boxes, by_size, no_faces

LONGEST = 1280  # px
AT_ONCE = 16  # faces that one search may give
SAME = 0.3  # intersection over union from which on two boxes are of one face
SURE, SURER = 0.5, 0.75  # least score of a detected face: in the whole picture, which is the default, and in squares
MARGIN = 0.01  # share of a square; a face that comes so near its edge may go on beyond
PARTS = (2, 4)  # the longer side divided by these gives the squares
Extent = Float[np.ndarray, "4"]  # left, top, right, bottom
SMALLEST = 32  # px; smaller squares show no face that could be drawn


def find_faces(image: Float[np.ndarray, "h w 3"], most: int | None = 1) -> Landmarks:
    """The faces of an RGB picture in [0, 1], largest first.

    `most`: how many are wanted; small ones are searched for until there are as many. All that were seen on the way are
    given, for `Landmarks.largest` to choose from. None: all, to the smallest.
    Raises ValueError when there is none, ImportError without mediapipe.
    """
    if most is not None and most < 1:
        raise ValueError(f"{most} faces are wanted; 1 or more can be found")
    pixels = np.ascontiguousarray(to_uint8(shrink(image, LONGEST)))
    faces = no_faces()
    for part in (1, *PARTS):
        faces = distinct(np.concatenate([faces, *_search(pixels, part)]))
        if most is not None and len(faces) >= most:
            break
    if not len(faces):
        raise ValueError("no face was found; give a picture that shows one larger, or its landmarks")
    return Landmarks(faces=by_size(faces))


def find_holistic(image: Float[np.ndarray, "h w 3"]) -> Landmarks:
    """Body, hands and face of one person. Raises ValueError when there is nobody, ImportError without mediapipe."""
    pixels = np.ascontiguousarray(to_uint8(shrink(image, LONGEST)))
    found = _process(_holistic(), pixels)
    names = {"face": "faces", "pose": "pose", "left_hand": "left_hand", "right_hand": "right_hand"}
    lists = {ours: getattr(found, f"{theirs}_landmarks") for theirs, ours in names.items()}
    parts = {name: _points(points, name == "pose") for name, points in lists.items() if points is not None}
    landmarks = Landmarks.of(parts, source="mediapipe")
    if landmarks.empty:
        raise ValueError("no person was found; give a picture that shows one larger, or their landmarks")
    return landmarks


def distinct(faces: Float[np.ndarray, "n 478 3"]) -> Float[np.ndarray, "m 478 3"]:
    """The same without those that lie where an earlier one does."""
    box = boxes(faces)
    kept: list[int] = []
    for i in range(len(faces)):
        if all(overlap(box[i], box[k]) < SAME for k in kept):
            kept.append(i)
    return faces[kept]


def overlap(a: Extent, b: Extent) -> float:
    """Intersection of two boxes over their union."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    common = np.prod(np.maximum(high - low, 0))
    union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common
    return float(common / max(union, 1e-12))


def squares(height: int, width: int, part: int) -> Iterator[tuple[int, int, int, int]]:
    """top, left, bottom, right of squares that cover the picture; 1: the picture itself."""
    side = -(-max(height, width) // part)
    if part == 1:
        yield 0, 0, height, width
    elif side >= SMALLEST:
        for top in _starts(height, side):
            for left in _starts(width, side):
                yield top, left, min(top + side, height), min(left + side, width)


def _starts(length: int, side: int) -> list[int]:
    """Where pieces of `side` begin that cover `length`, half a piece or less apart."""
    steps = max(0, -(-2 * (length - side) // side))
    return [round(i * (length - side) / steps) for i in range(steps + 1)] if steps else [0]


def _search(pixels: UInt8[np.ndarray, "h w 3"], part: int) -> Iterator[Float[np.ndarray, "1 478 3"]]:
    height, width = pixels.shape[:2]
    for top, left, bottom, right in squares(height, width, part):
        piece = np.ascontiguousarray(pixels[top:bottom, left:right])
        scale = np.array([(right - left) / width, (bottom - top) / height, (right - left) / width])
        shift = np.array([left / width, top / height, 0])
        inner = np.array([left > 0, top > 0, right < width, bottom < height])
        for face in _process(_face_mesh(SURE if part == 1 else SURER), piece).multi_face_landmarks or []:
            points = _points(face)[None]
            # A face that a square cuts is distorted; one of the squares beside has all of it.
            if not (inner & (boxes(points)[0] * [-1, -1, 1, 1] > np.array([0, 0, 1, 1]) - MARGIN)).any():
                yield (points * scale + shift).astype(np.float32)


def _points(found: Any, visibility: bool = False) -> Float[np.ndarray, "n c"]:
    """MediaPipe's list as an array."""
    rows = [(p.x, p.y, p.z, p.visibility) if visibility else (p.x, p.y, p.z) for p in found.landmark]
    return np.array(rows, np.float32)


def require_mediapipe() -> Any:
    """The package. Raises ImportError in one line when it is missing, or comes without models."""
    os.environ.setdefault("GLOG_minloglevel", "2")  # its log tells on stderr of every graph it starts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mediapipe  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"landmarks are found by mediapipe, which cannot be imported ({error}); install the extra 'landmarks' "
            "(docs/conditions.md), or give landmarks by --landmarks FILE.json|.npz"
        ) from error
    if not hasattr(mediapipe, "solutions"):
        raise ImportError(
            f"mediapipe {mediapipe.__version__} carries no models; install the extra 'landmarks', which is 0.10.14 "
            "(docs/conditions.md), or give landmarks by --landmarks FILE.json|.npz"
        )
    return mediapipe


_ONE_BY_ONE = threading.Lock()  # a graph takes one picture at a time


def _process(graph: Any, pixels: UInt8[np.ndarray, "h w 3"]) -> Any:
    with _ONE_BY_ONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # protobuf's, of how mediapipe calls it
        return graph.process(pixels)


@functools.cache
def _face_mesh(least: float) -> Any:
    """Kept, as it takes ten times as long to start as to use."""
    return require_mediapipe().solutions.face_mesh.FaceMesh(
        static_image_mode=True, refine_landmarks=True, max_num_faces=AT_ONCE, min_detection_confidence=least
    )


@functools.cache
def _holistic() -> Any:
    # The package holds the models of complexity 1 only; 0 and 2 would be downloaded.
    return require_mediapipe().solutions.holistic.Holistic(
        static_image_mode=True, model_complexity=1, refine_face_landmarks=True
    )
