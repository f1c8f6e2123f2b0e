"""The denoising UNet of latent diffusion (Rombach et al., CVPR 2022), as in Stable Diffusion 1.x, 2.x and XL.

From noisy latents, a timestep and text states it predicts the noise (or velocity, or clean latents: as it was trained)
in the shape of the latents, `b h w c`; 512 pixels are 64x64 latents.

1. The time embedding: sines and cosines of the timestep through two linear maps; every residual block reads it. SDXL
   (2307.01952, section 2.2) adds such an embedding of the pooled text and of sizes; LCM (2310.04378, section 4.2),
   which is distilled with guidance, adds the guidance scale's sines and cosines to the timestep's.
2. The down path (`unet_blocks.py`): levels of residual blocks and transformers, every result kept as a skip.
3. The middle, which small networks leave out (BK-SDM, 2305.15798).
4. The up path, with the skips in reverse; norm, SiLU, last convolution.

Input channels beyond the outputs' are of images beside the latents: InstructPix2Pix (2211.09800) reads the latents of
the image to edit, an inpainting network a mask and the latents of the masked image.

What control networks give is added, both kinds together too: `level_features` (T2I-Adapter, MediaPipe's plugins) at the
end of each level, before its downsampler, and so to that level's last skip; ControlNet's `skip_residuals` to the skips,
after the down path, whose output does not change, and its `mid_residual` after the middle. A leading axis of 1 is
broadcast: a plugin that ran once serves both halves of guidance. A side that is odd at some level comes back odd.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Num

from common.nn.layers import Linear
from common.nn.remat import remat as rematerialised
from plugins.diffusion.networks.layers import Conv, GroupNorm, Tap, silu, untouched
from plugins.diffusion.networks.unet_blocks import MidLevel, UpLevel, down_levels, go_down, whole, within
from plugins.diffusion.networks.unet_config import EncoderConfig, UNetConfig

__all__ = ["UNet", "UNetConfig"]


def sinusoid(
    t: Num[Array, " b"], width: int, *, cosine_first: bool = True, shift: int | float = 0
) -> Float[Array, "b {width}"]:
    """cos(t w_i) and sin(t w_i) with w_i = 10000^(-i / (width/2 - shift)) (Vaswani et al., 2017, section 3.5); float32.
    `cosine_first` and `shift` are diffusers' `flip_sin_to_cos` and `freq_shift`."""
    half = width // 2
    frequencies = np.exp(-np.log(10_000) * np.arange(half) / (half - shift)).astype(np.float32)
    angles = t.astype(jnp.float32)[:, None] * frequencies
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([cosine, sine] if cosine_first else [sine, cosine], axis=-1)


class TimeEmbedding(nnx.Module):
    """Linear map, SiLU, linear map; before them `condition`, a vector of that width, is mapped and added."""

    def __init__(self, inputs: int, width: int, condition: int | None = None, *, rngs: nnx.Rngs):
        self.cond_proj = None if condition is None else Linear(condition, inputs, bias=False, rngs=rngs)
        self.linear_1 = Linear(inputs, width, rngs=rngs)
        self.linear_2 = Linear(width, width, rngs=rngs)

    def __call__(self, x: Float[Array, "b i"], condition: Float[Array, "b c"] | None = None) -> Float[Array, "b e"]:
        if self.cond_proj is not None:
            assert condition is not None, "`check_inputs` asks for the guidance scale"
            x = x + self.cond_proj(condition)
        return self.linear_2(silu(self.linear_1(x)))


