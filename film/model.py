"""FILM: Frame Interpolation for Large Motion (Reda et al., ECCV 2022).

Two frames in, the frame half-way between them out. Input and output are RGB in [0, 1], `b h w 3`, as displayed (not
linearised, not normalised); the output is not clamped. Three stages:

1. `pyramid.py`  scale-agnostic features: one encoder, run on every level of each image's pyramid;
2. `flow.py`     flow from each image to the other, coarse to fine, as a sum of residuals;
3. `fusion.py`   images and features warped to the middle with half of each flow, fused by a U-Net decoder.

`ops/` makes these stages fast and can be skipped by a reader of the paper; `config.py` has their shapes.

Conventions. Pyramids are lists, finest level first. Flow is (dx, dy) in pixels of its own level. `forward_flow` goes
from x0 to x1 and warps x1; `backward_flow` from x1 to x0 and warps x0. Both are whole flows, sampled on the middle
frame's grid: the warp at time t uses `backward_flow * t` and `forward_flow * (1 - t)`.

Presets. `FilmConfig.paper()` is the published network. `FilmConfig.small()` is a quarter as wide, and makes up for it
with `bilateral`, `correlation_radius`, `blend` and `matching`, which the paper lacks; `docs/film-small.md` has the
reasons and the scores.

Sizes. Any size runs: pooling floors, and every resize has its level's size as its target. A side shorter than
`FilmConfig.smallest_side` is padded with its edge and cropped again. The largest motion that can be resolved is about
`2**(pyramid_levels - 1)` pixels times the convolutions of the coarsest predictor: 192 px for both presets, and
less for a thing that is smaller than its motion; `matching` searches the whole frames where flow is in doubt.

Two parts. Most activations belong to the finest level, so it has a part of its own: `coarse` finds flow and decodes up
to level 1, `finish` adds level 0. `film.compiled` compiles `encode`, `coarse` and `finish` separately: it keeps
an encoded frame for both neighbours, and never has the activations of all levels in memory. `__call__` runs all of it
as one function.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Float

from common.nn.init import blank, split
from common.nn.remat import remat as rematerialised
from film.config import LEVEL, FilmConfig
from film.flow import FlowEstimator
from film.fusion import Fusion, Level, blend
from film.matching.refinement import antialiased, refine, visibility_logit
from film.matching.search import Motion, search
from film.ops.convolution import Stage, whole
from film.ops.packing import COLORS, pack
from film.pyramid import FeatureExtractor, Pyramid, image_pyramid

BEYOND = 8.0  # no network makes such values of frames in [0, 1]
Image = Float[Array, "b h w 3"]
Time = Float[Array, "b 1"]
Pack = Float[Array, "b h w p"]
Flows = Float[Array, "b h w 4"]


class Encoded(NamedTuple):
    """What FILM derives from one frame alone, but for the finest level. A pytree: batch, slice and stack it freely."""

    packs: Pyramid  # levels 1 and up that are warped and fused: image and features, packed (`film.ops.packing`)
    features: Pyramid  # the coarser feature levels, which only flow sees


class Coarse(NamedTuple):
    """The pair up to level 1."""

    forward_flow: Pyramid  # x0 -> x1, levels 1 and up of those that are fused, (dx, dy) in pixels of each level
    backward_flow: Pyramid  # x1 -> x0
    decoded: Float[Array, "b h w c"]  # the decoder's output for level 0, at level 1
    motion: Motion | None = None  # for `matching`, at level 1


class FilmOutput(NamedTuple):
    """The frame between two others, and the motion."""

    image: Image  # RGB, nominally in [0, 1] but not clamped
    forward_flow: Pyramid  # x0 -> x1, (dx, dy) in pixels of each level; the finest `fusion_pyramid_levels` levels
    backward_flow: Pyramid  # x1 -> x0, likewise
    x0_warped: Image  # to the in-between frame's time
    x1_warped: Image
    weight: Float[Array, "b h w 1"] | None = None  # of `x0_warped` in the mixture, for `blend`


class Film(nnx.Module):
    """The network. Call it on two batches of frames, or its parts (see the module)."""

    def __init__(self, config: FilmConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.extractor = FeatureExtractor(config, rngs=rngs)
        self.flow = FlowEstimator(config, rngs=rngs)
        self.fusion = Fusion(config, rngs=rngs)

    def __call__(
        self,
        x0: Float[Array | np.ndarray, "b h w 3"],
        x1: Float[Array | np.ndarray, "b h w 3"],
        time: float | Float[Array | np.ndarray, ""] | Float[Array | np.ndarray, "b 1"] = 0.5,
    ) -> FilmOutput:
        """Interpolates between two batches of frames; compiled once per shape.

        Args:
          x0, x1: first and last frames, RGB in [0, 1]; ValueError unless both are `b h w 3` of one shape, and as
            `check_frame`.
          time: from 0 (x0) to 1 (x1), else ValueError. Scales the flows as in the module's docstring; with
            `bilateral`, flow is also estimated at that time. The published weights were trained at 0.5 only: for other
            times use midpoints of midpoints (`film.interpolate`). The reference takes this argument and ignores it.
        """
        for name, frame in (("x0", x0), ("x1", x1)):
            if jnp.ndim(frame) != 4:
                raise ValueError(f"{name} has shape {jnp.shape(frame)}: frames are (batch, height, width, 3)")
            check_frame(name, frame)
        if x0.shape != x1.shape:
            raise ValueError(f"frames of different shapes {x0.shape} and {x1.shape}: resize or crop them to one size")
        if np.shape(time) not in ((), (1,), (1, 1), (len(x0), 1)):
            raise ValueError(f"time has shape {np.shape(time)}: give one number, or ({len(x0)}, 1), one for each pair")
        if not isinstance(time, Tracer) and not (np.min(time) >= 0 and np.max(time) <= 1):
            raise ValueError(f"time is {np.ravel(time).tolist()}: give numbers from 0 (x0) to 1 (x1)")
        times = jnp.broadcast_to(jnp.asarray(time, jnp.float32), (x0.shape[0], 1))
        return _interpolate(*split(self), jnp.asarray(x0), jnp.asarray(x1), times)

    def encode(self, images: Image, stage: Stage = whole) -> tuple[Pack, Encoded]:
        """The finest level of each frame, and the others. No padding is done here."""
        pyramid = image_pyramid(images, self.config.pyramid_levels)
        features = self.extractor(pyramid, stage)
        fused = self.config.fusion_pyramid_levels
        packs = [pack(*pair) for pair in zip(pyramid[:fused], features[:fused], strict=True)]
        return packs[0], Encoded(packs[1:], features[fused:])

    def coarse(self, e0: Encoded, e1: Encoded, time: Time, flow: Flows | None = None, stage: Stage = whole) -> Coarse:
        """Flow and decoder up to level 1.

        `flow`, backward and forward, in pixels of its own level, is used as it is at that level (1 or coarser, by its
        size) and below, and refined above; None: flow is estimated from the coarsest level on, or `matching` finds it.
        """
        fused = self.config.fusion_pyramid_levels - 1  # of these levels
        first, second = e0.packs + e0.features, e1.packs + e1.features
        refined, known_backward, known_forward, motion = len(first), [], [], None
        if flow is not None:
            refined = [x.shape[1:3] for x in first].index(flow.shape[1:3])  # levels finer than the flow
            known = [x / 2**n for n, x in enumerate(image_pyramid(flow, max(1, fused - refined)))]
            known_backward, known_forward = [x[..., :2] for x in known], [x[..., 2:] for x in known]
        elif self.config.matching:
            known_backward, known_forward, motion = self._matched(first, second, time, stage)
            refined = 0
        below = known_backward[:1], known_forward[:1]
        backward, forward = self._flows(first[:refined], second[:refined], time, 1, *below, stage)
        backward, forward = (backward + known_backward)[:fused], (forward + known_forward)[:fused]
        decoded, *_ = self.fusion(self._aligned(e0.packs, e1.packs, backward, forward, time), stage=stage)
        return Coarse(forward, backward, decoded, motion)

    def _matched(self, first: Pyramid, second: Pyramid, time: Time, stage: Stage) -> tuple[Pyramid, Pyramid, Motion]:
        """Flow backward and forward of levels 1 and up, by `film.matching`."""
        pairs = zip(first[:LEVEL], second[:LEVEL], strict=True)
        images = [jnp.concatenate([x[..., :COLORS] for x in pair]) for pair in pairs]
        backward, forward = self._flows(first[LEVEL - 1 :], second[LEVEL - 1 :], time, LEVEL, [], [], stage)
        finer, coarse = images[LEVEL - 2 :]
        flow, motion = search(finer, coarse, forward[0], time)
        backward, forward = [-flow, *backward[1:]], [flow, *forward[1:]]
        for level in range(LEVEL - 1, 0, -1):
            to_first, to_second, motion = self._refined(
                images[level - 1], first[level - 1], second[level - 1], time, level, forward[0], motion, stage
            )
            backward, forward = [to_first, *backward], [to_second, *forward]
        return backward, forward, motion

    def _refined(
        self,
        images: Float[Array, "n h w 3"],
        first: Pack,
        second: Pack,
        time: Time,
        level: int,
        coarser: Float[Array, "b h2 w2 2"],
        motion: Motion,
        stage: Stage,
    ) -> tuple[Array, Array, Motion]:
        """Flow backward and forward of a level, by `film.matching.refinement` and the level's predictor."""
        chosen, motion = refine(images, coarser, motion, time)
        both = jnp.concatenate([-chosen, chosen], axis=-1)
        (flow,) = self.flow.bilateral([first], [second], time, level, both, stage, upsampled=True)
        return flow[..., :2], flow[..., 2:], motion

    def finish(self, x0: Pack, x1: Pack, coarse: Coarse, time: Time, stage: Stage = whole) -> FilmOutput:
        """The in-between frames of pairs, from their finest level and `coarse`."""
        known, motion, logit = (coarse.backward_flow[:1], coarse.forward_flow[:1]), coarse.motion, 0.0
        if motion is None:
            backward, forward = self._flows([x0], [x1], time, 0, *known, stage)
        else:
            images = jnp.concatenate([x0[..., :COLORS], x1[..., :COLORS]])
            *flows, motion = self._refined(images, x0, x1, time, 0, known[1][0], motion, stage)
            backward, forward = ([flow] for flow in flows)
            logit = visibility_logit(forward[0], motion, time)
        levels = self._aligned([x0], [x1], backward, forward, time)
        image, x0_warped, x1_warped = self.fusion(levels, coarse.decoded, stage)
        weight = None
        if self.config.blend:
            image, weight = blend(x0_warped, x1_warped, image, time, *levels[0][2:], logit)
        if motion is not None:
            image = antialiased(image, forward[0], motion)
        flows = forward + coarse.forward_flow, backward + coarse.backward_flow
        return FilmOutput(image, *flows, x0_warped, x1_warped, weight)

    def forward(self, x0: Image, x1: Image, time: Time, remat: bool = False) -> FilmOutput:
        """`__call__` for use inside another `jit` or `grad`: no checks, no padding.

        With `remat` a gradient keeps only the inputs of each stage and computes the rest again.
        """
        stage, batch = rematerialised if remat else whole, len(x0)
        encoded = self.encode(jnp.concatenate([x0, x1]), stage)
        p0, e0 = jax.tree.map(lambda x: x[:batch], encoded)
        p1, e1 = jax.tree.map(lambda x: x[batch:], encoded)
        return self.finish(p0, p1, self.coarse(e0, e1, time, stage=stage), time, stage)

    def _flows(
        self, a: Pyramid, b: Pyramid, time: Time, finest: int, backward: Pyramid, forward: Pyramid, stage: Stage
    ) -> tuple[Pyramid, Pyramid]:
        """Flow b -> a and a -> b; `backward` and `forward` hold the level below, if it is known."""
        to_a, to_b = (known[0] if known else None for known in (backward, forward))
        if self.config.bilateral:
            both = None if to_a is None or to_b is None else jnp.concatenate([to_a, to_b], axis=-1)
            flows = self.flow.bilateral(a, b, time, finest, both, stage)
            return [flow[..., :2] for flow in flows], [flow[..., 2:] for flow in flows]
        return self.flow(b, a, finest, to_a, stage), self.flow(a, b, finest, to_b, stage)

    def _aligned(
        self, packs0: Pyramid, packs1: Pyramid, backward: Pyramid, forward: Pyramid, time: Time
    ) -> list[Level]:
        t = time[:, :, None, None]
        flows = [flow * t for flow in backward], [flow * (1 - t) for flow in forward]
        return list(zip(packs0, packs1, *flows, strict=True))


