"""Global matching: flow from a search of the whole frames, without weights of its own.

Coarse to fine, a predictor sees what is near: a thing that moves farther than its own size is gone from the levels on
which its motion is small (`film.flow`). And it interpolates flow from level to level, which mixes two motions at every
outline. So where the estimated flow leads to different colours in the two frames, flow is also searched for, at
`LEVEL`, an eighth of the size, and carried to finer levels by a choice:

1. `match`: for each cell of a frame the cell of the other one with the most similar patch, over the whole frame.
2. `own_flow`, the flow of each frame on its own grid. It begins with the estimated flow or the match, the cheaper of
   them; the flow of neighbours and the way back of the other frame's replace it where they are cheaper, as in
   PatchMatch (Barnes et al., SIGGRAPH 2009). The cost is the difference of the colours at both ends; other flow than
   around it, and other than was estimated, costs a little more.
3. `with_hidden`: a place that the other frame hides has no match. Its flow does not lead there and back again, or to
   another colour; it takes the flow of cells nearby that are seen in both frames and have its colour.
4. `between`: the same rounds on the grid of the frame in between, with the flow of both frames as candidates. It costs
   if it is not that of the cell which it leads to, in at least one of the frames: ground that one frame hides has the
   flow that it has in the other one.
5. `search` takes what was found where it explains most of the differing colours and is smooth. A search always finds
   similar colours somewhere; if things bend, or change their light, their places are all over the frame, and the
   estimated flow stays.
6. `refine`, at each finer level: a pixel takes one of the four flows that interpolation would mix, or one of those
   around it, by the same costs. The predictor of the level corrects it (`film.flow`).
7. `logit`: a frame in which a pixel leads to another motion than its own hides the pixel, and counts less in the
   mixture (`film.fusion.blend`).

Flow is from the first frame to the second, or, on a frame's own grid, to the other one, in pixels of its level. `2b`
stands for first frames, then second ones. In here, flow and colours are planes, `c b h w`: arithmetic on them runs up
to eight times as fast on a CPU as with two or three channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from film.ops.resample import average_pool, interleave, resize_bilinear, resize_nearest
from film.ops.row_tiling import even_share
from film.warp import backward_warp, outside

PATCH = 2  # cells on either side of one that are compared, or whose flow a hidden one may take
STRIDE = 3  # cells; every third one, in each direction, looks for its match
PLAIN = 0.01  # added to the variance of a patch: flat ones are like no other
PAIRS = 1 << 24  # of cells that are compared at a time
OWN_ROUNDS, ROUNDS = (4, 1, 2, 1), (2, 1)  # cells to the neighbours whose flow is a candidate
FILLING = (2, 4, 2, 1)  # cells, the step between cells whose flow a hidden one may take
FARTHEST = max(OWN_ROUNDS + ROUNDS + FILLING)
# Costs, in colours of 0 to 1. A difference of colours counts up to CLIP, half of it where an end is outside.
CLIP, AGREEMENT, SMOOTHNESS, ESTIMATED = 0.15, 0.15, 0.02, 0.015
ALIKE = 0.08  # deviation of the colours of one thing, where some of it is hidden
RETURNS = 1.0, 0.05  # cells, and share of the way, by which a flow there and back may miss
SEEN = 0.05  # most colour cost of a flow that is seen in both frames
DISAGREEING = 2.0  # cells by which flow is off at most, of that of the cell which it leads to; more counts as much
# Estimated flow may be replaced where its colour cost is `DOUBT`, and up to 2 cells from there. Of such cells, up to
# `NEARBY` around: most of the cost that may be left, most roughness, and the most cells that may be hidden.
DOUBT, NEARBY, LEFT, ROUGHEST, MOST_HIDDEN = 0.03, 10, 0.7, 0.18, 0.5
REVISED = 0.5  # cells; found flow this far from the estimated one, and 2 cells around, is refined by choice
# Of `refine`: costs as above; weight and most of the difference between the colours of a pixel and of its cell; rounds.
FINE_CLIP, FINE_AGREEMENT, FINE_SMOOTHNESS, COLOUR, FINE_ROUNDS = 0.1, 0.15, 0.03, 0.3, (2, 1)
EDGE = 1.0  # px; where the four flows differ by no more, they are interpolated
TILE, REACH = 64, 8  # px; of `refine`, and how far around a pixel what decides on it lies
MIXTURE = 3.0  # logit that a frame loses where it leads to a motion that is off by `APART` px
APART = 4.0
# Ways to the cells around one, below and to the right.
SQUARE = [(y, x) for y in range(-PATCH, PATCH + 1) for x in range(-PATCH, PATCH + 1)]
RING = [way for way in SQUARE if any(way)]
AROUND = [way for way in RING if max(map(abs, way)) == 1]
SIDES = [way for way in AROUND if 0 in way]
Field = Float[Array, "b h w 2"]  # flow, as elsewhere
Image = Float[Array, "b h w 3"]
Time = Float[Array, "b 1"]
Flow = Float[Array, "2 b h w"]
Own = Float[Array, "2 n h w"]  # of both frames (2b), each on its own grid
Half = Float[Array, "_c b h2 w2"]  # of half the size
Colours = Float[Array, "3 b h w"]
Map = Float[Array, "b h w"]
Mask = Bool[Array, "b h w"]
Share = Float[Array, "b 1 1"]  # of the way from the first frame to the second
Corner = Float[Array, "2 1 1 1"]  # (x, y), px
Cost = Callable[[Array], Map]


class Motion(NamedTuple):
    """What is known of a pair at a level beside its flow in between."""

    first: Field  # of the first frame to the second one, on its own grid
    second: Field  # of the second frame to the first one
    revised: Float[Array, "b h w 1"]  # 1 where the frames in between follow it, else 0


def search(
    finer: Float[Array, "n h2 w2 3"], coarse: Float[Array, "n h w 3"], estimated: Field, time: Time
) -> tuple[Field, Motion]:
    """Flow of the frame at `time`, given the frames (2b) at levels `LEVEL - 1` and `LEVEL` and the estimated flow at
    `LEVEL`. Nothing is searched for if no estimated flow is in doubt. It has no gradient."""
    finer, coarse, estimated = jax.lax.stop_gradient((finer, coarse, estimated))
    finer, t = finer[:, : 2 * coarse.shape[1], : 2 * coarse.shape[2]], time[:, :, None]
    before, frames, shares = planes(estimated), jnp.split(finer, 2), (-t, 1 - t)

    def colour(flow: Flow) -> Map:
        fine = doubled(flow)
        first, second = (looked_up(frame, share * fine) for frame, share in zip(frames, shares, strict=True))
        return pooled(difference(first, second, CLIP), beyond(-t * fine) | beyond((1 - t) * fine))

    doubt = colour(before)
    wrong = box(doubt > DOUBT, 2) > 0

    def searched() -> tuple[Flow, Own, Map]:
        own, seen = own_flow(finer, coarse, before, t)
        flow = between(own, before, colour, t)
        known = [at(x[None], share * flow)[0] for x, share in zip(jnp.split(box(seen, NEARBY), 2), shares, strict=True)]
        inside = ~(beyond(-t * flow) | beyond((1 - t) * flow))
        maps = inside * doubt, inside * colour(flow), roughness(flow, flow), 1.0
        cost, left, rough, cells = (box(wrong * x, NEARBY) for x in maps)
        trusted = (left < LEFT * cost) & (rough < ROUGHEST * cells) & (jnp.minimum(*known) > 1 - MOST_HIDDEN)
        flow = jnp.where(wrong & trusted, flow, before)
        first, second = apart(flow, *ends_of(own, flow, t), DISAGREEING)
        revised = wrong & trusted & ((length(flow - before) > REVISED) | (abs(first - second) > REVISED))
        return flow, own, jnp.ceil(box(revised, 2))

    def kept() -> tuple[Flow, Own, Map]:
        return before, jnp.concatenate([before, before], axis=1), jnp.zeros(before.shape[1:])

    flow, own, revised = jax.lax.cond(jnp.any(wrong), searched, kept)
    first, second = jnp.split(field(own), 2)
    return field(flow), Motion(first, second, revised[..., None])


def own_flow(
    finer: Float[Array, "n h2 w2 3"], coarse: Float[Array, "n h w 3"], estimated: Flow, t: Share
) -> tuple[Own, Bool[Array, "n h w"]]:
    """Flow of each frame (2b) to the other one on its own grid, and which of its cells both frames show."""
    matched, other, colours = match(coarse), swapped(finer, 0), planes(finer)
    guesses = [at(estimated, share * at(estimated, share * estimated)) for share in (t, t - 1)]
    guess = jnp.concatenate([guesses[0], -guesses[1]], axis=1)

    def colour(flow: Flow) -> Map:
        fine = doubled(flow)
        return pooled(difference(colours, looked_up(other, fine), CLIP), beyond(fine))

    def back(flow: Flow, way: Flow) -> Flow:
        return -at(swapped(flow, 1), way)

    def around(flow: Flow, cells: Int[Array, ""]) -> tuple[Flow, None]:
        candidates = [flow, back(flow, flow), *shifted(flow, SIDES, cells)]
        return cheapest(jnp.stack(candidates), lambda x: colour(x) + prior(x, flow, guess)), None

    starts = [guess, matched, back(matched, guess), back(matched, matched)]
    start = cheapest(jnp.stack(starts), lambda x: colour(x) + prior(x, guess, guess))
    flow, _ = jax.lax.scan(around, start, jnp.array(OWN_ROUNDS))
    least, share = RETURNS
    returns = length(flow - back(flow, flow)) < least + share * length(flow)
    seen = returns & ~beyond(flow) & (colour(flow) < SEEN)
    return with_hidden(flow, seen, planes(coarse)), seen


def between(own: Own, estimated: Flow, colour: Cost, t: Share) -> Flow:
    """Flow on the grid of the frame in between, given that of both frames (2b)."""
    first, second = jnp.split(own, 2, axis=1)
    sides = (first, -t), (-second, 1 - t)

    def cost(x: Flow, flow: Flow) -> Map:
        off = jnp.minimum(*apart(x, *ends_of(own, x, t), DISAGREEING))
        return colour(x) + AGREEMENT * off + prior(x, flow, estimated)

    def around(flow: Flow, cells: Int[Array, ""]) -> tuple[Flow, None]:
        candidates = [flow, *shifted(flow, SIDES, cells), *(at(side, share * flow) for side, share in sides)]
        return cheapest(jnp.stack(candidates), lambda x: cost(x, flow)), None

    starts = [estimated, *(side for side, _ in sides), *(at(side, share * side) for side, share in sides)]
    start = cheapest(jnp.stack(starts), lambda x: cost(x, estimated))
    return jax.lax.scan(around, start, jnp.array(ROUNDS))[0]


def refine(
    images: Float[Array, "n h2 w2 3"], flow: Field, motion: Motion, time: Time
) -> tuple[Float[Array, "b h2 w2 2"], Motion]:
    """Flow and motion at twice the size, that of the frames (2b); nothing is chosen if nothing is revised."""
    size, t, flow = (images.shape[1], images.shape[2]), time[:, :, None], flow.astype(jnp.float32)
    own, images = planes(jnp.concatenate([motion.first, motion.second])), images.astype(jnp.float32)
    smooth, revised = planes(resize_bilinear(2 * flow, size)), resize_nearest(motion.revised, size)

    def refined() -> tuple[Flow, Own]:
        (first, second), near = jnp.split(own, 2, axis=1), motion.revised[..., 0]
        used = jnp.concatenate([at(near[None], share * x)[0] for x, share in ((first, t), (second, 1 - t))])
        finer = refined_own(images, own, box(used, 2))
        known = jnp.split(jnp.concatenate([images, field(finer)], axis=-1), 2)

        def tile(corner: Corner, smooth: Flow, revised: Map, flow: Half) -> Flow:
            flows = of_four(2 * flow, smooth.shape[2:])
            edges = (spread(flows) > EDGE) & (revised > 0)

            def cost(x: Flow) -> Map:
                first, second = (looked_up(y, share * x + corner) for y, share in zip(known, (-t, 1 - t), strict=True))
                off = jnp.minimum(*apart(x, first[3:], second[3:], APART))
                return box(difference(first[:3], second[:3], FINE_CLIP)) + FINE_AGREEMENT * off

            def around(best: Flow, cells: Int[Array, ""]) -> tuple[Flow, None]:
                nearby = jnp.stack([best, *shifted(best, SIDES, cells)])
                return cheapest(nearby, lambda x: cost(x) + FINE_SMOOTHNESS * roughness(x, best)), None

            def chosen() -> Flow:
                best, _ = jax.lax.scan(around, cheapest(flows, cost), jnp.array(FINE_ROUNDS))
                return jnp.where(edges, best, smooth)

            return jax.lax.cond(jnp.any(edges), chosen, lambda: smooth)

        return by_tiles(tile, [smooth, revised[..., 0], planes(flow)]), finer

    def kept() -> tuple[Flow, Own]:
        return smooth, of_four(2 * own, size)[0]

    finest, own = jax.lax.cond(jnp.any(revised > 0), refined, kept)
    first, second = jnp.split(field(own), 2)
    return field(finest), Motion(first, second, revised)


def refined_own(images: Float[Array, "n h2 w2 3"], own: Own, used: Float[Array, "n h w"]) -> Float[Array, "2 n h2 w2"]:
    """The flow of both frames (2b) on their own grids, at twice the size, by choice where it is used. No gradient."""
    other = swapped(images, 0)

    def tile(corner: Corner, image: Colours, flow: Half, used: Float[Array, "b h2 w2"], coarse: Half) -> Flow:
        flows, colours = (of_four(x, image.shape[2:]) for x in (2 * flow, coarse))

        def cost(x: Float[Array, "5 b h w"]) -> Map:
            ends = looked_up(other, x[:2] + corner)
            return box(difference(image, ends, FINE_CLIP)) + COLOUR * difference(image, x[2:], COLOUR)

        def around(best: Float[Array, "5 b h w"], cells: Int[Array, ""]) -> tuple[Float[Array, "5 b h w"], None]:
            return cheapest(jnp.stack([best, *shifted(best, SIDES, cells)]), cost), None

        def chosen() -> Flow:
            start = cheapest(jnp.concatenate([flows, colours], axis=1), cost)
            return jax.lax.scan(around, start, jnp.array(FINE_ROUNDS))[0][:2]

        edges = (spread(flows) > EDGE) & (of_four(used, image.shape[2:])[0] > 0)
        return jax.lax.cond(jnp.any(edges), chosen, lambda: flows[0])

    return jax.lax.stop_gradient(by_tiles(tile, [planes(images), own, used, planes(average_pool(images))]))


def logit(flow: Field, motion: Motion, time: Time) -> Float[Array, "b h w 1"]:
    """What the logit of the first frame's weight gains where the second one shows something else in front."""
    own, flows, t = planes(jnp.concatenate([motion.first, motion.second])), planes(flow), time[:, :, None]
    before, after = apart(flows, *ends_of(own, flows, t), APART)
    return MIXTURE * (after - before)[..., None] * motion.revised


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


