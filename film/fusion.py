"""Fusion: a U-Net decoder that paints the middle frame (FILM, section "Fusion").

Its input is the aligned pyramid: per level, both frames' images and features warped to the middle, and both flows.
From the coarsest level up: upsample to the next level (nearest neighbour, then a 2x2 convolution), stack with the
aligned level, two 3x3 convolutions. A last 1x1 convolution gives RGB, not clamped.

A decoder of few channels cannot carry two sharp pictures through all of its convolutions. It need not where its output
is a difference and a share m (`BLEND` channels), and the picture `m * x0 + (1 - m) * x1 + difference` of the warped
frames (`blend`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.layers import Conv, Stage, conv2d, leaky_relu, whole
from film.pyramid import feature_channels
from film.resample import interleave, resize_nearest

COLORS = 3
BLEND = COLORS + 1  # the difference, and the logarithm of the odds that a pixel is x0's
FLOWS = 4  # backward (dx, dy) and forward (dx, dy)
Aligned = tuple[Array, Array, Array]  # one level: x0's image and features, warped; x1's; the flows


def aligned_channels(filters: int, sub_levels: int, level: int) -> int:
    return 2 * (COLORS + feature_channels(filters, sub_levels, level)) + FLOWS


def upsample_conv(conv: Conv, x: Float[Array, "b h w i"], size: tuple[int, int]) -> Float[Array, "b h2 w2 o"]:
    """Nearest upsampling to `size`, then the 2x2 convolution `conv` (zero padding below and to the right).

    At exactly twice the size the two fold: an even output row reads one input row twice, an odd one reads two rows.
    So the four output phases are convolutions of 1x1, 1x2, 2x1 and 2x2 taps at the low resolution: 9 products per
    input pixel instead of 16, and the upsampled map never exists.
    """
    if size != (2 * x.shape[1], 2 * x.shape[2]):
        up = resize_nearest(x, size)
        return conv2d(up, conv.kernel[...].astype(x.dtype), [(0, 1), (0, 1)]) + conv.bias[...].astype(x.dtype)
    kernel = conv.kernel[...].astype(x.dtype)
    rows = (kernel.sum(0, keepdims=True), kernel)
    phases = []
    for row in rows:
        pad = (0, row.shape[0] - 1)
        even = conv2d(x, row.sum(1, keepdims=True), [pad, (0, 0)])
        odd = conv2d(x, row, [pad, (0, 1)])
        phases.append(interleave(even, odd, axis=2))
    return interleave(phases[0], phases[1], axis=1) + conv.bias[...].astype(x.dtype)


class Fusion(nnx.Module):
    """The decoder. `convs[3 * i + (0, 1, 2)]` are level i's 2x2, first 3x3 and second 3x3; `output` is the 1x1."""

    def __init__(
        self,
        filters: int,
        sub_levels: int,
        levels: int,
        specialized_levels: int,
        outputs: int = COLORS,
        *,
        rngs: nnx.Rngs,
    ):
        self.levels = levels
        self.convs = nnx.List([])
        widths = [filters << min(level, specialized_levels) for level in range(levels - 1)]
        channels = [aligned_channels(filters, sub_levels, level) for level in range(levels)]
        for level, width in enumerate(widths):
            below = widths[level + 1] if level + 1 < len(widths) else channels[-1]
            self.convs.append(Conv(2, below, width, rngs=rngs))
            self.convs.append(Conv(3, channels[level] + width, width, rngs=rngs))
            self.convs.append(Conv(3, width, width, rngs=rngs))
        self.output = Conv(1, widths[0], outputs, rngs=rngs)

    def __call__(self, aligned: Sequence[Aligned], stage: Stage = whole) -> Float[Array, "b h w o"]:
        """The middle frame, or what `blend` makes it of, from the aligned pyramid, finest level first."""
        net = jnp.concatenate(aligned[-1], axis=-1)
        for level in range(self.levels - 2, -1, -1):
            net = stage(partial(_level, *list(self.convs)[3 * level : 3 * level + 3]))(aligned[level], net)
        return self.output(net)


def blend(
    x0: Float[Array, "b h w 3"],
    x1: Float[Array, "b h w 3"],
    output: Float[Array, "b h w 4"],
    time: Float[Array, "b 1"],
) -> Float[Array, "b h w 3"]:
    """The warped frames, mixed as the decoder's output says; an output of zeros gives x0 the share 1 - time."""
    odds = jnp.log((1 - time) / time)[:, :, None, None].astype(output.dtype)
    return x1 + jax.nn.sigmoid(output[..., COLORS:] + odds) * (x0 - x1) + output[..., :COLORS]


def _level(up: Conv, first: Conv, second: Conv, aligned: Aligned, net: Array) -> Array:
    height, width = aligned[0].shape[1:3]
    net = upsample_conv(up, net, (height, width))
    return leaky_relu(second(leaky_relu(first.over(*aligned, net))))
