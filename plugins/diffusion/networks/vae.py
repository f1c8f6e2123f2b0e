"""The autoencoder of latent diffusion (AutoencoderKL): pictures to latents of an eighth of the side, and back.

A picture `b h w 3` in [-1, 1] (unlike elsewhere in this project, [0, 1]: it is what the published weights were trained
on) becomes a normal distribution over latents `b h/8 w/8 4`; latents become a picture again. Encoder and decoder are
the residual blocks of the UNet without a time, with one attention of a single head in the middle. Three differences:
every norm has epsilon 1e-6, downsamplers pad below and to the right only, and a decoder level has one block more.

Diffusion runs on *scaled latents*: `to_latents` and `from_latents` lead there and back. 0.18215 makes their variance
about 1 for the published weights. Do not run them in float16, which ends at 65504: the decoder's activations go beyond.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from plugins.diffusion.networks.layers import Conv
from plugins.diffusion.networks.vae_blocks import Decoder, Encoder
from plugins.diffusion.networks.vae_config import VAEConfig

__all__ = ["AutoencoderKL", "Posterior", "VAEConfig"]

LOGVAR = (-30.0, 20.0)  # the log of a variance is clamped to this


class Posterior(NamedTuple):
    """The normal distribution over latents (not scaled) that the encoder gives for a picture; independent numbers."""

    mean: Float[Array, "b h w c"]
    logvar: Float[Array, "b h w c"]

    @property
    def std(self) -> Float[Array, "b h w c"]:
        return jnp.exp(0.5 * self.logvar)

    @property
    def mode(self) -> Float[Array, "b h w c"]:
        """The most probable latents."""
        return self.mean

    def sample(self, noise: PRNGKeyArray | Float[Array, ...]) -> Float[Array, "b h w c"]:
        """Latents drawn with a key (`jax.random.key`), or with standard normal numbers of one's own.

        Raises ValueError for numbers of another shape."""
        if jnp.issubdtype(noise.dtype, jax.dtypes.prng_key):
            noise = jax.random.normal(noise, self.mean.shape, self.mean.dtype)
        if noise.shape != self.mean.shape:
            raise ValueError(f"noise has shape {noise.shape}; latents are {self.mean.shape} (or give a key)")
        return self.mean + self.std * noise

    def kl(self) -> Float[Array, " b"]:
        """KL divergence to the standard normal distribution, in nats, summed over each picture's latents."""
        return 0.5 * jnp.sum(jnp.square(self.mean) + jnp.exp(self.logvar) - 1 - self.logvar, axis=(1, 2, 3))


class AutoencoderKL(nnx.Module):
    """Encoder and decoder; attributes are called as diffusers' tensors."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        latent = config.latent_channels
        self.config = config
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)
        self.quant_conv = Conv(2 * latent, 2 * latent, 1, rngs=rngs)
        self.post_quant_conv = Conv(latent, latent, 1, rngs=rngs)

    def encode(self, image: Float[Array, "b h w c"]) -> Posterior:
        """Pictures in [-1, 1] to distributions over latents.

        Raises ValueError for another number of channels, or sides that are not multiples of `config.reduction`."""
        config, unit = self.config, self.config.reduction
        if image.shape[3] != config.in_channels or image.shape[1] % unit or image.shape[2] % unit:
            rule = f"{config.in_channels} channels and sides that are multiples of {unit}; crop or resize them"
            raise ValueError(f"image has shape {image.shape}; pictures are b h w c with {rule}")
        mean, logvar = jnp.split(self.quant_conv(self.encoder(image)), 2, axis=-1)
        return Posterior(mean, jnp.clip(logvar, *LOGVAR))

    def decode(self, z: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 o"]:
        """Latents, not scaled, to pictures: nominally in [-1, 1], not clamped. Raises ValueError for other channels."""
        if z.shape[3] != self.config.latent_channels:
            raise ValueError(f"latents have shape {z.shape}; the last axis must be {self.config.latent_channels}")
        return self.decoder(self.post_quant_conv(z))

    def to_latents(self, z: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """What the encoder's distribution gives -> scaled latents, in which diffusion runs."""
        return (z - (self.config.shift_factor or 0)) * self.config.scaling_factor

    def from_latents(self, latents: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """Scaled latents -> what `decode` takes."""
        return latents / self.config.scaling_factor + (self.config.shift_factor or 0)
