"""Feature extractors: the networks that make vectors of images and texts, for the distances in `quality`.

A `FeatureExtractor` has a `name` and maps RGB images in [0, 1], `b h w 3`, or texts to features, `b d`:

| made by | name | d | weights |
| --- | --- | --- | --- |
| `lite0(path)` | efficientnet-lite0 | 1280 | `python -m recipes.downloads.efficientnet` |
| `inception(path)` | inception-2015-12-05 | 2048 | a user's ONNX file |
| `clip(folder).images`, `.texts` | as `ViT-L/14-336` | 512 to 1024 | transformers' folder of a CLIP, or its address |

**Only the distance in Inception's features is called FID**, and only of the network of 2015 as TensorFlow published it,
which no package ships: whoever has it exports it (`torch.onnx.export`) and installs the extra `onnx`.

Resizing changes a distance more than many models differ (Parmar et al., 2104.11222), so each network has one method,
after rounding to 8 bits as in a PNG file. `clean_fid` is clean-fid's "clean" mode: each channel as floats from 0 to 255
to 299x299 with Pillow's antialiasing bicubic filter, without rounding or clipping; then (x - 128) / 128. CLIP's is
in its `preprocessor_config.json` (`common/io/image_preparation.py`); EfficientNet-Lite0 resizes by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float, UInt8
from PIL import Image

from common.io.clip_tokenizer import Tokenizer
from common.io.image_preparation import ImagePreparation
from common.io.images import to_uint8
from common.nn.two_towers import TwoTowers
from common.perceptual.efficientnet import load_efficientnet
from common.weights.remote import local
from common.weights.two_tower_files import load_two_towers
from plugins.onnx_model import ImageModel

LITE0, CMMD_TOWER = "efficientnet-lite0", "ViT-L/14-336"
SIZES = {768: "B", 1024: "L", 1280: "H", 1664: "bigG"}  # of a vision tower, by its width
INCEPTION, INCEPTION_SIDE = "inception-2015-12-05", 299
BATCH = 32
CPU = ("CPUExecutionProvider",)  # the same numbers on every machine


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
    file's; None: the only one. Raises as `plugins.onnx_model.ImageModel`, ValueError for another output."""
    model = ImageModel(path, CPU)
    names = [each.name for each in model.session.get_outputs()]
    chosen = names[0] if output is None and len(names) == 1 else output
    if chosen not in names:
        raise ValueError(f"{path}: output {output!r} is not among {', '.join(names)}; choose one of them")

    def rows(images: Float[np.ndarray, "b h w 3"]) -> Float[np.ndarray, "b d"]:
        found = model.run(np.stack([clean_fid(to_uint8(image)) for image in images]), chosen)
        return np.asarray(found, np.float32).reshape(len(images), -1)  # some give b d 1 1

    return FeatureExtractor(INCEPTION, partial(_in_batches, rows, batch))


@dataclass(frozen=True)
class Clip:
    """Both towers of a CLIP, whose embeddings are of unit length."""

    images: FeatureExtractor
    texts: FeatureExtractor


def clip(folder: str | Path, batch: int = BATCH) -> Clip:
    """For CMMD and CLIP score. `folder`: a CLIP as transformers writes it, with its tokenizer, or its address
    (`hf:openai/clip-vit-large-patch14-336` is the one of CMMD). Texts of more than 77 tokens are cut. Raises as
    `load_two_towers` and `Tokenizer.from_folder`, ValueError for a SigLIP."""
    folder = local(folder, pickles=True)
    towers = load_two_towers(folder)
    if towers.config.family != "clip":
        raise ValueError(f"{folder} is a SigLIP: CMMD and CLIP score are of CLIP; give a folder of CLIP")
    config, tokenizer = towers.config.vision, Tokenizer.from_folder(folder)
    if len(tokenizer.vocab) > towers.config.text.vocab_size:
        rule = f"the text tower has {towers.config.text.vocab_size}; take both from one model"
        raise ValueError(f"{folder}: {len(tokenizer.vocab)} tokens, {rule}")
    preparation = ImagePreparation.of_folder(folder, config.image_size, ImagePreparation(config.image_size))
    name = f"ViT-{SIZES.get(config.hidden_size, config.hidden_size)}/{config.patch_size}-{config.image_size}"
    graph, params = nnx.split(towers)

    @partial(jax.jit, static_argnames="tower")
    def embed(tower: str, params: Any, inputs: Any) -> Any:
        return getattr(TwoTowers, tower)(nnx.merge(graph, params), inputs)

    def rows(tower: str, inputs: np.ndarray) -> Float[np.ndarray, "b d"]:
        """All batches have one shape, so that each tower is compiled once."""
        missing = batch - len(inputs)
        padded = np.concatenate([inputs, np.repeat(inputs[-1:], missing, axis=0)])
        return np.asarray(embed(tower, params, padded))[: len(inputs)]

    def images(given: Sequence[np.ndarray] | Float[np.ndarray, "b h w 3"]) -> Float[np.ndarray, "b d"]:
        resized = np.stack([preparation.resized(to_uint8(image)) for image in given])
        return rows("embed_image", preparation.normalised(resized))

    def texts(given: Sequence[str]) -> Float[np.ndarray, "b d"]:
        return rows("embed_text", tokenizer(list(given), towers.config.text_length))

    return Clip(*(FeatureExtractor(name, partial(_in_batches, each, batch)) for each in (images, texts)))


def clean_fid(image: UInt8[np.ndarray, "h w 3"]) -> Float[np.ndarray, "s s 3"]:
    """299x299, (x - 128) / 128; see the module."""
    size = (INCEPTION_SIDE, INCEPTION_SIDE)
    channels = [Image.fromarray(np.ascontiguousarray(image[..., i], np.float32)) for i in range(3)]
    resized = [np.asarray(channel.resize(size, Image.Resampling.BICUBIC)) for channel in channels]
    return (np.stack(resized, axis=-1) - 128) / 128


def _in_batches(rows: Callable[[Any], Float[np.ndarray, "b d"]], batch: int, inputs: Any) -> Float[np.ndarray, "n d"]:
    return np.concatenate([rows(inputs[start : start + batch]) for start in range(0, len(inputs), batch)])
