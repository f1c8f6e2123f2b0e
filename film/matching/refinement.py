"""The refinement: what was found, carried to the finer levels by a choice, and into the mixture.

Interpolation to twice the size mixes four flows, at an outline two motions. Where these differ, a pixel takes one of
the four, or then one of those of the pixels around it (`refine`): the cheapest by the difference of the colours at both
ends, and by its agreement with the frames' own flow and with that around it. The flow of the frames on their own grids
is refined in the same way (`refined_own`), but also by the colours of a pixel and of the cells around it: what one
frame alone shows goes with what looks like it. Of the image, the outlines are smoothed in the end (`antialiased`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from film.matching.planes import (
    AROUND,
    SIDES,
    Colours,
    Field,
    Flow,
    Known,
    Map,
    Time,
    apart,
    at,
    box,
    difference,
    ends_of,
    field,
    length,
    looked_up,
    planes,
    roughness,
    shifted,
    spread_out,
    swapped,
)
from film.matching.search import Motion, disagreement
from film.ops.resample import average_pool, interleave, resize_bilinear, resize_nearest

# Costs, as in `search` but of other sizes, and ends outside count as the edge. Weight and most of the difference of the
# colours of a pixel and of its cell; cells to the neighbours whose flow is a candidate.
CLIP, SMOOTHNESS, COLOUR, ROUNDS = 0.1, 0.03, 0.3, (2, 1)
EDGE = 1.0  # px; where the four flows differ by no more, they are interpolated
TILE, REACH = 64, 8  # px, and how far around a pixel what decides on it lies
MIXTURE = 3.0  # logit that a frame loses where it leads to a motion that is off by `APART` px
APART = 4.0
Half = Float[Array, "_c b half_h half_w"]
Corner = Float[Array, "2 1 1 1"]  # (x, y), px


def refine(
    images: Float[Array, "n h2 w2 3"], flow: Field, motion: Motion, time: Time
) -> tuple[Float[Array, "b h2 w2 2"], Motion]:
    """Flow and motion at twice the size, that of the frames (2b); nothing is chosen if nothing is revised."""
    size, t, flow = (images.shape[1], images.shape[2]), time[:, :, None], flow.astype(jnp.float32)
    known, images = planes(jnp.concatenate([motion.first, motion.second])), images.astype(jnp.float32)
    smooth, revised = planes(resize_bilinear(2 * flow, size)), resize_nearest(motion.revised, size)
    own, front = known[:2], planes(resize_nearest(field(known[2:]), size))

    def refined() -> tuple[Flow, Known]:
        (first, second), near = jnp.split(own, 2, axis=1), planes(motion.revised)
        used = jnp.concatenate([at(near, t * first), at(near, (1 - t) * second)], axis=1)
        finer = jnp.concatenate([refined_own(images, own, box(used[0], 2)), front])
        first, second = jnp.split(jnp.concatenate([field(finer), images], axis=-1), 2)

        def tile(corner: Corner, smooth: Flow, revised: Map, flow: Half) -> Flow:
            flows = of_four(2 * flow, smooth.shape[2:])
            edges = (spread(flows) > EDGE) & (revised > 0)

            def cost(x: Flow, best: Flow) -> Map:
                ends = looked_up(first, corner - t * x), looked_up(second, corner + (1 - t) * x)
                colours = box(difference(ends[0][3:], ends[1][3:], CLIP))
                return colours + disagreement(x, ends, APART) + SMOOTHNESS * roughness(x, best)

            def chosen() -> Flow:
                return jnp.where(edges, spread_out(flows, cost, ROUNDS), smooth)

            return jax.lax.cond(jnp.any(edges), chosen, lambda: smooth)

        return by_tiles(tile, [smooth, revised[..., 0], planes(flow)]), finer

    def kept() -> tuple[Flow, Known]:
        return smooth, jnp.concatenate([of_four(2 * own, size)[0], front])

    finest, known = jax.lax.cond(jnp.any(revised > 0), refined, kept)
    first, second = jnp.split(field(known), 2)
    return field(finest), Motion(first, second, revised)


def refined_own(
    images: Float[Array, "n h2 w2 3"], own: Float[Array, "2 n h w"], used: Float[Array, "n h w"]
) -> Float[Array, "2 n h2 w2"]:
    """The flow of both frames (2b) on their own grids, at twice the size, by choice where it is used. No gradient."""
    other = swapped(images, 0)

    def tile(corner: Corner, image: Colours, flow: Half, used: Float[Array, "b half_h half_w"], coarse: Half) -> Flow:
        flows, colours = (of_four(x, image.shape[2:]) for x in (2 * flow, coarse))

        def cost(x: Float[Array, "5 b h w"], _: Array) -> Map:
            ends = looked_up(other, x[:2] + corner)
            return box(difference(image, ends, CLIP)) + COLOUR * difference(image, x[2:], COLOUR)

        def chosen() -> Flow:
            return spread_out(jnp.concatenate([flows, colours], axis=1), cost, ROUNDS)[:2]

        edges = (spread(flows) > EDGE) & (of_four(used, image.shape[2:])[0] > 0)
        return jax.lax.cond(jnp.any(edges), chosen, lambda: flows[0])

    return jax.lax.stop_gradient(by_tiles(tile, [planes(images), own, used, planes(average_pool(images))]))


def visibility_logit(flow: Field, motion: Motion, time: Time) -> Float[Array, "b h w 1"]:
    """What the logit of the first frame's weight gains where the second one shows something else in front."""
    flows, t = planes(flow), time[:, :, None]
    known = planes(jnp.concatenate([motion.first, motion.second]))
    before, after = apart(flows, ends_of(known, flows, t), APART)
    return MIXTURE * (after - before)[..., None] * motion.revised


