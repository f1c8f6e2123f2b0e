"""Bidirectional flow, coarse to fine, by residuals (FILM, section "Flow Estimation").

At the coarsest level a predictor looks at both frames' features and guesses a flow. At each finer level the flow so
far is doubled and upsampled, the other frame's features are warped with it, and a predictor adds the correction:

    v = upsample(2 * flow[i + 1]);   flow[i] = v + predictor_i([a[i], warp(b[i], v)])

The finest `specialized_levels` levels own a predictor; all coarser ones share one, which sees every large motion as
a small one. Both directions are one batch: `a` holds both frames and `b` the same frames swapped.

That flow lies on the grid of frame `a`, but FILM uses it on the grid of the frame in between, where things are
somewhere else: behind every outline that moves by 40 px there are 20 px of wrong flow. `FlowEstimator.between` warps
both frames to the moment in between and compares them there, as bilateral methods do (Park et al., BMBC, ECCV 2020; Jin
et al., UPR-Net, CVPR 2023): one flow, assumed to be even in time, on the grid on which it is used, in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.convolution import Conv, Stage, conv2d, leaky_relu, whole
from film.pyramid import Pyramid, feature_channels
from film.resample import resize_bilinear
from film.row_tiling import Top, by_strips, even_share
from film.warp import backward_warp

KEYS = 32  # most channels in which two frames are compared
STRIP = 1 << 17  # values of a frame that are matched at a time on a CPU


class FlowPredictor(nnx.Module):
    """`convs` 3x3 convolutions with `filters` channels, then 1x1 to half of them, then 1x1 to (dx, dy).

    With a `search` radius the first convolution also sees how well each pixel of one frame matches those of the other
    within that many pixels (`matches`), which a few filters cannot work out for themselves.
    """

    def __init__(self, features: int, convs: int, filters: int, search: int = 0, *, rngs: nnx.Rngs):
        inputs = [2 * features] + [filters] * (convs - 1)
        self.convs = nnx.List([Conv(3, i, filters, rngs=rngs) for i in inputs])
        self.convs.append(Conv(1, filters, filters // 2, rngs=rngs))
        self.convs.append(Conv(1, filters // 2, 2, rngs=rngs))
        self.features, self.search = features, search
        if search:
            self.keys = Conv(1, features, min(KEYS, filters), rngs=rngs)
            self.matched = Conv(3, (2 * search + 1) ** 2, filters, rngs=rngs)

    def own_half(self, a: Float[Array, "b h w c"]) -> Float[Array, "b h w f"]:
        """What frame `a` contributes, the same against every other frame: its half of the first convolution, and its
        keys where there is a search."""
        first = self.convs[0]
        half = first.part(a, 0) + first.bias[...].astype(a.dtype)
        return jnp.concatenate([half, self._keys(a)], axis=-1) if self.search else half

    def __call__(self, own: Float[Array, "b h w f"], other: Float[Array, "b h w c"]) -> Float[Array, "b h w 2"]:
        """Residual flow from `own_half(a)` and the (warped) features of the other frame."""
        x = self.convs[0].part(other, other.shape[-1])
        if self.search:
            own, keys = jnp.split(own, [x.shape[-1]], axis=-1)
            x += self.matched(matches(keys, self._keys(other), self.search))
        return self._after_first(own + x)

    def compare(self, a: Float[Array, "b h w c"], b: Float[Array, "b h w c"]) -> Float[Array, "b h w 2"]:
        """`self(own_half(a), b)` where there is no half to keep: what the halves and the matches are convolved with is
        one kernel, over the stack of all that is seen."""
        first, seen = self.convs[0], [a, b]
        kernel, bias = first.kernel[...], first.bias[...]
        if self.search:
            seen.append(matches(self._keys(a), self._keys(b), self.search))
            kernel, bias = jnp.concatenate([kernel, self.matched.kernel[...]], axis=2), bias + self.matched.bias[...]
        return self._after_first(conv2d(jnp.concatenate(seen, axis=-1), kernel.astype(a.dtype)) + bias.astype(a.dtype))

    def _after_first(self, x: Float[Array, "b h w f"]) -> Float[Array, "b h w 2"]:
        for conv in list(self.convs)[1:]:
            x = conv(leaky_relu(x))
        return x

    @property
    def reach(self) -> int:
        """How many rows around a row its flow depends on."""
        return self.search + len(self.convs) - 2

    def _keys(self, features: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
        keys = self.keys(features)
        return keys * jax.lax.rsqrt(jnp.mean(keys * keys, axis=-1, keepdims=True) + 1e-6)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matches(a: Float[Array, "b h w k"], b: Float[Array, "b h w k"], radius: int) -> Float[Array, "b h w m"]:
    """Mean over channels of `a(x) b(x + d)` for all whole d within `radius` in both directions, row by row; beyond the
    picture b is zero. Of unit vectors it is the cosine of their angle.

    Loops, and a gradient written by hand: unrolled, XLA compiles what made `a` and `b` into every one of the terms.
    Channels come first, so that the sum runs along a row, pixel by pixel, instead of across channels; and on a CPU it
    is done a few rows at a time, which stay in the cache.
    """
    (batch, height, width, channels), side = a.shape, 2 * radius + 1
    on_cpu, padded = jax.default_backend() == "cpu", _pad(b, radius)
    rows = even_share(height, batch * width * channels, STRIP) if on_cpu else height

    def strip(number: Array) -> Array:
        here = jnp.moveaxis(jax.lax.dynamic_slice_in_dim(a, number * rows, rows, axis=1), -1, 0)
        there = jnp.moveaxis(jax.lax.dynamic_slice_in_dim(padded, number * rows, rows + 2 * radius, axis=1), -1, 0)
        here, there = here.astype(jnp.float32), there.astype(jnp.float32)

        def match(step: Array) -> Array:
            seen = jax.lax.dynamic_slice(there, (0, 0, step // side, step % side), here.shape)
            return sum((here[c] * seen[c] for c in range(1, channels)), here[0] * seen[0]) / channels

        return jnp.moveaxis(jax.lax.map(match, jnp.arange(side**2)), 0, -1)

    strips = jax.lax.map(strip, jnp.arange(height // rows))
    return jnp.moveaxis(strips, 0, 1).reshape(batch, height, width, side**2).astype(a.dtype)


def _matches_gradient(radius: int, inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    a, b = inputs
    gradient = gradient / a.shape[-1]
    seen_a, seen_b, back = (_shifts(x, radius) for x in (a, b, gradient))
    terms = range(len(seen_b))
    to_a = sum(gradient[..., d, None] * seen_b[d] for d in terms)
    to_b = sum(back[-1 - d][..., d, None] * seen_a[-1 - d] for d in terms)
    return jnp.asarray(to_a), jnp.asarray(to_b)


matches.defvjp(lambda a, b, radius: (matches(a, b, radius), (a, b)), _matches_gradient)


def _pad(x: Float[Array, "b h w c"], radius: int) -> Array:
    return jnp.pad(x, ((0, 0), (radius, radius), (radius, radius), (0, 0)))


def _shifts(x: Float[Array, "b h w c"], radius: int) -> list[Array]:
    """`x(x + d)` for all d, in the order of `matches`."""
    (height, width), padded, steps = x.shape[1:3], _pad(x, radius), range(2 * radius + 1)
    return [padded[:, row : row + height, column : column + width] for row in steps for column in steps]


class FlowEstimator(nnx.Module):
    """Flow pyramids between frames given by their feature pyramids."""

    def __init__(
        self,
        filters: int,
        sub_levels: int,
        convs: Sequence[int],
        widths: Sequence[int],
        search: Sequence[int],
        *,
        rngs: nnx.Rngs,
    ):
        self.predictors = nnx.List(
            [
                FlowPredictor(feature_channels(filters, sub_levels, level), *shape, rngs=rngs)
                for level, shape in enumerate(zip(convs, widths, search, strict=True))
            ]
        )

    def predictor(self, level: int) -> FlowPredictor:
        """The predictor of `level`: its own, or the last one, which all coarse levels share."""
        return self.predictors[min(level, len(self.predictors) - 1)]

    def own_halves(self, features: Pyramid) -> Pyramid:
        """`FlowPredictor.own_half` at each level: computed once per frame, used for each of its neighbours."""
        return [self.predictor(level).own_half(a) for level, a in enumerate(features)]

    def __call__(self, own: Pyramid, other: Pyramid, stage: Stage = whole) -> Pyramid:
        """Flow from the frames of `own` (see `own_halves`) to the frames with features `other`.

        Returns one flow per level, finest first, (dx, dy) in pixels of that level: `a(x) ~ b(x + flow)`.
        """
        coarsest = len(own) - 1
        flows = [stage(partial(FlowPredictor.__call__, self.predictor(coarsest)))(own[coarsest], other[coarsest])]
        for level in range(coarsest - 1, -1, -1):
            height, width = other[level].shape[1:3]
            # Flow is carried in float32 whatever the features are: positions beyond 256 px need its mantissa.
            v = resize_bilinear(2 * flows[0].astype(jnp.float32), (height, width))

            def refine(top: Top, v: Array, own: Array, level: int = level) -> Array:
                return v + stage(partial(_residual, self.predictor(level)))(own, other[level], v, top)

            flows.insert(0, by_strips(refine, [v, own[level]], self.predictor(level).reach))
        return flows

    def between(self, first: Pyramid, second: Pyramid, time: Float[Array, "b 1"], stage: Stage = whole) -> Pyramid:
        """Flow from the first frames to the second, at the places that things have at `time`; as `__call__` else.

        Both frames are warped to that moment, so what is compared lies on the grid on which the answer is used:
        `first(x - time * flow) ~ second(x + (1 - time) * flow)`. A level's features are its last channels; what comes
        before them (image and zeros, in `Encoded.packs`) is not looked at, and saves a copy.
        """
        t = time[:, :, None, None]
        coarsest = len(first) - 1
        flows = [stage(partial(_straight, self.predictor(coarsest)))(first[coarsest], second[coarsest])]
        for level in range(coarsest - 1, -1, -1):
            height, width = first[level].shape[1:3]
            v = resize_bilinear(2 * flows[0].astype(jnp.float32), (height, width))

            def refine(top: Top, v: Array, level: int = level) -> Array:
                residual = stage(partial(middle_residual, self.predictor(level)))
                return v + residual(first[level], second[level], v, t, top)

            flows.insert(0, by_strips(refine, [v], self.predictor(level).reach))
        return flows


def _residual(predictor: FlowPredictor, own: Array, other: Array, v: Array, top: Top = 0) -> Array:
    """The correction to `v` (Eq. in section "Flow Estimation"): what the predictor sees after warping with it."""
    return predictor(own, backward_warp(other, v, top))


def _straight(predictor: FlowPredictor, first: Array, second: Array) -> Array:
    first, second = (x[..., x.shape[-1] - predictor.features :] for x in (first, second))
    return predictor.compare(first, second)


def middle_residual(predictor: FlowPredictor, first: Array, second: Array, v: Array, t: Array, top: Top = 0) -> Array:
    """The correction to `v` from what is seen when both frames are warped with it to time `t` [b 1 1 1]."""
    return _straight(predictor, backward_warp(first, -t * v, top), backward_warp(second, (1 - t) * v, top))
