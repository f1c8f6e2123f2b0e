"""Conditions by name: one call for training data, notebooks and the command.

    make("canny", image, low=50, high=150)
    make("face", image, most=2)                       or landmarks=Landmarks
    make("holistic", image)                           or landmarks=Landmarks
    make("depth", image, depth=map, near="low")       or model=DepthModel
    make("mask", image, threshold=0.1)                or mask=map
    mirror("face", condition)                         flips a condition image

A new kind is a function from an image to a condition image of its size and a line in CONDITIONS.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from plugins.conditions.canny import canny
from plugins.conditions.depth import DepthModel, Near, draw_depth
from plugins.conditions.detection import find_faces, find_holistic
from plugins.conditions.drawing import draw_face, draw_holistic
from plugins.conditions.landmarks import Landmarks
from plugins.conditions.mask import mask

Image = Float[np.ndarray, "h w 3"]


def face(
    image: Image, *, landmarks: Landmarks | None = None, most: int | None = 1, note: Callable[[str], None] | None = None
) -> Image:
    """The `most` largest faces, detected if no landmarks are given; `note` gets a line about faces left out."""
    if most is not None and most < 1:
        raise ValueError(f"most is {most} faces: give 1 or more")
    found = find_faces(image, most) if landmarks is None else landmarks
    total = len(found.faces)
    if most is not None and total > most:
        if note is not None:
            kept = "the largest is drawn" if most == 1 else f"the {most} largest are drawn"
            note(f"{total} faces, {kept}; --faces {total} draws all")
        found = found.largest(most)
    return draw_face(found, image.shape[:2])


def holistic(image: Image, *, landmarks: Landmarks | None = None) -> Image:
    """One person, detected if no landmarks are given."""
    return draw_holistic(find_holistic(image) if landmarks is None else landmarks, image.shape[:2])


def depth(
    image: Image,
    *,
    depth: Float[np.ndarray, "h2 w2"] | None = None,
    model: DepthModel | None = None,
    near: Near = "high",
) -> Image:
    """From a map of the image's size, or from a model."""
    found = model(image) if depth is None and model is not None else depth
    if found is None or (depth is not None and model is not None):
        raise ValueError("depth is made from a map or by a model: give one of depth= and model=")
    if found.shape != image.shape[:2]:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (found.shape, image.shape)]
        raise ValueError(f"the depth map is {sizes[0]}, the image {sizes[1]}; resize one to the other's size")
    return draw_depth(found, near)


CONDITIONS: Mapping[str, Callable[..., Image]] = {
    "canny": canny,
    "face": face,
    "holistic": holistic,
    "depth": depth,
    "mask": mask,
}
SIDED = ("face", "holistic")  # kinds with different colours for left and right
EMPTY: Mapping[str, str] = {  # the warning about a black condition image
    "canny": "no edge was found, so the condition is empty; lower low and high",
    "mask": "nothing stands out from the background, so the condition is empty; lower threshold, or give a mask",
}


def make(kind: str, image: Image, **options: Any) -> Image:
    """The condition image of an RGB image in [0, 1]. Raises ValueError; ImportError for a missing extra."""
    return maker_of(kind, options)(image, **options)


def emptiness(kind: str, condition: Image) -> str:
    """A warning if the condition image is black all over, else ""."""
    return "" if condition.any() else EMPTY.get(kind, "")


def maker_of(kind: str, options: Iterable[str] = ()) -> Callable[..., Image]:
    """The function in CONDITIONS. Raises ValueError for an unknown kind, or options that it does not have."""
    if kind not in CONDITIONS:
        raise ValueError(f"no condition is called {kind!r}; choose one of {', '.join(CONDITIONS)}")
    maker = CONDITIONS[kind]
    known = [name for name in inspect.signature(maker).parameters if name != "image"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{kind} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return maker


def mirror(kind: str, condition: Float[np.ndarray, "*b h w 3"]) -> Float[np.ndarray, "*b h w 3"]:
    """The condition image of the flipped image. In a flipped face or person the other eye is the left one, so green and
    blue change places too: without it a plugin would learn that colours mean nothing."""
    maker_of(kind)
    flipped = condition[..., ::-1, :]
    return np.ascontiguousarray(flipped[..., [0, 2, 1]] if kind in SIDED else flipped)
