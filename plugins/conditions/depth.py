"""Depth as an image: near is bright, far is black, each image scaled to [0, 1] by itself.

The condition of MediaPipe's depth plugin: a depth model's output, min-max normalised, in three equal channels. Depth
comes from a file, from a user's own model (`OnnxDepth`; no package ships one), or from a silhouette (`inflate`). Files
do not record which of two conventions is theirs; values that are not finite are "not measured", and black:

| near | the map holds | shown |
| --- | --- | --- |
| "high" | values that grow towards the camera: inverse depth (MiDaS, Depth Anything), disparity | as it is |
| "low" | distances in any unit; 0 means "not measured", as depth cameras write it | its reciprocal |

**Inflation.** Teddy (Igarashi et al., SIGGRAPH 1999) inflates the silhouette (`mask.foreground`) of one object on a
plain background; with d the distance to the background and R the largest one,

    nearness = base + (1 - base) sqrt(d (2 R - d)) / R         on the object: half a ball on a disc

and 0 on the background, or a floor that comes nearer towards the bottom.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from jaxtyping import Bool, Float

from common.io.arrays import open_arrays
from common.io.files import require_file
from common.io.images import READABLE, read_image
from plugins.conditions.mask import foreground
from plugins.onnx_model import ImageModel

Near = Literal["high", "low"]
SUFFIXES = (".npy", ".npz", ".png", *(suffix for suffix in READABLE if suffix != ".png"))
ARRAY = "depth"  # of an .npz with several arrays
BASE = 0.5  # nearness of an inflated object at its outline


# Estimates depth: an RGB image in [0, 1] -> a map of its size, in either convention.
DepthModel = Callable[[Float[np.ndarray, "h w 3"]], Float[np.ndarray, "h w"]]


def depth(
    image: Float[np.ndarray, "h w 3"],
    *,
    depth: Float[np.ndarray, "h2 w2"] | None = None,
    model: DepthModel | None = None,
    near: Near = "high",
    inflate: bool = False,
) -> Float[np.ndarray, "h w 3"]:
    """From a map of the image's size, by a model, or inflated from the silhouette of one object on a plain ground."""
    if (depth is not None) + (model is not None) + inflate != 1:
        raise ValueError("depth is made from a map, by a model or by inflation: give one of depth=, model=, inflate=")
    if inflate:
        return np.repeat(inflated(foreground(image))[..., None], 3, axis=-1)
    found = depth if model is None else model(image)
    assert found is not None
    if found.shape != image.shape[:2]:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (found.shape, image.shape)]
        raise ValueError(f"the depth map is {sizes[0]}, the image {sizes[1]}; resize one to the other's size")
    return draw_depth(found, near)


