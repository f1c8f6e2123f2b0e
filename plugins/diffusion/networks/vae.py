"""The autoencoder of latent diffusion (AutoencoderKL): images to latents of an eighth of the side, and back.

An image `b h w 3` in [-1, 1] (the range of the published weights; elsewhere here images are in [0, 1]) becomes a normal
distribution over latents `b h/8 w/8 4`, and those an image again. Encoder and decoder are the UNet's residual blocks
without a time, with a single-head attention in the middle; every norm has epsilon 1e-6, downsamplers pad below and to
the right only, and a decoder level has one block more.

Diffusion runs on *scaled latents* (`to_latents`, `from_latents`): 0.18215 makes the variance of the published weights'
about 1. The decoder's activations exceed float16's 65504.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from common.checked import Above0, OneOrMore, Positive
from common.nn import json_config
from common.nn.attention import attend
from common.nn.json_config import JsonConfig, Layers
from common.nn.layers import Linear
from plugins.diffusion.networks.layers import AFTER, Conv, Downsample, GroupNorm, ResnetBlock, Upsample, silu

DOWN_TYPE, UP_TYPE = "DownEncoderBlock2D", "UpDecoderBlock2D"
FIXED: dict[str, tuple] = {
    "act_fn": ("silu", "swish"),
    "latents_mean": (None,),
    "latents_std": (None,),
    "mid_block_add_attention": (True,),
    "use_post_quant_conv": (True,),
    "use_quant_conv": (True,),
}
NORM_EPS = 1e-6
OVERLAP, MARGIN = 16, 4  # of tiles, in latent pixels: what neighbours share, and what of it is context only
LOGVAR = (-30.0, 20.0)  # log variances are clipped to this range


@dataclasses.dataclass(frozen=True)
class VAEConfig(JsonConfig):
    """Architecture of an autoencoder in diffusers' options."""

    in_channels: Positive = 3  # of images, as out_channels
    out_channels: Positive = 3
    latent_channels: Positive = 4
    block_out_channels: OneOrMore[Positive] = (128, 256, 512, 512)  # per level, finest first; each but one halves sides
    layers_per_block: Layers = 2  # residual blocks of an encoder level; a decoder level has one more
    norm_num_groups: Positive = 32  # groups of every GroupNorm
    sample_size: Positive = 512  # side of the training images, in pixels
    scaling_factor: Above0 = 0.18215  # scaled latents = (latents - shift) * scaling
    shift_factor: int | float | None = None

    architecture, fixed = "AutoencoderKL", FIXED

    def rules(self):
        fits = all(width % self.norm_num_groups == 0 for width in self.block_out_channels)
        yield fits, "norm_num_groups divides block_out_channels"

    @classmethod
    def sd(cls) -> "VAEConfig":
        """Stable Diffusion 1.x and 2.x: 83,653,863 parameters."""
        return cls()

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> "VAEConfig":
        for key, supported in (("down_block_types", DOWN_TYPE), ("up_block_types", UP_TYPE)):
            types = mapping.get(key, ())
            for found in types if isinstance(types, list | tuple) else [types]:
                json_config.check_supported(key, found, (supported,))
        return super().from_json(mapping)

    def to_json(self) -> dict[str, Any]:
        levels = len(self.block_out_channels)
        types = {"down_block_types": [DOWN_TYPE] * levels, "up_block_types": [UP_TYPE] * levels}
        return super().to_json() | types

    @property
    def reduction(self) -> int:
        """Image pixels per latent pixel and side: 8 for four levels."""
        return 2 ** (len(self.block_out_channels) - 1)


class Posterior(NamedTuple):
    """The encoder's diagonal normal distribution over latents, not scaled."""

    mean: Float[Array, "b h w c"]
    logvar: Float[Array, "b h w c"]

    @property
    def std(self) -> Float[Array, "b h w c"]:
        return jnp.exp(0.5 * self.logvar)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "b h w c"]:
        """Latents drawn with a key."""
        return self.mean + self.std * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def kl(self) -> Float[Array, " b"]:
        """KL divergence to the standard normal distribution, in nats, summed over each image's latents."""
        return 0.5 * jnp.sum(jnp.square(self.mean) + jnp.exp(self.logvar) - 1 - self.logvar, axis=(1, 2, 3))


