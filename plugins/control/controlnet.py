"""ControlNet (Zhang, Rao and Agrawala, "Adding Conditional Control to Text-to-Image Diffusion Models", 2302.05543).

A trainable copy of the UNet's encoder reads what the UNet reads, and a condition image; its results are added to the
UNet's skips and middle, and the UNet itself stays frozen.

    condition image, b h w 3 in [0, 1]
      hint encoder      convolutions, every second one of stride 2, SiLU between     once per image (`encode`)
    noisy latents
      conv_in           + the hint                                                   in every step
      down_blocks       the UNet's, weights copied: 12 results with four levels of two
      mid_block
      13 zero convolutions, 1x1, one for each result  -> + the UNet's skips and middle

Zero convolutions (section 3.1), the hint encoder's last too, protect the copy at the start of training: nothing is
added in the first step, bit for bit, yet their gradient is not zero, because their inputs are not.

Attributes have diffusers' tensor names. At SD 1.5 there are 361,279,120 parameters, 1,086,480 of them in the hint
encoder, and a step costs 34 % more than the UNet's alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Num

from common.checked import OneOrMore, Positive
from common.nn.init import COMPILE_FAST, blank, init_params
from common.nn.remat import remat as rematerialised
from plugins.control.contract import ControlNetwork, ControlOutput, check_fit, zero_conv
from plugins.diffusion.networks import unet_config
from plugins.diffusion.networks.layers import Conv, silu
from plugins.diffusion.networks.unet import TimeEmbeddings, UNet
from plugins.diffusion.networks.unet_blocks import MidLevel, down_levels, go_down, whole
from plugins.diffusion.networks.unet_config import EncoderConfig, UNetConfig

UNET_OPTIONS = ("act_fn", "class_embed_type", "downsample_padding", "encoder_hid_dim")
UNET_OPTIONS += ("encoder_hid_dim_type", "mid_block_scale_factor", "num_attention_heads")
UNET_OPTIONS += ("num_class_embeds", "only_cross_attention", "resnet_time_scale_shift")
FIXED: dict[str, tuple] = {
    "conditioning_channels": (3,),
    "mid_block_type": (unet_config.MID_TYPE,),
    **{key: unet_config.FIXED[key] for key in UNET_OPTIONS},
}
HINT_WIDTHS = (16, 32, 96, 256)
COPIED = ("conv_in", "time_embedding", "add_embedding", "down_blocks", "mid_block")  # from the UNet


@dataclasses.dataclass(frozen=True)
class ControlNetConfig(EncoderConfig):
    """Architecture of a ControlNet, with diffusers' option names; the default is Stable Diffusion 1.x's."""

    architecture: ClassVar[str] = "ControlNetModel"
    fixed: ClassVar[Mapping[str, Sequence]] = FIXED

    # Widths of the hint encoder. The image is halved between them: four make 8 pixels per latent pixel.
    conditioning_embedding_out_channels: OneOrMore[Positive] = HINT_WIDTHS
    controlnet_conditioning_channel_order: Literal["rgb", "bgr"] = "rgb"  # "bgr": trained on images as of OpenCV
    # Residuals are averaged over space, which keeps content and drops layout (the "shuffle" networks). They were
    # trained for the conditional half of guidance: `prompt_only` is their default.
    global_pool_conditions: bool = False

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int = 8) -> "ControlNetConfig":
        """For that UNet, with `reduction` pixels per latent pixel. Raises ValueError unless it is a power of 2."""
        halvings = reduction.bit_length() - 1
        if reduction < 1 or reduction != 2**halvings:
            raise ValueError(f"reduction={reduction}: a hint encoder halves the image; choose 1, 2, 4, 8, ...")
        hints = (HINT_WIDTHS + HINT_WIDTHS[-1:] * halvings)[: halvings + 1]
        shared = {field.name: getattr(unet, field.name) for field in dataclasses.fields(EncoderConfig)}
        return cls(**shared, conditioning_embedding_out_channels=hints)


class ControlNet(ControlNetwork, TimeEmbeddings):
    """The network; `ControlNet.from_unet(unet, rngs=...)` makes a new one to train."""

    config: ControlNetConfig
    config_class: ClassVar[Any] = ControlNetConfig
    every_step: ClassVar[bool] = True

    def __init__(self, config: ControlNetConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        skips = [width for _, _, width in config.skip_shapes(1, 1)]
        self.config, self.num_outputs, self.prompt_only = config, len(skips) + 1, config.global_pool_conditions
        self.reduction = 2 ** (len(config.conditioning_embedding_out_channels) - 1)
        self.conv_in = Conv(config.in_channels, widths[0], padding=1, rngs=rngs)
        self.make_time_layers(config, rngs=rngs)
        self.controlnet_cond_embedding = HintEncoder(config, rngs=rngs)
        self.down_blocks = nnx.List(down_levels(config, rngs=rngs))
        self.mid_block = MidLevel(config, rngs=rngs)
        self.controlnet_down_blocks = nnx.List([zero_conv(width, width, rngs=rngs) for width in skips])
        self.controlnet_mid_block = zero_conv(widths[-1], widths[-1], rngs=rngs)

    @classmethod
    def from_unet(
        cls, unet: UNet, reduction: int = 8, *, config: ControlNetConfig | None = None, rngs: nnx.Rngs
    ) -> "ControlNet":
        """A new network with copies of the UNet's encoder, in its type, which changes nothing yet. `reduction` is in
        pixels per latent pixel and side, a power of 2; `config` replaces the one of UNet and reduction, for another
        hint encoder. Raises ValueError for one that does not fit this UNet."""
        config = config or ControlNetConfig.for_unet(unet.config, reduction)
        graph, abstract = blank(cls, config)
        network = nnx.merge(graph, abstract)
        network.check(unet.config, network.reduction)
        source = nnx.to_pure_dict(nnx.state(unet))
        dtype = source["conv_in"]["kernel"].dtype
        # Zeros, but for copies (a training that donates its buffers leaves the UNet as it is) and the hint encoder.
        params = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, dtype)), abstract)
        params |= {name: jax.device_put(source[name], may_alias=False) for name in COPIED if name in abstract}
        params["controlnet_cond_embedding"] = _init_hint_encoder(rngs.params(), config, dtype)
        return nnx.merge(graph, params)

    def check(self, unet: UNetConfig, reduction: int) -> None:
        names = ("block_out_channels", "layers_per_block", "cross_attention_dim", "addition_embed_type")
        found, base = ({name: getattr(config, name) for name in names} for config in (self.config, unet))
        # A base with images beside its latents takes the ControlNet of the base that it was made from.
        found["in_channels"], base["in_channels"] = self.config.in_channels, min(unet.in_channels, unet.out_channels)
        found["mid_block_type"], base["mid_block_type"] = unet_config.MID_TYPE, unet.mid_block_type
        check_fit("ControlNet", found | {"reduction": self.reduction}, base | {"reduction": reduction})

    def encode(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """The hint; no other part reads the image."""
        if self.config.controlnet_conditioning_channel_order == "bgr":
            image = image[..., ::-1]
        return self.controlnet_cond_embedding(image)

    def __call__(
        self,
        encoded: Float[Array, "_ h w c"],
        x: Float[Array, "b h w i"],
        t: Num[Array, "..."],
        context: Float[Array, "b n d"],
        remat: bool = False,
        *,
        pooled: Float[Array, "b p"] | None = None,
        sizes: Float[Array, "b s"] | None = None,
    ) -> ControlOutput:
        """Residuals of all skips and the middle, computed in the type of the latents; arguments as `UNet.__call__`."""
        config, stage = self.config, rematerialised if remat else whole
        t, context = jnp.broadcast_to(t, x.shape[:1]), context.astype(x.dtype)
        time = self.embedded_time(config, t, x.dtype, None, pooled, sizes)
        x = self.conv_in(x) + encoded.astype(x.dtype)
        x, skips = go_down(self.down_blocks, x, time, context, [None] * len(self.down_blocks), stage)
        convs = (*self.controlnet_down_blocks, self.controlnet_mid_block)
        results = (*skips, self.mid_block(x, time, context, stage))
        residuals = [conv(result) for conv, result in zip(convs, results, strict=True)]
        if config.global_pool_conditions:
            residuals = [jnp.broadcast_to(r.mean((1, 2), keepdims=True), r.shape) for r in residuals]
        *residuals, middle = residuals
        return ControlOutput(skip_residuals=tuple(residuals), mid_residual=middle)


class HintEncoder(nnx.Module):
    """Image -> a map of the latents' size and the first level's width."""

    def __init__(self, config: ControlNetConfig, *, rngs: nnx.Rngs):
        widths = config.conditioning_embedding_out_channels
        self.conv_in = Conv(3, widths[0], padding=1, rngs=rngs)
        blocks = []
        for width, wider in itertools.pairwise(widths):
            blocks.append(Conv(width, width, padding=1, rngs=rngs))
            blocks.append(Conv(width, wider, stride=2, padding=1, rngs=rngs))
        self.blocks = nnx.List(blocks)
        self.conv_out = zero_conv(widths[-1], config.block_out_channels[0], 3, padding=1, rngs=rngs)

    def __call__(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        x = silu(self.conv_in(image))
        for block in self.blocks:
            x = silu(block(x))
        return self.conv_out(x)


@functools.partial(jax.jit, static_argnums=(1, 2), compiler_options=COMPILE_FAST)
def _init_hint_encoder(key: jax.Array, config: ControlNetConfig, dtype: Any) -> dict[Any, Any]:
    """Parameters of a new hint encoder; one compilation for all keys."""
    params = init_params(HintEncoder, config, key)
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)