def with_matching(model: Film, on: bool | None = True) -> Film:
    """The same network, with a search of the whole frames (`film.matching`) or without; None: as it is. ValueError for
    a shape that cannot have it (`FilmConfig`)."""
    if on in (None, model.config.matching):
        return model
    graphdef, _ = blank(Film, replace(model.config, matching=on))
    return nnx.merge(graphdef, nnx.state(model))


def check_frame(name: str, frame: Any) -> None:
    """Raises ValueError unless a frame or a batch is RGB of floats in [0, 1]. A network's own frames are not clamped,
    so only values beyond `BEYOND` are refused, as those of 0 to 255 have; those of a tracer are not known."""
    shape = np.shape(frame)
    if shape[-1:] != (COLORS,):
        ways = {4: "leave alpha out, frame[..., :3]", 1: "repeat grey, np.repeat(frame, 3, -1)"}
        way = ways.get(shape[-1] if shape else 0, "read it with common.io.images.read_image")
        raise ValueError(f"{name} has shape {shape}: the last axis is red, green, blue; {way}")
    if not jnp.issubdtype(frame.dtype, jnp.floating):
        raise ValueError(f"{name} is {frame.dtype}: frames are floats in [0, 1]; divide by {np.iinfo(frame.dtype).max}")
    if isinstance(frame, Tracer) or 0 in shape:
        return
    low, high = float(frame.min()), float(frame.max())  # NaN if any is
    if not -BEYOND <= low <= high <= BEYOND:
        way = "divide by 255" if BEYOND < high <= 255 else "replace NaN and infinity"
        raise ValueError(f"{name} has values from {low:g} to {high:g}: frames are in [0, 1]; {way}")


