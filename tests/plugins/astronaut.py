"""The photograph of the MediaPipe fixtures, and the reference's results for it (tests/data/plugins/make_astronaut.py).

`fake_mediapipe` replaces the package where only our own logic is tested: it finds red rectangles.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np

from common.io.images import read_image
from plugins.conditions import detection
from plugins.conditions.landmarks import Landmarks

DATA = Path(__file__).parents[1] / "data" / "plugins"
NARROWEST = 0.12  # of an image's longer side: MediaPipe misses narrower faces


@functools.cache
def photograph() -> np.ndarray:
    return read_image(DATA / "astronaut.webp")


@functools.cache
def reference() -> dict[str, np.ndarray]:
    with np.load(DATA / "mediapipe_astronaut.npz") as archive:
        return {name: archive[name] for name in archive.files}


@functools.cache
def connections() -> dict[str, set[tuple[int, int]]]:
    """MediaPipe's lists by name, each a set of directed edges."""
    lists = json.loads((DATA / "mediapipe_connections.json").read_text())["connections"]
    return {name: {(a, b) for a, b in edges} for name, edges in lists.items()}


def face() -> Landmarks:
    """The face as the face mesh found it."""
    return Landmarks(faces=reference()["face478"][None])


def person() -> Landmarks:
    """Pose and face as Holistic found them, and two made-up hands: none are visible."""
    fan = np.linspace(0, 1, 21)
    hand = np.stack([0.1 + 0.1 * fan, 0.8 + 0.1 * np.sin(9 * fan), 0 * fan], axis=-1).astype(np.float32)
    pose = reference()["holistic_pose33"]
    return Landmarks(reference()["holistic_face478"][None], pose, hand + np.float32([0.6, 0, 0]), hand)


def faces_of(*boxes: tuple[float, float, float, float]) -> np.ndarray:
    """The photograph's face, put into each box of left, top, width, height (fractions of the image)."""
    mesh = reference()["face478"]
    low, high = mesh[:, :2].min(0), mesh[:, :2].max(0)
    unit = np.concatenate([(mesh[:, :2] - low) / (high - low), mesh[:, 2:]], axis=-1)
    scales = [np.array([w, h, w]) for _, _, w, h in boxes]
    return np.stack([unit * s + [x, y, 0] for s, (x, y, _, _) in zip(scales, boxes, strict=True)]).astype(np.float32)


def marked(size: tuple[int, int], *boxes: tuple[int, int, int, int]) -> np.ndarray:
    """A grey image with a red rectangle, a face to `FaceMesh`, at each left, top, width, height."""
    image = np.full((*size, 3), 0.5, np.float32)
    for left, top, width, height in boxes:
        image[top : top + height, left : left + width] = [1, 0, 0]
    return image


def _as_list(points: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(landmark=[SimpleNamespace(x=p[0], y=p[1], z=p[2], visibility=p[-1]) for p in points])


class FaceMesh:
    """Finds rectangles of pure red that are not too small for the image."""

    def __init__(self, **options: Any) -> None:
        assert options["static_image_mode"] and options["refine_landmarks"] and options["max_num_faces"] >= 5

    def process(self, pixels: np.ndarray) -> SimpleNamespace:
        assert pixels.dtype == np.uint8 and pixels.flags.c_contiguous
        height, width = pixels.shape[:2]
        red = (pixels == [255, 0, 0]).all(-1).astype(np.uint8)
        parts = cv2.connectedComponentsWithStats(red)[2][1:, :4]
        scale = np.array([width, height, width, height])
        boxes = [tuple(part / scale) for part in parts if part[2] >= NARROWEST * max(height, width)]
        return SimpleNamespace(multi_face_landmarks=[_as_list(f) for f in faces_of(*boxes)] if boxes else None)


class Holistic:
    """Finds the photograph's person in every image that is not black."""

    def __init__(self, **options: Any) -> None:
        assert options == {"static_image_mode": True, "model_complexity": 1, "refine_face_landmarks": True}

    def process(self, pixels: np.ndarray) -> SimpleNamespace:
        found = person()
        lists = {"face": found.faces[0], "pose": found.pose, "left_hand": None, "right_hand": found.right_hand}
        seen = {name: points if pixels.any() else None for name, points in lists.items()}
        return SimpleNamespace(**{f"{n}_landmarks": None if p is None else _as_list(p) for n, p in seen.items()})


def fake_mediapipe(monkeypatch: Any) -> None:
    mesh, holistic = SimpleNamespace(FaceMesh=FaceMesh), SimpleNamespace(Holistic=Holistic)
    package = SimpleNamespace(solutions=SimpleNamespace(face_mesh=mesh, holistic=holistic))
    forget()
    monkeypatch.setattr(detection, "require_mediapipe", lambda: package)


def forget() -> None:
    """Drops the started detectors; called around a test that replaces them."""
    detection._face_mesh.cache_clear()
    detection._holistic.cache_clear()
