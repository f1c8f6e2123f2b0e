"""A user's ONNX files, run by onnxruntime (extra `onnx`): depth models, and networks whose features are compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.files import require_file


def open_session(path: str | Path, providers: Sequence[str] | None = None) -> Any:
    """An onnxruntime session on these execution providers; None: all that are installed. Raises FileNotFoundError,
    ImportError that names the extra, ValueError for a file that is no ONNX model."""
    require_file(path)
    try:
        import onnxruntime
    except ImportError as error:
        found = f"{path} needs onnxruntime, which cannot be imported ({error})"
        raise ImportError(f"{found}; pip install 'film-plugins-reveal[onnx]'") from error
    try:
        providers = onnxruntime.get_available_providers() if providers is None else list(providers)
        return onnxruntime.InferenceSession(str(path), providers=providers)
    except Exception as error:  # onnxruntime's exceptions share no other base class
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"{path} is no ONNX model that onnxruntime can read ({reason}); export it again") from error


class ImageModel:
    """A session with one input, a batch of images `b 3 h w` or `b h w 3`; the place of the 3 decides."""

    def __init__(self, path: str | Path, providers: Sequence[str] | None = None):
        self.session = open_session(path, providers)
        inputs = self.session.get_inputs()
        shape = list(inputs[0].shape)
        if len(inputs) != 1 or len(shape) != 4 or 3 not in (shape[1], shape[3]):
            found = ", ".join(f"{each.name} {list(each.shape)}" for each in inputs)
            raise ValueError(f"{path} takes {found}; expected one batch of images, b 3 h w or b h w 3")
        self.channels_first = shape[1] == 3
        self.size = shape[2:] if self.channels_first else shape[1:3]  # height, width; no int where the file takes any

    def run(self, images: Float[np.ndarray, "b h w 3"], output: str | None = None) -> np.ndarray:
        """The output of that name; None: the first."""
        batch = np.ascontiguousarray(images.transpose(0, 3, 1, 2) if self.channels_first else images)
        return np.asarray(self.session.run(output and [output], {self.session.get_inputs()[0].name: batch})[0])
