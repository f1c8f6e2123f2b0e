"""The smallest bases that have all parts: random networks of one or two levels, and the fixtures' tokenizer.

`diffusion_base` makes pictures of 16x16 pixels from latents of 8x8; `pixel_base` has no autoencoder.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from networks import DATA, random

from common.io.clip_tokenizer import Tokenizer
from common.nn.text_encoder import TextConfig, TextEncoder
from common.training.task import Context
from plugins.diffusion import samplers
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
        sample_size=side, in_channels=channels, out_channels=channels, block_out_channels=(8,), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",),
        cross_attention_dim=WIDTH, attention_head_dim=2, norm_num_groups=4,
    )  # fmt: skip


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
    unet = random(UNet, unet_config(3, 8))
    return dataclasses.replace(diffusion_base(), unet=unet, vae=None, sampler=samplers.euler)


def train(task: Any, batch: Mapping[str, Any], steps: int) -> tuple[Any, list[dict[str, float]]]:
    """Parameters after `steps` of Adam on one batch, and the metrics of each step."""
    params, optimiser, frozen = task.init(jax.random.key(1)), optax.adam(3e-3), task.frozen()

    @jax.jit
    def step(params, state, number):
        context = Context(number, jax.random.fold_in(jax.random.key(2), number), frozen)
        (_, metrics), grads = jax.value_and_grad(task.loss, has_aux=True)(params, batch, context)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, metrics

    state, rows = optimiser.init(params), []
    for number in range(steps):
        params, state, metrics = step(params, state, jnp.int32(number))
        rows.append({name: float(value) for name, value in metrics.items()})
    return params, rows
