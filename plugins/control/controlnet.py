"""ControlNet (Zhang, Rao and Agrawala, "Adding Conditional Control to Text-to-Image Diffusion Models", 2302.05543).

A copy of the UNet's encoder looks at the noisy latents, the time and the text as the UNet does, and at a picture
besides; what it makes of them is added to the skips and the middle of the UNet, which itself stays as it was.

    condition picture, b h w 3 in [0, 1]
      hint encoder      convolutions, each second one of stride 2; SiLU between      once per picture (`encode`)
    noisy latents
      conv_in           + the hint                                                   at every step (`act`)
      down_blocks       the UNet's, weights copied at the start, every result kept: 12 with four levels of two
      mid_block
      13 zero convolutions: 1x1, one for each result, all weights 0 at the start  -> + the UNet's skips and middle

Zero convolutions (section 3.1) let a copy of a good network be trained without harm to it: in the first step nothing is
added, bit for bit; yet their gradient is not zero, since their inputs are not. The hint encoder ends in one too.

Attributes are called as diffusers' tensors, so `porting.py` needs no table of its own. At SD 1.5 there are 361,279,120
parameters, 1,086,480 of them in the hint encoder, and a step costs 34 % more than the UNet's alone.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Num

from common.nn.remat import remat as rematerialised
from plugins.control.contract import Added, ControlNetwork
from plugins.control.controlnet_config import ControlNetConfig
from plugins.control.convolutions import silent
from plugins.control.fitting import check_fit
from plugins.diffusion.io.porting import blank
from plugins.diffusion.networks.layers import Conv, silu
from plugins.diffusion.networks.unet import TimeEmbedding, UNet, sinusoid
from plugins.diffusion.networks.unet_blocks import MidLevel, down_levels, go_down, whole
from plugins.diffusion.networks.unet_config import UNetConfig

COPIED = ("conv_in", "time_embedding", "down_blocks", "mid_block")  # of the UNet
SILENT = ("controlnet_down_blocks", "controlnet_mid_block")


class HintEncoder(nnx.Module):
    """Picture -> a map of the latents' size and the first level's width; the last convolution starts as nothing."""

    def __init__(self, config: ControlNetConfig, *, rngs: nnx.Rngs):
        widths = config.conditioning_embedding_out_channels
        self.conv_in = Conv(3, widths[0], padding=1, rngs=rngs)
        blocks = []
        for width, wider in itertools.pairwise(widths):
            blocks.append(Conv(width, width, padding=1, rngs=rngs))
            blocks.append(Conv(width, wider, stride=2, padding=1, rngs=rngs))
        self.blocks = nnx.List(blocks)
        self.conv_out = silent(Conv(widths[-1], config.block_out_channels[0], padding=1, rngs=rngs))

    def __call__(self, picture: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        x = silu(self.conv_in(picture))
        for block in self.blocks:
            x = silu(block(x))
        return self.conv_out(x)


class ControlNet(ControlNetwork):
    """The network; `ControlNet.from_unet(unet, rngs=...)` makes a new one that is ready to be trained."""

    config: ControlNetConfig
    every_step: ClassVar[bool] = True

    def __init__(self, config: ControlNetConfig, *, rngs: nnx.Rngs):
        encoder = config.encoder
        widths = encoder.block_out_channels
        self.config = config
        self.conv_in = Conv(encoder.in_channels, widths[0], padding=1, rngs=rngs)
        self.time_embedding = TimeEmbedding(widths[0], 4 * widths[0], rngs=rngs)
        self.controlnet_cond_embedding = HintEncoder(config, rngs=rngs)
        self.down_blocks = nnx.List(down_levels(encoder, rngs=rngs))
        self.mid_block = MidLevel(encoder, rngs=rngs)
        skips = [width for _, _, width in encoder.skip_shapes(1, 1)]
        self.controlnet_down_blocks = nnx.List([silent(Conv(width, width, 1, rngs=rngs)) for width in skips])
        self.controlnet_mid_block = silent(Conv(widths[-1], widths[-1], 1, rngs=rngs))

    @classmethod
    def from_unet(
        cls, unet: UNet, reduction: int = 8, *, config: ControlNetConfig | None = None, rngs: nnx.Rngs
    ) -> ControlNet:
        """A new one with the UNet's encoder, that changes nothing yet.

        The weights are copies: training this network, with its buffers donated, leaves the UNet alone.

        Args:
          unet: what it is to steer; its parameters' type is this network's.
          reduction: pixels per latent pixel and side, a power of 2: 8 for Stable Diffusion.
          config: in place of the one that belongs to UNet and reduction, for another hint encoder.

        Raises:
          ValueError: no such reduction, or a config that is not for this UNet.
        """
        config = config or ControlNetConfig.for_unet(unet.config, reduction)
        check_encoder(config, unet.config)
        theirs = nnx.to_pure_dict(nnx.state(unet))
        dtype = theirs["conv_in"]["kernel"].dtype
        graph, abstract = blank(cls, config)
        zeros = {name: abstract[name] for name in SILENT}
        params: dict[Any, Any] = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, dtype)), zeros)
        params |= {name: jax.device_put(theirs[name], may_alias=False) for name in COPIED}
        params["controlnet_cond_embedding"] = _new_hints(rngs.params(), config, dtype)
        return nnx.merge(graph, params)

    @property
    def prompt_only(self) -> bool:
        """As diffusers does it: control without space (`global_pool_conditions`) speaks to the prompt's half alone."""
        return self.config.global_pool_conditions

    @property
    def places(self) -> int:
        return self.config.skips + 1

    def check(self, unet: UNetConfig, unit: int) -> None:
        check_encoder(self.config, unet)
        check_fit("ControlNet", {"pixels per latent pixel": self.config.reduction}, {"pixels per latent pixel": unit})

    def encode(self, picture: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """The hint: the only part that looks at the picture, and it looks at nothing else."""
        if self.config.controlnet_conditioning_channel_order == "bgr":
            picture = picture[..., ::-1]
        return self.controlnet_cond_embedding(picture)

    def act(
        self,
        encoded: Float[Array, "_ h w c"],
        x: Float[Array, "b h w i"],
        t: Num[Array, ...],
        context: Float[Array, "b n d"],
        remat: bool = False,
    ) -> Added:
        """All skips and the middle; computed in the type of the latents."""
        stage = rematerialised if remat else whole
        time, context = self._embed(t, x), context.astype(x.dtype)
        x = self.conv_in(x) + encoded.astype(x.dtype)
        x, skips = go_down(self.down_blocks, x, time, context, [None] * self.config.encoder.levels, stage)
        middle = self.controlnet_mid_block(self.mid_block(x, time, context, stage))
        residuals = [conv(skip) for conv, skip in zip(self.controlnet_down_blocks, skips, strict=True)]
        if self.config.global_pool_conditions:
            residuals, middle = [pooled(residual) for residual in residuals], pooled(middle)
        return Added(skip_residuals=tuple(residuals), mid_residual=middle)

    def _embed(self, t: Num[Array, ...], x: Float[Array, "b h w i"]) -> Float[Array, "b e"]:
        encoder, t = self.config.encoder, jnp.broadcast_to(t, x.shape[:1])
        width, order, shift = encoder.block_out_channels[0], encoder.flip_sin_to_cos, encoder.freq_shift
        return self.time_embedding(sinusoid(t, width, cosine_first=order, shift=shift).astype(x.dtype))


def pooled(x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
    """The average over space, everywhere."""
    return jnp.broadcast_to(x.mean(axis=(1, 2), keepdims=True), x.shape)


def check_encoder(config: ControlNetConfig, unet: UNetConfig) -> None:
    """Raises ValueError in one line unless what it adds has the shapes of that UNet, and it reads the same text."""
    names = ("in_channels", "block_out_channels", "layers_per_block", "cross_attention_dim")
    found, base = ({name: getattr(c, name) for name in names} for c in (config, unet))
    check_fit("ControlNet", found, base)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _new_hints(key: jax.Array, config: ControlNetConfig, dtype: Any) -> dict[Any, Any]:
    """The parameters of a new hint encoder; one program for all draws."""
    params = nnx.to_pure_dict(nnx.state(HintEncoder(config, rngs=nnx.Rngs(key))))
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)
