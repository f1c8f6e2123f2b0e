"""The denoising UNet of latent diffusion (Rombach et al., CVPR 2022), as in Stable Diffusion 1.x and 2.x.

Noisy latents, a time and a text in; what the noise is (or the velocity, or the clean latents: as it was trained) out,
in the shape of the latents. `b h w c` throughout; 512 pixels are 64x64 latents.

1. `time_embedding.py`  the time as sines and cosines, through a small network: read by every residual block;
2. `unet_blocks.py`     the way down: levels of residual blocks and transformers, every result kept as a skip;
3.                      the middle;
4.                      the way up, with the skips, last first; norm, SiLU, last convolution.

What can be plugged in, all of it optional and all of it added:

- `level_features` (T2I-Adapter, MediaPipe's plugins): to the stream at the end of each level, before its downsampler,
  and so to that level's last skip as well; one tensor more is added after the middle;
- `skip_residuals` (ControlNet): to the skips, once the way down is done, whose stream does not see them;
- `mid_residual` (ControlNet): after the middle.

Both kinds together are allowed. A leading axis of 1 is broadcast over the batch: a plugin that ran once serves both
halves of classifier-free guidance. Any size of latents runs; a side that is odd at some level comes back odd.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Num

from common.nn.remat import remat as rematerialised
from plugins.diffusion.networks.layers import Conv, GroupNorm
from plugins.diffusion.networks.resnet import silu
from plugins.diffusion.networks.tap import Tap, untouched, within
from plugins.diffusion.networks.time_embedding import TimeEmbedding, sinusoid
from plugins.diffusion.networks.unet_blocks import Map, MidLevel, Stage, UpLevel, down_levels, go_down, whole
from plugins.diffusion.networks.unet_config import Shape, UNetConfig

__all__ = ["UNet", "UNetConfig"]


class UNet(nnx.Module):
    """The network; attributes are called as diffusers' tensors."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        self.config = config
        self.conv_in = Conv(config.in_channels, widths[0], padding=1, rngs=rngs)
        self.time_embedding = TimeEmbedding(widths[0], 4 * widths[0], rngs=rngs)
        self.down_blocks = nnx.List(down_levels(config, rngs=rngs))
        self.mid_block = MidLevel(config, rngs=rngs)
        self.up_blocks = nnx.List([UpLevel(config, step, rngs=rngs) for step in range(config.levels)])
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[0], config.norm_eps)
        self.conv_out = Conv(widths[0], config.out_channels, padding=1, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b h w i"],
        t: int | float | Num[Array | np.ndarray, ...],
        context: Float[Array, "_ _ _"],
        level_features: Sequence[Array | None] | None = None,
        skip_residuals: Sequence[Array] | None = None,
        mid_residual: Array | None = None,
        *,
        remat: bool = False,
        tap: Tap = untouched,
    ) -> Float[Array, "b h w o"]:
        """The prediction for noisy latents.

        Args:
          x: noisy, scaled latents. Their type is the type of the computation; everything else is cast to it.
          t: timestep, one for all or one each; 0 to 999, fractions allowed.
          context: text states, `b n d` with d = `config.cross_attention_dim`.
          level_features: a tensor (or None) per level, shapes as `config.level_shapes`; one more is for the middle.
          skip_residuals: a tensor per skip, shapes as `config.skip_shapes`.
          mid_residual: of the last level's shape.
          remat: a gradient keeps only what enters each residual block and transformer, and computes the rest again.
          tap: sees, and may replace, what modules give (`tap.py`); beside modules' names it is called with
            "time_proj" and "skips.0", "skips.1", ... (before any residual is added).

        Raises:
          ValueError: shapes that do not fit; `remat` together with a tap, which would see values of a hidden trace.
        """
        if remat and tap is not untouched:
            raise ValueError("remat and tap are both given; a tap cannot look into what is computed twice, drop one")
        check_inputs(self.config, x, jnp.shape(t), context)
        features, after_middle = check_added(self.config, x, level_features, skip_residuals, mid_residual)
        stage = rematerialised if remat else whole
        time, context = self.embed(jnp.asarray(t), x, tap), context.astype(x.dtype)

        x = tap("conv_in", self.conv_in(x))
        x, skips = go_down(self.down_blocks, x, time, context, features, stage, tap)
        x = tap("mid_block", self.mid_block(x, time, context, stage, within(tap, "mid_block")))
        x = sum((full(extra, x) for extra in after_middle), x)
        skips = [tap(f"skips.{i}", skip) for i, skip in enumerate(skips)]
        if skip_residuals is not None:
            skips = [skip + full(extra, skip) for skip, extra in zip(skips, skip_residuals, strict=True)]
        return self.go_up(x, time, context, skips, stage, tap)

    def embed(self, t: Num[Array, ...], x: Float[Array, "b h w i"], tap: Tap = untouched) -> Float[Array, "b e"]:
        """The time embedding of each picture of the batch."""
        config = self.config
        t = jnp.broadcast_to(t, x.shape[:1])
        waves = sinusoid(t, config.block_out_channels[0], cosine_first=config.flip_sin_to_cos, shift=config.freq_shift)
        return tap("time_embedding", self.time_embedding(tap("time_proj", waves).astype(x.dtype)))

    def go_up(
        self, x: Map, time: Array, context: Array, skips: list[Map], stage: Stage = whole, tap: Tap = untouched
    ) -> Float[Array, "b h w o"]:
        """The way up and the last convolution."""
        skips = list(skips)  # each level takes its own from the end
        for step, block in enumerate(self.up_blocks):
            name = f"up_blocks.{step}"
            x = tap(name, block(x, time, context, skips, stage, within(tap, name)))
        return self.conv_out(silu(self.conv_norm_out(x)))


