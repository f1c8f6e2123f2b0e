"""The five layers that Stable Diffusion is made of: convolution, linear map, two norms, embedding.

Each is as thin as its formula. Parameters are float32 and named `kernel`/`bias`, `scale`/`bias` or `embedding`; a
PyTorch file calls the same tensors `weight`/`bias`, with kernels transposed (OIHW -> HWIO, OI -> IO), so porting needs
nothing but these names (`porting.py`). Pictures are `b h w c`.

Precision. A layer computes in the type of its input and casts its parameters to it: feed bfloat16 and the network runs
in bfloat16. The exception is the statistics of the norms, which are always float32: a sum over 40,960 bfloat16 values
(a group of 10 channels at 64x64) would keep about two digits.

Initial values are PyTorch's (uniform, variance 1 / (3 fan_in)) except for biases, which start at zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

uniform = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
Sides = tuple[tuple[int, int], tuple[int, int]]  # zeros added (above, below), (left, right)


class Conv(nnx.Module):
    """`size` x `size` convolution with bias. `padding` is zeros: one number for all sides, or `Sides`."""

    def __init__(
        self, inputs: int, outputs: int, size: int = 3, *, stride: int = 1, padding: int | Sides = 0, rngs: nnx.Rngs
    ):
        self.kernel = nnx.Param(uniform(rngs.params(), (size, size, inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,)))
        self.stride = stride
        self.padding: Sides = ((padding, padding), (padding, padding)) if isinstance(padding, int) else padding

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        kernel, bias = self.kernel[...].astype(x.dtype), self.bias[...].astype(x.dtype)
        strides, layout = (self.stride, self.stride), ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, strides, self.padding, dimension_numbers=layout) + bias


class Linear(nnx.Module):
    """A map of the last axis. Without `bias` there is no such parameter."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, rngs: nnx.Rngs):
        self.kernel = nnx.Param(uniform(rngs.params(), (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,))) if bias else None

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        y = x @ self.kernel[...].astype(x.dtype)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class GroupNorm(nnx.Module):
    """Normalises each group of channels of each picture to mean 0 and variance 1 (Wu & He, 2018), then scales."""

    def __init__(self, groups: int, channels: int, eps: float):
        self.groups, self.eps = groups, eps
        self.scale = nnx.Param(jnp.ones((channels,)))
        self.bias = nnx.Param(jnp.zeros((channels,)))

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """Sums go over space first, channel by channel, where memory is contiguous; then over the group."""
        wide = x.astype(jnp.float32)
        mean = self._per_group(wide)
        variance = self._per_group(jnp.square(wide - mean))
        gain = lax.rsqrt(variance + self.eps) * self.scale[...].astype(jnp.float32)
        return ((wide - mean) * gain + self.bias[...].astype(jnp.float32)).astype(x.dtype)

    def _per_group(self, x: Float[Array, "b h w c"]) -> Float[Array, "b 1 1 c"]:
        """Mean over space and the channels of a group, repeated for each of them."""
        channels = x.mean(axis=(1, 2)).reshape(x.shape[0], self.groups, -1)
        return jnp.broadcast_to(channels.mean(-1, keepdims=True), channels.shape).reshape(x.shape[0], 1, 1, -1)


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
    """A table of `count` vectors, looked up by number; starts normal with deviation 0.02, as CLIP's does."""

    def __init__(self, count: int, width: int, *, rngs: nnx.Rngs):
        self.embedding = nnx.Param(0.02 * jax.random.normal(rngs.params(), (count, width)))

    def __call__(self, ids: Int[Array, "*b"]) -> Float[Array, "*b c"]:
        return self.embedding[...][ids]
