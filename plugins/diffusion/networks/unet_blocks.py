"""Blocks of the UNet: transformers, and the levels of the down path, the middle and the up path.

The down path keeps every intermediate result as a *skip*: the first convolution's, each residual block's (after its
transformer), each downsampler's. With four levels of two blocks that is 12 in all. The up path takes them in reverse,
three a level, each concatenated with its input before a residual block.

A level's *feature* (T2I-Adapter, MediaPipe's plugins) is added at the end of the level, before its downsampler, and so
enters the level's last skip as well: the rule of the first release (LDM). In a level without transformers that is not
the last, as SDXL has, diffusers adds it after the downsampler, and adapters were trained so: there its size decides.

Three details of the transformer decide whether a published network works: the first norm's epsilon is 1e-6 here and
1e-5 in the residual blocks; the feed-forward's GELU is the exact one, with erf; and `proj_in`, `proj_out` are 1x1
convolutions in Stable Diffusion 1.x and linear maps in 2.x, which compute the same and are stored differently.

A `stage` wraps each residual block and transformer: `whole`, or `common.nn.remat.remat`, which keeps only its inputs
for the gradient. A `tap` gets the output of each module with its name in a weights file, and returns what is used:

    seen = {}
    unet(x, t, context, tap=lambda name, value: seen.setdefault(name, value))
    seen["up_blocks.1.resnets.1.conv2"], seen["up_blocks.1.attentions.1.transformer_blocks.0.attn1.to_q"]

Those two are what Plug-and-Play copies from one image's run to another's; to an attention's "attended", before its
output map, IP-Adapter adds that of a picture. Under `jax.jit` a tap is called once, while tracing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from common.nn.attention import attend
from common.nn.layers import LayerNorm, Linear
from plugins.diffusion.networks import layers
from plugins.diffusion.networks.layers import Conv, Downsample, GroupNorm, ResnetBlock, Tap, Upsample, untouched
from plugins.diffusion.networks.unet_config import DOWN_TYPES, UP_TYPES, EncoderConfig, UNetConfig

TRANSFORMER_NORM_EPS = 1e-6
Stage = Callable[[Callable[..., Any]], Callable[..., Any]]
Map = Float[Array, "_b _h _w _c"]


def whole(block: Callable[..., Any]) -> Callable[..., Any]:
    """The `Stage` that changes nothing."""
    return block


def within(tap: Tap, module: str) -> Tap:
    """A tap for the inside of `module`: it puts "module." before every name."""
    return tap if tap is untouched else lambda name, value: tap(f"{module}.{name}", value)


class Attention(nnx.Module):
    """Multi-head attention from `x` to `context` (to itself where none is given). Only the output has a bias."""

    def __init__(self, width: int, context: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.to_q = Linear(width, width, bias=False, rngs=rngs)
        self.to_k = Linear(context, width, bias=False, rngs=rngs)
        self.to_v = Linear(context, width, bias=False, rngs=rngs)
        self.to_out = nnx.List([Linear(width, width, rngs=rngs)])

    def __call__(
        self, x: Float[Array, "b n c"], context: Float[Array, "b m d"] | None = None, tap: Tap = untouched
    ) -> Float[Array, "b n c"]:
        source = x if context is None else context
        q, k, v = tap("to_q", self.to_q(x)), tap("to_k", self.to_k(source)), tap("to_v", self.to_v(source))
        out = attend(*(a.reshape(*a.shape[:2], self.heads, -1) for a in (q, k, v)))
        return self.to_out[0](tap("attended", out.reshape(q.shape)))


class GEGLU(nnx.Module):
    """One half of a linear map times the GELU of the other (Shazeer, 2020)."""

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        self.proj = Linear(inputs, 2 * outputs, rngs=rngs)

    def __call__(self, x: Float[Array, "b n i"]) -> Float[Array, "b n o"]:
        value, gate = jnp.split(self.proj(x), 2, axis=-1)
        return value * jax.nn.gelu(gate, approximate=False)


class FeedForward(nnx.Module):
    """Four times as wide, and back; files name the second layer `net.2`."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.net = nnx.List([GEGLU(width, 4 * width, rngs=rngs), Linear(4 * width, width, rngs=rngs)])

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n c"]:
        return self.net[1](self.net[0](x))


