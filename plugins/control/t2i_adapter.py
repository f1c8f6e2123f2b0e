"""T2I-Adapter (Mou et al., "Learning Adapters to Dig Out More Controllable Ability", 2302.08453).

    condition image, b h w 3 in [0, 1]
      pixel unshuffle   blocks of 8x8 pixels become channels                b h/8 w/8 192
      conv_in           3x3
      body, level 0     residual blocks                                     -> + the UNet's first level
      level 1, 2, 3     average over 2x2, then as above                     -> + its second, third, fourth

A residual block is 3x3 convolution, ReLU, 1x1 convolution, added to its input; there are no norms. Like MediaPipe's
plugin (`mediapipe.py`) the network runs once per image, with the same outputs and twelve times the size. The `light`
type works at a quarter of each level's width, between 1x1 convolutions, and starts from the pixels: 18,689,200
parameters at SD 1.5 in place of 77,369,280. The XL type unshuffles by 16; only its third level halves, and the fourth
output is for the middle.

A new adapter does change the base's output: the paper starts without zeros, because the residual stream is the output.
The release's sketch and canny adapters read one channel, the first of a grey image, as the release's own program does.
"""

import dataclasses
import itertools
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from common.checked import OneOrMore, Positive, one_of
from common.nn.json_config import JsonConfig, Layers
from plugins.control.contract import ControlNetwork, check_fit
from plugins.diffusion.networks.layers import Conv
from plugins.diffusion.networks.unet_config import UNetConfig

FULL, LIGHT, XL = TYPES = ("full_adapter", "light_adapter", "full_adapter_xl")


@dataclasses.dataclass(frozen=True)
class T2IAdapterConfig(JsonConfig):
    """Architecture of an adapter, with diffusers' option names; the default is Stable Diffusion 1.x's."""

    architecture: ClassVar[str] = "T2IAdapter"

    in_channels: Literal[1, 3] = 3  # 1 for the sketch and canny adapters, which read the image's first channel alone
    # Width of each level, finest first; a light adapter's last level has the width of the one before and is left out.
    channels: OneOrMore[Positive] = (320, 640, 1280, 1280)
    num_res_blocks: Layers = 2  # of a level
    downscale_factor: Positive = 8  # pixels of the image per latent pixel and side
    adapter_type: Annotated[str, one_of(TYPES)] = FULL

    def rules(self):
        light, xl = self.adapter_type == LIGHT, self.adapter_type == XL
        yield not light or not any(c % 4 for c in self.channels), "4 divides the channels of a light adapter_type"
        yield not xl or len({*self.channels[2:]}) < 2, "channels of an XL adapter_type are equal from the third on"

    @property
    def outputs(self) -> tuple[int, ...]:
        """Width of each level."""
        return (*self.channels, *self.channels[-1:]) if self.adapter_type == LIGHT else tuple(self.channels)

    @property
    def strides(self) -> tuple[int, ...]:
        """2 for each level that halves the resolution of the one before, else 1."""
        halving = (2,) if self.adapter_type == XL else range(1, len(self.outputs))
        return tuple(2 if level in halving else 1 for level in range(len(self.outputs)))

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int = 8) -> "T2IAdapterConfig":
        """A full adapter for that UNet, with `reduction` pixels per latent pixel."""
        return cls(channels=tuple(unet.block_out_channels), downscale_factor=reduction)


