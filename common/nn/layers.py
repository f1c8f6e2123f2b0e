"""Layers of networks whose published weights are PyTorch's: linear map, layer norm, embedding; convolutions.

Parameters are float32 and named `kernel`/`bias`, `scale`/`bias` or `embedding`; a PyTorch file has the same tensors as
`weight`/`bias`, with kernels transposed (`common/weights/torch_names.py`). A layer computes in the type of its input;
the statistics of the norm are always float32. Initial values are PyTorch's (uniform, variance 1 / (3 fan_in)), except
that biases start at zero.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

uniform = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Linear(nnx.Module):
    """A linear map of the last axis."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, rngs: nnx.Rngs):
        self.kernel = nnx.Param(uniform(rngs.params(), (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,))) if bias else None

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        y = x @ self.kernel[...].astype(x.dtype)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """Normalises the last axis to mean 0 and variance 1 (Ba et al., 2016), then scales."""

    def __init__(self, width: int, eps: float = 1e-5):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,)))
        self.bias = nnx.Param(jnp.zeros((width,)))

    def __call__(self, x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        gain = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + self.eps) * self.scale[...].astype(jnp.float32)
        return (centred * gain + self.bias[...].astype(jnp.float32)).astype(x.dtype)


class Embedding(nnx.Module):
    """A table of `count` vectors, looked up by id; initialised normal with deviation 0.02, as in CLIP."""

    def __init__(self, count: int, width: int, *, rngs: nnx.Rngs):
        self.embedding = nnx.Param(0.02 * jax.random.normal(rngs.params(), (count, width)))

    def __call__(self, ids: Int[Array, "*b"]) -> Float[Array, "*b c"]:
        table = self.embedding[...]
        # In float32, so that the gradient of a frequent id is added up in it: in bfloat16 a sum of ones ends at 256.
        return table.astype(jnp.float32)[ids].astype(table.dtype)


def convolution(
    x: Float[Array, "b h w c"], kernel: Float[Array, "k l i o"], stride: int = 1, padding: Any = "SAME", groups: int = 1
) -> Float[Array, "b h2 w2 o"]:
    """`padding` as `lax.conv_general_dilated` takes it; `groups` of channels are convolved apart."""
    strides, layout = (stride, stride), ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=layout, feature_group_count=groups)


def depthwise(
    x: Float[Array, "b h w c"], kernel: Float[Array, "k k 1 c"], stride: int, borders: Sequence[tuple[int, int]]
) -> Float[Array, "b h2 w2 c"]:
    """Each channel with its own kernel, after padding height and width by `borders`: the weighted sum of the image
    shifted to each place of the window, which is several times as fast on a CPU as a grouped convolution."""
    size = len(kernel)
    x = jnp.pad(x, ((0, 0), *borders, (0, 0)))
    b, height, width, c = (side if axis in (0, 3) else (side - size) // stride + 1 for axis, side in enumerate(x.shape))
    total = jnp.zeros((b, height, width, c), x.dtype)
    for i, j in np.ndindex(size, size):
        end = (b, i + stride * (height - 1) + 1, j + stride * (width - 1) + 1, c)
        total = total + kernel[i, j, 0] * lax.slice(x, (0, i, j, 0), end, (1, stride, stride, 1))
    return total