def match(images: Image) -> Flow:
    """The way from each cell (2b) to the one of the other frame whose patch is most similar."""
    batch, height, width, _ = images.shape
    patches = jnp.stack(shifted(planes(images).astype(jnp.float32), SQUARE))
    patches = (patches - patches.mean(axis=0)).reshape(-1, batch, height, width)
    patches *= jax.lax.rsqrt(jnp.sum(patches * patches, axis=0) + PLAIN)
    others, own = swapped(patches, 1), field(patches[..., ::STRIDE, ::STRIDE])
    rows = even_share(own.shape[1], batch * own.shape[2] * height * width, PAIRS)

    def best(tile: Float[Array, "b r s c"]) -> Int[Array, "2 b r s"]:
        """The row with the most similar patch, then the place in it: three times as fast as one search of all."""
        scores = jnp.einsum("brsc,cbhw->brshw", tile, others)
        row = jnp.argmax(scores.max(axis=-1), axis=-1)
        column = jnp.argmax(jnp.take_along_axis(scores, row[..., None, None], axis=3)[..., 0, :], axis=-1)
        return jnp.stack([column, row])

    tiles = own.reshape(batch, -1, rows, *own.shape[2:]).swapaxes(0, 1)
    found = jnp.moveaxis(jax.lax.map(best, tiles), 0, 2).reshape(2, *own.shape[:3])
    here = jnp.stack(jnp.meshgrid(jnp.arange(width), jnp.arange(height)))[:, None, ::STRIDE, ::STRIDE]
    way = (found - here).astype(jnp.float32)
    return way.repeat(STRIDE, axis=2).repeat(STRIDE, axis=3)[:, :, :height, :width]