class Autoencoder(nnx.Module):
    """Base class of autoencoders: what all do with their config."""

    config: Any

    def encode(self, image: Float[Array, "b h w c"]) -> Posterior:
        """Images in [-1, 1], with sides that are multiples of `config.reduction`, to distributions over latents."""
        raise NotImplementedError

    def decode(self, z: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 o"]:
        """Latents, not scaled, to images: nominally in [-1, 1], not clipped."""
        raise NotImplementedError

    def to_latents(self, z: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """Latents of the encoder's distribution -> scaled latents, in which diffusion runs."""
        return (z - (self.config.shift_factor or 0)) * self.config.scaling_factor

    def from_latents(self, latents: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """Scaled latents -> the input of `decode`."""
        return latents / self.config.scaling_factor + (self.config.shift_factor or 0)

    def check_image(self, image: Array) -> None:
        """Raises ValueError for an image of another shape."""
        config, unit = self.config, self.config.reduction
        if image.shape[3] != config.in_channels or image.shape[1] % unit or image.shape[2] % unit:
            rule = f"{config.in_channels} channels and sides that are multiples of {unit}; crop or resize them"
            raise ValueError(f"image has shape {image.shape}; images are b h w c with {rule}")


class AutoencoderKL(Autoencoder):
    """Encoder and decoder; attributes have the names of diffusers' tensors."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        latent = config.latent_channels
        self.config = config
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)
        self.quant_conv = Conv(2 * latent, 2 * latent, 1, rngs=rngs)
        self.post_quant_conv = Conv(latent, latent, 1, rngs=rngs)

    def encode(self, image: Float[Array, "b h w c"]) -> Posterior:
        self.check_image(image)
        mean, logvar = jnp.split(self.quant_conv(self.encoder(image)), 2, axis=-1)
        return Posterior(mean, jnp.clip(logvar, *LOGVAR))

    def decode(self, z: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 o"]:
        return self.decoder(self.post_quant_conv(z))


class Attention(nnx.Module):
    """Self-attention of all pixels with a single head, as a residual; all four linear maps have a bias."""

    def __init__(self, width: int, groups: int, *, rngs: nnx.Rngs):
        self.group_norm = GroupNorm(groups, width, NORM_EPS)
        self.to_q = Linear(width, width, rngs=rngs)
        self.to_k = Linear(width, width, rngs=rngs)
        self.to_v = Linear(width, width, rngs=rngs)
        self.to_out = nnx.List([Linear(width, width, rngs=rngs)])

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        normal = self.group_norm(x)
        q, k, v = (layer(normal).reshape(x.shape[0], -1, 1, x.shape[-1]) for layer in (self.to_q, self.to_k, self.to_v))
        return x + self.to_out[0](attend(q, k, v).reshape(x.shape))


class Middle(nnx.Module):
    """Residual block, attention, residual block."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        width = config.block_out_channels[-1]
        self.resnets = nnx.List([_resnet(config, width, width, rngs) for _ in range(2)])
        self.attentions = nnx.List([Attention(width, config.norm_num_groups, rngs=rngs)])

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Level(nnx.Module):
    """Level `i` of the encoder (`down`), or of the decoder, which has a block more; all but the last resample."""

    def __init__(self, config: VAEConfig, i: int, down: bool, *, rngs: nnx.Rngs):
        widths = config.block_out_channels if down else config.block_out_channels[::-1]
        width, last = widths[i], i == len(widths) - 1
        inputs = [widths[max(i - 1, 0)], *[width] * (config.layers_per_block - int(down))]
        self.resnets = nnx.List([_resnet(config, n, width, rngs) for n in inputs])
        self.downsamplers = nnx.List([Downsample(width, AFTER, rngs=rngs)] if down and not last else [])
        self.upsamplers = nnx.List([] if down or last else [Upsample(width, rngs=rngs)])

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        for block in (*self.resnets, *self.downsamplers, *self.upsamplers):
            x = block(x)
        return x


class Encoder(nnx.Module):
    """Images to means and log variances, before `quant_conv`."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        self.conv_in = Conv(config.in_channels, widths[0], padding=1, rngs=rngs)
        self.down_blocks = nnx.List([Level(config, i, True, rngs=rngs) for i in range(len(widths))])
        self.mid_block = Middle(config, rngs=rngs)
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[-1], NORM_EPS)
        self.conv_out = Conv(widths[-1], 2 * config.latent_channels, padding=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nnx.Module):
    """Latents, after `post_quant_conv`, to images."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels[::-1]
        self.conv_in = Conv(config.latent_channels, widths[0], padding=1, rngs=rngs)
        self.mid_block = Middle(config, rngs=rngs)
        self.up_blocks = nnx.List([Level(config, i, False, rngs=rngs) for i in range(len(widths))])
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[-1], NORM_EPS)
        self.conv_out = Conv(widths[-1], config.out_channels, padding=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(silu(self.conv_norm_out(x)))


def _resnet(config: VAEConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> ResnetBlock:
    return ResnetBlock(inputs, outputs, groups=config.norm_num_groups, eps=NORM_EPS, time=None, rngs=rngs)
