"""Fusion: a U-Net decoder that makes the middle frame (FILM, section "Fusion").

Its input is the aligned pyramid: per level, both frames' images and features (packed, see `film.ops.packing`), warped
to the middle frame's time, and both flows. From the coarsest level up: upsample to the next level (nearest neighbour,
then a 2x2 convolution), concatenate with the aligned level, two 3x3 convolutions. A last 1x1 convolution gives RGB, not
clamped.

A decoder of few channels cannot carry two sharp images through all of its convolutions. With `blend` it need not: its
output is a residual and the logit of a mixing weight m (`BLEND` channels), and the image `m * x0 + (1 - m) * x1 +
residual` of the warped frames. Where the flow leaves the picture, one frame alone shows the place: the other one counts
less.

Which frame shows a pixel? Where something has been uncovered, one frame still has the thing in front there, and both
warps look equally good. But a place of that frame is looked up twice then: by the pixels of the thing, and by those
that it hides. With `coverage` the decoder sees, from level 1 on, how often each place that a pixel looks up is looked
up in all (`film.warp.forward_warp`), for either frame, and how far the warped frames differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.config import FilmConfig
from film.ops.convolution import Conv, Stage, conv2d, leaky_relu, whole
from film.ops.packing import COLORS, split_kernel, unpack
from film.ops.resample import interleave, resize_nearest
from film.ops.row_tiling import Top, by_rows
from film.warp import backward_warp, forward_warp, outside

BLEND = COLORS + 1  # residual and logit
BORDER = 1.0  # logit that a frame loses in the mixture where it is looked up outside of the picture
FLOWS = 4  # backward (dx, dy) and forward (dx, dy)
COVERAGE, DIFFERENCES, MOST = 2, 2, 4.0  # channels; look-ups of a place, at most
REACH = 4  # rows on either side that a row of `_decode` depends on: two 3x3 convolutions, a 2x2 one at half the size
Image = Float[Array, "b h w 3"]
Level = tuple[Array, Array, Array, Array]  # packed x0 and x1; the flows from the middle frame to x0 and to x1
Decoded = tuple[Array, Array, Array]  # the decoder's output; x0 and x1, warped


class Fusion(nnx.Module):
    """The decoder. `convs[3 * i + (0, 1, 2)]` are level i's 2x2, first 3x3 and second 3x3; `output` is the 1x1."""

    def __init__(self, config: FilmConfig, *, rngs: nnx.Rngs):
        self.levels = config.fusion_pyramid_levels
        self.convs = nnx.List([])
        widths = [config.filters << min(level, config.specialized_levels) for level in range(self.levels - 1)]
        channels = [2 * (COLORS + config.feature_channels(level)) + FLOWS for level in range(self.levels)]
        for level, width in enumerate(widths):
            coarser = widths[level + 1] if level + 1 < len(widths) else channels[-1]
            self.convs.append(Conv(2, coarser, width, rngs=rngs))
            self.convs.append(Conv(3, channels[level] + width, width, rngs=rngs))
            self.convs.append(Conv(3, width, width, rngs=rngs))
        self.output = Conv(1, widths[0], BLEND if config.blend else COLORS, rngs=rngs)
        hints = widths[1:] if config.coverage else []  # convolved with the first 3x3 of levels 1 and up
        self.hints = nnx.List([Conv(3, COVERAGE + DIFFERENCES, width, rngs=rngs).zeroed() for width in hints])

    def __call__(self, levels: Sequence[Level], coarser: Array | None = None, stage: Stage = whole) -> Decoded:
        """The pyramid's last levels, finest first; with `coarser`, the decoder's output below them, its first ones.

        Returns the middle frame (the output for `blend`) or, where the finest level is not among them, the decoder's
        output for it; and the warped frames.
        """
        first = 0
        decoded: Any = (coarser,)
        if coarser is None:
            first = self.levels - len(levels)
            x0, x1, flows = _align(*levels[-1])
            (x0, features0), (x1, features1) = unpack(x0), unpack(x1)
            decoded, levels = (jnp.concatenate([x0, features0, x1, features1, flows], axis=-1), x0, x1), levels[:-1]
        for level in range(first + len(levels) - 1, first - 1, -1):
            convs = [*list(self.convs)[3 * level : 3 * level + 3], *([] if level else [self.output])]
            x0, x1, to_x0, to_x1 = levels[level - first]
            near, hint = [to_x0, to_x1, decoded[0]], None
            if self.hints and level:
                near, hint = [*near, coverage(to_x0, to_x1)], self.hints[level - 1]
            decoded = by_rows(stage(partial(_decode, convs, hint, x0, x1)), near, REACH, x0.shape[-1])
        return decoded


