"""Depth by a user's own ONNX file (extra `onnx`): MiDaS, Depth Anything and others like them.

What such files have in common: one input, a picture `1 3 h w` (or `1 h w 3`), normalised by ImageNet's mean and
deviation; one output, a map `1 h w`, `1 1 h w` or `h w`, nearer being higher. A file made for one size gets the picture
at that size; one made for any gets it with the shorter side at about `side`, both sides multiples of `multiple`. The
map comes back at the picture's size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float

from common.io.files import require_file
from plugins.conditions.depth import as_map

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE, MULTIPLE = 518, 14  # Depth Anything's; MiDaS takes 384 and 32


class OnnxDepth:
    """A `DepthModel` from a file. Raises FileNotFoundError, ValueError, ImportError without onnxruntime."""

    def __init__(
        self,
        path: str | Path,
        *,
        side: int = SIDE,
        multiple: int = MULTIPLE,
        mean: tuple[float, float, float] = MEAN,
        deviation: tuple[float, float, float] = DEVIATION,
    ) -> None:
        self.path, self.side, self.multiple = require_file(path), side, multiple
        self.mean, self.deviation = np.array(mean, np.float32), np.array(deviation, np.float32)
        self.session = _session(self.path)
        inputs = self.session.get_inputs()
        shape = list(inputs[0].shape) if len(inputs) == 1 else []
        self.channels_last = len(shape) == 4 and shape[3] == 3
        if len(shape) != 4 or (shape[1] != 3 and not self.channels_last):
            raise ValueError(f"{path} takes {[(i.name, i.shape) for i in inputs]}; expected one picture, 1 3 h w")
        self.size = tuple(shape[1:3] if self.channels_last else shape[2:4])

    def __call__(self, image: Float[np.ndarray, "h w 3"], /) -> Float[np.ndarray, "h w"]:
        """The map of an RGB picture in [0, 1]. Raises ValueError when the model gives something else."""
        height, width = image.shape[:2]
        rows, columns = self._working_size(height, width)
        how = cv2.INTER_AREA if rows * columns < height * width else cv2.INTER_CUBIC
        small = (cv2.resize(image, (columns, rows), interpolation=how) - self.mean) / self.deviation
        batch = small[None] if self.channels_last else small.transpose(2, 0, 1)[None]
        outputs = self.session.run(None, {self.session.get_inputs()[0].name: np.float32(batch)})
        found = as_map(np.asarray(outputs[0]), self.path)
        return np.asarray(cv2.resize(found, (width, height), interpolation=cv2.INTER_CUBIC))

    def _working_size(self, height: int, width: int) -> tuple[int, int]:
        """Of what the model is given: its own size, or the picture's shape at about `side`."""
        if all(isinstance(n, int) for n in self.size):
            return int(self.size[0]), int(self.size[1])
        scale = self.side / min(height, width)
        rows, columns = (max(1, round(n * scale / self.multiple)) * self.multiple for n in (height, width))
        return rows, columns


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"{path.name} is run by onnxruntime, which cannot be imported ({error}); "
            'pip install "film-plugins-reveal[onnx]", or give maps by --depth'
        ) from error
    try:
        return onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
    except Exception as error:  # its classes share no base but this
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"{path} is no ONNX model that onnxruntime can read ({reason}); export it again") from error
