"""FILM's one layer, and its convolution, made fast on a CPU.

On an accelerator `conv2d` is XLA's convolution. On a CPU wide 3x3 kernels go through Winograd's products
(`common.nn.winograd`), others have their input channels filled to whole groups, and the kernel gradient goes by rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from common.nn.layers import convolution
from common.nn.winograd import is_faster, winograd_conv
from film.ops.row_tiling import even_share

LEAK = 0.2  # slope of every leaky ReLU in FILM
GROUP = 4  # input channels that XLA convolves at a time on a CPU: 19 take longer than 20
TILE_PIXELS = 1024  # at most so many pixels at a time in `_kernel_gradient`
Pads = Sequence[tuple[int, int]]  # before and after, of rows and of columns
Stage = Callable[[Callable[..., Any]], Callable[..., Any]]  # wraps a stage: `whole`, or `common.nn.remat.remat`


def whole(stage: Callable[..., Any]) -> Callable[..., Any]:
    """The `Stage` that changes nothing: the gradient keeps all activations."""
    return stage


def leaky_relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.maximum(x, LEAK * x)


class Conv(nnx.Module):
    """`size` x `size` convolution with bias. The kernel starts He-normal for a leaky ReLU, the bias at zero."""

    def __init__(self, size: int, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        initializer = jax.nn.initializers.variance_scaling(2 / (1 + LEAK**2), "fan_in", "normal")
        self.kernel = nnx.Param(initializer(rngs.params(), (size, size, inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,)))

    def zeroed(self) -> "Conv":
        """Itself, with a kernel of zeros: an added part that changes nothing until it is trained."""
        self.kernel[...] = jnp.zeros_like(self.kernel[...])
        return self

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
        return conv2d(x, self.kernel[...].astype(x.dtype)) + self.bias[...].astype(x.dtype)


def conv2d(x: Float[Array, "b h w i"], kernel: Float[Array, "kh kw i o"], padding: str | Pads = "SAME") -> Array:
    """Stride-1 convolution without bias; `padding` is "SAME", "VALID" or `Pads`."""
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (1, 1), padding)
    pads = tuple((before, after) for before, after in padding)
    return convolution(x, kernel, padding=pads) if jax.default_backend() != "cpu" else _cpu_conv(x, kernel, pads)


def _fast_conv(x: Array, kernel: Array, pads: Pads) -> Array:
    if pads == ((1, 1), (1, 1)) and is_faster(x, kernel):
        return winograd_conv(x, kernel)
    missing = -x.shape[-1] % GROUP
    if missing and x.shape[-1] > GROUP:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing)))
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return convolution(x, kernel, padding=pads)


_cpu_conv = jax.custom_vjp(_fast_conv, nondiff_argnums=(2,))


def _cpu_conv_gradient(pads: Pads, inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = inputs
    # The transpose of a convolution: of the padding that is left, with the kernel turned by half a circle.
    sides = zip(kernel.shape[:2], pads, strict=True)
    back = tuple((size - 1 - before, size - 1 - after) for size, (before, after) in sides)
    to_x = _fast_conv(gradient, kernel[::-1, ::-1].swapaxes(2, 3), back)
    return to_x, _kernel_gradient(x, gradient, kernel.shape, pads).astype(kernel.dtype)


_cpu_conv.defvjp(lambda x, kernel, pads: (_fast_conv(x, kernel, pads), (x, kernel)), _cpu_conv_gradient)


def _kernel_gradient(
    x: Float[Array, "b h w i"], gradient: Float[Array, "b h2 w2 o"], shape: tuple[int, ...], pads: Pads
) -> Float[Array, "kh kw i o"]:
    """Gradient of the kernel of `shape`, a few rows of the image at a time.

    XLA computes it as a convolution with a kernel as large as the image, which is slow on a CPU. A few rows with all
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
