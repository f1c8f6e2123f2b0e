"""Stride-1 convolution that is fast on a CPU too: whole groups of input channels, and a kernel gradient by rows.

On an accelerator it is XLA's convolution and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from film.ops.row_tiling import even_share

GROUP = 4  # input channels that XLA convolves at a time on a CPU: 19 take longer than 20
TILE_PIXELS = 1024  # most pixels at a time in `kernel_gradient`
Pads = Sequence[tuple[int, int]]  # before and after, of rows and of columns


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

    XLA makes of it a convolution with a kernel as large as the picture, which is slow on a CPU. A few rows with all
    their shifts fit into the cache and are one matrix product. The batch stays a dimension to the end, so that it may
    be sharded.
    """
    (rows, columns), (batch, height, width, outputs) = shape[:2], gradient.shape
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    tile = even_share(height, width, TILE_PIXELS)

    def add(total: Array, start: Array) -> tuple[Array, None]:
        window = lax.dynamic_slice_in_dim(padded, start, tile + rows - 1, axis=1)
        shifts = [window[:, i : i + tile, j : j + width] for i in range(rows) for j in range(columns)]
        part = lax.dynamic_slice_in_dim(gradient, start, tile, axis=1)
        stack = jnp.concatenate(shifts, axis=-1)
        return total + jnp.einsum("bhwo,bhwi->boi", part, stack, preferred_element_type=jnp.float32), None

    zeros = jnp.zeros((batch, outputs, rows * columns * x.shape[-1]), jnp.float32)
    total, _ = lax.scan(add, zeros, jnp.arange(0, height, tile))
    return total.sum(0).T.reshape(shape)