class TimeEmbeddings(nnx.Module):
    """What the UNet and copies of its encoder share: the embedding of everything but latents and text states."""

    time_embedding: TimeEmbedding
    add_embedding: TimeEmbedding | None

    def make_time_layers(self, config: EncoderConfig, condition: int | None = None, *, rngs: nnx.Rngs) -> None:
        first, width = config.block_out_channels[0], config.time_width
        self.time_embedding = TimeEmbedding(first, width, condition, rngs=rngs)
        added = config.projection_class_embeddings_input_dim or 0
        self.add_embedding = None if config.addition_embed_type is None else TimeEmbedding(added, width, rngs=rngs)

    def embedded_time(
        self,
        config: EncoderConfig,
        t: Num[Array, " b"],
        dtype: Any,
        guidance: Num[Array, ""] | None,
        pooled: Float[Array, "b p"] | None,
        sizes: Float[Array, "b s"] | None,
        tap: Tap = untouched,
    ) -> Float[Array, "b e"]:
        """Arguments as `UNet.__call__`."""
        order = {"cosine_first": config.flip_sin_to_cos, "shift": config.freq_shift}
        waves, condition = sinusoid(t, config.block_out_channels[0], **order), None
        if guidance is not None and (projection := self.time_embedding.cond_proj) is not None:
            scale = jnp.broadcast_to(1000 * (guidance - 1), t.shape)
            condition = sinusoid(scale, projection.kernel.shape[0], cosine_first=False, shift=1).astype(dtype)
        time = self.time_embedding(tap("time_proj", waves).astype(dtype), condition)
        if self.add_embedding is not None:
            assert pooled is not None and sizes is not None and config.addition_time_embed_dim is not None
            size_waves = sinusoid(sizes.reshape(-1), config.addition_time_embed_dim, **order)
            added = jnp.concatenate([pooled.astype(dtype), size_waves.astype(dtype).reshape(t.shape[0], -1)], axis=-1)
            time = time + self.add_embedding(added)
        return tap("time_embedding", time)


