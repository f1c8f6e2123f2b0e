"""How the UNet is told the time: sines and cosines of it, then a small network that all residual blocks read."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Num

from plugins.diffusion.networks.layers import Linear
from plugins.diffusion.networks.resnet import silu

LONGEST_PERIOD = 10_000


def sinusoid(
    t: Num[Array, " b"], width: int, *, cosine_first: bool = True, shift: int | float = 0
) -> Float[Array, "b {width}"]:
    """cos(t w_i) and sin(t w_i) at geometrically falling frequencies w_i = 10000^(-i / (width/2 - shift)).

    Of Vaswani et al. (2017), section 3.5, with all cosines before all sines as in Ho et al.'s successors.

    Args:
      t: timesteps, 0 to 999 in training; fractions are fine. float32 inside, whatever the type.
      width: of the result, even.
      cosine_first: diffusers' `flip_sin_to_cos`; all sines come first without it.
      shift: diffusers' `freq_shift`; with 1 the last frequency is exactly 1 / 10000.
    """
    half = width // 2
    frequencies = np.exp(-np.log(LONGEST_PERIOD) * np.arange(half) / (half - shift)).astype(np.float32)
    angles = t.astype(jnp.float32)[:, None] * frequencies
    parts = (jnp.cos(angles), jnp.sin(angles))
    return jnp.concatenate(parts if cosine_first else parts[::-1], axis=-1)


class TimeEmbedding(nnx.Module):
    """Linear map, SiLU, linear map."""

    def __init__(self, inputs: int, width: int, *, rngs: nnx.Rngs):
        self.linear_1 = Linear(inputs, width, rngs=rngs)
        self.linear_2 = Linear(width, width, rngs=rngs)

    def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b e"]:
        return self.linear_2(silu(self.linear_1(x)))