class TransformerBlock(nnx.Module):
    """x + attn1(norm x);  x + attn2(norm x, context);  x + ff(norm x)."""

    def __init__(self, width: int, context: int, heads: int, *, rngs: nnx.Rngs):
        self.norm1 = LayerNorm(width)
        self.attn1 = Attention(width, width, heads, rngs=rngs)
        self.norm2 = LayerNorm(width)
        self.attn2 = Attention(width, context, heads, rngs=rngs)
        self.norm3 = LayerNorm(width)
        self.ff = FeedForward(width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b n c"], context: Float[Array, "b m d"], tap: Tap = untouched
    ) -> Float[Array, "b n c"]:
        x = x + tap("attn1", self.attn1(self.norm1(x), tap=within(tap, "attn1")))
        x = x + tap("attn2", self.attn2(self.norm2(x), context, within(tap, "attn2")))
        return x + tap("ff", self.ff(self.norm3(x)))


class Transformer(nnx.Module):
    """x + proj_out(blocks(proj_in(norm x))): blocks on a feature map as a sequence of h * w tokens."""

    def __init__(self, config: EncoderConfig, level: int, *, rngs: nnx.Rngs):
        width, context, heads = config.block_out_channels[level], config.cross_attention_dim, config.heads[level]
        depth, linear = range(config.depths[level]), config.use_linear_projection
        self.norm = GroupNorm(config.norm_num_groups, width, TRANSFORMER_NORM_EPS)
        self.proj_in = Linear(width, width, rngs=rngs) if linear else Conv(width, width, 1, rngs=rngs)
        self.transformer_blocks = nnx.List([TransformerBlock(width, context, heads, rngs=rngs) for _ in depth])
        self.proj_out = Linear(width, width, rngs=rngs) if linear else Conv(width, width, 1, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b h w c"], context: Float[Array, "b m d"], tap: Tap = untouched
    ) -> Float[Array, "b h w c"]:
        y = self.proj_in(self.norm(x))
        tokens = y.reshape(y.shape[0], -1, y.shape[-1])
        for i, block in enumerate(self.transformer_blocks):
            name = f"transformer_blocks.{i}"
            tokens = tap(name, block(tokens, context, within(tap, name)))
        return x + self.proj_out(tokens.reshape(x.shape))


class Level(nnx.Module):
    """Base class of the three kinds of level: `resnets`, and `attentions` (as many, one less, or none)."""

    resnets: nnx.List
    attentions: nnx.List

    def resnet(self, i: int, x: Map, time: Array, stage: Stage, tap: Tap) -> Map:
        """Residual block i."""
        name, block = f"resnets.{i}", self.resnets[i]
        return tap(name, stage(lambda x, time: block(x, time, within(tap, name)))(x, time))

    def pair(self, i: int, x: Map, time: Array, context: Array, stage: Stage, tap: Tap) -> Map:
        """Residual block i and, where there are any, transformer i."""
        x, name = self.resnet(i, x, time, stage, tap), f"attentions.{i}"
        if not self.attentions:
            return x
        return tap(name, stage(lambda x, context: self.attentions[i](x, context, within(tap, name)))(x, context))