class UNet(TimeEmbeddings):
    """The network; attributes have the names of diffusers' tensors."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        self.config = config
        self.conv_in = Conv(config.in_channels, widths[0], padding=1, rngs=rngs)
        self.make_time_layers(config, config.time_cond_proj_dim, rngs=rngs)
        self.down_blocks = nnx.List(down_levels(config, rngs=rngs))
        self.mid_block = None if config.mid_block_type is None else MidLevel(config, rngs=rngs)
        self.up_blocks = nnx.List([UpLevel(config, step, rngs=rngs) for step in range(config.levels)])
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[0], config.norm_eps)
        self.conv_out = Conv(widths[0], config.out_channels, padding=1, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b h w i"],
        t: int | float | Num[Array | np.ndarray, "..."],
        context: Float[Array, "_ _ _"],
        level_features: Sequence[Array | None] | None = None,
        skip_residuals: Sequence[Array] | None = None,
        mid_residual: Array | None = None,
        *,
        guidance: int | float | Num[Array, ""] | None = None,
        pooled: Float[Array, "_ _"] | None = None,
        sizes: Float[Array, "_ _"] | None = None,
        remat: bool = False,
        tap: Tap = untouched,
    ) -> Float[Array, "b h w o"]:
        """The prediction for noisy latents.

        Args:
          x: noisy, scaled latents, and behind them the channels of images; everything else is cast to their type.
          t: timestep, one for all or one each; 0 to 999, fractions allowed.
          context: text states, `b n d` with d = `config.cross_attention_dim`.
          level_features: a tensor (or None) per level, shapes as `config.level_shapes`; one more is for the middle.
          skip_residuals, mid_residual: a tensor per skip, as `config.skip_shapes`; one of the last level's shape.
          guidance: the guidance scale that an LCM (`time_cond_proj_dim`) works at; for others None, as the next two.
          pooled, sizes: SDXL's pooled text, `b p`, and `b s` sizes in pixels: height and width of the original, top and
            left of the crop, height and width of the image, or in place of these two the refiner's aesthetic score.
          remat: keep only the inputs of each residual block and transformer for the gradient; not with a tap.
          tap: reads or replaces outputs of modules (`unet_blocks.py`), and "time_proj", "skips.0", "skips.1", ...
        """
        if remat and tap is not untouched:
            raise ValueError("remat and tap are both given; a tap cannot read values that are computed twice, drop one")
        check_inputs(self.config, x, jnp.shape(t), context, guidance, pooled, sizes)
        features, after_middle = check_added(self.config, x, level_features, skip_residuals, mid_residual)
        stage, context, config = rematerialised if remat else whole, context.astype(x.dtype), self.config
        t = jnp.broadcast_to(jnp.asarray(t), x.shape[:1])
        guidance = None if guidance is None else jnp.asarray(guidance, jnp.float32)
        time = self.embedded_time(config, t, x.dtype, guidance, pooled, sizes, tap)

        x = tap("conv_in", self.conv_in(x))
        x, skips = go_down(self.down_blocks, x, time, context, features, stage, tap)

        if self.mid_block is not None:
            x = tap("mid_block", self.mid_block(x, time, context, stage, within(tap, "mid_block")))
        x = sum((full(extra, x) for extra in after_middle), x)
        skips = [tap(f"skips.{i}", skip) for i, skip in enumerate(skips)]
        if skip_residuals is not None:
            skips = [skip + full(extra, skip) for skip, extra in zip(skips, skip_residuals, strict=True)]

        for step, block in enumerate(self.up_blocks):  # each pops its skips from the end
            name = f"up_blocks.{step}"
            x = tap(name, block(x, time, context, skips, stage, within(tap, name)))
        return self.conv_out(silu(self.conv_norm_out(x)))


def check_inputs(
    config: UNetConfig,
    x: Array,
    t_shape: tuple[int, ...],
    context: Array,
    guidance: Any = None,
    pooled: Array | None = None,
    sizes: Array | None = None,
) -> None:
    """Raises ValueError unless latents, time and text states fit this network and one another."""
    batch = x.shape[0]
    if x.shape[-1] != config.in_channels:
        raise ValueError(f"x has shape {x.shape}; its last axis must be in_channels = {config.in_channels} (b h w c)")
    if t_shape not in ((), (1,), (batch,)):
        raise ValueError(f"t has shape {t_shape}; give one timestep, or one for each of the {batch} latents")
    if context.shape[0] != batch or context.shape[2] != config.cross_attention_dim:
        expected = f"({batch}, any, {config.cross_attention_dim})"
        raise ValueError(f"context has shape {context.shape}; these latents and this network need {expected}")
    if (guidance is None) != (config.time_cond_proj_dim is None):
        takes = "takes none" if guidance is not None else "needs the scale that it works at"
        kind = f"time_cond_proj_dim {config.time_cond_proj_dim}"
        raise ValueError(f"guidance is {guidance}: a network with {kind} {takes}")
    found = None if pooled is None or sizes is None else (pooled.shape, sizes.shape)
    if config.addition_embed_type is None:
        fits = pooled is None and sizes is None
    elif found is None:
        fits = False
    else:
        (rows, width), (other, count) = found
        width += count * (config.addition_time_embed_dim or 0)
        fits = width == config.projection_class_embeddings_input_dim and rows == other == batch
    if not fits:
        kind = f"addition_embed_type {config.addition_embed_type}"
        raise ValueError(f"pooled and sizes have shapes {found}; a network of {kind} reads others (see UNet.__call__)")


def check_added(
    config: UNetConfig,
    x: Array,
    level_features: Sequence[Array | None] | None,
    skip_residuals: Sequence[Array] | None,
    mid_residual: Array | None,
) -> tuple[list[Array | None], list[Array]]:
    """(a feature or None per level, in the type of `x`; the tensors to add after the middle). Raises ValueError."""
    b, h, w, _ = x.shape
    levels, skips = config.level_shapes(h, w), config.skip_shapes(h, w)
    features = [None] * len(levels) if level_features is None else list(level_features)
    residuals = [None] * len(skips) if skip_residuals is None else skip_residuals
    if len(features) - len(levels) not in (0, 1) or len(residuals) != len(skips):
        found = f"{len(features)} level_features and {len(residuals)} skip_residuals"
        raise ValueError(f"{found}; this network takes {len(levels)}, or one more for the middle, and {len(skips)}")
    given = [("mid_residual", mid_residual, [levels[-1]])]
    given += [(f"skip_residuals[{i}]", residual, [skips[i]]) for i, residual in enumerate(residuals)]
    for i, (feature, shape) in enumerate(zip(features, [*levels, levels[-1]], strict=False)):
        after = [(-(-shape[0] // 2), -(-shape[1] // 2), shape[2])] if i < len(levels) and config.takes_after(i) else []
        given.append((f"level_features[{i}]", feature, [shape, *after]))
    for name, value, (shape, *others) in given:
        if value is not None and (value.shape[0] not in (b, 1) or value.shape[1:] not in (shape, *others)):
            raise ValueError(f"{name} has shape {value.shape}; at this size it must be {(b, *shape)}, or 1 for {b}")
    after_middle = [extra for extra in (*features[len(levels) :], mid_residual) if extra is not None]
    return [None if f is None else full(f, x) for f in features[: len(levels)]], after_middle


def full(extra: Float[Array, "_ h w c"], x: Float[Array, "b _ _ _"]) -> Float[Array, "b h w c"]:
    """`extra` in the type of `x`, broadcast to its batch. The barrier keeps the compiler from merging the broadcast
    into the sums of the norms that follow: in a pipeline a control that adds zeros leaves every bit as it was."""
    return lax.optimization_barrier(jnp.broadcast_to(extra.astype(x.dtype), (x.shape[0], *extra.shape[1:])))
