"""TAESD, a tiny autoencoder that stands in for Stable Diffusion's (Bohan, 2023; AutoencoderTiny of diffusers).

It was distilled from that one and has its scaled latents. 3x3 convolutions, ReLU and residual blocks of one width,
without norms and attention: 2.4 million parameters against 84. Fine texture is lost; enough for previews and phones.

    image in [-1, 1] -> [0, 1] -> levels, each after the first halves -> latents
    latents -> 3 tanh(x / 3) -> levels, each but the last doubles -> [0, 1] -> [-1, 1]
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from common.checked import Above0, OneOrMore, Positive
from common.nn.json_config import JsonConfig, Layers
from plugins.diffusion.networks.layers import Conv, upsample_nearest
from plugins.diffusion.networks.vae import LOGVAR, Autoencoder, Posterior

relu = jax.nn.relu
MAGNITUDE = 3.0  # latents are squeezed into (-3, 3) before they are decoded


@dataclasses.dataclass(frozen=True)
class TinyVAEConfig(JsonConfig):
    """Architecture in diffusers' options; the default is TAESD. Raises ValueError for values that do not fit."""

    in_channels: Positive = 3  # of images, as out_channels
    out_channels: Positive = 3
    latent_channels: Positive = 4
    encoder_block_out_channels: OneOrMore[Positive] = (64, 64, 64, 64)  # per level, finest first; all of one width
    decoder_block_out_channels: OneOrMore[Positive] = (64, 64, 64, 64)  # per level, coarsest first
    num_encoder_blocks: OneOrMore[Layers] = (1, 3, 3, 3)  # residual blocks of each level
    num_decoder_blocks: OneOrMore[Layers] = (3, 3, 3, 1)
    scaling_factor: Above0 = 1.0  # scaled latents = (latents - shift) * scaling
    shift_factor: int | float | None = 0.0

    architecture = "AutoencoderTiny"
    fixed: ClassVar = {"act_fn": ("relu",), "upsample_fn": ("nearest",), "upsampling_scaling_factor": (2,)}

    def rules(self):
        lists = ("encoder_block_out_channels", "decoder_block_out_channels", "num_encoder_blocks", "num_decoder_blocks")
        yield len({len(getattr(self, name)) for name in lists}) == 1, f"{', '.join(lists)} have an entry per level"
        for name in lists[:2]:
            yield len({*getattr(self, name)}) == 1, f"{name} are equal"

    @property
    def block_out_channels(self) -> tuple[int, ...]:
        """Widths of the encoder's levels, finest first."""
        return tuple(self.encoder_block_out_channels)

    @property
    def reduction(self) -> int:
        """Image pixels per latent pixel and side: 8 for four levels."""
        return 2 ** (len(self.num_encoder_blocks) - 1)


class AutoencoderTiny(Autoencoder):
    """The network; attributes have the names of diffusers' tensors."""

    def __init__(self, config: TinyVAEConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)

    def encode(self, image: Float[Array, "b h w i"]) -> Posterior:
        self.check_image(image)
        mean = self.encoder((image + 1) / 2)
        return Posterior(mean, jnp.full_like(mean, LOGVAR[0]))  # no variance to speak of

    def decode(self, z: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 o"]:
        return 2 * self.decoder(MAGNITUDE * jnp.tanh(z / MAGNITUDE)) - 1


class Block(nnx.Module):
    """relu(x + three 3x3 convolutions of x, with a ReLU between); files count the ReLUs."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        first, second, third = (Conv(width, width, padding=1, rngs=rngs) for _ in range(3))
        self.conv = nnx.List([first, relu, second, relu, third])

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return relu(functools.reduce(lambda y, layer: layer(y), self.conv, x) + x)


class Encoder(nnx.Sequential):
    """Images in [0, 1] to latents."""

    def __init__(self, config: TinyVAEConfig, *, rngs: nnx.Rngs):
        width, layers = config.encoder_block_out_channels[0], []
        for level, blocks in enumerate(config.num_encoder_blocks):
            inputs, stride = (width, 2) if level else (config.in_channels, 1)
            layers.append(Conv(inputs, width, stride=stride, padding=1, bias=not level, rngs=rngs))
            layers += [Block(width, rngs=rngs) for _ in range(blocks)]
        super().__init__(*layers, Conv(width, config.latent_channels, padding=1, rngs=rngs))


class Decoder(nnx.Sequential):
    """Latents to images in [0, 1]; files count a ReLU behind the first convolution, and the upsamplings."""

    def __init__(self, config: TinyVAEConfig, *, rngs: nnx.Rngs):
        width = config.decoder_block_out_channels[0]
        layers: list[Any] = [Conv(config.latent_channels, width, padding=1, rngs=rngs), relu]
        for level, blocks in enumerate(config.num_decoder_blocks):
            last = level == len(config.num_decoder_blocks) - 1
            layers += [Block(width, rngs=rngs) for _ in range(blocks)]
            layers += [] if last else [upsample_nearest]
            outputs = config.out_channels if last else width
            layers.append(Conv(width, outputs, padding=1, bias=last, rngs=rngs))
        super().__init__(*layers)
