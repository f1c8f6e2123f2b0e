"""The smallest bases that have all parts: random networks of one or two levels, and the fixtures' tokenizer.

`diffusion_base` makes pictures of 16x16 pixels from latents of 8x8; `pixel_base` has no autoencoder.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from networks import DATA

from plugins.diffusion import samplers
from plugins.diffusion.io.tokenizer import Tokenizer
from plugins.diffusion.networks.text_encoder import TextConfig, TextEncoder
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.samplers.schedules import Schedule

WIDTH = 16
TEXT = TextConfig(1000, WIDTH, 32, 2, 2, max_position_embeddings=16, eos_token_id=2)
VAE = VAEConfig(block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4, sample_size=16, scaling_factor=1.5)
SCHEDULE = Schedule(timestep_spacing="leading")


def unet_config(channels: int, side: int) -> UNetConfig:
    return UNetConfig(
        sample_size=side,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(8,),
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        layers_per_block=1,
        cross_attention_dim=WIDTH,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def random(network: Callable[..., nnx.Module], config: Any) -> Any:
    """Parameters as random as they come: norms near 1, biases near 0 but not there, so that every term matters."""
    graph, state = nnx.split(nnx.eval_shape(lambda: network(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(7)

    def draw(path: tuple, leaf: Any) -> jax.Array:
        value = rng.standard_normal(leaf.shape, np.float32)
        if value.ndim > 1:
            value = value / np.sqrt(np.prod(value.shape[:-1]))
        elif path[-1].key == "scale":
            value = 1 + 0.1 * value
        return jax.device_put(value)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(state)))


@functools.cache
def diffusion_base() -> Pipeline:
    """One pipeline for all tests: its programs are compiled once."""
    return Pipeline(
        unet=random(UNet, unet_config(4, 8)),
        vae=random(AutoencoderKL, VAE),
        text_encoder=random(TextEncoder, TEXT),
        tokenizer=Tokenizer.from_folder(DATA / "tokenizer_tiny"),
        schedule=SCHEDULE,
        sampler=samplers.ddim,
    )


def pixel_base() -> Pipeline:
    known = diffusion_base()
    return Pipeline(
        unet=random(UNet, unet_config(3, 8)),
        vae=None,
        text_encoder=known.text_encoder,
        tokenizer=known.tokenizer,
        schedule=SCHEDULE,
        sampler=samplers.euler,
    )
