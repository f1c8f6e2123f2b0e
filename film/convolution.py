"""The one layer that FILM is made of: a convolution.

A stack `[a, b, c]` of feature maps followed by a convolution is how every stage of FILM begins. The convolution is
linear in its input channels, so `conv([a, b, c]) = conv_a(a) + conv_b(b) + conv_c(c)` with slices of one kernel.
`Conv.part` gives one such term: a frame's own half of the flow predictor's first convolution can be computed once
and used against both of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from film.ops.conv2d import conv2d

LEAK = 0.2  # slope of every leaky ReLU in FILM
Stage = Callable[[Callable[..., Any]], Callable[..., Any]]  # what a stage is wrapped in: `whole`, `jax.checkpoint`


def leaky_relu(x: Float[Array, ...]) -> Float[Array, ...]:
    return jnp.maximum(x, LEAK * x)


class Conv(nnx.Module):
    """`size` x `size` convolution with bias. The kernel is He-normal for a leaky ReLU at first, the bias zero."""

    def __init__(self, size: int, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        gain = 2 / (1 + LEAK**2)
        initializer = jax.nn.initializers.variance_scaling(gain, "fan_in", "normal")
        self.kernel = nnx.Param(initializer(rngs.params(), (size, size, inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,)))

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
        return conv2d(x, self.kernel[...].astype(x.dtype)) + self.bias[...].astype(x.dtype)

    def part(self, x: Float[Array, "b h w i"], start: int) -> Float[Array, "b h w o"]:
        """The term of `x` when it is the input's channels from `start` on; without bias."""
        kernel = lax.slice_in_dim(self.kernel[...], start, start + x.shape[-1], axis=2)
        return conv2d(x, kernel.astype(x.dtype))


def two_convs(first: Conv, second: Conv, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
    """Convolution, leaky ReLU, and both again."""
    return leaky_relu(second(leaky_relu(first(x))))


def whole(stage: Callable[..., Any]) -> Callable[..., Any]:
    """A `Stage` that changes nothing: the gradient keeps all activations."""
    return stage
