"""From a picture to what a plugin is shown of it: edges, a face's lines, a person's pose, depth, or a mask.

    from plugins import conditions

    edges = conditions.make("canny", image)                          # h w 3 in, h w 3 out, RGB float32 in [0, 1]
    face = conditions.make("face", image)                            # needs mediapipe, the extra `landmarks`
    face = conditions.make("face", image, landmarks=landmarks)       # does not
    depth = conditions.make("depth", image, depth=conditions.read_depth("depth.npy"))

A condition picture has its source's size and shows only what shall be kept: a generated picture follows its lines and
is free in all else. All kinds but the mask are those that MediaPipe's diffusion plugins were trained with. `registry`
holds them by name, `mirror` flips one so that left stays left, `scenes` draws pictures whose depth is exactly known.

Names are imported when they are first used (PEP 562), as in `plugins.diffusion`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from plugins.conditions.depth import DepthModel, draw_depth, normalise, read_depth
    from plugins.conditions.detection import find_faces, find_holistic
    from plugins.conditions.face import draw_face
    from plugins.conditions.holistic import draw_holistic
    from plugins.conditions.landmark_files import read_landmarks, write_landmarks
    from plugins.conditions.landmarks import Landmarks
    from plugins.conditions.mask import read_mask
    from plugins.conditions.onnx_depth import OnnxDepth
    from plugins.conditions.registry import CONDITIONS, make
    from plugins.conditions.scenes import Scene, scene

__all__ = [
    "CONDITIONS",
    "DepthModel",
    "Landmarks",
    "OnnxDepth",
    "Scene",
    "draw_depth",
    "draw_face",
    "draw_holistic",
    "find_faces",
    "find_holistic",
    "make",
    "normalise",
    "read_depth",
    "read_landmarks",
    "read_mask",
    "scene",
    "write_landmarks",
]

_HOMES = {
    "CONDITIONS": "registry",
    "DepthModel": "depth",
    "Landmarks": "landmarks",
    "OnnxDepth": "onnx_depth",
    "Scene": "scenes",
    "draw_depth": "depth",
    "draw_face": "face",
    "draw_holistic": "holistic",
    "find_faces": "detection",
    "find_holistic": "detection",
    "make": "registry",
    "normalise": "depth",
    "read_depth": "depth",
    "read_landmarks": "landmark_files",
    "read_mask": "mask",
    "scene": "scenes",
    "write_landmarks": "landmark_files",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