def with_hidden(flow: Flow, seen: Mask, colours: Colours) -> Flow:
    """Flow (2b) in which cells that the other frame hides go with seen ones that look like them."""

    def spread_out(state: tuple[Flow, Map], step: Int[Array, ""]) -> tuple[tuple[Flow, Map], None]:
        flow, trust = state
        near = shifted(jnp.concatenate([flow, trust[None], colours]), RING, step)
        weights = [x[2] * jnp.exp(-jnp.sum((x[3:] - colours) ** 2, axis=0) / ALIKE**2) for x in near]
        near, weights = jax.lax.optimization_barrier(([x[:2] for x in near], weights))  # computed once

        def doubt(flow: Flow) -> Map:
            """Minus the weight of the cells whose flow is within 1.4 cells of this one."""
            kernels = (jnp.maximum(1 - squared(x - flow) / 2, 0) for x in near)
            return -sum((w * kernel for w, kernel in zip(weights, kernels, strict=True)), jnp.zeros(()))

        found = cheapest(jnp.stack([near[RING.index(way)] for way in AROUND]), doubt)
        support = -doubt(found)
        flow = jnp.where(~seen & (support > 1e-3), found, flow)
        return (flow, jnp.where(seen, 1.0, jnp.clip(support / 3, 0, 0.5))), None

    (flow, _), _ = jax.lax.scan(spread_out, (flow, seen.astype(jnp.float32)), jnp.array(FILLING))
    return flow