def antialiased(image: Float[Array, "b h w 3"], flow: Field, motion: Motion) -> Float[Array, "b h w 3"]:
    """The image, smoothed where revised `flow` in between has an outline: a pixel is of one motion or of the other."""
    plane, colours, revised = planes(flow), planes(image), motion.revised[..., 0]

    def smoothed() -> Float[Array, "c b h w"]:
        outline = (spread(jnp.stack([plane, *shifted(plane, SIDES)])) > EDGE) & (revised > 0)
        square = [(0, 0), *AROUND]
        weights = (4 >> abs(y) + abs(x) for y, x in square)
        mean = sum(w * x for w, x in zip(weights, shifted(colours, square), strict=True)) / 16
        return jnp.where(outline, mean, colours)

    return field(jax.lax.cond(jnp.any(revised > 0), smoothed, lambda: colours))


def by_tiles(function: Callable[..., Flow], near: Sequence[Float[Array, "*_n _h _w"]]) -> Flow:
    """`function(corner, *near)`, on a CPU tile by tile: most tiles of an image have no edge, and nothing to choose.

    A row or column of flow may depend on `REACH` more on either side, and on any place of images that `function` looks
    up. Some of `near` have half the size of the first; with odd sides nothing is tiled.
    """
    (*_, batch, height, width), window = near[0].shape, TILE + 2 * REACH
    if jax.default_backend() != "cpu" or min(height, width) < window or height % 2 or width % 2:
        return function(jnp.zeros((2, 1, 1, 1)), *near)
    across = -(-width // TILE)

    def fill(number: Int[Array, ""], filled: Flow) -> Flow:
        top, left = (
            jnp.minimum(TILE * k, side - TILE) for k, side in zip(divmod(number, across), (height, width), strict=True)
        )
        y, x = jnp.clip(top - REACH, 0, height - window), jnp.clip(left - REACH, 0, width - window)
        windows = []
        for array in near:
            *others, rows, _ = array.shape
            start, side = (*[0] * len(others), y * rows // height, x * rows // height), window * rows // height
            windows.append(jax.lax.dynamic_slice(array, start, (*others, side, side)))
        made = function(jnp.stack([x, y]).astype(jnp.float32)[:, None, None, None], *windows)
        made = jax.lax.dynamic_slice(made, (0, 0, top - y, left - x), (2, batch, TILE, TILE))
        return jax.lax.dynamic_update_slice(filled, made, (0, 0, top, left))

    return jax.lax.fori_loop(0, -(-height // TILE) * across, fill, jnp.zeros((2, batch, height, width)))


def of_four(x: Float[Array, "*n h w"], size: Sequence[int]) -> Float[Array, "m *n h2 w2"]:
    """The values that bilinear interpolation to twice the size would mix, the nearest one first; at the edge of an odd
    size the last ones again."""
    rows, columns = x.ndim - 2, x.ndim - 1
    lines = [x.repeat(2, axis=columns), interleave(*shifted(x, [(0, -1), (0, 1)]), axis=columns)]
    values = [line.repeat(2, axis=rows) for line in lines]
    values += [interleave(*shifted(line, [(-1, 0), (1, 0)]), axis=rows) for line in lines]
    missing = [(0, max(0, side - 2 * had)) for side, had in zip(size, x.shape[-2:], strict=True)]
    return jnp.pad(jnp.stack(values), [(0, 0)] * rows + [(0, 0), *missing], mode="edge")[..., : size[0], : size[1]]


def spread(flows: Float[Array, "n 2 b h w"]) -> Map:
    """How far the others are from the first, at most."""
    return jnp.max(jnp.stack([length(flow - flows[0]) for flow in flows[1:]]), axis=0)