def blend(
    x0: Image,
    x1: Image,
    output: Float[Array, "b h w 4"],
    time: Float[Array, "b 1"],
    to_x0: Float[Array, "b h w 2"],
    to_x1: Float[Array, "b h w 2"],
    logit: float | Float[Array, "b h w 1"] = 0.0,
) -> tuple[Image, Float[Array, "b h w 1"]]:
    """The warped frames, mixed by the decoder's output, and the weight of x0: for zeros 1 - time where both frames are
    looked up inside of the picture. The odds of one that is looked up outside are multiplied by `exp(-BORDER)`.
    `logit` is added to that of x0's weight."""
    prior = jnp.log((1 - time) / time)[:, :, None, None] + BORDER * (outside(to_x1) - outside(to_x0)) + logit
    weight = jax.nn.sigmoid(output[..., COLORS:] + prior.astype(output.dtype))
    return x1 + weight * (x0 - x1) + output[..., :COLORS], weight


def coverage(to_x0: Float[Array, "b h w 2"], to_x1: Float[Array, "b h w 2"]) -> Float[Array, "b h w 2"]:
    """By how much the place that each pixel looks up in x0, and in x1, is looked up more than once; no gradient."""
    counts = []
    for flow in map(jax.lax.stop_gradient, (to_x0, to_x1)):
        count = jnp.minimum(forward_warp(jnp.ones((*flow.shape[:3], 1), flow.dtype), flow), MOST)
        counts.append(backward_warp(count, flow) - 1)
    return jnp.concatenate(counts, axis=-1)


def upsample_conv(conv: Conv, x: Float[Array, "b h w i"], size: tuple[int, int]) -> Float[Array, "b h2 w2 o"]:
    """Nearest upsampling to `size`, then the 2x2 convolution `conv` (zero padding below and to the right).

    At exactly twice the size the two fold: an even output row reads one input row twice, an odd one reads two rows.
    So the four output phases are convolutions of 1x1, 1x2, 2x1 and 2x2 taps at the low resolution: 9 products per
    input pixel instead of 16, and the upsampled map never exists.
    """
    kernel, bias = conv.kernel[...].astype(x.dtype), conv.bias[...].astype(x.dtype)
    if size != (2 * x.shape[1], 2 * x.shape[2]):
        return conv2d(resize_nearest(x, size), kernel, [(0, 1), (0, 1)]) + bias
    phases = []
    for rows in (kernel.sum(0, keepdims=True), kernel):
        pad = (0, rows.shape[0] - 1)
        even = conv2d(x, rows.sum(1, keepdims=True), [pad, (0, 0)])
        odd = conv2d(x, rows, [pad, (0, 1)])
        phases.append(interleave(even, odd, axis=2))
    return interleave(phases[0], phases[1], axis=1) + bias


def _decode(
    convs: Sequence[Conv],
    hint: Conv | None,
    x0: Array,
    x1: Array,
    top: Top,
    to_x0: Array,
    to_x1: Array,
    coarser: Array,
    *counts: Array,
) -> Decoded:
    """One level, or its rows from `top` on: from packed frames, flows to them, the coarser level's output, and for a
    `hint` the `coverage`."""
    up, first, second, *output = convs
    x0, x1, flows = _align(x0, x1, to_x0, to_x1, top)
    net = upsample_conv(up, coarser, (flows.shape[1], flows.shape[2]))
    kernels = split_kernel(first.kernel[...].astype(net.dtype), x0.shape[-1])
    rest, bias = [flows, net], first.bias[...]
    if hint is not None:
        (image0, features0), (image1, features1) = unpack(x0), unpack(x1)
        differences = [jnp.mean(abs(a - b), -1, keepdims=True) for a, b in ((image0, image1), (features0, features1))]
        rest += [*(count.astype(net.dtype) for count in counts), *differences]
        kernels = (*kernels[:2], jnp.concatenate([kernels[2], hint.kernel[...].astype(net.dtype)], axis=2))
        bias = bias + hint.bias[...]
    stack = (x0, x1, jnp.concatenate(rest, axis=-1))
    net = sum(map(conv2d, stack, kernels), bias.astype(net.dtype))
    net = leaky_relu(second(leaky_relu(net)))
    return output[0](net) if output else net, unpack(x0)[0], unpack(x1)[0]


def _align(x0: Array, x1: Array, to_x0: Array, to_x1: Array, top: Top = 0) -> tuple[Array, Array, Array]:
    """One level of the aligned pyramid: each packed frame, warped by the flow to it; and both flows."""
    flows = jnp.concatenate([to_x0, to_x1], axis=-1).astype(x0.dtype)
    return backward_warp(x0, to_x0, top), backward_warp(x1, to_x1, top), flows