def cheapest(candidates: Float[Array, "n c b h w"], cost: Cost) -> Float[Array, "c b h w"]:
    """The candidate with the lowest cost at each cell, of equal ones the first; no gradient through the costs."""

    def cheaper(state: tuple[Array, Map], candidate: Array) -> tuple[tuple[Array, Map], None]:
        best, least = state
        now = jax.lax.stop_gradient(cost(candidate))
        return (jnp.where(now < least, candidate, best), jnp.minimum(now, least)), None

    (best, _), _ = jax.lax.scan(cheaper, (candidates[0], jnp.full(candidates.shape[2:], jnp.inf)), candidates)
    return best


def difference(a: Colours, b: Colours, most: float) -> Map:
    off = abs(a - b).astype(jnp.float32)
    return jnp.minimum((off[0] + off[1] + off[2]) / 3, most)


def pooled(off: Float[Array, "b h2 w2"], out: Bool[Array, "b h2 w2"]) -> Map:
    """The cost of colours that are so far `off`, of cells at half the size and those around; half of the most where
    flow leads out of the picture."""
    return box(average_pool(jnp.where(out, CLIP / 2, off)[..., None])[..., 0])


def prior(flow: Flow, current: Flow, estimated: Flow) -> Map:
    """The cost of other flow than around it, and than was estimated."""
    return SMOOTHNESS * roughness(flow, current) + ESTIMATED * jnp.minimum(length(flow - estimated), 1)


