"""Global matching: flow from a search of the whole frames, without weights of its own.

Coarse to fine, a predictor sees what is near: a thing that moves farther than its own size is gone from the levels on
which its motion is small (`film.flow`). And it interpolates flow from level to level, which mixes two motions at every
outline. So flow is also searched for, at `LEVEL`, an eighth of the size, and carried to finer levels by a choice:

1. `match`: for each cell of a frame the cell of the other one with the most similar patch, over the whole frame.
2. `search`, the flow of each frame on its own grid. Candidates are the estimated flow, the matches, the flow of
   neighbours and the way back of the other frame's. The cheapest one stays, and spreads from far neighbours and then
   from near ones, as in PatchMatch (Barnes et al., SIGGRAPH 2009). Its cost is the difference of the colours at its two
   ends; other flow than around it, and other than was estimated, costs a little more.
3. `with_hidden`: a place that the other frame hides has no match. Its flow does not lead there and back again, or to
   another colour; it takes the flow of cells nearby that are seen in both frames and have its colour.
4. The same rounds on the grid of the frame in between, with the flow of both frames as candidates. It costs if it is
   not that of the cell which it leads to, in at least one of the frames: ground that one frame hides has the flow that
   it has in the other one.
5. `refine`, at each finer level: a pixel takes one of the four flows that interpolation would mix, or one of those
   around it, by the same costs. The predictor of the level corrects it (`film.flow`).
6. `logit`: a frame in which a pixel leads to another motion than its own hides the pixel, and counts less in the
   mixture (`film.fusion.blend`).

Where the estimated flow leads to the same colours in both frames, or the search finds it again, all stays as it is.

Flow is from the first frame to the second, or, on a frame's own grid, to the other one, in pixels of its level. `2b`
stands for first frames, then second ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from film.ops.resample import average_pool, interleave, resize_bilinear, resize_nearest
from film.ops.row_tiling import even_share
from film.warp import backward_warp, outside

PATCH = 2  # cells on either side of one that are compared, or whose flow a hidden one may take
STRIDE = 2  # cells; every second one, in each direction, looks for its match
PLAIN = 0.01  # added to the variance of a patch: flat ones are like no other
PAIRS = 1 << 24  # of cells that are compared at a time
OWN_ROUNDS, ROUNDS = (1, 4, 2, 1, 2, 1), (4, 2, 1, 1)  # cells to the neighbours whose flow is a candidate
FARTHEST = max(OWN_ROUNDS + ROUNDS)
# Costs, in colours of 0 to 1. A difference of colours counts up to CLIP, half of it where an end is outside.
CLIP, AGREEMENT, SMOOTHNESS, ESTIMATED = 0.15, 0.15, 0.02, 0.015
ALIKE = 0.08  # deviation of the colours of one thing, where some of it is hidden
RETURNS = 1.0, 0.05  # cells, and share of the way, by which a flow there and back may miss
SEEN = 0.05  # most colour cost of a flow that is seen in both frames
FILLING = (1, 2, 4, 2, 1)  # cells, the step between cells whose flow a hidden one may take
# Of `refine`: costs as above; weight and most of the difference between the colours of a pixel and of its cell; rounds.
FINE_CLIP, FINE_AGREEMENT, FINE_SMOOTHNESS, COLOUR, FINE_ROUNDS = 0.1, 0.15, 0.03, 0.3, (2, 1)
EDGE = 1.0  # px; where the four flows differ by no more, they are interpolated
DOUBT = 0.03  # colour cost from which on estimated flow, up to 2 cells from there, may be replaced
DISAGREEING = 2.0  # cells by which flow is off at most, of that of the cell which it leads to; more counts as much
REVISED = 0.5  # cells; found flow this far from the estimated one, and 2 cells around, is refined by choice
NEARBY, MOST_HIDDEN = 10, 0.5  # cells; where more around are hidden, nothing is known: flow stays as it was estimated
TILE, REACH = 96, 10  # px; of `refine`, and how far around a pixel what decides on it lies
MIXTURE = 3.0  # logit that a frame loses where it leads to a motion that is off by `APART` px
APART = 4.0
# Ways to the cells around one, below and to the right.
SQUARE = [(y, x) for y in range(-PATCH, PATCH + 1) for x in range(-PATCH, PATCH + 1)]
RING = [way for way in SQUARE if any(way)]
AROUND = [way for way in RING if max(map(abs, way)) == 1]
SIDES = [way for way in AROUND if 0 in way]
Flow = Float[Array, "b h w 2"]
Image = Float[Array, "b h w 3"]
Map = Float[Array, "b h w 1"]
Share = int | Float[Array, "b 1 1 1"]
Corner = Float[Array, "2"]  # (x, y), px


class Motion(NamedTuple):
    """What is known of a pair at a level beside its flow in between."""

    first: Flow  # of the first frame to the second one, on its own grid
    second: Flow  # of the second frame to the first one
    revised: Map  # 1 where the frames in between follow it, else 0


def search(
    finer: Float[Array, "n h2 w2 3"], coarse: Float[Array, "n h w 3"], estimated: Flow, time: Float[Array, "b 1"]
) -> tuple[Flow, Motion]:
    """Flow of the frame at `time`, given the frames (2b) at levels `LEVEL - 1` and `LEVEL` and the estimated flow at
    `LEVEL`. It has no gradient."""
    finer, coarse, estimated = jax.lax.stop_gradient((finer, coarse, estimated))
    finer = finer[:, : 2 * coarse.shape[1], : 2 * coarse.shape[2]]
    t, matched, other = time[:, :, None, None], match(coarse), swapped(finer)
    guesses = [backward_warp(estimated, x * backward_warp(estimated, x * estimated)) for x in (t, t - 1)]
    guess = jnp.concatenate([guesses[0], -guesses[1]])

    def own_round(flow: Flow, cells: Int[Array, ""]) -> tuple[Flow, None]:
        back, match_back = (-backward_warp(swapped(x), flow) for x in (flow, matched))
        candidates = jnp.stack([flow, matched, back, match_back, *shifted(flow, SIDES, cells)])
        return cheapest(candidates, lambda x: colour_cost(finer, other, x, 0, 1) + prior(x, flow, guess)), None

    own, _ = jax.lax.scan(own_round, guess, jnp.array(OWN_ROUNDS))
    own, seen = with_hidden(own, coarse, colour_cost(finer, other, own, 0, 1))
    first, second = jnp.split(own, 2)
    known = jnp.split(box(seen, NEARBY), 2)
    frames, sides = jnp.split(finer, 2), ((first, -t), (-second, 1 - t))

    def between_round(flow: Flow, cells: Int[Array, ""]) -> tuple[Flow, None]:
        candidates = [flow, estimated, *shifted(flow, SIDES, cells)]
        for side, share in sides:
            candidates += [side, backward_warp(side, share * side), backward_warp(side, share * flow)]

        def cost(x: Flow) -> Map:
            off = AGREEMENT * jnp.minimum(*apart(x, first, second, t, DISAGREEING))
            return colour_cost(frames[0], frames[1], x, -t, 1 - t) + off + prior(x, flow, estimated)

        return cheapest(jnp.stack(candidates), cost), None

    flow, _ = jax.lax.scan(between_round, estimated, jnp.array(ROUNDS))
    known = jnp.minimum(*(backward_warp(x, way * flow) for x, way in zip(known, (-t, 1 - t), strict=True)))
    wrong = box(1.0 * (colour_cost(frames[0], frames[1], estimated, -t, 1 - t) > DOUBT), 2) > 0
    doubted = wrong & (known > 1 - MOST_HIDDEN)
    flow = jnp.where(doubted, flow, estimated)
    before, after = apart(flow, first, second, t, DISAGREEING)
    revised = doubted & ((length(flow - estimated) > REVISED) | (abs(before - after) > REVISED))
    return flow, Motion(first, second, jnp.ceil(box(revised.astype(jnp.float32), 2)))


def refine(
    images: Float[Array, "n h2 w2 3"], flow: Flow, motion: Motion, time: Float[Array, "b 1"]
) -> tuple[Float[Array, "b h2 w2 2"], Motion]:
    """Flow and motion at twice the size, that of the frames (2b)."""
    size, t, other = (images.shape[1], images.shape[2]), time[:, :, None, None], swapped(images)
    flow = flow.astype(jnp.float32)

    def own_tile(corner: Corner, image: Image, flow: Array, coarse: Array) -> Array:
        flows, colours = of_four(2 * flow, image.shape[1:3]), of_four(coarse, image.shape[1:3])

        def cost(x: Float[Array, "b h w 5"]) -> Map:
            colours = jnp.minimum(jnp.mean(abs(image - x[..., 2:]), axis=-1, keepdims=True), COLOUR)
            ends = backward_warp(other, x[..., :2] + corner)
            return box(difference(image, ends, FINE_CLIP)) + COLOUR * colours

        def chosen() -> Flow:
            best = cheapest(jnp.concatenate([flows, colours], axis=-1), cost)
            for cells in FINE_ROUNDS:
                best = cheapest(jnp.stack([best, *shifted(best, SIDES, cells)]), cost)
            return best[..., :2]

        return jax.lax.cond(jnp.any(spread(flows) > EDGE), chosen, lambda: flows[0])

    own, pooled = jnp.concatenate(motion[:2]), average_pool(images)
    own = by_tiles(own_tile, [images, own, pooled])
    first, second = jnp.split(jax.lax.stop_gradient(own), 2)
    frames, revised = jnp.split(images, 2), resize_nearest(motion.revised, size)

    def tile(corner: Corner, smooth: Flow, revised: Map, flow: Array) -> Array:
        flows = of_four(2 * flow, smooth.shape[1:3])
        edges = (spread(flows) > EDGE) & (revised > 0)

        def cost(x: Flow) -> Map:
            ends = (backward_warp(frame, way * x + corner) for frame, way in zip(frames, (-t, 1 - t), strict=True))
            agreement = jnp.minimum(*apart(x, first, second, t, APART, corner))
            return box(difference(next(ends), next(ends), FINE_CLIP)) + FINE_AGREEMENT * agreement

        def chosen() -> Flow:
            best = cheapest(flows, cost)
            for cells in FINE_ROUNDS:
                now = best
                nearby = jnp.stack([now, *shifted(now, SIDES, cells)])
                best = cheapest(nearby, lambda x, now=now: cost(x) + FINE_SMOOTHNESS * roughness(x, now))
            return jnp.where(edges, best, smooth)

        return jax.lax.cond(jnp.any(edges), chosen, lambda: smooth)

    smooth = resize_bilinear(2 * flow, size)
    flow = by_tiles(tile, [smooth, revised, flow])
    return flow, Motion(first, second, revised)


def logit(flow: Flow, motion: Motion, time: Float[Array, "b 1"]) -> Map:
    """What the logit of the first frame's weight gains where the second one shows something else in front."""
    before, after = apart(flow, *motion[:2], time[:, :, None, None], APART)
    return MIXTURE * (after - before) * motion.revised


