"""Bidirectional flow, coarse to fine, by residuals (FILM, section "Flow Estimation").

At the coarsest level a predictor estimates a flow from both frames' features. At each finer level the flow is doubled
and upsampled, the other frame's features are warped with it, and a predictor adds the correction:

    v = upsample(2 * flow[i + 1]);   flow[i] = v + predictor_i([a[i], warp(b[i], v)])

The finest `specialized_levels` levels own a predictor; all coarser ones share one, which sees every large motion as
a small one.

That flow lies on the grid of frame `a`, but FILM uses it on the grid of the middle frame, where things are somewhere
else: behind every outline that moves by 40 px, 20 px of flow are wrong. `FlowEstimator.bilateral` warps both frames to
the middle frame's time and compares them there, as bilateral methods do (Park et al., BMBC, ECCV 2020; Jin et al.,
UPR-Net, CVPR 2023): one flow, assumed to be constant in time, on the grid on which it is used, in one pass. At the
finest `sided_levels` levels each of the two flows that it stands for, to either frame, has a residual of its own.
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
from film.pyramid import Pyramid
from film.warp import backward_warp

KEYS = 32  # most channels in which two frames are correlated
Flow = Float[Array, "b h w 2"]
Flows = Float[Array, "b h w 4"]  # backward (to the first frame) and forward (to the second)


class FlowPredictor(nnx.Module):
    """`convs` 3x3 convolutions with `filters` channels, then 1x1 to half of them, then 1x1 to (dx, dy).

    With a correlation `radius` the first convolution also sees how well each pixel of one frame matches those of the
    other within that many pixels (`film.ops.correlation`), which a few filters cannot work out for themselves.

    A `sided` one outputs [flow | residual to the first frame | to the second] (`FlowEstimator.bilateral`); the
    residuals are a 3x3 convolution beside the 1x1 ones, and start at zero.
    """

    def __init__(
        self, features: int, convs: int, filters: int, radius: int = 0, sided: bool = False, *, rngs: nnx.Rngs
    ):
        inputs = [2 * features] + [filters] * (convs - 1)
        self.convs = nnx.List([Conv(3, i, filters, rngs=rngs) for i in inputs])
        self.convs.append(Conv(1, filters, filters // 2, rngs=rngs))
        self.convs.append(Conv(1, filters // 2, 2, rngs=rngs))
        self.features, self.radius = features, radius
        if radius:
            self.keys = Conv(1, features, min(KEYS, filters), rngs=rngs)
            self.matched = Conv(3, (2 * radius + 1) ** 2, filters, rngs=rngs)
        self.sides = Conv(3, filters, 4, rngs=rngs).zeroed() if sided else None

    def __call__(self, a: Float[Array, "b h w c"], b: Float[Array, "b h w c"]) -> Float[Array, "b h w f"]:
        """Residual flow from `a` to `b`, whose features are their last channels: packed frames (`film.ops.packing`)
        need no copy. Features and correlation are one stack, with one kernel."""
        a, b = (x[..., x.shape[-1] - self.features :] for x in (a, b))
        first, stack = self.convs[0], [a, b]
        kernel, bias = first.kernel[...], first.bias[...]
        if self.radius:
            stack.append(correlation(self._keys(a), self._keys(b), self.radius))
            kernel, bias = jnp.concatenate([kernel, self.matched.kernel[...]], axis=2), bias + self.matched.bias[...]
        x = conv2d(jnp.concatenate(stack, axis=-1), kernel.astype(a.dtype)) + bias.astype(a.dtype)
        *middle, narrow, last = list(self.convs)[1:]
        for conv in middle:
            x = conv(leaky_relu(x))
        x = leaky_relu(x)
        flow = last(leaky_relu(narrow(x)))
        return flow if self.sides is None else jnp.concatenate([flow, self.sides(x)], axis=-1)

    @property
    def reach(self) -> int:
        """Rows on either side that a row of flow depends on."""
        return self.radius + len(self.convs) - 2 + (self.sides is not None)

    def _keys(self, features: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
        keys = self.keys(features)
        return keys * jax.lax.rsqrt(jnp.mean(keys * keys, axis=-1, keepdims=True) + 1e-6)


class FlowEstimator(nnx.Module):
    """Flow pyramids between frames given by their feature pyramids: one flow per level, in pixels of that level.

    A pyramid's features are the last channels of each level. Both methods refine from the coarsest level given to the
    finest one given; `finest` is the level's number. `coarser` is the flow of the level below the coarsest one, if that
    is known already: then nothing is estimated from scratch.
    """

    def __init__(self, config: FilmConfig, *, rngs: nnx.Rngs):
        radii = config.correlation_radius or (0,) * len(config.flow_convs)
        sided = [level < config.sided_levels for level in range(len(radii))]
        shapes = zip(config.flow_convs, config.flow_filters, radii, sided, strict=True)
        self.predictors = nnx.List(
            [FlowPredictor(config.feature_channels(level), *shape, rngs=rngs) for level, shape in enumerate(shapes)]
        )

    def predictor(self, level: int) -> FlowPredictor:
        """The predictor of `level`: its own, or the last one, which all coarse levels share."""
        return self.predictors[min(level, len(self.predictors) - 1)]

    def __call__(
        self, a: Pyramid, b: Pyramid, finest: int = 0, coarser: Flow | None = None, stage: Stage = whole
    ) -> Pyramid:
        """Flow from frames `a` to frames `b`, on the grid of `a`: `a(x) ~ b(x + flow)`."""

        def residual(level: int, v: Flow, top: Top, own: Array) -> Flow:
            return stage(partial(_residual, self.predictor(finest + level)))(own, b[level], v, top)

        if coarser is None:
            coarsest = self.predictor(finest + len(a) - 1)
            flow = stage(partial(FlowPredictor.__call__, coarsest))(a[-1], b[-1])
            return [*self._refine(a[:-1], finest, flow, residual, a), flow]
        return self._refine(a, finest, coarser, residual, a)

    def bilateral(
        self,
        a: Pyramid,
        b: Pyramid,
        time: Float[Array, "b 1"],
        finest: int = 0,
        coarser: Flows | None = None,
        stage: Stage = whole,
        upsampled: bool = False,
    ) -> Pyramid:
        """Flows between frames `a` and `b`, backward and forward, on the grid of the frame at `time`:
        `a(x + time * backward) ~ b(x + (1 - time) * forward)`. `backward = -forward` but for the residuals of sides.
        `coarser` may be `upsampled` to the coarsest level given already."""
        t = time[:, :, None, None]

        def residual(level: int, v: Flows, top: Top) -> Flows:
            return stage(partial(bilateral_residual, self.predictor(finest + level)))(a[level], b[level], v, t, top)

        if coarser is None:
            coarsest = self.predictor(finest + len(a) - 1)
            flow = both_ways(stage(partial(FlowPredictor.__call__, coarsest))(a[-1], b[-1]))
            return [*self._refine(a[:-1], finest, flow, residual), flow]
        return self._refine(a, finest, coarser, residual, upsampled=upsampled)

    def _refine(
        self,
        a: Pyramid,
        finest: int,
        flow: Array,
        residual: Callable[..., Array],
        *tiled: Pyramid,
        upsampled: bool = False,
    ) -> Pyramid:
        """Adds `residual(level, v, top, *rows of tiled)` to the upsampled flow v, level by level of `a`."""
        flows: Pyramid = []
        for level in range(len(a) - 1, -1, -1):
            _, height, width, channels = a[level].shape
            # Flow is carried in float32 whatever the features are: positions beyond 256 px need its mantissa.
            ready = upsampled and level == len(a) - 1
            v = flow if ready else resize_bilinear(2 * flow.astype(jnp.float32), (height, width))

            def refine(top: Top, v: Array, *rows: Array, level: int = level) -> Array:
                return v + residual(level, v, top, *rows)

            near = [v, *(x[level] for x in tiled)]
            reach = self.predictor(finest + level).reach
            flow = by_rows(refine, near, reach, channels)
            flows.insert(0, flow)
        return flows


def _residual(predictor: FlowPredictor, own: Array, other: Array, v: Flow, top: Top = 0) -> Flow:
    """The correction to `v`: the other frame is warped with it."""
    return predictor(own, backward_warp(other, v, top))


def bilateral_residual(
    predictor: FlowPredictor, first: Array, second: Array, v: Flows, t: Array, top: Top = 0
) -> Flows:
    """The correction to `v`: both frames are warped with it to time `t` [b 1 1 1]."""
    warped = backward_warp(first, t * v[..., :2], top), backward_warp(second, (1 - t) * v[..., 2:], top)
    return both_ways(predictor(*warped))


def both_ways(predicted: Float[Array, "b h w f"]) -> Flows:
    """Flow from the first frame to the second as flow backward and forward, each with its own residual if there is one
    (`FlowPredictor`)."""
    flow = predicted[..., :2]
    flows = jnp.concatenate([-flow, flow], axis=-1)
    return flows if predicted.shape[-1] == 2 else flows + predicted[..., 2:]