class DownLevel(Level):
    """Level `level` of the down path; a downsampler at its end, except in the last level."""

    def __init__(self, config: EncoderConfig, level: int, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        width, above = widths[level], widths[max(level - 1, 0)]
        inputs = [above, *[width] * (config.layers_per_block - 1)]
        self.resnets = nnx.List([_resnet(config, i, width, rngs) for i in inputs])
        count = len(inputs) if config.down_block_types[level] == DOWN_TYPES[0] else 0
        self.attentions = nnx.List([Transformer(config, level, rngs=rngs) for _ in range(count)])
        last = level == config.levels - 1
        self.downsamplers = nnx.List([] if last else [Downsample(width, layers.AROUND, rngs=rngs)])

    def __call__(
        self, x: Map, time: Array, context: Array, feature: Array | None, stage: Stage = whole, tap: Tap = untouched
    ) -> tuple[Map, list[Map]]:
        """The level's output, and its skips, the last of which is the output."""
        skips = []
        for i in range(len(self.resnets)):
            x = self.pair(i, x, time, context, stage, tap)
            skips.append(x)
        if feature is not None and feature.shape[1:3] == x.shape[1:3]:
            skips[-1] = x = x + feature
            feature = None  # another size is that after the downsampler
        for downsample in self.downsamplers:
            x = tap("downsamplers.0", downsample(x))
            x = x if feature is None else x + feature
            skips.append(x)
        return x, skips


class MidLevel(Level):
    """Residual block, transformer, residual block at the lowest resolution."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        width = config.block_out_channels[-1]
        self.resnets = nnx.List([_resnet(config, width, width, rngs) for _ in range(2)])
        self.attentions = nnx.List([Transformer(config, config.levels - 1, rngs=rngs)])

    def __call__(self, x: Map, time: Array, context: Array, stage: Stage = whole, tap: Tap = untouched) -> Map:
        x = self.pair(0, x, time, context, stage, tap)
        return self.resnet(1, x, time, stage, tap)


class UpLevel(Level):
    """Level `step` of the up path (0 is the coarsest); an upsampler at its end, except in the last one."""

    def __init__(self, config: UNetConfig, step: int, *, rngs: nnx.Rngs):
        widths = config.block_out_channels[::-1]
        width, before, below = widths[step], widths[max(step - 1, 0)], widths[min(step + 1, config.levels - 1)]
        inputs = [before, *[width] * config.layers_per_block]
        skips = [*[width] * config.layers_per_block, below]  # the last skip is the finer level's downsampler's
        self.resnets = nnx.List([_resnet(config, x + s, width, rngs) for x, s in zip(inputs, skips, strict=True)])
        count = len(inputs) if config.up_block_types[step] == UP_TYPES[0] else 0
        self.attentions = nnx.List([Transformer(config, config.levels - 1 - step, rngs=rngs) for _ in range(count)])
        last = step == config.levels - 1
        self.upsamplers = nnx.List([] if last else [Upsample(width, rngs=rngs)])

    def __call__(
        self, x: Map, time: Array, context: Array, skips: list[Map], stage: Stage = whole, tap: Tap = untouched
    ) -> Map:
        """Pops its skips from the end of `skips`; upsamples to the size of the next one."""
        for i in range(len(self.resnets)):
            x = self.pair(i, jnp.concatenate([x, skips.pop()], axis=-1), time, context, stage, tap)
        for upsample in self.upsamplers:
            _, h, w, _ = skips[-1].shape
            x = tap("upsamplers.0", upsample(x, (h, w)))
        return x


def down_levels(config: EncoderConfig, *, rngs: nnx.Rngs) -> list[DownLevel]:
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
    """From the first convolution's output `x`: the down path's output, and all skips, `x` the first; a feature per
    level."""
    skips = [x]
    for level, (block, feature) in enumerate(zip(blocks, features, strict=True)):
        name = f"down_blocks.{level}"
        x, made = block(x, time, context, feature, stage, within(tap, name))
        x = tap(name, x)
        skips += made
    return x, skips


def _resnet(config: EncoderConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> ResnetBlock:
    options = {"groups": config.norm_num_groups, "eps": config.norm_eps, "time": config.time_width}
    return ResnetBlock(inputs, outputs, **options, rngs=rngs)
