"""Bidirectional flow, coarse to fine, by residuals (FILM, section "Flow Estimation").

At the coarsest level a predictor estimates a flow from both frames' features. At each finer level the flow is doubled
and upsampled, the other frame's features are warped with it, and a predictor adds the correction:

    v = upsample(2 * flow[i + 1]);   flow[i] = v + predictor_i([a[i], warp(b[i], v)])

The finest `specialized_levels` levels own a predictor; all coarser ones share one, which sees every large motion as
a small one. Both directions are one batch: `a` holds both frames and `b` the same frames swapped.

That flow lies on the grid of frame `a`, but FILM uses it on the grid of the middle frame, where things are somewhere
else: behind every outline that moves by 40 px, 20 px of flow are wrong. `FlowEstimator.bilateral` warps both frames to
the middle frame's time and compares them there, as bilateral methods do (Park et al., BMBC, ECCV 2020; Jin et al.,
UPR-Net, CVPR 2023): one flow, assumed to be constant in time, on the grid on which it is used, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.config import FilmConfig
from film.ops.convolution import Conv, Stage, conv2d, leaky_relu, whole
from film.ops.correlation import correlation
from film.ops.resample import resize_bilinear
from film.ops.row_tiling import Top, by_rows
from film.pyramid import Pyramid, feature_channels
from film.warp import backward_warp

KEYS = 32  # most channels in which two frames are correlated


class FlowPredictor(nnx.Module):
    """`convs` 3x3 convolutions with `filters` channels, then 1x1 to half of them, then 1x1 to (dx, dy).

    With a correlation `radius` the first convolution also sees how well each pixel of one frame matches those of the
    other within that many pixels (`film.ops.correlation`), which a few filters cannot work out for themselves.
    """

    def __init__(self, features: int, convs: int, filters: int, radius: int = 0, *, rngs: nnx.Rngs):
        inputs = [2 * features] + [filters] * (convs - 1)
        self.convs = nnx.List([Conv(3, i, filters, rngs=rngs) for i in inputs])
        self.convs.append(Conv(1, filters, filters // 2, rngs=rngs))
        self.convs.append(Conv(1, filters // 2, 2, rngs=rngs))
        self.features, self.radius = features, radius
        if radius:
            self.keys = Conv(1, features, min(KEYS, filters), rngs=rngs)
            self.matched = Conv(3, (2 * radius + 1) ** 2, filters, rngs=rngs)

    def own_half(self, a: Float[Array, "b h w c"]) -> Float[Array, "b h w f"]:
        """The part that depends on frame `a` alone: its half of the first convolution, and its keys if there is a
        correlation."""
        first = self.convs[0]
        half = first.part(a, 0) + first.bias[...].astype(a.dtype)
        return jnp.concatenate([half, self._keys(a)], axis=-1) if self.radius else half

    def __call__(self, own: Float[Array, "b h w f"], other: Float[Array, "b h w c"]) -> Float[Array, "b h w 2"]:
        """Residual flow from `own_half(a)` and the (warped) features of the other frame."""
        x = self.convs[0].part(other, other.shape[-1])
        if self.radius:
            own, keys = jnp.split(own, [x.shape[-1]], axis=-1)
            x += self.matched(correlation(keys, self._keys(other), self.radius))
        return self._after_first(own + x)

    def compare(self, a: Float[Array, "b h w c"], b: Float[Array, "b h w c"]) -> Float[Array, "b h w 2"]:
        """`self(own_half(a), b)` if no half is kept: features and correlation are one stack, with one kernel.
        The features are the last channels of `a` and `b`; those before them (`film.ops.packing`) are ignored."""
        a, b = (x[..., x.shape[-1] - self.features :] for x in (a, b))
        first, stack = self.convs[0], [a, b]
        kernel, bias = first.kernel[...], first.bias[...]
        if self.radius:
            stack.append(correlation(self._keys(a), self._keys(b), self.radius))
            kernel, bias = jnp.concatenate([kernel, self.matched.kernel[...]], axis=2), bias + self.matched.bias[...]
        return self._after_first(conv2d(jnp.concatenate(stack, axis=-1), kernel.astype(a.dtype)) + bias.astype(a.dtype))

    def _after_first(self, x: Float[Array, "b h w f"]) -> Float[Array, "b h w 2"]:
        for conv in list(self.convs)[1:]:
            x = conv(leaky_relu(x))
        return x

    @property
    def reach(self) -> int:
        """Rows on either side that a row of flow depends on."""
        return self.radius + len(self.convs) - 2

    def _keys(self, features: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
        keys = self.keys(features)
        return keys * jax.lax.rsqrt(jnp.mean(keys * keys, axis=-1, keepdims=True) + 1e-6)


class FlowEstimator(nnx.Module):
    """Flow pyramids between frames given by their feature pyramids: one flow per level, in pixels of that level."""

    def __init__(self, config: FilmConfig, *, rngs: nnx.Rngs):
        radii = config.correlation_radius or (0,) * len(config.flow_convs)
        shapes = zip(config.flow_convs, config.flow_filters, radii, strict=True)
        self.predictors = nnx.List(
            [FlowPredictor(feature_channels(config, level), *shape, rngs=rngs) for level, shape in enumerate(shapes)]
        )

    def predictor(self, level: int) -> FlowPredictor:
        """The predictor of `level`: its own, or the last one, which all coarse levels share."""
        return self.predictors[min(level, len(self.predictors) - 1)]

    def own_halves(self, features: Pyramid) -> Pyramid:
        """`FlowPredictor.own_half` at each level: computed once per frame, used for each of its neighbours."""
        return [self.predictor(level).own_half(a) for level, a in enumerate(features)]

    def __call__(self, own: Pyramid, other: Pyramid, stage: Stage = whole) -> Pyramid:
        """Flow from frames `a` (their `own_halves`) to frames `b` (their features): `a(x) ~ b(x + flow)`."""

        def residual(level: int, v: Array, top: Top, own: Array) -> Array:
            return stage(partial(_residual, self.predictor(level)))(own, other[level], v, top)

        coarsest = stage(partial(FlowPredictor.__call__, self.predictor(len(own) - 1)))(own[-1], other[-1])
        return self._refine(coarsest, other, residual, own)

    def bilateral(self, first: Pyramid, second: Pyramid, time: Float[Array, "b 1"], stage: Stage = whole) -> Pyramid:
        """Flow from the first frames to the second, on the grid of the frame at `time`.

        `first(x - time * flow) ~ second(x + (1 - time) * flow)`. A level's features are its last channels
        (`FlowPredictor.compare`), so that packed frames need no copy.
        """
        t = time[:, :, None, None]

        def residual(level: int, v: Array, top: Top) -> Array:
            return stage(partial(bilateral_residual, self.predictor(level)))(first[level], second[level], v, t, top)

        coarsest = stage(partial(FlowPredictor.compare, self.predictor(len(first) - 1)))(first[-1], second[-1])
        return self._refine(coarsest, first, residual)

    def _refine(self, coarsest: Array, sizes: Pyramid, residual: Callable[..., Array], *tiled: Pyramid) -> Pyramid:
        """Adds `residual(level, v, top, *rows of tiled)` to the upsampled flow v, level by level."""
        flows = [coarsest]
        for level in range(len(sizes) - 2, -1, -1):
            height, width = sizes[level].shape[1:3]
            # Flow is carried in float32 whatever the features are: positions beyond 256 px need its mantissa.
            v = resize_bilinear(2 * flows[0].astype(jnp.float32), (height, width))

            def refine(top: Top, v: Array, *rows: Array, level: int = level) -> Array:
                return v + residual(level, v, top, *rows)

            flows.insert(0, by_rows(refine, [v, *(x[level] for x in tiled)], self.predictor(level).reach))
        return flows


def _residual(predictor: FlowPredictor, own: Array, other: Array, v: Array, top: Top = 0) -> Array:
    """The correction to `v`: the other frame is warped with it."""
    return predictor(own, backward_warp(other, v, top))


def bilateral_residual(
    predictor: FlowPredictor, first: Array, second: Array, v: Array, t: Array, top: Top = 0
) -> Array:
    """The correction to `v`: both frames are warped with it to time `t` [b 1 1 1]."""
    return predictor.compare(backward_warp(first, -t * v, top), backward_warp(second, (1 - t) * v, top))
