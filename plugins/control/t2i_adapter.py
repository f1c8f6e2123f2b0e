"""T2I-Adapter (Mou et al., "Learning Adapters to Dig Out More Controllable Ability", 2302.08453).

    condition picture, b h w 3 in [0, 1]
      pixel unshuffle   blocks of 8x8 pixels become channels                b h/8 w/8 192
      conv_in           3x3
      body, level 0     residual blocks                                     -> + the UNet's first level
      level 1, 2, 3     average over 2x2, then as above                     -> + its second, third, fourth

A residual block is 3x3 convolution, ReLU, 1x1 convolution, added to its input; nothing is normalised. The network sees
neither noise nor time nor text and runs once per picture, like MediaPipe's plugin (`mediapipe.py`), whose place in the
UNet is the same, and at twelve times its size. Three kinds:

- full: the above, 77 M parameters at SD 1.5;
- light: 18.7 M; each level works at a quarter of its width, between 1x1 convolutions, and starts from the pixels;
- XL: for SDXL, where only the third level halves. It is read, computed and written; no base here takes its tensors.

A new adapter is not silent, as ControlNet and the plugin are: the paper starts without zeros, and so does this, because
its residual stream is its output. Expect the first steps of a training to disturb the base.

The release's sketch and canny adapters read one channel: the first of the picture, as its own program does, which for
the grey pictures that they were trained on is as good as any. (It also makes that picture black and white, at 0.5; that
is the business of the condition, not of the network.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from plugins.control.contract import Added, ControlNetwork
from plugins.control.fitting import check_fit
from plugins.control.t2i_adapter_config import FULL, LIGHT, LevelShape, T2IAdapterConfig
from plugins.diffusion.networks.layers import Conv
from plugins.diffusion.networks.unet_config import UNetConfig


class AdapterResnet(nnx.Module):
    """x + conv(relu(conv3x3 x)); the second is 1x1, or 3x3 in a light adapter."""

    def __init__(self, width: int, size: int, *, rngs: nnx.Rngs):
        self.block1 = Conv(width, width, padding=1, rngs=rngs)
        self.block2 = Conv(width, width, size, padding=size // 2, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return x + self.block2(jax.nn.relu(self.block1(x)))


class AdapterLevel(nnx.Module):
    """Half the resolution (but for some levels), residual blocks; a light one narrows, and widens again."""

    def __init__(self, shape: LevelShape, depth: int, light: bool, *, rngs: nnx.Rngs):
        width = shape.outputs // 4 if light else shape.outputs
        self.halves = shape.halves
        self.in_conv = Conv(shape.inputs, width, 1, rngs=rngs) if light or shape.inputs != width else None
        self.resnets = nnx.List([AdapterResnet(width, 3 if light else 1, rngs=rngs) for _ in range(depth)])
        self.out_conv = Conv(width, shape.outputs, 1, rngs=rngs) if light else None

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        x = average_2x2(x) if self.halves else x
        x = x if self.in_conv is None else self.in_conv(x)
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.out_conv is None else self.out_conv(x)


class Adapter(nnx.Module):
    """From pixels to all features. It is the network; files have one name more in front of its tensors' names."""

    def __init__(self, config: T2IAdapterConfig, *, rngs: nnx.Rngs):
        light = config.adapter_type == LIGHT
        self.factor = config.downscale_factor
        self.conv_in = None if light else Conv(config.unshuffled, config.channels[0], padding=1, rngs=rngs)
        self.body = nnx.List([AdapterLevel(shape, config.num_res_blocks, light, rngs=rngs) for shape in config.levels])

    def __call__(self, picture: Float[Array, "b h w i"]) -> tuple[Float[Array, "b _h _w _c"], ...]:
        x = pixel_unshuffle(picture, self.factor)
        x = x if self.conv_in is None else self.conv_in(x)
        features = []
        for level in self.body:
            x = level(x)
            features.append(x)
        return tuple(features)


class T2IAdapter(ControlNetwork):
    """The adapter; `T2IAdapter.for_unet(unet.config, rngs=...)` makes a new one that fits."""

    config: T2IAdapterConfig

    def __init__(self, config: T2IAdapterConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.adapter = Adapter(config, rngs=rngs)

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int = 8, adapter_type: str = FULL, *, rngs: nnx.Rngs) -> T2IAdapter:
        """A new one for that UNet, with `reduction` pixels per latent pixel and side."""
        return cls(T2IAdapterConfig.for_unet(unet, reduction, adapter_type), rngs=rngs)

    @property
    def places(self) -> int:
        return len(self.config.levels)

    def check(self, unet: UNetConfig, unit: int) -> None:
        """One tensor per level; one more would be added after the middle, at the last level's size."""
        found = [(level.outputs, level.stride) for level in self.config.levels]
        base = [(width, unit * 2**level) for level, width in enumerate(unet.block_out_channels)]
        if found != [*base, base[-1]]:
            said = "tensors of (width, pixels per pixel)"
            check_fit("T2I-Adapter", {said: found}, {said: base})

    def encode(self, picture: Float[Array, "b h w 3"]) -> tuple[Float[Array, "b _h _w _c"], ...]:
        """The features, one per level, finest first. Raises ValueError for a side that is no multiple of the factor."""
        return self.adapter(picture[..., : self.config.in_channels])

    def act(self, encoded: tuple[Array, ...], x: Array, t: Array, context: Array, remat: bool = False) -> Added:
        return Added(level_features=encoded)


def pixel_unshuffle(x: Float[Array, "b h w c"], factor: int) -> Float[Array, "b h2 w2 c2"]:
    """Each block of factor x factor pixels becomes one pixel; its channels are numbered (channel, row, column)."""
    b, h, w, c = x.shape
    if h % factor or w % factor:
        raise ValueError(f"a picture of {w}x{h}: this adapter takes sides that are multiples of {factor}; resize it")
    blocks = x.reshape(b, h // factor, factor, w // factor, factor, c)
    return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(b, h // factor, w // factor, c * factor**2)


def average_2x2(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Half the resolution, rounded up: at an odd side the last average is over what there is."""
    b, h, w, c = x.shape
    x = jnp.pad(x, ((0, 0), (0, h % 2), (0, w % 2), (0, 0)), mode="edge")  # a number averaged with itself is itself
    return x.reshape(b, -(-h // 2), 2, -(-w // 2), 2, c).mean(axis=(2, 4))
