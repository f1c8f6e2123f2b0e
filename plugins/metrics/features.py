"""Feature extractors: the networks that make vectors of images and texts, for the distances in `quality`.

A `FeatureExtractor` has a `name` and maps RGB images in [0, 1], `b h w 3`, to features, `b d`:

| made by | name | d | weights |
| --- | --- | --- | --- |
| `lite0(path)` | efficientnet-lite0 | 1280 | `python -m recipes.downloads.efficientnet` |
| `inception(path)` | inception-2015-12-05 | 2048 | a user's ONNX file |
| `clip_images(path)` | clip-image | 512 to 1024 | a user's ONNX file |
| `clip_texts(path, tokenizer)`, which takes texts | clip-text | the same | a user's ONNX file |

**Only the distance in Inception's features is called FID**, and only of the network of 2015 as TensorFlow published it:
torchvision's Inception is another network. No package ships its weights or CLIP's; whoever has them exports them
(`torch.onnx.export`) and installs the extra `onnx`.

Resizing changes a distance more than many models differ (Parmar et al., 2104.11222), so each network has one method,
after rounding to 8 bits as in a PNG file:

- `clean_fid`: clean-fid's "clean" mode. Each channel as floats from 0 to 255 to 299x299 with Pillow's bicubic filter,
  which antialiases; the aspect is not kept, nothing is rounded or clipped afterwards; then (x - 128) / 128, which is
  what the ONNX file takes.
- `clip_resize`: OpenAI's. The shorter side to 224 or 336 with Pillow's bicubic filter on 8 bits, a centre crop, [0, 1],
  then CLIP's mean and standard deviation. CMMD's own program crops first: the same for square images.
- EfficientNet-Lite0 resizes by itself (`common/perceptual/efficientnet.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from common.io.images import to_uint8
from common.perceptual.efficientnet import load_efficientnet
from plugins.onnx_model import ImageModel, open_session

LITE0 = "efficientnet-lite0"
INCEPTION, INCEPTION_SIDE = "inception-2015-12-05", 299
CLIP_IMAGE, CLIP_TEXT, CLIP_SIDE = "clip-image", "clip-text", 224
CLIP_MEAN = np.array((0.48145466, 0.4578275, 0.40821073), np.float32)
CLIP_STD = np.array((0.26862954, 0.26130258, 0.27577711), np.float32)
BATCH = 32
CPU = ("CPUExecutionProvider",)  # the same numbers on every machine

Preprocess = Callable[[UInt8[np.ndarray, "h w 3"]], Float[np.ndarray, "s s 3"]]
Tokenize = Callable[[Sequence[str]], Int[np.ndarray, "b n"]]


@dataclass(frozen=True)
class FeatureExtractor:
    """A network's name and its function: images `b h w 3` in [0, 1], or texts, -> features `b d`."""

    name: str
    embed: Callable[[Any], Float[np.ndarray, "b d"]]

    def __call__(self, inputs: Any) -> Float[np.ndarray, "b d"]:
        return self.embed(inputs)


def lite0(path: str | Path = "data/efficientnet_lite0.safetensors") -> FeatureExtractor:
    """EfficientNet-Lite0's 1280 features. Raises as `load_efficientnet`."""
    network = load_efficientnet(path)
    return FeatureExtractor(LITE0, lambda images: network.embed(to_uint8(images)))


def inception(path: str | Path, output: str | None = None, batch: int = BATCH) -> FeatureExtractor:
    """Inception of 2015-12-05, for FID and KID: its 2048 features after the last pooling. `output` names one of the
    file's; None: the only one. Raises as `plugins.onnx_model.ImageModel`."""
    return _onnx_images(INCEPTION, path, clean_fid, output, batch)


def clip_images(
    path: str | Path, side: int = CLIP_SIDE, output: str | None = None, batch: int = BATCH
) -> FeatureExtractor:
    """CLIP's image encoder with its projection, as `inception`; `side` is 336 for CMMD's ViT-L/14."""
    return _onnx_images(CLIP_IMAGE, path, partial(clip_resize, side=side), output, batch)


def clip_texts(path: str | Path, tokenizer: Tokenize, output: str | None = None) -> FeatureExtractor:
    """CLIP's text encoder with its projection. `tokenizer` is a `plugins.diffusion.Tokenizer`; the file's inputs are
    `input_ids` or the only one, `b 77`, and perhaps `attention_mask`. Raises as `inception`."""
    session = open_session(path, CPU)
    output = _choose_output(session, output, path)
    types = {each.name: np.int32 if each.type == "tensor(int32)" else np.int64 for each in session.get_inputs()}
    ids_name = next((name for name in types if name != "attention_mask"), "")
    if not ids_name or set(types) - {ids_name, "attention_mask"}:
        raise ValueError(f"{path} takes {', '.join(types)}; expected input_ids, and attention_mask or not")

    def rows(texts: Sequence[str]) -> Float[np.ndarray, "b d"]:
        ids = tokenizer(list(texts))
        # Attention is causal: what follows the end token cannot change the embedding, so no token is masked.
        feed = {name: (ids if name == ids_name else np.ones_like(ids)).astype(kind) for name, kind in types.items()}
        return np.asarray(session.run([output], feed)[0], np.float32)

    return FeatureExtractor(CLIP_TEXT, partial(_in_batches, rows, BATCH))


def clean_fid(image: UInt8[np.ndarray, "h w 3"]) -> Float[np.ndarray, "s s 3"]:
    """299x299, (x - 128) / 128; see the module."""
    size = (INCEPTION_SIDE, INCEPTION_SIDE)
    channels = [Image.fromarray(np.ascontiguousarray(image[..., i], np.float32)) for i in range(3)]
    resized = [np.asarray(channel.resize(size, Image.Resampling.BICUBIC)) for channel in channels]
    return (np.stack(resized, axis=-1) - 128) / 128


def clip_resize(image: UInt8[np.ndarray, "h w 3"], side: int = CLIP_SIDE) -> Float[np.ndarray, "s s 3"]:
    """side x side, normalised; see the module."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    size = (int(side * width / shorter), int(side * height / shorter))  # torchvision truncates
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    top, left = (round((length - side) / 2) for length in resized.shape[:2])
    return (resized[top : top + side, left : left + side].astype(np.float32) / 255 - CLIP_MEAN) / CLIP_STD


def _onnx_images(
    name: str, path: str | Path, preprocess: Preprocess, output: str | None, batch: int
) -> FeatureExtractor:
    model = ImageModel(path, CPU)
    output = _choose_output(model.session, output, path)

    def rows(images: Float[np.ndarray, "b h w 3"]) -> Float[np.ndarray, "b d"]:
        found = model.run(np.stack([preprocess(to_uint8(image)) for image in images]), output)
        return np.asarray(found, np.float32).reshape(len(images), -1)  # some give b d 1 1

    return FeatureExtractor(name, partial(_in_batches, rows, batch))


def _in_batches(rows: Callable[[Any], Float[np.ndarray, "b d"]], batch: int, inputs: Any) -> Float[np.ndarray, "n d"]:
    return np.concatenate([rows(inputs[start : start + batch]) for start in range(0, len(inputs), batch)])


def _choose_output(session: Any, output: str | None, path: str | Path) -> str:
    """The named output, or the only one. Raises ValueError that lists them."""
    names = [each.name for each in session.get_outputs()]
    chosen = names[0] if output is None and len(names) == 1 else output
    if chosen is None or chosen not in names:
        raise ValueError(f"{path}: output {output!r} is not among {', '.join(names)}; choose one of them")
    return chosen
