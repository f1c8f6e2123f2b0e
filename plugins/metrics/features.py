"""Pictures and texts to vectors: the networks whose features `quality.py` compares.

A `FeatureExtractor` has a `name` and takes pictures, RGB in [0, 1], `b h w 3`, to features, `b d`:

| made by | name | d | weights |
| --- | --- | --- | --- |
| `lite0(path)` | efficientnet-lite0 | 1280 | `python -m recipes.downloads.efficientnet` |
| `inception(path)` | inception-2015-12-05 | 2048 | a user's ONNX file |
| `clip_images(path)` | clip-image | 512 to 1024 | a user's ONNX file |
| `clip_texts(path, tokenizer)`: texts in the place of pictures | clip-text | the same | a user's ONNX file |

**Only Inception's distance is called FID**, and only that network of 2015 as TensorFlow published it: torchvision's
Inception is another one, and EfficientNet's features give another number altogether. No package ships its weights or
CLIP's, so their owner exports them (`torch.onnx.export`) and installs the extra `onnx`, which brings onnxruntime.

How a picture is resized changes a distance more than many a model does (Parmar et al., 2104.11222), so each network has
its one way. In all of them a picture is first rounded to 8 bits, as a PNG file would:

- `clean_fid`: clean-fid's "clean" mode. Each channel as floats from 0 to 255 to 299x299 with Pillow's bicubic filter,
  which widens where it shrinks (antialiasing); proportions are not kept, nothing is rounded or clipped afterwards; then
  (x - 128) / 128. The ONNX file starts after that: the network that takes values around [-1, 1] at 299x299.
- `clip_resize`: OpenAI's. The shorter side to 224 or 336 with Pillow's bicubic filter on 8 bits, the middle square cut
  out, [0, 1], then CLIP's mean and deviation. CMMD's own program cuts first and resizes then: the same for square
  pictures.
- EfficientNet-Lite0 resizes by itself (`common/perceptual/efficientnet.py`).

An ONNX file may take `b 3 h w` or `b h w 3`; the place of the 3 in its input's shape tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from common.io.images import to_uint8
from common.perceptual.efficientnet import load_efficientnet

LITE0 = "efficientnet-lite0"
INCEPTION, INCEPTION_SIDE = "inception-2015-12-05", 299
CLIP_IMAGE, CLIP_TEXT, CLIP_SIDE = "clip-image", "clip-text", 224
CLIP_MEAN = np.array((0.48145466, 0.4578275, 0.40821073), np.float32)
CLIP_STD = np.array((0.26862954, 0.26130258, 0.27577711), np.float32)
BATCH = 32

Pictures = Float[np.ndarray, "b h w 3"]
Prepare = Callable[[UInt8[np.ndarray, "h w 3"]], Float[np.ndarray, "s s 3"]]


class FeatureExtractor(Protocol):
    """Anything with a name that takes pictures in [0, 1] to one row of features each."""

    @property
    def name(self) -> str: ...

    def __call__(self, images: Pictures) -> Float[np.ndarray, "b d"]: ...


class Lite0:
    """EfficientNet-Lite0, or a network of its kind, as an extractor."""

    name = LITE0

    def __init__(self, network: Any):
        self.network = network

    def __call__(self, images: Pictures) -> Float[np.ndarray, "b d"]:
        return self.network.embed(to_uint8(images))


class OnnxImages:
    """An extractor from an ONNX file.

    Args:
      path: the file; its only input is a batch of pictures.
      name: "inception-2015-12-05" for that network alone, see above.
      prepare: one picture in 8 bits -> what the network takes.
      output: which of its results; None: the only one.
      batch: pictures at once.

    Raises FileNotFoundError, ImportError without onnxruntime, ValueError for a file of another form.
    """

    def __init__(self, path: str | Path, name: str, prepare: Prepare, output: str | None = None, batch: int = BATCH):
        self.name, self.prepare, self.batch = name, prepare, batch
        self.session = open_onnx(path)
        self.output = choose_output(self.session, output, path)
        inputs = self.session.get_inputs()
        shape = list(inputs[0].shape)
        if len(inputs) != 1 or len(shape) != 4 or 3 not in (shape[1], shape[3]):
            found = ", ".join(f"{x.name} {list(x.shape)}" for x in inputs)
            raise ValueError(f"{path} takes {found}; it should take one batch of pictures, b 3 h w or b h w 3")
        self.input, self.channels_first = inputs[0].name, shape[1] == 3

    def __call__(self, images: Pictures) -> Float[np.ndarray, "b d"]:
        found = []
        for start in range(0, len(images), self.batch):
            batch = np.stack([self.prepare(to_uint8(image)) for image in images[start : start + self.batch]])
            batch = np.ascontiguousarray(batch.transpose(0, 3, 1, 2)) if self.channels_first else batch
            rows = self.session.run([self.output], {self.input: batch})[0]
            found.append(np.asarray(rows, np.float32).reshape(len(batch), -1))  # some give b d 1 1
        return np.concatenate(found)


class OnnxTexts:
    """CLIP's text tower: texts -> embeddings `b d`. Its inputs are `input_ids` or the only one, `b 77`, and perhaps
    `attention_mask`; arguments and errors as `OnnxImages`."""

    def __init__(
        self,
        path: str | Path,
        tokenizer: Callable[[Sequence[str]], Int[np.ndarray, "b n"]],
        output: str | None = None,
        batch: int = BATCH,
    ):
        self.name, self.tokenizer, self.batch = CLIP_TEXT, tokenizer, batch
        self.session = open_onnx(path)
        self.output = choose_output(self.session, output, path)
        self.types = {x.name: np.int32 if x.type == "tensor(int32)" else np.int64 for x in self.session.get_inputs()}
        self.ids = next((name for name in self.types if name != "attention_mask"), "")
        if not self.ids or set(self.types) - {self.ids, "attention_mask"}:
            raise ValueError(
                f"{path} takes {', '.join(self.types)}; it should take input_ids, and attention_mask or not"
            )

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "b d"]:
        found = []
        for start in range(0, len(texts), self.batch):
            ids = self.tokenizer(list(texts[start : start + self.batch]))
            # Causal attention: what follows the end cannot change the embedding, so no token needs to be hidden.
            given = {name: ids if name == self.ids else np.ones_like(ids) for name in self.types}
            feed = {name: np.asarray(value, self.types[name]) for name, value in given.items()}
            found.append(np.asarray(self.session.run([self.output], feed)[0], np.float32))
        return np.concatenate(found)


def lite0(path: str | Path = "data/efficientnet_lite0.safetensors") -> Lite0:
    """Raises as `load_efficientnet`."""
    return Lite0(load_efficientnet(path))


def inception(path: str | Path, output: str | None = None, batch: int = BATCH) -> OnnxImages:
    """Inception of 2015-12-05 for FID and KID: its 2048 features after the last pooling. Raises as `OnnxImages`."""
    return OnnxImages(path, INCEPTION, clean_fid, output, batch)


def clip_images(path: str | Path, side: int = CLIP_SIDE, output: str | None = None, batch: int = BATCH) -> OnnxImages:
    """CLIP's image tower with its projection; `side` is 336 for CMMD's ViT-L/14. Raises as `OnnxImages`."""
    return OnnxImages(path, CLIP_IMAGE, partial(clip_resize, side=side), output, batch)


def clip_texts(
    path: str | Path, tokenizer: Callable[[Sequence[str]], Int[np.ndarray, "b n"]], output: str | None = None
) -> OnnxTexts:
    """CLIP's text tower with its projection; `tokenizer` is a `plugins.diffusion.Tokenizer`. Raises as `OnnxImages`."""
    return OnnxTexts(path, tokenizer, output)