def by_tiles(function: Callable[..., Flow], near: Sequence[Float[Array, "b _h _w _c"]]) -> Flow:
    """`function(corner, *near)`, on a CPU tile by tile: most tiles of an image have no edge, and nothing to choose.

    A row or column of flow may depend on `REACH` more on either side, and on any place of images that `function` looks
    up. Some of `near` have half the size of the first; with odd sides nothing is tiled.
    """
    (height, width), window = near[0].shape[1:3], TILE + 2 * REACH
    if jax.default_backend() != "cpu" or min(height, width) < window or height % 2 or width % 2:
        return function(jnp.zeros(2), *near)
    scales, across = [height // x.shape[1] for x in near], -(-width // TILE)

    def fill(number: Int[Array, ""], filled: Flow) -> Flow:
        top, left = (
            jnp.minimum(TILE * k, side - TILE) for k, side in zip(divmod(number, across), (height, width), strict=True)
        )
        y, x = jnp.clip(top - REACH, 0, height - window), jnp.clip(left - REACH, 0, width - window)
        windows = []
        for array, scale in zip(near, scales, strict=True):
            shape = (array.shape[0], window // scale, window // scale, array.shape[3])
            windows.append(jax.lax.dynamic_slice(array, (0, y // scale, x // scale, 0), shape))
        made = function(jnp.stack([x, y]).astype(jnp.float32), *windows)
        made = jax.lax.dynamic_slice(made, (0, top - y, left - x, 0), (len(made), TILE, TILE, 2))
        return jax.lax.dynamic_update_slice(filled, made, (0, top, left, 0))

    return jax.lax.fori_loop(0, -(-height // TILE) * across, fill, jnp.zeros((*near[0].shape[:3], 2)))


def match(images: Image) -> Flow:
    """The way from each cell (2b) to the one of the other frame whose patch is most similar."""
    patches = jnp.stack(shifted(images, SQUARE), axis=-2).astype(jnp.float32)
    patches = (patches - patches.mean(axis=-2, keepdims=True)).reshape(*images.shape[:3], -1)
    patches *= jax.lax.rsqrt(jnp.sum(patches * patches, axis=-1, keepdims=True) + PLAIN)
    batch, height, width, channels = patches.shape
    others, own = swapped(patches).reshape(batch, height * width, channels), patches[:, ::STRIDE, ::STRIDE]
    rows = even_share(own.shape[1], batch * own.shape[2] * height * width, PAIRS)

    def best(tile: Float[Array, "b r w c"]) -> Int[Array, "b r w"]:
        return jnp.argmax(jnp.einsum("brwc,bnc->brwn", tile, others), axis=-1)

    tiles = own.reshape(batch, -1, rows, *own.shape[2:]).swapaxes(0, 1)
    found = jax.lax.map(best, tiles).swapaxes(0, 1).reshape(batch, *own.shape[1:3])
    here = jnp.stack(jnp.meshgrid(jnp.arange(width), jnp.arange(height)), axis=-1)[::STRIDE, ::STRIDE]
    way = (jnp.stack([found % width, found // width], axis=-1) - here).astype(jnp.float32)
    return way.repeat(STRIDE, axis=1).repeat(STRIDE, axis=2)[:, :height, :width]


def with_hidden(flow: Flow, images: Image, cost: Map) -> tuple[Flow, Map]:
    """Flow (2b) in which cells that the other frame hides go with seen ones that look like them; 1 for the seen."""
    least, share = RETURNS
    missed = length(flow + backward_warp(swapped(flow), flow))
    seen = (missed < least + share * length(flow)) & (outside(flow) == 0) & (cost < SEEN)

    def spread_out(state: tuple[Flow, Map], step: Int[Array, ""]) -> tuple[tuple[Flow, Map], None]:
        flow, trust = state
        near = jnp.stack(shifted(jnp.concatenate([flow, trust, images], axis=-1), RING, step))
        flows, weights, colours = near[..., :2], near[..., 2:3], near[..., 3:] - images
        weights *= jnp.exp(-jnp.sum(colours * colours, axis=-1, keepdims=True) / ALIKE**2)

        def doubt(x: Flow) -> Map:
            off = flows - x
            return -jnp.sum(weights * jnp.exp(-jnp.sum(off * off, axis=-1, keepdims=True)), axis=0)

        candidates = jnp.stack([flows[RING.index(way)] for way in AROUND])
        doubts = jax.lax.map(doubt, candidates)
        found, support = taken(candidates, doubts), -jnp.min(doubts, axis=0)
        flow = jnp.where(~seen & (support > 1e-3), found, flow)
        return (flow, jnp.where(seen, 1.0, jnp.clip(support / 3, 0, 0.5))), None

    (flow, _), _ = jax.lax.scan(spread_out, (flow, seen.astype(jnp.float32)), jnp.array(FILLING))
    return flow, seen.astype(jnp.float32)


def cheapest(candidates: Float[Array, "n b h w c"], cost: Callable[[Array], Map]) -> Float[Array, "b h w c"]:
    """The candidate with the lowest cost at each cell; costs are computed one after the other."""
    return taken(candidates, jax.lax.stop_gradient(jax.lax.map(cost, candidates)))


def taken(candidates: Float[Array, "n b h w c"], costs: Float[Array, "n b h w 1"]) -> Float[Array, "b h w c"]:
    return jnp.take_along_axis(candidates, jnp.argmin(costs, axis=0)[None], axis=0)[0]


def colour_cost(
    first: Float[Array, "b h2 w2 3"], second: Float[Array, "b h2 w2 3"], flow: Flow, start: Share, end: Share
) -> Map:
    """How far the colours at the ends of flow, from `start` to `end` of its way, differ at the next finer level."""
    fine = (2 * flow).repeat(2, axis=1).repeat(2, axis=2)
    off = difference(backward_warp(first, start * fine), backward_warp(second, end * fine), CLIP)
    beyond = jnp.maximum(outside(start * fine), outside(end * fine)) > 0
    return box(average_pool(jnp.where(beyond, CLIP / 2, off)))


def difference(a: Image, b: Image, most: float) -> Map:
    return jnp.minimum(jnp.mean(abs(a - b), axis=-1, keepdims=True), most).astype(jnp.float32)


def prior(flow: Flow, current: Flow, estimated: Flow) -> Map:
    """The cost of other flow than around it, and than was estimated."""
    return SMOOTHNESS * roughness(flow, current) + ESTIMATED * jnp.minimum(length(flow - estimated), 1)


def roughness(flow: Flow, current: Flow) -> Map:
    """How far flow is from the current one of the eight cells around, up to 1 each; their mean."""
    return sum((jnp.minimum(length(flow - x), 1) for x in shifted(current, AROUND)), jnp.zeros(())) / len(AROUND)


def apart(
    flow: Flow,
    first: Float[Array, "b h2 w2 2"],
    second: Float[Array, "b h2 w2 2"],
    time: Share,
    most: float,
    corner: Corner | int = 0,
) -> tuple[Map, Map]:
    """How far flow in between is from that of the cells which it leads to, in both frames; 1 for `most` and more. It
    may be that of a tile with this corner."""
    before = length(backward_warp(first, corner - time * flow) - flow)
    after = length(backward_warp(second, corner + (1 - time) * flow) + flow)
    return jnp.minimum(before / most, 1), jnp.minimum(after / most, 1)


def of_four(x: Float[Array, "b h w c"], size: Sequence[int]) -> Float[Array, "n b h2 w2 c"]:
    """The values that bilinear interpolation to twice the size would mix, the nearest one first; at the edge of an odd
    size the last ones again."""
    beside = interleave(*shifted(x, [(0, -1), (0, 1)]), axis=2)
    rows = [x.repeat(2, axis=2), beside]
    values = [row.repeat(2, axis=1) for row in rows]
    values += [interleave(*shifted(row, [(-1, 0), (1, 0)]), axis=1) for row in rows]
    missing = [(0, max(0, side - 2 * had)) for side, had in zip(size, x.shape[1:3], strict=True)]
    return jnp.pad(jnp.stack(values), ((0, 0), (0, 0), *missing, (0, 0)), mode="edge")[:, :, : size[0], : size[1]]


def spread(flows: Float[Array, "n b h w 2"]) -> Map:
    """How far the others are from the first, at most."""
    return jnp.max(length(flows - flows[:1]), axis=0)


def shifted(x: Float[Array, "b h w c"], ways: Sequence[tuple[int, int]], step: int | Int[Array, ""] = 1) -> list[Array]:
    """The values at `step` times so many cells below and to the right, at most `FARTHEST` times; at the edge, of the
    nearest one."""
    reach = max(abs(cells) for way in ways for cells in way) * (step if isinstance(step, int) else FARTHEST)
    padded = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    return [jax.lax.dynamic_slice(padded, (0, reach + step * y, reach + step * x_, 0), x.shape) for y, x_ in ways]


def box(x: Map, reach: int = 1) -> Map:
    """The mean of a square around each cell."""
    side = 2 * reach + 1
    padded = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    total = jax.lax.reduce_window(padded, 0.0, jax.lax.add, (1, side, side, 1), (1, 1, 1, 1), "VALID")
    return total / side**2


def length(flow: Float[Array, "*n 2"]) -> Float[Array, "*n 1"]:
    return jnp.sqrt(jnp.sum(flow * flow, axis=-1, keepdims=True) + 1e-8)


def swapped(x: Float[Array, "b h w c"]) -> Array:
    """First frames and second ones in the other order."""
    return jnp.roll(x, len(x) // 2, axis=0)