def roughness(flow: Flow, current: Flow) -> Map:
    """How far flow is from the current one of the eight cells around, up to 1 each; their mean."""
    return sum((jnp.minimum(length(flow - x), 1) for x in shifted(current, AROUND)), jnp.zeros(())) / len(AROUND)


def apart(flow: Flow, first: Flow, second: Flow, most: float) -> tuple[Map, Map]:
    """How far flow in between is from that of the cells which it leads to (`ends_of`); 1 for `most` and more."""
    return jnp.minimum(length(first - flow) / most, 1), jnp.minimum(length(second + flow) / most, 1)


def ends_of(own: Own, flow: Flow, t: Share) -> tuple[Flow, Flow]:
    """The frames' own flow (2b) where flow in between leads to, in the first frame and in the second one."""
    first, second = jnp.split(own, 2, axis=1)
    return at(first, -t * flow), at(second, (1 - t) * flow)


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


def shifted(x: Float[Array, "*n h w"], ways: Sequence[tuple[int, int]], step: int | Int[Array, ""] = 1) -> list[Array]:
    """The values at `step` times so many cells below and to the right, at most `FARTHEST` times; at the edge, of the
    nearest one."""
    reach = max(abs(cells) for way in ways for cells in way) * (step if isinstance(step, int) else FARTHEST)
    others = x.ndim - 2
    padded = jnp.pad(x, [(0, 0)] * others + [(reach, reach)] * 2, mode="edge")
    starts = [(*[0] * others, reach + step * down, reach + step * right) for down, right in ways]
    return [jax.lax.dynamic_slice(padded, start, x.shape) for start in starts]


