"""Residual blocks and the changes of resolution between them: what UNet and autoencoder have in common.

A residual block normalises, activates and convolves twice, and adds its input. In the UNet the time enters between the
two convolutions, as one number per channel; the autoencoder has no time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from plugins.diffusion.networks.layers import Conv, GroupNorm, Linear, Sides

silu = jax.nn.silu
AROUND: Sides = ((1, 1), (1, 1))  # the UNet's strided convolutions see a zero on every side
AFTER: Sides = ((0, 1), (0, 1))  # the autoencoder's only below and to the right


class ResnetBlock(nnx.Module):
    """x + conv(silu(norm(conv(silu(norm x)) + time))); a 1x1 `conv_shortcut` on x where the channels change."""

    def __init__(self, inputs: int, outputs: int, *, groups: int, eps: float, time: int | None, rngs: nnx.Rngs):
        self.norm1 = GroupNorm(groups, inputs, eps)
        self.conv1 = Conv(inputs, outputs, padding=1, rngs=rngs)
        self.time_emb_proj = Linear(time, outputs, rngs=rngs) if time else None
        self.norm2 = GroupNorm(groups, outputs, eps)
        self.conv2 = Conv(outputs, outputs, padding=1, rngs=rngs)
        self.conv_shortcut = Conv(inputs, outputs, 1, rngs=rngs) if inputs != outputs else None

    def __call__(self, x: Float[Array, "b h w i"], time: Float[Array, "b e"] | None = None) -> Float[Array, "b h w o"]:
        y = self.conv1(silu(self.norm1(x)))
        if self.time_emb_proj is not None:
            assert time is not None, "a block made with time is called with it"
            y = y + self.time_emb_proj(silu(time))[:, None, None]
        y = self.conv2(silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Downsample(nnx.Module):
    """Half the resolution: a 3x3 convolution of stride 2. AROUND makes ceil(n / 2) of n pixels, AFTER floor(n / 2)."""

    def __init__(self, channels: int, padding: Sides, *, rngs: nnx.Rngs):
        self.conv = Conv(channels, channels, stride=2, padding=padding, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
        return self.conv(x)


class Upsample(nnx.Module):
    """Twice the resolution: each pixel becomes 2x2, then a 3x3 convolution."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        self.conv = Conv(channels, channels, padding=1, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"], size: tuple[int, int] | None = None) -> Float[Array, "b h2 w2 c"]:
        """To twice the size, or one pixel less on a side: an odd `size` that was halved comes back as it was."""
        return self.conv(upsample_nearest(x, size or (2 * x.shape[1], 2 * x.shape[2])))


def upsample_nearest(x: Float[Array, "b h w c"], size: tuple[int, int]) -> Float[Array, "b h2 w2 c"]:
    """Pixel i of the result is pixel i // 2 of `x`; for a side of 2n or 2n - 1 that is PyTorch's "nearest"."""
    b, h, w, c = x.shape
    assert all(0 <= 2 * n - m <= 1 for n, m in zip((h, w), size, strict=True)), f"{(h, w)} does not double to {size}"
    twice = jnp.broadcast_to(x[:, :, None, :, None], (b, h, 2, w, 2, c)).reshape(b, 2 * h, 2 * w, c)
    return lax.slice(twice, (0, 0, 0, 0), (b, *size, c))
