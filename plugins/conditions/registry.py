"""Conditions by name, so that a training set, a notebook and the command make any of them the same way.

    make("canny", image, low=50, high=150)
    make("face", image, most=2)                       or landmarks=Landmarks
    make("holistic", image)                           or landmarks=Landmarks
    make("depth", image, depth=map, near="low")       or model=DepthModel
    make("mask", image, threshold=0.1)                or mask=map

A further kind is a function from a picture to a condition picture of its size, and a line in CONDITIONS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from plugins.conditions.canny import canny
from plugins.conditions.depth import DepthModel, Near, check_size, draw_depth
from plugins.conditions.detection import find_faces, find_holistic
from plugins.conditions.drawing import draw_face, draw_holistic
from plugins.conditions.landmarks import Landmarks
from plugins.conditions.mask import mask

Picture = Float[np.ndarray, "h w 3"]
Note = Callable[[str], None]


def face(
    image: Picture, *, landmarks: Landmarks | None = None, most: int | None = 1, note: Note | None = None
) -> Picture:
    """The `most` largest faces, found if no landmarks are given; `note` is told of others that were left out.

    Raises ValueError when there is none, ImportError without mediapipe."""
    if most is not None and most < 1:
        raise ValueError(f"{most} faces are wanted; 1 or more can be drawn")
    found = find_faces(image, most) if landmarks is None else landmarks
    total = len(found.faces)
    if most is not None and total > most:
        if note is not None:
            kept = "the largest is drawn" if most == 1 else f"the {most} largest are drawn"
            note(f"{total} faces, {kept}; --faces {total} draws all")
        found = found.largest(most)
    return draw_face(found, image.shape[:2])


def holistic(image: Picture, *, landmarks: Landmarks | None = None) -> Picture:
    """One person, found if no landmarks are given. Raises ValueError, ImportError without mediapipe."""
    return draw_holistic(find_holistic(image) if landmarks is None else landmarks, image.shape[:2])


def depth(
    image: Picture,
    *,
    depth: Float[np.ndarray, "h2 w2"] | None = None,
    model: DepthModel | None = None,
    near: Near = "high",
) -> Picture:
    """From a map of the picture's size, or from a model. Raises ValueError."""
    if (depth is None) == (model is None):
        raise ValueError("depth is made from a map or from a model: give one of depth= and model=")
    found = depth if model is None else model(image)
    assert found is not None
    check_size(found, image)
    return draw_depth(found, near)


CONDITIONS: Mapping[str, Callable[..., Picture]] = {
    "canny": canny,
    "face": face,
    "holistic": holistic,
    "depth": depth,
    "mask": mask,
}

EMPTY: Mapping[str, str] = {  # why a condition picture may be black, and what helps
    "canny": "no edge was found, so the condition is empty; lower low and high",
    "mask": "nothing stands out from the ground, so the condition is empty; lower threshold, or give a mask",
}


def make(kind: str, image: Picture, **options: Any) -> Picture:
    """The condition picture of `image`, RGB in [0, 1]. Raises ValueError; ImportError for an extra."""
    return maker_of(kind, options)(image, **options)


def emptiness(kind: str, picture: Picture) -> str:
    """What to tell about a condition picture that is black all over; "" if there is nothing to tell."""
    return "" if picture.any() else EMPTY.get(kind, "")


def maker_of(kind: str, options: Iterable[str] = ()) -> Callable[..., Picture]:
    """The function of that name. Raises ValueError if there is none, or if it does not take those options."""
    if kind not in CONDITIONS:
        raise ValueError(f"no condition is called {kind!r}; choose one of {', '.join(CONDITIONS)}")
    maker = CONDITIONS[kind]
    known = [name for name in inspect.signature(maker).parameters if name != "image"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{kind} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return maker