def inflated(silhouette: Bool[np.ndarray, "h w"], base: float = BASE, floor: float = 0.0) -> Float[np.ndarray, "h w"]:
    """Nearness in [0, 1] of an object with this silhouette, `floor` at the bottom of the background."""
    padded = np.pad(silhouette, 1).astype(np.uint8)  # the border cuts an object off
    distance = cv2.distanceTransform(padded, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
    largest = max(float(distance.max()), 1.0)
    ball = np.sqrt(distance * (2 * largest - distance)) / largest
    ground = floor * np.linspace(0, 1, len(silhouette))[:, None]
    return np.where(silhouette, base + (1 - base) * ball, ground).astype(np.float32)


def draw_depth(depth: Float[np.ndarray, "h w"], near: Near = "high") -> Float[np.ndarray, "h w 3"]:
    """The condition image of a map. Raises as `normalise`."""
    return np.repeat(normalise(depth, near)[..., None], 3, axis=-1)


def normalise(depth: Float[np.ndarray, "h w"], near: Near = "high") -> Float[np.ndarray, "h w"]:
    """Nearness from 0 (the farthest, and what was not measured) to 1. Raises ValueError for a map of nothing, or equal
    values."""
    if near not in ("high", "low"):
        raise ValueError(f"near is {near!r}: choose 'high' or 'low', the values of near pixels")
    measured = np.isfinite(depth)
    if near == "low":
        if (depth < 0).any():
            raise ValueError(f"a distance is {np.nanmin(depth):g}, but near='low' takes distances; give near='high'")
        measured &= depth > 0
    if not measured.any():
        raise ValueError("the depth map has no measured value (all are 0, infinite or NaN); give another")
    values = depth[measured].astype(np.float64)
    values = 1 / values if near == "low" else values
    low, high = values.min(), values.max()
    if not high > low:
        raise ValueError(f"the depth is {depth[measured][0]:g} everywhere, so nothing is nearer; give another map")
    nearness = np.zeros(depth.shape, np.float32)
    nearness[measured] = (values - low) / (high - low)
    return nearness


def read_depth(path: str | Path) -> Float[np.ndarray, "h w"]:
    """A map from a .npy, an .npz (its only array, or `depth`) or a grey image of 8 or 16 bits, scaled to [0, 1].
    Raises FileNotFoundError; ValueError for a file that is damaged or has not one number a pixel."""
    path = require_file(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: suffix {path.suffix!r} is not one of {' '.join(SUFFIXES)}, as depth maps have")
    if suffix not in (".npy", ".npz"):
        image = read_image(path)
        if not (image == image[..., :1]).all():
            raise ValueError(f"{path} is a colour image; a depth map is grey: save the numbers, not a colour map")
        return np.ascontiguousarray(image[..., 0])
    with open_arrays(path) as arrays:
        names = list(arrays)
        name = names[0] if len(names) == 1 else ARRAY
        found = arrays[name] if name in names else None
    if found is None:
        raise ValueError(f"{path} holds {', '.join(names) or 'nothing'}; keep one array, or name the map {ARRAY!r}")
    return as_map(found, path)


def as_map(array: np.ndarray, source: str | Path) -> Float[np.ndarray, "h w"]:
    """An array without its outer axes of length 1 as a map. Raises ValueError that begins with `source`."""
    found = array
    while found.ndim > 2 and 1 in (found.shape[0], found.shape[-1]):
        found = found[0] if found.shape[0] == 1 else found[..., 0]
    if found.ndim != 2 or not found.size or found.dtype.kind not in "fiu":
        raise ValueError(f"{source}: shape {list(array.shape)} of {array.dtype}; a map is [height, width] numbers")
    return found.astype(np.float32)


@dataclass
class OnnxDepth:
    """A `DepthModel` from a user's own ONNX file (extra `onnx`): MiDaS, Depth Anything and similar ones.

    Such a file has one input, an image `1 3 h w` (or `1 h w 3`) normalised by ImageNet's mean and standard deviation,
    and one output, a map `1 h w`, `1 1 h w` or `h w`, where near is high. A file of any size gets the image with its
    shorter side near `side` and both sides multiples of `multiple`; the map is resized to the image. Raises as
    `plugins.onnx_model.ImageModel`."""

    path: str | Path
    _: KW_ONLY
    side: int = 518  # Depth Anything's, as the next; MiDaS takes 384 and 32
    multiple: int = 14
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        self.model = ImageModel(self.path)

    def __call__(self, image: Float[np.ndarray, "h w 3"], /) -> Float[np.ndarray, "h w"]:
        """The map of an RGB image in [0, 1]. Raises ValueError when the output is no map."""
        height, width = image.shape[:2]
        scale = self.side / min(height, width)
        rows, columns = (max(1, round(side * scale / self.multiple)) * self.multiple for side in (height, width))
        if all(isinstance(side, int) for side in self.model.size):
            rows, columns = self.model.size
        interpolation = cv2.INTER_AREA if rows * columns < height * width else cv2.INTER_CUBIC
        mean, std = np.array([self.mean, self.std], np.float32)
        resized = (cv2.resize(image, (columns, rows), interpolation=interpolation) - mean) / std
        found = as_map(self.model.run(resized[None].astype(np.float32)), self.path)
        return np.asarray(cv2.resize(found, (width, height), interpolation=cv2.INTER_CUBIC))
