"""The search: flow of both frames, and of the frame in between, at `LEVEL`, an eighth of the size.

1. `match`: for every third cell of a frame the cell of the other one with the most similar patch, over the whole frame;
   the cells beside it go the same way.
2. `own_flow`, the flow of each frame on its own grid. It begins with the estimated flow or the match, the cheaper of
   them; the flow of neighbours and the way back of the other frame's replace it where they are cheaper, as in
   PatchMatch (Barnes et al., SIGGRAPH 2009). The cost is the difference of the colours at both ends; other flow than
   around it, and other than was estimated, costs a little more.
3. `with_hidden`: a place that the other frame hides has no match. Its flow does not lead there and back again, or to
   another colour, or out of the picture; it takes the flow of cells nearby that are seen in both frames and have its
   colour.
4. `in_front`: what such a place leads to in the other frame is in front of it.
5. `between`: the same rounds on the grid of the frame in between, with the flow of both frames as candidates. It costs
   if it is that of the cell which it leads to in neither of the frames: ground that one frame hides has the flow that
   it has in the other one. It gains if that cell is in front: where something has passed, both frames may
   show the ground, and nothing in the colours says that it was hidden half-way.
6. `search` takes what was found where it is smooth and less than `LEFT` of the difference of colours is left. A search
   always finds similar colours somewhere; if things bend, or change their light, their places are all over the frame,
   and the estimated flow stays. Light that changes everywhere is no reason to search (`equally_bright`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from film.matching.planes import (
    AROUND,
    Colours,
    Cost,
    Field,
    Flow,
    Known,
    Map,
    Mask,
    Share,
    Time,
    apart,
    at,
    beyond,
    box,
    cheapest,
    difference,
    ends_of,
    field,
    length,
    looked_up,
    planes,
    roughness,
    shifted,
    spread_out,
    squared,
    swapped,
)
from film.ops.resample import average_pool
from film.ops.row_tiling import even_share
from film.warp import forward_warp

PATCH = 2  # cells on either side of one that are compared, or whose flow a hidden one may take
STRIDE = 3  # cells; every third one, in each direction, looks for its match
PLAIN = 0.01  # added to the sum of squares of a patch: flat ones are like no other
PAIRS = 1 << 24  # of cells that are compared at a time; a row of cells with all others at least
# Cells, up to `FARTHEST`: to the neighbours whose flow is a candidate; between those whose flow a hidden one may take.
OWN_ROUNDS, ROUNDS, FILLING = (4, 1, 2, 1), (2, 1), (2, 4, 2, 1)
# Costs, in colours of 0 to 1. A difference of colours counts up to CLIP, half of it where an end is outside.
CLIP, AGREEMENT, FRONT, SMOOTHNESS, ESTIMATED = 0.15, 0.15, 0.05, 0.02, 0.015
ALIKE = 0.08  # deviation of the colours of one thing, where some of it is hidden
RETURNS = 1.0, 0.05  # cells, and share of the way, by which a flow there and back may miss
SEEN = 0.05  # most colour cost of a flow that is seen in both frames
DISAGREEING = 2.0  # cells by which flow is off at most, of that of the cell which it leads to; more counts as much
# Estimated flow may be replaced where its colour cost is `DOUBT`, and up to 2 cells from there; and where something in
# front passes. Of such cells, up to `NEARBY` around: most of the cost that may be left, and most roughness.
DOUBT, NEARBY, LEFT, ROUGHEST = 0.03, 10, 0.7, 0.18
REVISED = 0.5  # cells; found flow this far from the estimated one, and 2 cells around, is refined by choice
HIDES = 0.5  # of 0 to 1: where something is that much `ahead`, or that much more `apart` from one frame than the other
FEW, ENOUGH, MOST = 1e-3, 3.0, 0.5  # support of a hidden cell's flow: least; that of trust 1; most trust
SQUARE = [(y, x) for y in range(-PATCH, PATCH + 1) for x in range(-PATCH, PATCH + 1)]
RING = [way for way in SQUARE if any(way)]


class Motion(NamedTuple):
    """What is known of a pair at a level beside its flow in between."""

    first: Float[Array, "b h w 3"]  # of the first frame: flow to the second one, and 1 where it is `in_front`, else 0
    second: Float[Array, "b h w 3"]  # of the second frame, likewise
    revised: Float[Array, "b h w 1"]  # 1 where the frames in between follow it, else 0


def search(
    finer: Float[Array, "n h2 w2 3"], coarse: Float[Array, "n h w 3"], estimated: Field, time: Time
) -> tuple[Field, Motion]:
    """Flow of the frame at `time`, given the frames (2b) at levels `LEVEL - 1` and `LEVEL` and the estimated flow at
    `LEVEL`. Nothing is searched for if no estimated flow is in doubt. It has no gradient."""
    finer, coarse, estimated = jax.lax.stop_gradient((finer, coarse, estimated))
    finer, t = finer[:, : 2 * coarse.shape[1], : 2 * coarse.shape[2]], time[:, :, None]
    before = planes(estimated.astype(jnp.float32))
    finer, coarse = equally_bright(finer, coarse, before, t)
    frames = planes(finer)

    def colour(flow: Flow) -> Map:
        fine = doubled(flow)
        return pooled(difference(*ends_of(frames, fine, t), CLIP), beyond(-t * fine) | beyond((1 - t) * fine))

    doubt = colour(before)

    def searched() -> tuple[Flow, Known, Map]:
        known = own_flow(finer, coarse, before, t)
        flow = between(known, before, colour, t)
        ends = ends_of(known, flow, t)
        offs = apart(flow, ends, DISAGREEING)
        wrong = (box(doubt > DOUBT, 2) > 0) | (box(ahead(offs, ends) > HIDES) > 0)
        inside = ~(beyond(-t * flow) | beyond((1 - t) * flow))
        maps = inside * doubt, inside * colour(flow), roughness(flow, flow), 1.0
        cost, left, rough, cells = (box(wrong * x, NEARBY) for x in maps)
        taken = wrong & (left < LEFT * cost) & (rough < ROUGHEST * cells)
        revised = taken & ((length(flow - before) > REVISED) | (abs(offs[0] - offs[1]) > HIDES))
        return jnp.where(taken, flow, before), known, jnp.ceil(box(revised, 2))

    def kept() -> tuple[Flow, Known, Map]:
        known = jnp.pad(jnp.concatenate([before, -before], axis=1), ((0, 1), (0, 0), (0, 0), (0, 0)))
        return before, known, jnp.zeros(before.shape[1:])

    flow, known, revised = jax.lax.cond(jnp.any(doubt > DOUBT), searched, kept)
    first, second = jnp.split(field(known), 2)
    return field(flow), Motion(first, second, revised[..., None])


def equally_bright(
    finer: Float[Array, "n h2 w2 3"], coarse: Float[Array, "n h w 3"], flow: Flow, t: Share
) -> tuple[Float[Array, "n h2 w2 3"], Float[Array, "n h w 3"]]:
    """The frames (2b), the second ones with their colours shifted by the median difference along `flow` in between,
    where that leaves less than `LEFT` of the difference.

    The costs assume constant brightness: where it changes, a search would slide along every gradient until the colours
    agree.
    """
    first, second = ends_of(planes(finer.astype(jnp.float32)), doubled(flow), t)
    off = first - second
    median = jnp.median(off, axis=(2, 3))
    before, left = (abs(x).mean(axis=(0, 2, 3)) for x in (off, off - median[:, :, None, None]))
    shift = (median * (left < LEFT * before)).T[:, None, None]
    shift = jnp.concatenate([jnp.zeros_like(shift), shift])
    return finer + shift, coarse + shift


def own_flow(finer: Float[Array, "n h2 w2 3"], coarse: Float[Array, "n h w 3"], estimated: Flow, t: Share) -> Known:
    """Flow of each frame (2b) to the other one on its own grid, and which of its cells are `in_front`."""
    matched, other, colours = match(coarse), swapped(finer, 0), planes(finer)
    guesses = [at(estimated, share * at(estimated, share * estimated)) for share in (t, t - 1)]
    guess = jnp.concatenate([guesses[0], -guesses[1]], axis=1)

    def colour(flow: Flow) -> Map:
        fine = doubled(flow)
        return pooled(difference(colours, looked_up(other, fine), CLIP), beyond(fine))

    def back(flow: Flow, way: Flow) -> Flow:
        return -at(swapped(flow, 1), way)

    def cost(x: Flow, best: Flow) -> Map:
        return colour(x) + prior(x, best, guess)

    starts = jnp.stack([guess, matched, back(matched, guess), back(matched, matched)])
    flow = spread_out(starts, cost, OWN_ROUNDS, lambda best: [back(best, best)])
    least, share = RETURNS
    returns = length(flow - back(flow, flow)) < least + share * length(flow)
    seen = returns & ~beyond(flow) & (colour(flow) < SEEN)
    flow = with_hidden(flow, seen, planes(coarse))
    return jnp.concatenate([flow, in_front(flow, seen)[None]])


def in_front(own: Float[Array, "2 n h w"], seen: Mask) -> Float[Array, "n h w"]:
    """1 where hidden cells (2b) lead to another motion in the other frame, which is in front of them; less between
    such cells and others."""
    hidden = ~seen & ~beyond(own) & (length(own + at(swapped(own, 1), own)) > DISAGREEING)
    led_to = forward_warp(hidden[..., None].astype(jnp.float32), field(own))[..., 0]
    return swapped(jnp.minimum(led_to, 1), 0)


def between(known: Known, estimated: Flow, colour: Cost, t: Share) -> Flow:
    """Flow on the grid of the frame in between, given that of both frames (2b), and what is in front."""
    first, second = jnp.split(known[:2], 2, axis=1)
    sides = (first, -t), (-second, 1 - t)

    def cost(x: Flow, best: Flow) -> Map:
        return colour(x) + disagreement(x, ends_of(known, x, t), DISAGREEING) + prior(x, best, estimated)

    starts = [estimated, *(side for side, _ in sides), *(at(side, share * side) for side, share in sides)]
    return spread_out(jnp.stack(starts), cost, ROUNDS, lambda best: [at(side, share * best) for side, share in sides])


def match(images: Float[Array, "b h w 3"]) -> Flow:
    """The way from each cell (2b) to the one of the other frame whose patch is most similar; every third one looks."""
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

    def filled(state: tuple[Flow, Map], step: Int[Array, ""]) -> tuple[tuple[Flow, Map], None]:
        flow, trust = state
        near = jnp.stack(shifted(jnp.concatenate([flow, trust[None], colours]), RING, step))
        near, weights = near[:, :2], near[:, 2] * jnp.exp(-jnp.sum((near[:, 3:] - colours) ** 2, axis=1) / ALIKE**2)

        def cost(flow: Flow) -> Map:
            """Minus the weight of the cells whose flow is within 1.4 cells of this one."""

            def less(total: Map, cell: tuple[Flow, Map]) -> tuple[Map, None]:
                return total - cell[1] * jnp.maximum(1 - squared(cell[0] - flow) / 2, 0), None

            return jax.lax.scan(less, jnp.zeros(seen.shape), (near, weights))[0]

        found = cheapest(near[jnp.array([RING.index(way) for way in AROUND])], cost)
        support = -cost(found)
        flow = jnp.where(~seen & (support > FEW), found, flow)
        return (flow, jnp.where(seen, 1.0, jnp.clip(support / ENOUGH, 0, MOST))), None

    (flow, _), _ = jax.lax.scan(filled, (flow, seen.astype(jnp.float32)), jnp.array(FILLING))
    return flow


def disagreement(flow: Flow, ends: tuple[Array, Array], most: float) -> Map:
    """The cost of flow in between, given what it leads to (`ends_of`): its flow, and whether it is in front."""
    offs = apart(flow, ends, most)
    return AGREEMENT * jnp.minimum(*offs) - FRONT * ahead(offs, ends)


def ahead(offs: tuple[Map, Map], ends: tuple[Array, Array]) -> Map:
    """1 where flow in between is that of what it leads to in one of the frames, and this is in front; else less."""
    first, second = ((1 - off) * end[2] for off, end in zip(offs, ends, strict=True))
    return jnp.maximum(first, second)


def pooled(off: Float[Array, "b h2 w2"], out: Bool[Array, "b h2 w2"]) -> Map:
    """The cost of colours that are so far `off`, of cells at half the size and those around; half of the most where
    flow leads out of the picture."""
    return box(average_pool(jnp.where(out, CLIP / 2, off)[..., None])[..., 0])


def prior(flow: Flow, current: Flow, estimated: Flow) -> Map:
    """The cost of other flow than around it, and than was estimated."""
    return SMOOTHNESS * roughness(flow, current) + ESTIMATED * jnp.minimum(length(flow - estimated), 1)


def doubled(flow: Flow) -> Float[Array, "2 b h2 w2"]:
    """At twice the size, each cell four times."""
    return (2 * flow).repeat(2, axis=2).repeat(2, axis=3)
