"""MediaPipe's diffusion plugin: a small network, run once per image, that steers a frozen diffusion model.

(Zhao and Hou, "On-device diffusion plugins for conditioned text-to-image generation", Google Research, 2023.)

    condition picture, 512x512x3
      stem              3x3, stride 2                        256x256
      approach          inverted bottleneck, stride 2        128x128
      level 0           inverted bottlenecks, first stride 2  64x64  --head-->  + the UNet's first level
      level 1           ...                                   32x32  --head-->  + its second
      level 2, 3                                           16x16, 8x8

An inverted bottleneck (MobileNetV2, 1801.04381) widens its input by a 1x1 convolution, filters each channel by itself,
and narrows it again without an activation; it is added to its input where the two have one shape. A head is a 1x1
convolution to the width of the UNet's level that starts at zero: a new plugin changes nothing, bit for bit, and the
first gradient moves the heads away from there.

The network sees neither the noise nor the time nor the text. That is its point: at 50 steps with guidance its price is
shared by 100 calls of the UNet. Google published neither training nor weights; the article gives the kind of blocks,
the 6 M parameters and where the features go. What it leaves open is decided here: widths and depths
(`mediapipe_config.py`), ReLU6, and GroupNorm in place of BatchNorm, whose statistics are poor in small batches.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from plugins.control.contract import Added, ControlNetwork
from plugins.control.convolutions import Depthwise, silent
from plugins.control.mediapipe_config import MediaPipeConfig
from plugins.diffusion.networks.layers import Conv, GroupNorm
from plugins.diffusion.networks.unet_config import UNetConfig

NORM_EPS = 1e-5
relu6 = jax.nn.relu6


class InvertedBottleneck(nnx.Module):
    """1x1 up, depthwise 3x3, 1x1 down; each followed by a norm, the first two by ReLU6."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, groups: int, *, rngs: nnx.Rngs):
        inner = expansion * inputs
        self.expand = Conv(inputs, inner, 1, rngs=rngs)
        self.norm1 = GroupNorm(groups, inner, NORM_EPS)
        self.filter = Depthwise(inner, stride, rngs=rngs)
        self.norm2 = GroupNorm(groups, inner, NORM_EPS)
        self.narrow = Conv(inner, outputs, 1, rngs=rngs)
        self.norm3 = GroupNorm(groups, outputs, NORM_EPS)
        self.residual = stride == 1 and inputs == outputs

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        y = relu6(self.norm1(self.expand(x)))
        y = relu6(self.norm2(self.filter(y)))
        y = self.norm3(self.narrow(y))
        return x + y if self.residual else y


class MediaPipePlugin(ControlNetwork):
    """The plugin; `MediaPipePlugin.for_unet(unet.config, rngs=...)` makes a new one that fits."""

    config: MediaPipeConfig

    def __init__(self, config: MediaPipeConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.stem = Conv(config.channels, config.stem, stride=2 if config.halvings else 1, padding=1, rngs=rngs)
        self.stem_norm = GroupNorm(config.groups, config.stem, NORM_EPS)
        before = (config.stem, *config.approach)
        approach = zip(before, config.approach, strict=False)
        self.approach = nnx.List([self._block(inputs, outputs, 2, rngs) for inputs, outputs in approach])
        strides = (2 if config.halvings > 1 else 1, *[2] * (len(config.widths) - 1))
        shapes = zip((before[-1], *config.widths[:-1]), config.widths, config.depths, strides, strict=True)
        self.levels = nnx.List([self._level(*shape, rngs) for shape in shapes])
        heads = zip(config.widths, config.outputs, strict=True)
        self.heads = nnx.List([silent(Conv(width, output, 1, rngs=rngs)) for width, output in heads])

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int = 8, *, rngs: nnx.Rngs) -> MediaPipePlugin:
        """A new one for that UNet, with `reduction` pixels per latent pixel and side."""
        return cls(MediaPipeConfig.for_unet(unet, reduction), rngs=rngs)

    @property
    def places(self) -> int:
        return len(self.config.outputs)

    def check(self, unet: UNetConfig, unit: int) -> None:
        found, asked = (tuple(self.config.outputs), self.config.reduction), (tuple(unet.block_out_channels), unit)
        if found != asked:
            raise ValueError(
                f"the plugin is for levels of {found[0]} at {found[1]} pixels per latent pixel, the base has {asked[0]}"
                f" at {asked[1]}; take a plugin that was trained for this base"
            )

    def encode(self, picture: Float[Array, "b h w 3"]) -> tuple[Float[Array, "b h2 w2 c"], ...]:
        """The features, one per level, finest first. Inside, pictures are in [-1, 1], as in the article's."""
        x = relu6(self.stem_norm(self.stem(2 * picture - 1)))
        for block in self.approach:
            x = block(x)
        features = []
        for level, head in zip(self.levels, self.heads, strict=True):
            for block in level:
                x = block(x)
            features.append(head(x))
        return tuple(features)

    def act(self, encoded: tuple[Array, ...], x: Array, t: Array, context: Array, remat: bool = False) -> Added:
        return Added(level_features=encoded)

    def _level(self, inputs: int, outputs: int, depth: int, stride: int, rngs: nnx.Rngs) -> Any:
        """The first bottleneck has the stride."""
        first = self._block(inputs, outputs, stride, rngs)
        return nnx.List([first, *(self._block(outputs, outputs, 1, rngs) for _ in range(depth - 1))])

    def _block(self, inputs: int, outputs: int, stride: int, rngs: nnx.Rngs) -> InvertedBottleneck:
        return InvertedBottleneck(inputs, outputs, stride, self.config.expansion, self.config.groups, rngs=rngs)
