"""Encoder and decoder of the latent autoencoder: levels of residual blocks, and an attention in the middle.

The encoder halves the resolution after each level but the last and ends with the middle; the decoder begins with the
middle and doubles the resolution after each level but the last.
"""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from plugins.diffusion.networks.attention import attend
from plugins.diffusion.networks.layers import Conv, GroupNorm, Linear
from plugins.diffusion.networks.resnet import AFTER, Downsample, ResnetBlock, Upsample, silu
from plugins.diffusion.networks.vae_config import VAEConfig

NORM_EPS = 1e-6


class Attention(nnx.Module):
    """Pixels look at each other with a single head as wide as the map; a residual. All four maps have a bias."""

    def __init__(self, width: int, groups: int, *, rngs: nnx.Rngs):
        self.group_norm = GroupNorm(groups, width, NORM_EPS)
        self.to_q = Linear(width, width, rngs=rngs)
        self.to_k = Linear(width, width, rngs=rngs)
        self.to_v = Linear(width, width, rngs=rngs)
        self.to_out = nnx.List([Linear(width, width, rngs=rngs)])

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        tokens = self.group_norm(x).reshape(x.shape[0], -1, 1, x.shape[-1])
        read = attend(self.to_q(tokens), self.to_k(tokens), self.to_v(tokens))
        return x + self.to_out[0](read).reshape(x.shape)


class Middle(nnx.Module):
    """Residual block, attention, residual block."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        width = config.block_out_channels[-1]
        self.resnets = nnx.List([_resnet(config, width, width, rngs) for _ in range(2)])
        self.attentions = nnx.List([Attention(width, config.norm_num_groups, rngs=rngs)])

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class DownLevel(nnx.Module):
    """Residual blocks, and a downsampler where `halve`."""

    def __init__(self, config: VAEConfig, before: int, width: int, *, halve: bool, rngs: nnx.Rngs):
        inputs = [before, *[width] * (config.layers_per_block - 1)]
        self.resnets = nnx.List([_resnet(config, i, width, rngs) for i in inputs])
        self.downsamplers = nnx.List([Downsample(width, AFTER, rngs=rngs)] if halve else [])

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        for part in (*self.resnets, *self.downsamplers):
            x = part(x)
        return x


class UpLevel(nnx.Module):
    """One residual block more than a level of the encoder, and an upsampler where `double`."""

    def __init__(self, config: VAEConfig, before: int, width: int, *, double: bool, rngs: nnx.Rngs):
        inputs = [before, *[width] * config.layers_per_block]
        self.resnets = nnx.List([_resnet(config, i, width, rngs) for i in inputs])
        self.upsamplers = nnx.List([Upsample(width, rngs=rngs)] if double else [])

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        for part in (*self.resnets, *self.upsamplers):
            x = part(x)
        return x


class Encoder(nnx.Module):
    """Pictures to means and log variances, before `quant_conv`."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels
        self.conv_in = Conv(config.in_channels, widths[0], padding=1, rngs=rngs)
        self.down_blocks = nnx.List([])
        for i, width in enumerate(widths):
            halve = i < len(widths) - 1
            self.down_blocks.append(DownLevel(config, widths[max(i - 1, 0)], width, halve=halve, rngs=rngs))
        self.mid_block = Middle(config, rngs=rngs)
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[-1], NORM_EPS)
        self.conv_out = Conv(widths[-1], 2 * config.latent_channels, padding=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nnx.Module):
    """Latents, after `post_quant_conv`, to pictures."""

    def __init__(self, config: VAEConfig, *, rngs: nnx.Rngs):
        widths = config.block_out_channels[::-1]
        self.conv_in = Conv(config.latent_channels, widths[0], padding=1, rngs=rngs)
        self.mid_block = Middle(config, rngs=rngs)
        self.up_blocks = nnx.List([])
        for i, width in enumerate(widths):
            double = i < len(widths) - 1
            self.up_blocks.append(UpLevel(config, widths[max(i - 1, 0)], width, double=double, rngs=rngs))
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[-1], NORM_EPS)
        self.conv_out = Conv(widths[-1], config.out_channels, padding=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(silu(self.conv_norm_out(x)))


def _resnet(config: VAEConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> ResnetBlock:
    return ResnetBlock(inputs, outputs, groups=config.norm_num_groups, eps=NORM_EPS, time=None, rngs=rngs)
