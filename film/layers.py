"""The one layer that FILM is made of: a convolution, over one or several inputs.

A stack `[a, b, c]` of feature maps followed by a convolution is how every stage of FILM begins. The convolution is
linear in its input channels, so `conv([a, b, c]) = conv_a(a) + conv_b(b) + conv_c(c)` with slices of one kernel.
`Conv.part` gives one such term: a frame's own half of the flow predictor's first convolution can be computed once
and used against both of its neighbours. `Conv.over` gives their sum, without the memory of the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

LEAK = 0.2  # slope of every leaky ReLU in FILM
Stage = Callable[[Callable[..., Any]], Callable[..., Any]]  # what a stage is wrapped in: `whole`, `jax.checkpoint`


def conv2d(
    x: Float[Array, "b h w i"], kernel: Float[Array, "kh kw i o"], padding: str | list[tuple[int, int]] = "SAME"
) -> Float[Array, "b h2 w2 o"]:
    """Stride-1 convolution, no bias."""
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def leaky_relu(x: Float[Array, ...]) -> Float[Array, ...]:
    return jnp.maximum(x, LEAK * x)


class Conv(nnx.Module):
    """`size` x `size` convolution with bias. The kernel starts He-normal for a leaky ReLU, the bias at zero."""

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

    def over(self, *parts: Float[Array, "b h w _"]) -> Float[Array, "b h w o"]:
        """The convolution of the stack `[*parts]`, which is never made: it would be a copy of all of them."""
        starts = [sum(part.shape[-1] for part in parts[:number]) for number in range(len(parts))]
        terms = [self.part(part, start) for part, start in zip(parts, starts, strict=True)]
        return sum(terms[1:], terms[0]) + self.bias[...].astype(parts[0].dtype)


def two_convs(first: Conv, second: Conv, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
    """Convolution, leaky ReLU, and both again."""
    return leaky_relu(second(leaky_relu(first(x))))


def whole(stage: Callable[..., Any]) -> Callable[..., Any]:
    """A `Stage` that changes nothing: the gradient keeps all activations."""
    return stage
