"""Images of a run while it goes on: what each step predicts as the final latents, decoded cheaply.

    def show(done: int, total: int, images): ...                       # images b h w 3 in [0, 1], on the host
    pipeline("a red apple", preview=Preview(show))                     # small images, of the latents' size
    pipeline("a red apple", preview=Preview(show, load_vae("taesd")))  # of the output's size

Without a decoder, a linear map of each latent pixel gives its colour: least squares on a chart of 27 colours, encoded
once a pipeline by the base's own autoencoder. Published latents are close enough to colours for that.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from common.nn.layers import Linear

PATCH = 4  # latent pixels of a colour's patch in the chart; the outer ones see other colours and are left out
COLUMNS = 9


@dataclasses.dataclass(frozen=True)
class Preview:
    """`show(done, total, images)` is called on the host after each call of the UNet but late ones out of order;
    `decoder` is a fast autoencoder (TAESD), None: a linear map of latents."""

    show: Callable[[int, int, Float[np.ndarray, "b h w 3"]], None]
    decoder: Any = None


class LinearDecoder(nnx.Module):
    """Scaled latents to images in [-1, 1] of their size; methods as `networks.vae.Autoencoder`."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        self.colour = Linear(channels, 3, rngs=rngs)

    def from_latents(self, latents: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return latents

    def decode(self, latents: Float[Array, "b h w c"]) -> Float[Array, "b h w 3"]:
        return self.colour(latents)


def fit_linear_decoder(encode: Callable[[Any], Any], unit: int) -> LinearDecoder:
    """The map for an autoencoder: `encode` makes scaled latents of images in [0, 1], `unit` pixels per latent pixel."""
    colours = np.array(list(itertools.product((0, 0.5, 1), repeat=3)), np.float32)
    grid = colours.reshape(-1, COLUMNS, 3)
    chart = grid.repeat(PATCH * unit, 0).repeat(PATCH * unit, 1)
    latents = np.asarray(encode(jnp.asarray(chart[None])), np.float32)[0]
    patches = latents.reshape(len(grid), PATCH, COLUMNS, PATCH, -1)[:, 1:-1, :, 1:-1]
    inputs = patches.transpose(0, 2, 1, 3, 4).reshape(-1, latents.shape[-1])
    targets = (2 * colours - 1).repeat((PATCH - 2) ** 2, 0)
    solution, *_ = np.linalg.lstsq(np.column_stack([inputs, np.ones(len(inputs))]), targets, rcond=None)
    decoder = LinearDecoder(latents.shape[-1], rngs=nnx.Rngs(0))
    decoder.colour.kernel = nnx.Param(jnp.asarray(solution[:-1], jnp.float32))
    decoder.colour.bias = nnx.Param(jnp.asarray(solution[-1], jnp.float32))
    return decoder
