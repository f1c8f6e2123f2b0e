"""The one layer that FILM is made of: a convolution.

A stack `[a, b, c]` of feature maps followed by a convolution is how every stage of FILM begins. The convolution is
linear in its input channels, so `conv([a, b, c]) = conv_a(a) + conv_b(b) + conv_c(c)` with slices of one kernel.
`Conv.part` gives one such term: a frame's own half of the flow predictor's first convolution can be computed once
and used against both of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from film.row_tiling import even_share

LEAK = 0.2  # slope of every leaky ReLU in FILM
GROUP = 4  # input channels that XLA convolves at a time on a CPU: 19 take longer than 20
STRIP = 1024  # most pixels at a time in `kernel_gradient`
Pads = Sequence[tuple[int, int]]  # before and after, of rows and of columns
Stage = Callable[[Callable[..., Any]], Callable[..., Any]]  # what a stage is wrapped in: `whole`, `jax.checkpoint`


def conv2d(x: Float[Array, "b h w i"], kernel: Float[Array, "kh kw i o"], padding: str | Pads = "SAME") -> Array:
    """Stride-1 convolution, no bias. `padding` is "SAME", "VALID" or (before, after) for rows and for columns.

    On a CPU, more than one group of input channels (`GROUP`) is filled with zeros to whole groups.
    """
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (1, 1), padding)
    (top, bottom), (left, right) = padding
    if jax.default_backend() != "cpu":
        return _plain(x, kernel, ((top, bottom), (left, right)))
    missing = -x.shape[-1] % GROUP
    if missing and x.shape[-1] > GROUP:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing)))
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return _convolve(x, kernel, ((top, bottom), (left, right)))


def _plain(x: Array, kernel: Array, pads: Pads) -> Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(x: Array, kernel: Array, pads: Pads) -> Array:
    return _plain(x, kernel, pads)


def _convolve_gradient(pads: Pads, inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = inputs
    (to_x,) = jax.vjp(lambda x: _plain(x, kernel, pads), x)[1](gradient)
    return to_x, kernel_gradient(x, gradient, kernel.shape, pads).astype(kernel.dtype)


_convolve.defvjp(lambda x, kernel, pads: (_plain(x, kernel, pads), (x, kernel)), _convolve_gradient)


def kernel_gradient(
    x: Float[Array, "b h w i"], gradient: Float[Array, "b h2 w2 o"], shape: tuple[int, ...], pads: Pads
) -> Float[Array, "kh kw i o"]:
    """Gradient of the kernel of `shape`, a few rows of the picture at a time.

    XLA makes of it a convolution with a kernel as large as the picture, which on a CPU is slow. Some rows with all
    their shifts, though, fit into the cache and are one product of matrices. The batch stays a dimension to the end, so
    that it may be sharded.
    """
    (rows, columns), (batch, height, width, outputs) = shape[:2], gradient.shape
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    strip = even_share(height, width, STRIP)

    def add(total: Array, start: Array) -> tuple[Array, None]:
        seen = lax.dynamic_slice_in_dim(padded, start, strip + rows - 1, axis=1)
        shifts = [seen[:, i : i + strip, j : j + width] for i in range(rows) for j in range(columns)]
        part = lax.dynamic_slice_in_dim(gradient, start, strip, axis=1)
        stack = jnp.concatenate(shifts, axis=-1)
        return total + jnp.einsum("bhwo,bhwi->boi", part, stack, preferred_element_type=jnp.float32), None

    zeros = jnp.zeros((batch, outputs, rows * columns * x.shape[-1]), jnp.float32)
    total, _ = lax.scan(add, zeros, jnp.arange(0, height, strip))
    return total.sum(0).T.reshape(shape)


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


def two_convs(first: Conv, second: Conv, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
    """Convolution, leaky ReLU, and both again."""
    return leaky_relu(second(leaky_relu(first(x))))


def whole(stage: Callable[..., Any]) -> Callable[..., Any]:
    """A `Stage` that changes nothing: the gradient keeps all activations."""
    return stage
