"""Depth as a picture: near is bright, far is black, each picture stretched to [0, 1] by itself.

MediaPipe's depth plugin was trained so: what a model estimates, from the least to the most, as three equal channels.
Depth comes from a file, from a user's own model (`onnx_depth`; no package ships one). There are two
customs, which a map does not tell of itself:

| near | a map holds | shown |
| --- | --- | --- |
| "high" | what grows towards the camera: inverse depth (MiDaS, Depth Anything), disparity | as it is |
| "low" | distances, in any unit; 0 is "not measured", as depth cameras write it | their reciprocals |

Values that are not finite are "not measured" in either, and black.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from common.io.files import require_file
from common.io.images import READABLE, read_image

Near = Literal["high", "low"]
SUFFIXES = (".npy", ".npz", ".png", *(suffix for suffix in READABLE if suffix != ".png"))
ARRAY = "depth"  # in an npz of several


@runtime_checkable
class DepthModel(Protocol):
    """Estimates depth: an RGB picture in [0, 1] -> a map of its size, of either custom."""

    def __call__(self, image: Float[np.ndarray, "h w 3"], /) -> Float[np.ndarray, "h w"]: ...


def draw_depth(depth: Float[np.ndarray, "h w"], near: Near = "high") -> Float[np.ndarray, "h w 3"]:
    """The condition picture of a map. Raises ValueError: nothing measured, or all values equal."""
    return np.repeat(normalise(depth, near)[..., None], 3, axis=-1)


def normalise(depth: Float[np.ndarray, "h w"], near: Near = "high") -> Float[np.ndarray, "h w"]:
    """Nearness from 0 (the farthest that was measured, and what was not) to 1 (the nearest). Raises ValueError."""
    if near not in ("high", "low"):
        raise ValueError(f"near {near!r}: say whether what is near has 'high' values or 'low' ones")
    measured = _measured(depth, near)
    if not measured.any():
        raise ValueError("the depth map holds no value that was measured (all are 0, infinite or NaN); give another")
    values = depth[measured].astype(np.float64)
    values = 1 / values if near == "low" else values
    low, high = values.min(), values.max()
    if not high > low:
        raise ValueError(f"the depth is {depth[measured][0]:g} everywhere: nothing is nearer; give another map")
    nearness = np.zeros(depth.shape, np.float32)
    nearness[measured] = (values - low) / (high - low)
    return nearness


def _measured(depth: Float[np.ndarray, "h w"], near: Near) -> Bool[np.ndarray, "h w"]:
    if near == "high":
        return np.isfinite(depth)
    if (depth < 0).any():
        raise ValueError(f"a distance is {np.nanmin(depth):g}, but near='low' takes distances; give near='high'")
    return np.isfinite(depth) & (depth > 0)


def read_depth(path: str | Path) -> Float[np.ndarray, "h w"]:
    """A map from a .npy, an .npz (its only array, or `depth`) or a grey picture, of 16 bits at best, scaled to [0, 1].

    Raises FileNotFoundError; ValueError when it is damaged or not one number a pixel.
    """
    path = require_file(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: suffix {path.suffix!r} is not one of {' '.join(SUFFIXES)}, as depth maps have")
    if suffix not in (".npy", ".npz"):
        return _one_channel(path, read_image(path))
    return as_map(_read_arrays(path), path)


def as_map(array: np.ndarray, source: str | Path) -> Float[np.ndarray, "h w"]:
    """An array without its axes of length 1 as a map. Raises ValueError that begins with `source`."""
    found = array
    while found.ndim > 2 and 1 in (found.shape[0], found.shape[-1]):
        found = found[0] if found.shape[0] == 1 else found[..., 0]
    if found.ndim != 2 or not found.size or found.dtype.kind not in "fiu":
        raise ValueError(
            f"{source}: shape {list(array.shape)} of {array.dtype}; a depth map is [height, width] numbers"
        )
    return found.astype(np.float32)


def check_size(depth: Float[np.ndarray, "h w"], image: Float[np.ndarray, "h2 w2 3"]) -> None:
    """Raises ValueError unless the map has a value for each pixel."""
    if depth.shape != image.shape[:2]:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (depth.shape, image.shape)]
        raise ValueError(f"the depth map is {sizes[0]}, the picture {sizes[1]}; resize one to the other's size")


def _read_arrays(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded as archive:
            name = archive.files[0] if len(archive.files) == 1 else ARRAY
            if name not in archive.files:
                held = ", ".join(archive.files) or "nothing"
                raise KeyError(f"{path} holds {held}; keep one array, or call the map {ARRAY!r}")
            return archive[name]
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is no file of plain arrays ({reason[:100]}); write it again with NumPy") from None


def _one_channel(path: Path, image: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, "h w"]:
    if not (image == image[..., :1]).all():
        raise ValueError(f"{path} is a coloured picture; a depth map is grey: save the numbers, not a colour map")
    return np.ascontiguousarray(image[..., 0])