def box(x: Map | Mask, reach: int = 1) -> Map:
    """The mean of a square around each cell."""
    side = 2 * reach + 1
    padded = jnp.pad(x.astype(jnp.float32), ((0, 0), (reach, reach), (reach, reach)), mode="edge")
    total = jax.lax.reduce_window(padded, 0.0, jax.lax.add, (1, side, side), (1, 1, 1), "VALID")
    return total / side**2


def squared(flow: Flow) -> Map:
    return flow[0] * flow[0] + flow[1] * flow[1]


def length(flow: Flow) -> Map:
    return jnp.sqrt(squared(flow) + 1e-8)


def doubled(flow: Flow) -> Float[Array, "2 b h2 w2"]:
    """At twice the size, each cell four times."""
    return (2 * flow).repeat(2, axis=2).repeat(2, axis=3)


def beyond(flow: Flow) -> Mask:
    return outside(field(flow))[..., 0] > 0


def looked_up(image: Float[Array, "b _h _w c"], flow: Flow) -> Float[Array, "c b h w"]:
    return planes(backward_warp(image, field(flow)))


def at(values: Float[Array, "c b h w"], flow: Flow) -> Float[Array, "c b h w"]:
    return looked_up(field(values), flow)


def planes(x: Float[Array, "b h w c"]) -> Float[Array, "c b h w"]:
    return jnp.moveaxis(x, -1, 0)


def field(x: Float[Array, "c b h w"]) -> Float[Array, "b h w c"]:
    return jnp.moveaxis(x, 0, -1)


def swapped(x: Array, axis: int) -> Array:
    """First frames and second ones in the other order."""
    return jnp.roll(x, x.shape[axis] // 2, axis=axis)