class T2IAdapter(ControlNetwork):
    """The adapter; `T2IAdapter.for_unet(unet.config, rngs=...)` makes a new one."""

    config: T2IAdapterConfig
    config_class: ClassVar[Any] = T2IAdapterConfig

    def __init__(self, config: T2IAdapterConfig, *, rngs: nnx.Rngs):
        self.config, self.num_outputs, self.reduction = config, len(config.outputs), config.downscale_factor
        self.adapter = Adapter(config, rngs=rngs)

    def check(self, unet: UNetConfig, reduction: int) -> None:
        """One output per level; one more is added after the middle, at the last level's size."""
        pixels = self.reduction * np.cumprod(self.config.strides)
        found = list(zip(self.config.outputs, pixels.tolist(), strict=True))
        base = [(width, reduction * 2**level) for level, width in enumerate(unet.block_out_channels)]
        if self.config.adapter_type == XL:  # a level without transformers takes its feature after its downsampler
            base = [(width, n * (1 + unet.takes_after(level))) for level, (width, n) in enumerate(base)]
        if found != [*base, base[-1]]:
            key = "outputs as (width, pixels per output pixel)"
            check_fit("T2I-Adapter", {key: found}, {key: base})

    def encode(self, image: Float[Array, "b h w 3"]) -> tuple[Float[Array, "b _h _w _c"], ...]:
        """The features, one per level, finest first. Raises ValueError unless sides are multiples of the factor."""
        return self.adapter(lax.slice_in_dim(image, 0, self.config.in_channels, axis=3))


class Adapter(nnx.Module):
    """The whole network; the tensor names of files begin with this attribute."""

    def __init__(self, config: T2IAdapterConfig, *, rngs: nnx.Rngs):
        light, self.factor = config.adapter_type == LIGHT, config.downscale_factor
        unshuffled = config.in_channels * self.factor**2
        self.conv_in = None if light else Conv(unshuffled, config.channels[0], padding=1, rngs=rngs)
        widths = (unshuffled if light else config.channels[0], *config.outputs)
        levels = zip(itertools.pairwise(widths), config.strides, strict=True)
        depth = config.num_res_blocks
        self.body = nnx.List([AdapterLevel(*pair, stride, depth, light, rngs=rngs) for pair, stride in levels])

    def __call__(self, image: Float[Array, "b h w i"]) -> tuple[Float[Array, "b _h _w _c"], ...]:
        x, features = pixel_unshuffle(image, self.factor), []
        x = x if self.conv_in is None else self.conv_in(x)
        for level in self.body:
            features.append(x := level(x))
        return tuple(features)


class AdapterLevel(nnx.Module):
    """Half the resolution in most levels, then residual blocks; a light level narrows before and widens after them."""

    def __init__(self, inputs: int, outputs: int, stride: int, depth: int, light: bool, *, rngs: nnx.Rngs):
        width = outputs // 4 if light else outputs
        self.stride = stride
        self.in_conv = Conv(inputs, width, 1, rngs=rngs) if light or inputs != width else None
        self.resnets = nnx.List([AdapterResnet(width, 3 if light else 1, rngs=rngs) for _ in range(depth)])
        self.out_conv = Conv(width, outputs, 1, rngs=rngs) if light else None

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        if self.stride == 2:  # at an odd side the last average is over the pixels inside
            x = nnx.avg_pool(x, (2, 2), (2, 2), "SAME", count_include_pad=False)
        x = x if self.in_conv is None else self.in_conv(x)
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.out_conv is None else self.out_conv(x)


class AdapterResnet(nnx.Module):
    """x + conv(relu(conv3x3 x)); the second convolution is 1x1, or 3x3 in a light adapter."""

    def __init__(self, width: int, size: int, *, rngs: nnx.Rngs):
        self.block1 = Conv(width, width, padding=1, rngs=rngs)
        self.block2 = Conv(width, width, size, padding=size // 2, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return x + self.block2(jax.nn.relu(self.block1(x)))


def pixel_unshuffle(x: Float[Array, "b h w c"], factor: int) -> Float[Array, "b h2 w2 c2"]:
    """Each block of factor x factor pixels becomes one pixel; its channels are numbered (channel, row, column)."""
    b, h, w, c = x.shape
    if h % factor or w % factor:
        raise ValueError(f"the image is {w}x{h}: this adapter takes sides that are multiples of {factor}; resize it")
    blocks = x.reshape(b, h // factor, factor, w // factor, factor, c)
    return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(b, h // factor, w // factor, c * factor**2)
