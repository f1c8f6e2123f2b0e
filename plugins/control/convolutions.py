"""What control networks need beside the base's layers: depthwise filters, and convolutions that start as nothing.

A depthwise 3x3 convolution filters each channel by itself, with nine numbers each. Compilers for accelerators
know it as a convolution in as many groups as channels. On the processor XLA takes that form apart into tiny
convolutions, 36 times slower than what it is: nine shifted pictures, each times a number, added up (32x16x16x64, jax
0.10.2). Both are here, with equal results.
"""

from __future__ import annotations

import functools
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from plugins.diffusion.networks.layers import Conv, uniform

Way = Literal["shifts", "groups"]
SIZE = 3


def depthwise(
    x: Float[Array, "b h w c"], kernel: Float[Array, "3 3 1 c"], stride: int = 1, way: Way | None = None
) -> Float[Array, "b h2 w2 c"]:
    """With a zero on every side; ceil(h / stride) rows.

    way: how to compute it; None for the fastest on the platform that the program is compiled for."""
    kernel = kernel.astype(x.dtype)
    shifts, groups = (functools.partial(each, stride=stride) for each in (_shifts, _groups))
    if way is None:
        return lax.platform_dependent(x, kernel, cpu=shifts, default=groups)
    return (shifts if way == "shifts" else groups)(x, kernel)


def _groups(x: Array, kernel: Array, stride: int) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=layout, feature_group_count=x.shape[-1]
    )


def _shifts(x: Array, kernel: Array, stride: int) -> Array:
    b, h, w, c = x.shape
    rows, columns = -(-h // stride), -(-w // stride)
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = jnp.zeros((b, rows, columns, c), x.dtype)
    for i in range(SIZE):
        for j in range(SIZE):
            last = (b, i + stride * (rows - 1) + 1, j + stride * (columns - 1) + 1, c)
            total = total + kernel[i, j, 0] * lax.slice(padded, (0, i, j, 0), last, (1, stride, stride, 1))
    return total


class Depthwise(nnx.Module):
    """The layer; `kernel` is stored as a grouped convolution's, h w 1 c."""

    def __init__(self, channels: int, stride: int = 1, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(uniform(rngs.params(), (SIZE, SIZE, 1, channels)))
        self.stride = stride

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
        return depthwise(x, self.kernel[...], self.stride)


def silent(conv: Conv) -> Conv:
    """A zero convolution (2302.05543, section 3.1): what follows it hears nothing until it has learnt."""
    conv.kernel = nnx.Param(jnp.zeros_like(conv.kernel[...]))
    return conv
