"""Flow and colours as planes, `c b h w`: up to eight times as fast on a CPU as with two or three channels last, which
XLA does not vectorise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from film.warp import backward_warp, outside

FARTHEST = 4  # cells, of a step of `shifted` that is traced
# Ways to the cells around one, below and to the right.
AROUND = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]
SIDES = [way for way in AROUND if 0 in way]
Field = Float[Array, "b h w 2"]  # flow, as elsewhere
Time = Float[Array, "b 1"]
Flow = Float[Array, "2 b h w"]
Known = Float[Array, "3 n h w"]  # of both frames (2b), each on its own grid: flow, and 1 where it is in front, else 0
Colours = Float[Array, "3 b h w"]
Map = Float[Array, "b h w"]
Mask = Bool[Array, "b h w"]
Share = Float[Array, "b 1 1"]  # of the way from the first frame to the second
Cost = Callable[[Array], Map]


def planes(x: Float[Array, "b h w c"]) -> Float[Array, "c b h w"]:
    return jnp.moveaxis(x, -1, 0)


def field(x: Float[Array, "c b h w"]) -> Float[Array, "b h w c"]:
    return jnp.moveaxis(x, 0, -1)


def swapped(x: Array, axis: int) -> Array:
    """First frames and second ones in the other order."""
    return jnp.roll(x, x.shape[axis] // 2, axis=axis)


def looked_up(image: Float[Array, "b _h _w c"], flow: Flow) -> Float[Array, "c b h w"]:
    return planes(backward_warp(image, field(flow)))


def at(values: Float[Array, "c b h w"], flow: Flow) -> Float[Array, "c b h w"]:
    return looked_up(field(values), flow)


def beyond(flow: Flow) -> Mask:
    return outside(field(flow))[..., 0] > 0


def squared(flow: Flow) -> Map:
    return flow[0] * flow[0] + flow[1] * flow[1]


def length(flow: Flow) -> Map:
    return jnp.sqrt(squared(flow) + 1e-8)


def difference(a: Colours, b: Colours, most: float) -> Map:
    off = abs(a - b).astype(jnp.float32)
    return jnp.minimum((off[0] + off[1] + off[2]) / 3, most)


def roughness(flow: Flow, current: Flow) -> Map:
    """How far flow is from the current one of the eight cells around, up to 1 each; their mean."""
    return sum((jnp.minimum(length(flow - x), 1) for x in shifted(current, AROUND)), jnp.zeros(())) / len(AROUND)


def apart(flow: Flow, ends: tuple[Array, Array], most: float) -> tuple[Map, Map]:
    """How far flow in between is from that of the cells which it leads to (`ends_of`); 1 for `most` and more."""
    first, second = ends
    return jnp.minimum(length(first[:2] - flow) / most, 1), jnp.minimum(length(second[:2] + flow) / most, 1)


def ends_of(values: Float[Array, "c n h w"], flow: Flow, t: Share) -> tuple[Array, Array]:
    """What flow in between leads to, of values of both frames (2b): in the first frame and in the second one."""
    first, second = jnp.split(values, 2, axis=1)
    return at(first, -t * flow), at(second, (1 - t) * flow)


def cheapest(candidates: Float[Array, "k c b h w"], cost: Cost) -> Float[Array, "c b h w"]:
    """The candidate with the lowest cost at each cell, of equal ones the first; no gradient through the costs."""

    def cheaper(state: tuple[Array, Map], candidate: Array) -> tuple[tuple[Array, Map], None]:
        best, least = state
        now = jax.lax.stop_gradient(cost(candidate))
        return (jnp.where(now < least, candidate, best), jnp.minimum(now, least)), None

    (best, _), _ = jax.lax.scan(cheaper, (candidates[0], jnp.full(candidates.shape[2:], jnp.inf)), candidates)
    return best


def spread_out(
    start: Float[Array, "k c b h w"],
    cost: Callable[[Array, Array], Map],
    steps: Sequence[int],
    others: Callable[[Array], Sequence[Array]] = lambda best: [],
) -> Float[Array, "c b h w"]:
    """The cheapest of `start`; then, step by step, of the best, of that of the cells so many cells away, and of
    `others(best)`, as in PatchMatch (Barnes et al., SIGGRAPH 2009). `cost(candidate, best)` is in one loop, since it
    takes long to compile."""

    def turn(best: Array, step: Int[Array, ""]) -> tuple[Array, None]:
        candidates = jnp.stack([best, *shifted(best, SIDES, step), *others(best)])
        first = jnp.concatenate([start, *[start[:1]] * (len(candidates) - len(start))])
        return cheapest(jnp.where(step == 0, first, candidates), lambda x: cost(x, best)), None

    return jax.lax.scan(turn, start[0], jnp.array([0, *steps]))[0]


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
