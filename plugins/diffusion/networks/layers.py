"""Layers of Stable Diffusion: convolution, group norm, residual block, changes of resolution.

Images are `b h w c`. Names, precision and initial values of the parameters are those of `common/nn/layers.py`; kernels
of convolutions are HWIO, in a PyTorch file OIHW. Statistics of the norms are float32, as there: a sum over 40,960
bfloat16 values (a group of 10 channels at 64x64) would keep about two digits.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from common.nn.layers import Linear, convolution, uniform

silu = jax.nn.silu
Tap = Callable[[str, Array], Array]  # reads or replaces named values (`unet_blocks.py`)
Sides = tuple[tuple[int, int], tuple[int, int]]  # zeros added (above, below), (left, right)
AROUND: Sides = ((1, 1), (1, 1))  # padding of the UNet's strided convolutions
AFTER: Sides = ((0, 1), (0, 1))  # padding of the autoencoder's strided convolutions


def untouched(name: str, value: Array) -> Array:
    """The `Tap` that changes nothing."""
    return value


class Conv(nnx.Module):
    """`size` x `size` convolution. `padding` is zeros: one number for all sides, or `Sides`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int = 3,
        *,
        stride: int = 1,
        padding: int | Sides = 0,
        bias: bool = True,
        rngs: nnx.Rngs,
    ):
        self.kernel = nnx.Param(uniform(rngs.params(), (size, size, inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,))) if bias else None
        self.stride = stride
        self.padding: Sides = ((padding, padding), (padding, padding)) if isinstance(padding, int) else padding

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        y = convolution(x, self.kernel[...].astype(x.dtype), self.stride, self.padding)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class GroupNorm(nnx.Module):
    """Normalises each group of channels of each image to mean 0 and variance 1 (Wu & He, 2018), then scales."""

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


class ResnetBlock(nnx.Module):
    """x + conv(silu(norm(conv(silu(norm x)) + time))); a 1x1 `conv_shortcut` on x where the channels change. The time
    embedding adds one number per channel; the autoencoder has no time."""

    def __init__(self, inputs: int, outputs: int, *, groups: int, eps: float, time: int | None, rngs: nnx.Rngs):
        self.norm1 = GroupNorm(groups, inputs, eps)
        self.conv1 = Conv(inputs, outputs, padding=1, rngs=rngs)
        self.time_emb_proj = Linear(time, outputs, rngs=rngs) if time else None
        self.norm2 = GroupNorm(groups, outputs, eps)
        self.conv2 = Conv(outputs, outputs, padding=1, rngs=rngs)
        self.conv_shortcut = Conv(inputs, outputs, 1, rngs=rngs) if inputs != outputs else None

    def __call__(
        self, x: Float[Array, "b h w i"], time: Float[Array, "b e"] | None = None, tap: Tap = untouched
    ) -> Float[Array, "b h w o"]:
        y = self.conv1(silu(self.norm1(x)))
        if self.time_emb_proj is not None:
            assert time is not None, "a block with a time projection needs the time embedding"
            y = y + self.time_emb_proj(silu(time))[:, None, None]
        y = tap("conv2", self.conv2(silu(self.norm2(y))))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Downsample(nnx.Module):
    """Half the resolution: a 3x3 convolution of stride 2. AROUND makes ceil(n / 2) of n pixels, AFTER floor(n / 2)."""

    def __init__(self, channels: int, padding: Sides, *, rngs: nnx.Rngs):
        self.conv = Conv(channels, channels, stride=2, padding=padding, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
        return self.conv(x)


class Upsample(nnx.Module):
    """Twice the resolution: nearest neighbours, then a 3x3 convolution."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        self.conv = Conv(channels, channels, padding=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"], size: tuple[int, int] | None = None) -> Float[Array, "b h2 w2 c"]:
        """To twice the size, or to `size`, one pixel less on a side: the inverse of halving an odd size."""
        return self.conv(upsample_nearest(x, size))


def upsample_nearest(x: Float[Array, "b h w c"], size: tuple[int, int] | None = None) -> Float[Array, "b h2 w2 c"]:
    """Pixel i of the result is pixel i // 2 of `x`; for a side of 2n (None) or 2n - 1 that is PyTorch's "nearest"."""
    b, h, w, c = x.shape
    size = (2 * h, 2 * w) if size is None else size
    assert all(0 <= 2 * n - m <= 1 for n, m in zip((h, w), size, strict=True)), f"{(h, w)} does not double to {size}"
    twice = jnp.broadcast_to(x[:, :, None, :, None], (b, h, 2, w, 2, c)).reshape(b, 2 * h, 2 * w, c)
    return lax.slice(twice, (0, 0, 0, 0), (b, *size, c))
