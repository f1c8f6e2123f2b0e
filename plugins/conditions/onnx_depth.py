"""Depth models in a user's own ONNX file (extra `onnx`): MiDaS, Depth Anything and similar ones.

Such a file has one input, an image `1 3 h w` (or `1 h w 3`) normalised by ImageNet's mean and standard deviation, and
one output, a map `1 h w`, `1 1 h w` or `h w`, where near is high. A file of fixed size gets the image at that size. A
file of any size gets the image with its shorter side near `side` and both sides multiples of `multiple`. The map is
resized to the image.
"""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float

from plugins.conditions.depth import as_map
from plugins.onnx_model import ImageModel


@dataclass
class OnnxDepth:
    """A `DepthModel` from a file. Raises as `plugins.onnx_model.ImageModel`."""

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
        rows, columns = self.input_size(height, width)
        interpolation = cv2.INTER_AREA if rows * columns < height * width else cv2.INTER_CUBIC
        mean, std = np.array([self.mean, self.std], np.float32)
        resized = (cv2.resize(image, (columns, rows), interpolation=interpolation) - mean) / std
        found = as_map(self.model.run(resized[None].astype(np.float32)), self.path)
        return np.asarray(cv2.resize(found, (width, height), interpolation=cv2.INTER_CUBIC))

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """The size at which the model gets an image."""
        if all(isinstance(side, int) for side in self.model.size):
            return int(self.model.size[0]), int(self.model.size[1])
        scale = self.side / min(height, width)
        rows, columns = (max(1, round(side * scale / self.multiple)) * self.multiple for side in (height, width))
        return rows, columns