def concatenate(batches: list[Any]) -> Any:
    """Trees of batches as one batch."""
    return batches[0] if len(batches) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *batches)


def pad_to_smallest(config: FilmConfig, image: Image) -> Float[Array, "b h2 w2 3"]:
    """Repeats the right and bottom edges until each side has `config.smallest_side` pixels."""
    missing = [max(0, config.smallest_side - side) for side in image.shape[1:3]]
    return jnp.pad(image, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)), mode="edge") if any(missing) else image


def crop(output: FilmOutput, height: int, width: int) -> FilmOutput:
    """Undoes `pad_to_smallest`: level i keeps `height >> i` rows (never fewer than one)."""

    def cut(x: Array, level: int = 0) -> Array:
        return x[:, : max(1, height >> level), : max(1, width >> level)]

    forward, backward = ([cut(flow, i) for i, flow in enumerate(flows)] for flows in output[1:3])
    weight = None if output.weight is None else cut(output.weight)
    return FilmOutput(cut(output.image), forward, backward, cut(output.x0_warped), cut(output.x1_warped), weight)


@partial(jax.jit, static_argnums=0)
def _interpolate(graphdef, params, x0, x1, time) -> FilmOutput:
    model = nnx.merge(graphdef, params)
    padded = [pad_to_smallest(model.config, x) for x in (x0, x1)]
    return crop(model.forward(*padded, time), *x0.shape[1:3])