def check_inputs(config: UNetConfig, x: Array, t_shape: tuple[int, ...], context: Array) -> None:
    """Raises ValueError unless latents, time and text states belong to this network and to one another."""
    batch = x.shape[0]
    if x.shape[-1] != config.in_channels:
        raise ValueError(f"x has shape {x.shape}; its last axis must be in_channels = {config.in_channels} (b h w c)")
    if t_shape not in ((), (1,), (batch,)):
        raise ValueError(f"t has shape {t_shape}; give one timestep, or one for each of the {batch} latents")
    if context.shape[0] != batch or context.shape[2] != config.cross_attention_dim:
        expected = f"({batch}, any, {config.cross_attention_dim})"
        raise ValueError(f"context has shape {context.shape}; these latents and this network need {expected}")


def check_added(
    config: UNetConfig,
    x: Array,
    level_features: Sequence[Array | None] | None,
    skip_residuals: Sequence[Array] | None,
    mid_residual: Array | None,
) -> tuple[list[Array | None], list[Array]]:
    """(a feature or None per level, in the type of `x`; what is added after the middle), all of a shape that fits.

    Raises ValueError that names the first tensor that does not, or a wrong number of them.
    """
    b, h, w, _ = x.shape
    levels, skips = config.level_shapes(h, w), config.skip_shapes(h, w)
    features = list(level_features) if level_features is not None else [None] * len(levels)
    if len(features) not in (len(levels), len(levels) + 1):
        count = f"{len(levels)}, or {len(levels) + 1} with one for the middle"
        raise ValueError(f"level_features holds {len(features)} tensors; this network takes {count}")
    if skip_residuals is not None and len(skip_residuals) != len(skips):
        raise ValueError(f"skip_residuals holds {len(skip_residuals)} tensors; this network has {len(skips)} skips")
    for i, (feature, shape) in enumerate(zip(features, [*levels, levels[-1]], strict=False)):
        _check_shape(f"level_features[{i}]", feature, b, shape)
    for i, (residual, shape) in enumerate(zip(skip_residuals or (), skips, strict=False)):
        _check_shape(f"skip_residuals[{i}]", residual, b, shape)
    _check_shape("mid_residual", mid_residual, b, levels[-1])
    after_middle = [extra for extra in (*features[len(levels) :], mid_residual) if extra is not None]
    return [None if f is None else full(f, x) for f in features[: len(levels)]], after_middle


def full(extra: Float[Array, "_ h w c"], x: Float[Array, "b _ _ _"]) -> Float[Array, "b h w c"]:
    """What is added, in the type of `x` and with a row for each of its rows.

    The barrier asks the compiler not to merge the broadcast, and factors before it, into the sums of the norms that
    follow, whose order that would change: in a pipeline a control that adds zeros then leaves every bit as it was. In
    programs that call the network once, XLA may still merge a broadcast and round the last bit differently.
    """
    return lax.optimization_barrier(jnp.broadcast_to(extra.astype(x.dtype), (x.shape[0], *extra.shape[1:])))


def _check_shape(name: str, value: Array | None, batch: int, shape: Shape) -> None:
    if value is not None and value.shape not in ((batch, *shape), (1, *shape)):
        raise ValueError(f"{name} has shape {value.shape}; at this size it must be {(batch, *shape)}, or 1 for {batch}")
