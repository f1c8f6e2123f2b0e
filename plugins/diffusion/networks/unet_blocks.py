"""The UNet's levels: down, middle, up. Each is residual blocks and transformers in turn, and a change of resolution.

The way down keeps every intermediate result as a *skip*: the first convolution's, each residual block's (after its
transformer), each downsampler's. With four levels of two that is 12 in all. The way up takes them back, last first,
three a level, each stacked onto the stream before a residual block.

A level's *feature* (T2I-Adapter, MediaPipe's plugins) is added to the stream at the end of the level, before its
downsampler. It therefore enters the level's last skip as well; in the last level too, where the PyTorch library gets
there by adding in place. diffusers adds it after the downsampler in a level without transformers that is not the last,
which no published network has; the rule here is that of the first release (LDM) for every level.

Every function takes a `stage`, which wraps each residual block and transformer: `whole` leaves it as it is,
`common.nn.remat.remat` forgets its inside until the gradient needs it. And every function takes a `tap` (`tap.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from plugins.diffusion.networks.resnet import AROUND, Downsample, ResnetBlock, Upsample
from plugins.diffusion.networks.tap import Tap, untouched, within
from plugins.diffusion.networks.transformer import Transformer
from plugins.diffusion.networks.unet_config import DOWN_TYPES, UP_TYPES, UNetConfig

Stage = Callable[[Callable[..., Any]], Callable[..., Any]]
Map = Float[Array, "_b _h _w _c"]


def whole(part: Callable[..., Any]) -> Callable[..., Any]:
    """A `Stage` that changes nothing."""
    return part


class Level(nnx.Module):
    """What the three kinds of level have in common: `resnets`, and `attentions` (as many, one less, or none)."""

    resnets: nnx.List
    attentions: nnx.List

    def pair(self, i: int, x: Map, time: Array, context: Array, stage: Stage, tap: Tap) -> Map:
        """Residual block i and, where there are any, transformer i."""
        x = tap(f"resnets.{i}", stage(self.resnets[i])(x, time))
        return self.look(i, x, context, stage, tap) if len(self.attentions) else x

    def look(self, i: int, x: Map, context: Array, stage: Stage, tap: Tap) -> Map:
        """Transformer i."""
        name = f"attentions.{i}"
        inside = within(tap, name)
        return tap(name, stage(lambda x, context: self.attentions[i](x, context, inside))(x, context))


class DownLevel(Level):
    """Level `level` on the way down; a downsampler at its end, except in the last level."""

    def __init__(self, config: UNetConfig, level: int, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        width, above = widths[level], widths[max(level - 1, 0)]
        inputs = [above, *[width] * (config.layers_per_block - 1)]
        self.resnets = nnx.List([_resnet(config, i, width, rngs) for i in inputs])
        looks = len(inputs) if config.down_block_types[level] == DOWN_TYPES[0] else 0
        self.attentions = nnx.List([_transformer(config, level, rngs) for _ in range(looks)])
        last = level == config.levels - 1
        self.downsamplers = nnx.List([] if last else [Downsample(width, AROUND, rngs=rngs)])

    def __call__(
        self, x: Map, time: Array, context: Array, feature: Array | None, stage: Stage = whole, tap: Tap = untouched
    ) -> tuple[Map, list[Map]]:
        """The stream, and the skips made on the way, the last of which is the stream."""
        skips = []
        for i in range(len(self.resnets)):
            x = self.pair(i, x, time, context, stage, tap)
            if feature is not None and i == len(self.resnets) - 1:
                x = x + feature
            skips.append(x)
        for downsample in self.downsamplers:
            x = tap("downsamplers.0", downsample(x))
            skips.append(x)
        return x, skips


class MidLevel(Level):
    """Residual block, transformer, residual block at the lowest resolution."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs):
        width = config.block_out_channels[-1]
        self.resnets = nnx.List([_resnet(config, width, width, rngs) for _ in range(2)])
        self.attentions = nnx.List([_transformer(config, config.levels - 1, rngs)])

    def __call__(self, x: Map, time: Array, context: Array, stage: Stage = whole, tap: Tap = untouched) -> Map:
        x = self.pair(0, x, time, context, stage, tap)
        return tap("resnets.1", stage(self.resnets[1])(x, time))


class UpLevel(Level):
    """Step `step` of the way up (0 is the coarsest); an upsampler at its end, except in the last one."""

    def __init__(self, config: UNetConfig, step: int, *, rngs: nnx.Rngs):
        widths = config.block_out_channels[::-1]
        width, before, below = widths[step], widths[max(step - 1, 0)], widths[min(step + 1, config.levels - 1)]
        layers = config.layers_per_block + 1
        streams = [before, *[width] * (layers - 1)]
        skips = [*[width] * (layers - 1), below]  # the last skip taken is the finer level's downsampler's
        self.resnets = nnx.List([_resnet(config, x + s, width, rngs) for x, s in zip(streams, skips, strict=True)])
        looks = layers if config.up_block_types[step] == UP_TYPES[0] else 0
        self.attentions = nnx.List([_transformer(config, config.levels - 1 - step, rngs) for _ in range(looks)])
        last = step == config.levels - 1
        self.upsamplers = nnx.List([] if last else [Upsample(width, rngs=rngs)])

    def __call__(
        self, x: Map, time: Array, context: Array, skips: list[Map], stage: Stage = whole, tap: Tap = untouched
    ) -> Map:
        """Takes its skips from the end of `skips`; upsamples to the size of the next one."""
        for i in range(len(self.resnets)):
            x = self.pair(i, jnp.concatenate([x, skips.pop()], axis=-1), time, context, stage, tap)
        for upsample in self.upsamplers:
            _, h, w, _ = skips[-1].shape
            x = tap("upsamplers.0", upsample(x, (h, w)))
        return x


def down_levels(config: UNetConfig, *, rngs: nnx.Rngs) -> list[DownLevel]:
    """The `down_blocks` of a UNet, and of a copy of its encoder (ControlNet)."""
    return [DownLevel(config, level, rngs=rngs) for level in range(config.levels)]


def go_down(
    blocks: Iterable[DownLevel],
    x: Map,
    time: Float[Array, "b e"],
    context: Float[Array, "b n d"],
    features: Sequence[Array | None],
    stage: Stage = whole,
    tap: Tap = untouched,
) -> tuple[Map, list[Map]]:
    """Through `down_blocks`, from the first convolution's output on; `features` has an entry per level.

    Returns the stream and all skips, `x` itself the first of them.
    """
    skips = [x]
    for level, (block, feature) in enumerate(zip(blocks, features, strict=True)):
        name = f"down_blocks.{level}"
        x, made = block(x, time, context, feature, stage, within(tap, name))
        x = tap(name, x)
        skips += made
    return x, skips


def _resnet(config: UNetConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> ResnetBlock:
    time = 4 * config.block_out_channels[0]
    return ResnetBlock(inputs, outputs, groups=config.norm_num_groups, eps=config.norm_eps, time=time, rngs=rngs)


def _transformer(config: UNetConfig, level: int, rngs: nnx.Rngs) -> Transformer:
    return Transformer(
        config.block_out_channels[level],
        config.cross_attention_dim,
        config.heads[level],
        groups=config.norm_num_groups,
        layers=config.transformer_layers_per_block,
        linear=config.use_linear_projection,
        rngs=rngs,
    )
