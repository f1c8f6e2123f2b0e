"""Conditions by name: one call for training data, notebooks and the command.

    make("canny", image, low=50, high=150)
    make("face", image, most=2)                       or landmarks=Landmarks
    make("holistic", image)                           or landmarks=Landmarks
    make("depth", image, depth=map, near="low")       or model=DepthModel, or inflate=True
    make("mask", image, threshold=0.1)                or mask=map
    make("scribble", image, width=0.03)               or drawing=True
    mirror("face", condition)                         flips a condition image

A new kind is a function from an image to a condition image of its size and a line in CONDITIONS; modules are imported
when a condition of theirs is made.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.images import check_image

Image = Float[np.ndarray, "h w 3"]

# kind -> the module with a function of that name
CONDITIONS = {"canny": "canny", "face": "drawing", "holistic": "drawing"}
CONDITIONS |= {"depth": "depth", "mask": "mask", "scribble": "scribble"}
OF_IMAGE: Mapping[str, Mapping[str, Any]] = {"depth": {"inflate": True}}  # options that make a kind of an image alone
SIDED = ("face", "holistic")  # kinds with different colours for left and right
EMPTY: Mapping[str, str] = {  # the warning about a black condition image
    "canny": "no edge was found, so the condition is empty; lower low and high",
    "depth": "nothing stands out from the background, so there is nothing to inflate; give a map or a model",
    "mask": "nothing stands out from the background, so the condition is empty; lower threshold, or give a mask",
    "scribble": "no contour or stroke was found, so the condition is empty; lower blur, or draw on a plain ground",
}


def make(kind: str, image: Image, **options: Any) -> Image:
    """The condition image of an RGB image in [0, 1]. Raises ValueError; ImportError for a missing extra."""
    maker = maker_of(kind, options)
    check_image("image", image)
    return maker(image, **options)


def emptiness(kind: str, condition: Image) -> str:
    """A warning if the condition image is black all over, else ""."""
    return "" if condition.any() else EMPTY.get(kind, "")


def maker_of(kind: str, options: Iterable[str] = ()) -> Callable[..., Image]:
    """The function of that kind. Raises ValueError for an unknown kind, or options that it does not have."""
    if kind not in CONDITIONS:
        raise ValueError(f"no condition is called {kind!r}; choose one of {', '.join(CONDITIONS)}")
    maker = getattr(importlib.import_module(f".{CONDITIONS[kind]}", __package__), kind)
    known = [name for name in inspect.signature(maker).parameters if name != "image"]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{kind} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return maker


def mirror(kind: str, condition: Float[np.ndarray, "*b h w 3"]) -> Float[np.ndarray, "*b h w 3"]:
    """The condition image of the flipped image. In a flipped face or person the other eye is the left one, so green and
    blue change places too: without it a plugin would learn that colours mean nothing."""
    maker_of(kind)
    flipped = condition[..., ::-1, :]
    return np.ascontiguousarray(flipped[..., [0, 2, 1]] if kind in SIDED else flipped)
