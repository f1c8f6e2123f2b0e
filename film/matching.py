"""Global matching: flow from a search of the whole frames, at a sixteenth and an eighth of their size.

Coarse to fine, a predictor sees what is near: a thing that moves farther than its own size is gone from the levels on
which its motion is small (`film.flow`). So at the coarsest of `LEVELS` each cell of one frame is compared with all
cells of the other one, as in GMFlow (Xu et al., CVPR 2022) and LoFTR (Sun et al., CVPR 2021), and flow is chosen:

1. `Matcher.encode`: keys for the cells of a frame, unit vectors, by a small encoder of the image at a quarter of its
   size; and their looks, unit vectors too, by which cells of one thing are told from those of another.
2. `match`: for each cell of a frame the cell of the other one with the most similar key, to a fraction of a cell.
3. `Matcher.rounds`, the flow of each frame on its own grid. Candidates are the matches of both frames and the estimated
   flow, each as they are, at neighbouring cells, and followed to the place that they lead to. A small network scores
   each by its evidence: how similar the keys at its two ends are, whether the matches there agree with it, whether an
   end is outside of the picture, and how well it goes with the flow around it. A cell that the other frame hides has
   no match; it moves as what looks like it nearby and has one. The best candidate is the flow of the next round, so
   that it spreads, as in PatchMatch (Barnes et al., SIGGRAPH 2009), from far neighbours and then from near ones.
4. The same on the grid of the frame in between, with the flow of both frames in place of their matches. It tells what
   is hidden: the motion of a place is that of the cell which it leads to, in at least one of the frames.

At the finer level the flow of the coarser one takes the place of the matches. Levels finer than that refine it. It is
a choice, not a mean: a mean of two motions is the motion of nothing. Flow is from the first frame to the second, in
cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.config import KEYS, LEVELS, LOOKS
from film.ops.convolution import Conv, leaky_relu
from film.ops.resample import average_pool, resize_nearest
from film.ops.row_tiling import even_share
from film.warp import backward_warp, outside

IMAGE = LEVELS[0] - 2  # level of the image that keys are made of
WIDTHS = ((24,), (48, 48), (96, 96, 96))  # 3x3 convolutions of the encoder on levels 2, 3 and 4
SCORER = 16  # channels
EVIDENCE = 13  # channels, see `Matcher.ends` and `Scorer`
SCALE = 14.0  # initial factor of cosines in a softmax
PAIRS = 1 << 24  # of cells that are compared at a time
ROUNDS = ((4, 2, 1), (2, 1))  # of each level: cells to the neighbours whose flow is a candidate
# Initial weights of a cell's evidence (`Matcher.ends`), and the constant, by which others trust its flow.
TRUST = 0.0, 0.0, 0.0, -2.0, 0.0, -1.0, 1.0, -6.0
SAME = 0.5  # cells; candidates this close are of one opinion
Keys = Float[Array, "b h w k"]
Flow = Float[Array, "b h w 2"]
Map = Float[Array, "b h w 1"]
Share = Float[Array, "b 1 1 1"]
Round = tuple[Float[Array, "b n h w 2"], Float[Array, "b n h w"]]  # candidates and their scores


class Side(NamedTuple):
    """One of the two frames."""

    keys: Keys
    flow: Flow  # on its grid
    certainty: Map
    share: Share  # of a flow that leads to it: minus the time, or what is left of it


class Found(NamedTuple):
    """The result of a level."""

    own: Flow  # from each frame to the other one, on its own grid: 2b, the first frames, then the second ones
    certainty: Map  # of `own`
    between: Flow  # from the first frame to the second on the grid of the frame in between: b


class Search(NamedTuple):
    """All of a level: keys and looks of both frames, and the rounds on the three grids, as in `Found`."""

    first: Keys
    second: Keys
    own: list[Round]
    between: list[Round]

    def found(self) -> Found:
        return Found(best(*self.own[-1]), certainties(*self.own[-1]), best(*self.between[-1]))


class Scorer(nnx.Module):
    """A score for each candidate, by its evidence and the best of the others."""

    def __init__(self, looks: bool, *, rngs: nnx.Rngs):
        evidence = EVIDENCE + looks
        shapes = (1, evidence, SCORER), (3, SCORER, SCORER), (1, 2 * SCORER, SCORER), (1, SCORER, 1)
        self.convs = nnx.List([Conv(*shape, rngs=rngs) for shape in shapes])

    def __call__(self, evidence: Float[Array, "b n h w e"]) -> Float[Array, "b n h w"]:
        first, second, third, last = self.convs
        x = leaky_relu(second(leaky_relu(first(evidence.reshape(-1, *evidence.shape[2:])))))
        x = x.reshape(*evidence.shape[:-1], SCORER)
        x = jnp.concatenate([x, jnp.broadcast_to(x.max(axis=1, keepdims=True), x.shape)], axis=-1)
        return last(leaky_relu(third(x.reshape(-1, *x.shape[2:])))).reshape(evidence.shape[:-1])


class Matcher(nnx.Module):
    """Keys, and the choice of flow (see the module)."""

    def __init__(self, *, rngs: nnx.Rngs):
        inputs, self.convs = 3, nnx.List([])
        for widths in WIDTHS:
            for width in widths:
                self.convs.append(Conv(3, inputs, width, rngs=rngs))
                inputs = width
        middle, coarse = WIDTHS[1][-1], WIDTHS[2][-1]
        self.joint = Conv(3, middle + coarse, middle, rngs=rngs)
        outputs = [keys + LOOKS for keys in KEYS]
        self.heads = nnx.List([Conv(1, coarse, outputs[0], rngs=rngs), Conv(1, middle, outputs[1], rngs=rngs)])
        self.scale = nnx.Param(jnp.log(jnp.array([SCALE])))
        self.looks_scale = nnx.Param(jnp.log(jnp.full((len(LEVELS),), SCALE / 2)))
        self.trust = nnx.Param(jnp.tile(jnp.array(TRUST), (len(LEVELS), 1)))
        self.frames = nnx.List([Scorer(True, rngs=rngs) for _ in LEVELS])
        self.between = nnx.List([Scorer(False, rngs=rngs) for _ in LEVELS])

    def encode(self, image: Float[Array, "b h4 w4 3"]) -> list[Keys]:
        """Keys and looks of a frame at each of `LEVELS`, given its image at level `IMAGE`."""
        x, convs, stages = image - 0.5, iter(self.convs), []
        for number, widths in enumerate(WIDTHS):
            x = average_pool(x) if number else x
            for _ in widths:
                x = leaky_relu(next(convs)(x))
            stages.append(x)
        middle = jnp.concatenate([stages[1], resize_nearest(x, stages[1].shape[1:3])], axis=-1)
        made = [head(y) for head, y in zip(self.heads, (x, leaky_relu(self.joint(middle))), strict=True)]
        pairs = [(unit(y[..., :keys]), unit(y[..., keys:])) for y, keys in zip(made, KEYS, strict=True)]
        return [jnp.concatenate(pair, axis=-1) for pair in pairs]

    def search(
        self,
        number: int,
        first: Keys,
        second: Keys,
        estimated: Flow,
        time: Float[Array, "b 1"],
        coarser: Found | None = None,
    ) -> Search:
        """The rounds at the level of this number in `LEVELS`, given the flow that is estimated on the grid of the frame
        at `time`. No gradient reaches flow."""
        t, keys, size = time[:, :, None, None], KEYS[number], (first.shape[1], first.shape[2])
        own, estimated = jnp.concatenate([first, second]), jax.lax.stop_gradient(estimated)
        (own, looks), other = (own[..., :keys], own[..., keys:]), swapped(own)[..., :keys]
        if coarser is None:
            scale = jnp.exp(self.scale[...])  # the keys' loss trains it, and the keys
            flow, certainty = match(*jax.lax.stop_gradient((own, other, scale)))
        else:
            flow, certainty = resize_nearest(2 * coarser.own, size), resize_nearest(coarser.certainty, size)
        guesses = [backward_warp(estimated, share * estimated) for share in (t, t - 1)]
        start, end = jnp.zeros((len(own), 1, 1, 1)), jnp.ones((len(own), 1, 1, 1))
        sides = Side(own, flow, certainty, start), Side(other, -swapped(flow), swapped(certainty), end)
        looks = looks, jnp.exp(self.looks_scale[...][number])
        frames = self.rounds(number, sides, jnp.concatenate([guesses[0], -guesses[1]]), looks)
        (flow0, flow1), (sure0, sure1) = (jnp.split(x, 2) for x in (best(*frames[-1]), certainties(*frames[-1])))
        sides = Side(first[..., :keys], flow0, sure0, -t), Side(second[..., :keys], -flow1, sure1, 1 - t)
        return Search(first, second, frames, self.rounds(number, sides, estimated))

    def rounds(
        self, number: int, sides: tuple[Side, Side], estimated: Flow, looks: tuple[Keys, Array] | None = None
    ) -> list[Round]:
        """The candidates of each round, the first of them `estimated`, and their scores."""
        flow, same, finest = estimated, [estimated], number > 0
        if finest and looks is not None:
            flow = sides[0].flow
        for side in sides:  # candidates of all rounds
            followed = backward_warp(side.flow, side.share * backward_warp(side.flow, side.share * side.flow))
            same += [side.flow, followed, *([] if finest else neighbours(side.flow, 1))]
        known, rounds = self.ends(sides, jnp.stack(same, axis=1)), []
        scorer = self.between[number] if looks is None else self.frames[number]
        for cells in ROUNDS[number]:
            around = neighbours(flow, cells)
            candidates = jnp.stack([*same, flow, *around], axis=1)
            evidence = [known, self.ends(sides, candidates[:, len(same) :])]
            here = evidence[1][:, 0]  # of `flow`
            context = [[estimated], [flow], around, neighbours(flow, 1)]
            distances = [sum(distance(one[:, None], candidates) for one in flows) / len(flows) for flows in context]
            if looks is not None:
                trust = here @ self.trust[...][number, :-1] + self.trust[...][number, -1]
                distances.append(distance_to_alike(*looks, trust, flow, candidates, max(1, cells // 2)))
            constants = abs(sides[0].share + sides[1].share)[:, None], jnp.full((1,) * 5, cells / 4)
            constants = [jnp.broadcast_to(x, (*candidates.shape[:-1], 1)) for x in constants]
            scores = scorer(jnp.concatenate([jnp.concatenate(evidence, axis=1), *distances, *constants], axis=-1))
            rounds.append((candidates, scores))
            flow = best(*rounds[-1])
        return rounds

    def ends(self, sides: tuple[Side, Side], candidates: Float[Array, "b n h w 2"]) -> Float[Array, "b n h w 7"]:
        """Evidence of where candidates lead to: in both frames how far the flow there is from them, its certainty, and
        whether it is outside of the picture; the similarity of both keys."""
        batch, count, height, width, _ = candidates.shape
        below = jnp.stack([jnp.zeros(count), height * jnp.arange(count)], axis=-1)[:, None, None]
        keys, evidence = [], []
        for side in sides:
            way = side.share[:, None] * candidates
            rows = (way - below).reshape(batch, -1, width, 2)  # one below the other, of one picture
            looked_up = backward_warp(jnp.concatenate(side[:3], axis=-1), rows).reshape(*candidates.shape[:-1], -1)
            keys.append(looked_up[..., :-3])
            beyond = outside(way.reshape(-1, height, width, 2)).reshape(*candidates.shape[:-1], 1)
            evidence += [distance(looked_up[..., -3:-1], candidates), 0.3 * looked_up[..., -1:], beyond]
        evidence.append(4 * jnp.sum(keys[0] * keys[1], axis=-1, keepdims=True))
        return jnp.concatenate(evidence, axis=-1)


def best(candidates: Float[Array, "b n h w 2"], scores: Float[Array, "b n h w"]) -> Flow:
    """The candidate with the highest score at each cell."""
    return jnp.take_along_axis(candidates, jnp.argmax(scores, axis=1)[:, None, ..., None], axis=1)[:, 0]


def certainties(candidates: Float[Array, "b n h w 2"], scores: Float[Array, "b n h w"]) -> Map:
    """The logarithm of the probability of all that is close to the best candidate; no gradient."""
    candidates, scores = jax.lax.stop_gradient((candidates, scores))
    way = candidates - best(candidates, scores)[:, None]
    near = jnp.exp(-jnp.sum(way * way, axis=-1) / SAME**2)
    return jnp.log(jnp.sum(jax.nn.softmax(scores, axis=1) * near, axis=1) + 1e-6)[..., None]


def unit(x: Keys) -> Keys:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def swapped(x: Float[Array, "b h w c"]) -> Array:
    """First frames and second ones in the other order."""
    return jnp.roll(x, len(x) // 2, axis=0)


def distance(a: Float[Array, "*n 2"], b: Float[Array, "*m 2"]) -> Float[Array, "*k 1"]:
    """log(1 + |a - b|)."""
    difference = a - b
    return jnp.log1p(jnp.sqrt(jnp.sum(difference * difference, axis=-1, keepdims=True) + 1e-12))


def shifted(x: Float[Array, "b h w c"], ways: Sequence[tuple[int, int]]) -> list[Array]:
    """The value at so many cells below and to the right; at the edge, of the nearest one."""
    height, width, reach = *x.shape[1:3], max(abs(step) for way in ways for step in way)
    padded = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    return [padded[:, reach + y : reach + y + height, reach + x : reach + x + width] for y, x in ways]


def neighbours(flow: Flow, cells: int) -> list[Flow]:
    """The flow at the cells to the left, right, above and below, so far away."""
    return shifted(flow, [(0, -cells), (0, cells), (-cells, 0), (cells, 0)])


def distance_to_alike(
    looks: Keys,
    scale: Float[Array, ""],
    trust: Float[Array, "b h w"],
    flow: Flow,
    candidates: Float[Array, "b n h w 2"],
    step: int,
) -> Float[Array, "b n h w 1"]:
    """The distance of candidates to the flow of the 24 cells around, summed by their shares: the exponentials of
    likeness and trust, divided by 1 and the sum of all. Where none can be trusted, it is 0 for all candidates."""
    ways = [(step * y, step * x) for y in range(-2, 3) for x in range(-2, 3) if x or y]
    likeness = scale * jnp.stack([jnp.sum(looks * other, axis=-1) for other in shifted(looks, ways)])
    logits = likeness.astype(jnp.float32) + jnp.stack([one[..., 0] for one in shifted(trust[..., None], ways)])
    shares = jax.nn.softmax(jnp.concatenate([logits, jnp.zeros_like(logits[:1])]), axis=0)[:-1, :, None, ..., None]
    pairs, total = zip(shares, shifted(flow, ways), strict=True), jnp.zeros(())
    return sum((share * distance(one[:, None], candidates) for share, one in pairs), total)


def match(own: Keys, other: Keys, scale: Float[Array, 1]) -> tuple[Flow, Map]:
    """The way from each cell to the most similar one of the other frame, and the logarithm of its probability.

    Probabilities are the softmax of `scale` times the cosine over all cells. The way is the mean over the best cell and
    those around it, by probability. Some rows of `own` are compared at a time.
    """
    batch, height, width, _ = own.shape
    others = other.reshape(batch, height * width, -1).astype(jnp.float32)
    rows = even_share(height, batch * width * height * width, PAIRS)
    y, x = (offset.ravel() for offset in jnp.meshgrid(jnp.arange(-1, 2), jnp.arange(-1, 2), indexing="ij"))

    def tile(own: Float[Array, "b r w k"]) -> tuple[Float[Array, "b r w 2"], Float[Array, "b r w 1"]]:
        logits = scale * jnp.einsum("brwk,bnk->brwn", own.astype(jnp.float32), others)
        best = jnp.argmax(logits, axis=-1)[..., None]
        to_y, to_x = best // width + y, best % width + x
        inside = (to_y >= 0) & (to_y < height) & (to_x >= 0) & (to_x < width)
        near = jnp.take_along_axis(logits, jnp.where(inside, to_y * width + to_x, best), axis=-1)
        shares = jnp.where(inside, jnp.exp(near - jax.nn.logsumexp(logits, axis=-1, keepdims=True)), 0)
        total = jnp.sum(shares, axis=-1, keepdims=True)
        place = jnp.stack([jnp.sum(shares * to, axis=-1) for to in (to_x, to_y)], axis=-1) / total
        return place, jnp.log(total)

    tiles = own.reshape(batch, height // rows, rows, width, -1).swapaxes(0, 1)
    place, certainty = (x.swapaxes(0, 1).reshape(batch, height, width, -1) for x in jax.lax.map(tile, tiles))
    here = jnp.stack(jnp.meshgrid(jnp.arange(width), jnp.arange(height)), axis=-1)
    return place - here, certainty
