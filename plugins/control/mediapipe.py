"""MediaPipe's diffusion plugin: a small network, run once per image, that controls a frozen diffusion model.

(Zhao and Hou, "On-device diffusion plugins for conditioned text-to-image generation", Google Research, 2023.)

    condition image                                        512x512x3
      stem              3x3 convolution, stride 2          256x256
      approach          inverted bottleneck, stride 2      128x128
      level 0           inverted bottlenecks, the first of stride 2     64x64  --head-->  + the UNet's first level
      level 1                                                           32x32  --head-->  + its second
      level 2, 3                                                 16x16 and 8x8  --head-->  + its third and fourth

An inverted bottleneck (MobileNetV2, 1801.04381) widens its input by a 1x1 convolution, filters each channel by a
depthwise 3x3 convolution and narrows it again without an activation; its input is added where the shapes agree. A head
is a 1x1 convolution to the width of the UNet's level; it starts at zero, so a new plugin changes nothing, bit for bit.

The network reads neither latents nor time nor text: at 50 steps with guidance one run serves 100 calls of the UNet. The
article publishes neither training nor weights, but the kind of blocks, the 6 M parameters and where the features go.
The rest is decided here: widths and depths (`MediaPipeConfig`), ReLU6, and GroupNorm in place of BatchNorm, whose
statistics are poor in small batches.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from common.checked import OneOrMore, Positive
from common.nn.json_config import JsonConfig
from common.nn.layers import convolution, depthwise, uniform
from plugins.control.contract import ControlNetwork, check_fit, zero_conv
from plugins.diffusion.networks.layers import Conv, GroupNorm
from plugins.diffusion.networks.unet_config import UNetConfig

NORM_EPS = 1e-5
BORDERS = ((1, 1), (1, 1))  # rows and columns of zeros around the input of a depthwise convolution
relu6 = jax.nn.relu6


@dataclasses.dataclass(frozen=True)
class MediaPipeConfig(JsonConfig):
    """Architecture of a plugin; the default is Stable Diffusion 1.x's, 5,929,336 parameters."""

    architecture: ClassVar[str] = "MediaPipePlugin"

    outputs: OneOrMore[Positive] = (320, 640, 1280, 1280)  # width of each level of the UNet, finest first
    reduction: Positive = 8  # pixels of the image per latent pixel and side, a power of 2; 1 for a UNet on pixels
    stem: Positive = 16  # width of the first convolution
    # Widths of the bottlenecks before level 0, one per halving but the stem's and level 0's.
    approach: Sequence[Positive] = (24,)
    widths: OneOrMore[Positive] = (48, 96, 160, 320)  # of the bottlenecks of each level
    depths: OneOrMore[Positive] = (3, 4, 6, 3)  # number of bottlenecks of each level
    expansion: Positive = 6  # ratio of the width inside a bottleneck to its input's
    groups: Positive = 8  # of every GroupNorm
    channels: Positive = 3  # of the image
    condition: str | None = None  # the kind of condition image it was trained on; None: not known

    def rules(self):
        power = self.reduction & (self.reduction - 1) == 0
        yield power, "reduction is 1, 2, 4, 8, ..."
        halved = not power or len(self.approach) == max(0, self.halvings - 2)
        yield halved, "approach has an entry per halving of reduction but two"
        yield len(self.outputs) == len(self.widths) == len(self.depths), "outputs, widths, depths: an entry per level"
        divided = not any(width % self.groups for width in (self.stem, *self.approach, *self.widths))
        yield divided, "groups divides stem, approach and widths"

    @property
    def halvings(self) -> int:
        """How often the resolution is halved from the image to the latents."""
        return self.reduction.bit_length() - 1

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int) -> "MediaPipeConfig":
        """A plugin as large, relative to that UNet, as the article's; relatively larger for levels up to 128 wide."""
        outputs = tuple(unet.block_out_channels)
        if (outputs, reduction) == (cls.outputs, cls.reduction):
            return cls()
        widths = tuple(max(16, (c // 2 if c <= 128 else c // 6) // 8 * 8) for c in outputs)
        approach = (24,) * max(0, reduction.bit_length() - 3)
        return cls(outputs, reduction, 16, approach, widths, depths=(2,) * len(widths), expansion=4)


class MediaPipePlugin(ControlNetwork):
    """The plugin; `MediaPipePlugin.for_unet(unet.config, rngs=...)` makes a new one."""

    config: MediaPipeConfig
    config_class: ClassVar[Any] = MediaPipeConfig

    def __init__(self, config: MediaPipeConfig, *, rngs: nnx.Rngs):
        def block(inputs: int, outputs: int, stride: int) -> "InvertedBottleneck":
            return InvertedBottleneck(inputs, outputs, stride, config.expansion, config.groups, rngs=rngs)

        self.config, self.num_outputs, self.reduction = config, len(config.outputs), config.reduction
        self.stem = Conv(config.channels, config.stem, stride=2 if config.halvings else 1, padding=1, rngs=rngs)
        self.stem_norm = GroupNorm(config.groups, config.stem, NORM_EPS)
        widths = (config.stem, *config.approach, *config.widths)
        approach, levels = len(config.approach), []
        self.approach = nnx.List([block(*pair, 2) for pair in itertools.pairwise(widths[: approach + 1])])
        for i, (inputs, width) in enumerate(itertools.pairwise(widths[approach:])):
            stride = 2 if i > 0 or config.halvings > 1 else 1
            first = block(inputs, width, stride)
            levels.append(nnx.List([first, *(block(width, width, 1) for _ in range(config.depths[i] - 1))]))
        self.levels = nnx.List(levels)
        heads = zip(config.widths, config.outputs, strict=True)
        self.heads = nnx.List([zero_conv(width, output, rngs=rngs) for width, output in heads])

    def check(self, unet: UNetConfig, reduction: int) -> None:
        found = {"block_out_channels": self.config.outputs, "reduction": self.reduction}
        check_fit("plugin", found, {"block_out_channels": tuple(unet.block_out_channels), "reduction": reduction})

    def encode(self, image: Float[Array, "b h w 3"]) -> tuple[Float[Array, "b h2 w2 c"], ...]:
        """The features, one per level, finest first. Inside, images are in [-1, 1], as in MediaPipe."""
        x = relu6(self.stem_norm(self.stem(2 * image - 1)))
        for block in self.approach:
            x = block(x)
        features = []
        for level, head in zip(self.levels, self.heads, strict=True):
            for block in level:
                x = block(x)
            features.append(head(x))
        return tuple(features)


class InvertedBottleneck(nnx.Module):
    """1x1 up, depthwise 3x3, 1x1 down; each followed by a norm, the first two by ReLU6."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, groups: int, *, rngs: nnx.Rngs):
        inner = expansion * inputs
        self.expand = Conv(inputs, inner, 1, rngs=rngs)
        self.norm1 = GroupNorm(groups, inner, NORM_EPS)
        self.filter = DepthwiseConv(inner, stride, rngs=rngs)
        self.norm2 = GroupNorm(groups, inner, NORM_EPS)
        self.narrow = Conv(inner, outputs, 1, rngs=rngs)
        self.norm3 = GroupNorm(groups, outputs, NORM_EPS)
        self.residual = stride == 1 and inputs == outputs

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        y = relu6(self.norm1(self.expand(x)))
        y = relu6(self.norm2(self.filter(y)))
        y = self.norm3(self.narrow(y))
        return x + y if self.residual else y


class DepthwiseConv(nnx.Module):
    """3x3 convolution of each channel by itself, zero-padded, without bias: ceil(h / stride) rows. As a convolution in
    as many groups as channels, for which accelerators have kernels; on a CPU XLA splits that into tiny convolutions, 36
    times slower than the sum of nine shifted images (32x16x16x64, jax 0.10.2), which is equal."""

    def __init__(self, channels: int, stride: int = 1, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(uniform(rngs.params(), (3, 3, 1, channels)))
        self.stride = stride

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
        sums = functools.partial(depthwise, stride=self.stride, borders=BORDERS)
        groups = functools.partial(convolution, stride=self.stride, padding=BORDERS, groups=x.shape[-1])
        return lax.platform_dependent(x, self.kernel[...].astype(x.dtype), cpu=sums, default=groups)
