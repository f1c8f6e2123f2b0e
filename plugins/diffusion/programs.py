"""The networks of a base as programs, for the files that other runtimes run (`plugins/formats`).

    program = unet_program(pipeline.unet, 64, 64, features=True)
    prediction = program.function(latents=x, timestep=t, context=states, feature_0=..., feature_1=...)

docs/portable.md has the table of their inputs and outputs. Sampling stays with the caller: `plugins.diffusion.samplers`
computes its numbers beforehand.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from common.nn.text_encoder import TextEncoder
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import Autoencoder
from plugins.formats.program import Input, Program

FEATURE = "feature_{}"  # names of a plugin's features, by level, finest first


def unet_program(
    unet: UNet, height: int, width: int, tokens: int, *, sizes: int = 0, features: bool = False
) -> Program:
    """One call, for latents of that size and so many tokens; with `features` it reads those of a plugin, for SDXL
    `pooled` and `sizes` (as many as `Base.sizes`), for an LCM `guidance`."""
    config, names = unet.config, list[str]()
    inputs = {"latents": Input((height, width, config.in_channels)), "timestep": Input((), batched=False)}
    inputs["context"] = Input((tokens, config.cross_attention_dim))
    if features:
        shapes = config.level_shapes(height, width)
        names = [FEATURE.format(level) for level in range(len(shapes))]
        inputs |= {name: Input(tuple(shape)) for name, shape in zip(names, shapes, strict=True)}
    if config.time_cond_proj_dim is not None:
        inputs["guidance"] = Input((), batched=False)
    if config.addition_embed_type is not None:
        width = (config.projection_class_embeddings_input_dim or 0) - sizes * (config.addition_time_embed_dim or 0)
        inputs |= {"pooled": Input((width,)), "sizes": Input((sizes,))}

    def call(latents: Array, timestep: Array, context: Array, **more: Any) -> tuple[Array, ...]:
        added = [more.pop(name) for name in names]
        return (unet(latents, timestep, context, added or None, **more),)

    return Program(call, inputs, ("prediction",), "a denoising UNet: noisy latents to its prediction")


def decoder_program(vae: Autoencoder, height: int, width: int) -> Program:
    """Latents of that size to an image."""

    def call(latents: Array) -> tuple[Array, ...]:
        return (jnp.clip((vae.decode(vae.from_latents(latents)) + 1) / 2, 0, 1),)

    about = "an autoencoder's decoder: scaled latents to RGB in [0, 1]"
    return Program(call, {"latents": Input((height, width, vae.config.latent_channels))}, ("image",), about)


def text_program(encoder: TextEncoder, tokens: int) -> Program:
    """Ids of so many tokens to the states that a UNet of Stable Diffusion 1.x and 2.x reads."""
    inputs = {"tokens": Input((tokens,), jnp.int32)}
    return Program(lambda tokens: (encoder(tokens).last,), inputs, ("context",), "CLIP's text encoder: ids to states")
