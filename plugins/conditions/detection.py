"""Landmark detection with MediaPipe 0.10.14, the last release whose package holds its models (extra `landmarks`).

The face mesh looks for faces in the whole image at 128 px and misses a face narrower than about a tenth of the image.
While fewer faces are found than wanted, squares of a half and then of a quarter of the longer side are searched too,
overlapping by a half: of 512 px a face of 20 is found then. Many small squares give many chances of a false face, so
the detector's threshold is higher there: of 60 photographs without faces 9 had a "face" in squares of a quarter at
mediapipe's threshold of 0.5 and 2 at 0.75, while all small faces were still found.
"""

import functools
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.io.images import shrink, to_uint8
from plugins.conditions.landmarks import SHAPES, Landmarks, boxes, by_size, no_faces

LONGEST = 1280  # px
MAX_FACES = 16  # of one search
OVERLAP = 0.3  # intersection over union from which on two boxes are of one face
CONFIDENCE, SQUARE_CONFIDENCE = 0.5, 0.75  # detection thresholds: mediapipe's default, and in squares
MARGIN = 0.01  # share of a square; a face this close to its edge may be cut off
DIVISORS = (2, 4)  # of the longer side: the sides of the squares
SMALLEST = 32  # px; smaller squares hold no face that could be drawn


def find_faces(image: Float[np.ndarray, "h w 3"], most: int | None = 1) -> Landmarks:
    """The faces of an RGB image in [0, 1], largest first. The search for smaller ones stops at `most` faces, with None
    never; it returns all faces seen by then. Raises ValueError when there is none, ImportError without mediapipe."""
    pixels = np.ascontiguousarray(to_uint8(shrink(image, LONGEST)))
    faces = no_faces()
    for divisor in (1, *DIVISORS):
        faces = distinct(np.concatenate([faces, *_search(pixels, divisor)]))
        if most is not None and len(faces) >= most:
            break
    if not len(faces):
        raise ValueError("no face was found; give an image with a larger face, or its landmarks")
    return Landmarks(faces=by_size(faces))


def find_holistic(image: Float[np.ndarray, "h w 3"]) -> Landmarks:
    """Body, hands and face of one person. Raises as `find_faces`."""
    found = _process(_holistic(), np.ascontiguousarray(to_uint8(shrink(image, LONGEST))))
    lists = {name: getattr(found, f"{'face' if name == 'faces' else name}_landmarks") for name in SHAPES}
    fields = {name: _points(points, name == "pose") for name, points in lists.items() if points is not None}
    landmarks = Landmarks.of(fields, source="mediapipe")
    if landmarks.empty:
        raise ValueError("no person was found; give an image with a larger one, or their landmarks")
    return landmarks


def distinct(faces: Float[np.ndarray, "n 478 3"]) -> Float[np.ndarray, "m 478 3"]:
    """The faces without those whose box overlaps an earlier one's: greedy non-maximum suppression."""
    low, high = np.split(boxes(faces), 2, axis=1)
    scores = np.arange(len(faces), 0.0, -1.0).tolist()  # an earlier face comes first
    return faces[list(cv2.dnn.NMSBoxes(np.hstack([low, high - low]).tolist(), scores, 0.0, OVERLAP))]


def squares(height: int, width: int, divisor: int) -> Iterator[tuple[int, int, int, int]]:
    """top, left, bottom, right of squares that cover the image; for 1 the image itself."""
    side = -(-max(height, width) // divisor)
    if divisor == 1:
        yield 0, 0, height, width
    elif side >= SMALLEST:
        for top in _starts(height, side):
            for left in _starts(width, side):
                yield top, left, min(top + side, height), min(left + side, width)


def _starts(length: int, side: int) -> list[int]:
    """First pixels of windows of `side` that cover `length`, at most half a window apart."""
    steps = max(0, -(-2 * (length - side) // side))
    return [round(i * (length - side) / steps) for i in range(steps + 1)] if steps else [0]


def _search(pixels: UInt8[np.ndarray, "h w 3"], divisor: int) -> Iterator[Float[np.ndarray, "1 478 3"]]:
    """The faces in squares, as fractions of the whole image."""
    height, width = pixels.shape[:2]
    mesh = _face_mesh(CONFIDENCE if divisor == 1 else SQUARE_CONFIDENCE)
    for top, left, bottom, right in squares(height, width, divisor):
        scale = np.array([(right - left) / width, (bottom - top) / height, (right - left) / width])
        shift = np.array([left / width, top / height, 0])
        inner = np.array([left > 0, top > 0, right < width, bottom < height])
        for face in _process(mesh, np.ascontiguousarray(pixels[top:bottom, left:right])).multi_face_landmarks or []:
            points = _points(face)[None]
            # A face that a square cuts off is distorted; one of the neighbouring squares has all of it.
            if not (inner & (boxes(points)[0] * [-1, -1, 1, 1] > np.array([0, 0, 1, 1]) - MARGIN)).any():
                yield (points * scale + shift).astype(np.float32)


def _points(found: Any, visibility: bool = False) -> Float[np.ndarray, "n c"]:
    """MediaPipe's list as an array."""
    rows = [(p.x, p.y, p.z, p.visibility) if visibility else (p.x, p.y, p.z) for p in found.landmark]
    return np.array(rows, np.float32)


def require_mediapipe() -> Any:
    """The package. Raises ImportError when it is missing, or holds no models."""
    way_out = "install the extra 'landmarks' (docs/conditions.md), or give landmarks by --landmarks FILE.json|.npz"
    os.environ.setdefault("GLOG_minloglevel", "2")  # it logs every graph it starts to stderr
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mediapipe  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"landmarks need mediapipe, which cannot be imported: {error}; {way_out}") from error
    if not hasattr(mediapipe, "solutions"):
        raise ImportError(f"mediapipe {mediapipe.__version__} holds no models, 0.10.14 does; {way_out}")
    return mediapipe


_LOCK = threading.Lock()  # a graph takes one image at a time


def _process(graph: Any, pixels: UInt8[np.ndarray, "h w 3"]) -> Any:
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # protobuf's, of mediapipe's own calls
        return graph.process(pixels)


@functools.cache
def _face_mesh(confidence: float) -> Any:
    """MediaPipe's face mesh, kept: to start it takes ten times as long as to use it."""
    return require_mediapipe().solutions.face_mesh.FaceMesh(
        static_image_mode=True, refine_landmarks=True, max_num_faces=MAX_FACES, min_detection_confidence=confidence
    )


@functools.cache
def _holistic() -> Any:
    # The package holds only the models of complexity 1; 0 and 2 would be downloaded.
    options = {"static_image_mode": True, "model_complexity": 1, "refine_face_landmarks": True}
    return require_mediapipe().solutions.holistic.Holistic(**options)