def clean_fid(image: UInt8[np.ndarray, "h w 3"]) -> Float[np.ndarray, "s s 3"]:
    """299x299, (x - 128) / 128; see the module."""
    channels = [Image.fromarray(np.ascontiguousarray(image[..., i], np.float32)) for i in range(3)]
    size = (INCEPTION_SIDE, INCEPTION_SIDE)
    resized = [np.asarray(channel.resize(size, Image.Resampling.BICUBIC)) for channel in channels]
    return (np.stack(resized, axis=-1) - 128) / 128


def clip_resize(image: UInt8[np.ndarray, "h w 3"], side: int = CLIP_SIDE) -> Float[np.ndarray, "s s 3"]:
    """side x side, normalised; see the module."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    size = (int(side * width / shorter), int(side * height / shorter))  # torchvision cuts the fraction off
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    top, left = (round((have - side) / 2) for have in resized.shape[:2])
    return (resized[top : top + side, left : left + side].astype(np.float32) / 255 - CLIP_MEAN) / CLIP_STD


def open_onnx(path: str | Path) -> Any:
    """An onnxruntime session on the CPU. Raises FileNotFoundError, ImportError, ValueError, each in one line."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; give an ONNX file, exported with torch.onnx.export")
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs onnxruntime: pip install 'film-plugins-reveal[onnx]' ({error})"
        ) from error
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes have no common base but this one
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} is no network that onnxruntime reads ({reason}): export it again") from error


def choose_output(session: Any, output: str | None, path: str | Path) -> str:
    """The result asked for, or the only one. Raises ValueError that lists them."""
    names = [x.name for x in session.get_outputs()]
    if output is None and len(names) == 1:
        return names[0]
    if output not in names:
        raise ValueError(f"{path}: output {output!r} is not among {', '.join(names)}; choose one of them")
    assert output is not None
    return output
