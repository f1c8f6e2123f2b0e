"""Global matching: flow from a search of the whole frames, at a sixteenth of their size.

Coarse to fine, a predictor sees what is near: a thing that moves farther than its own size is gone from the levels on
which its motion is small (`film.flow`). So at level `CELLS` each cell of one frame is compared with all cells of the
other one, as in GMFlow (Xu et al., CVPR 2022) and LoFTR (Sun et al., CVPR 2021):

1. `Matcher.encode`: a key for each cell of a frame, a unit vector, by a small encoder of the image at a quarter of its
   size.
2. `match`: for each cell of a frame the cell of the other one with the most similar key, to a fraction of a cell.
3. `Matcher.rounds`: candidates for the flow on the grid of the frame in between: the estimated flow, that of
   neighbouring cells, and the matches of both frames, each as they are, at neighbouring cells, and followed to the
   place that they lead to. A small network scores each by its evidence: how similar the keys at its two ends are,
   whether the matches there agree with it and how certain they are, whether an end is outside of the picture, and how
   well it goes with the flow around it. The best one is the flow of the next round, so that it spreads, as in
   PatchMatch (Barnes et al., SIGGRAPH 2009), from far neighbours and then from near ones.

Finer levels go on from the last round. It is a choice, not a mean: a mean of two motions is the motion of nothing. Flow
is from the first frame to the second, in cells.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.config import CELLS, KEY
from film.ops.convolution import Conv, leaky_relu
from film.ops.resample import average_pool
from film.ops.row_tiling import even_share
from film.warp import backward_warp, outside

IMAGE = CELLS - 2  # level of the image that keys are made of
WIDTHS = ((24,), (48, 48), (96, 96, 96))  # 3x3 convolutions of the keys' encoder on levels 2, 3 and 4
SCORER = 24  # channels
EVIDENCE = 13  # channels, see `Matcher.ends` and `Matcher.score`
SCALE = 14.0  # initial factor of cosines in a softmax
PAIRS = 1 << 24  # of cells that are compared at a time
ROUNDS = (4, 2, 1)  # cells to the neighbours whose flow is a candidate
Keys = Float[Array, "b h w k"]
Flow = Float[Array, "b h w 2"]
Map = Float[Array, "b h w 1"]
Candidates = Float[Array, "b n h w 2"]
Scores = Float[Array, "b n h w"]


class Side(NamedTuple):
    """One of the two frames."""

    keys: Keys
    matches: Flow
    certainty: Map
    share: Float[Array, "b 1 1 1"]  # of a flow that leads to it: minus the time, or what is left of it


class Matcher(nnx.Module):
    """Keys, and the choice between estimated flow and matches (see the module)."""

    def __init__(self, *, rngs: nnx.Rngs):
        inputs, self.convs = 3, nnx.List([])
        for widths in WIDTHS:
            for width in widths:
                self.convs.append(Conv(3, inputs, width, rngs=rngs))
                inputs = width
        self.key = Conv(1, inputs, KEY, rngs=rngs)
        self.scale = nnx.Param(jnp.log(jnp.array([SCALE])))
        shapes = (3, EVIDENCE, SCORER), (3, SCORER, SCORER), (1, 2 * SCORER, SCORER), (3, SCORER, 1)
        self.scorer = nnx.List([Conv(*shape, rngs=rngs) for shape in shapes])

    def __call__(self, first: Keys, second: Keys, estimated: Flow, time: Float[Array, "b 1"]) -> Flow:
        """The flow on the grid of the frame at `time`, given the estimated one."""
        return best(*self.rounds(first, second, estimated, time)[-1])

    def encode(self, image: Float[Array, "b h4 w4 3"]) -> Keys:
        """Keys of a frame, given its image at level `IMAGE`."""
        x, convs = image - 0.5, iter(self.convs)
        for number, widths in enumerate(WIDTHS):
            x = average_pool(x) if number else x
            for _ in widths:
                x = leaky_relu(next(convs)(x))
        return unit(self.key(x))

    def rounds(
        self, first: Keys, second: Keys, estimated: Flow, time: Float[Array, "b 1"]
    ) -> list[tuple[Candidates, Scores]]:
        """The candidates of each round, the first of them `estimated`, and their scores."""
        t, scale = time[:, :, None, None], jax.lax.stop_gradient(jnp.exp(self.scale[...]))  # the keys' loss trains it
        forward, backward = match(first, second, scale), match(second, first, scale)
        sides = Side(first, *forward, -t), Side(second, -backward[0], backward[1], 1 - t)
        same = [estimated]  # candidates of all rounds
        for _, matches, _, share in sides:
            followed = backward_warp(matches, share * backward_warp(matches, share * matches))
            same += [matches, followed, *neighbours(matches, 1)]
        known, flow, rounds = self.ends(sides, jnp.stack(same, axis=1)), estimated, []
        for cells in ROUNDS:
            around = neighbours(flow, cells)
            candidates = jnp.stack([*same, flow, *around], axis=1)
            ends = jnp.concatenate([known, self.ends(sides, candidates[:, len(same) :])], axis=1)
            context = [[estimated], [flow], around, neighbours(flow, 1)]
            rounds.append((candidates, self.score(candidates, ends, context, 1 - t, cells)))
            flow = best(*rounds[-1])
        return rounds

    def ends(self, sides: tuple[Side, Side], candidates: Candidates) -> Float[Array, "b n h w 7"]:
        """Evidence of where candidates lead to: in both frames how far the match there is from them, its certainty, and
        whether it is outside of the picture; the similarity of both keys."""
        batch, count, height, width, _ = candidates.shape
        each, flows = partial(jnp.repeat, repeats=count, axis=0), candidates.reshape(-1, height, width, 2)
        keys, evidence = [], []
        for side in sides:
            way = each(side.share) * flows
            looked_up = backward_warp(each(jnp.concatenate(side[:3], axis=-1)), way)
            keys.append(looked_up[..., :KEY])
            evidence += [distance(looked_up[..., KEY:-1], flows), 0.3 * looked_up[..., -1:], outside(way)]
        evidence.append(4 * jnp.sum(keys[0] * keys[1], axis=-1, keepdims=True))
        return jnp.concatenate(evidence, axis=-1).reshape(batch, count, height, width, -1)

    def score(
        self,
        candidates: Candidates,
        ends: Float[Array, "b n h w 7"],
        context: list[list[Flow]],
        left: Float[Array, "b 1 1 1"],
        cells: int,
    ) -> Scores:
        """Scores by `ends`, the mean distance to the flows of each list of `context`, how far the time, of which there
        is `left`, is from the middle, and the round."""
        distances = [sum(distance(one[:, None], candidates) for one in flows) / len(flows) for flows in context]
        constants = [abs(1 - 2 * left)[:, None], jnp.full((1, 1, 1, 1, 1), cells / max(ROUNDS), candidates.dtype)]
        constants = [jnp.broadcast_to(constant, (*candidates.shape[:-1], 1)) for constant in constants]
        evidence = jnp.concatenate([ends, *distances, *constants], axis=-1)
        x = evidence.reshape(-1, *evidence.shape[2:])
        x = leaky_relu(self.scorer[1](leaky_relu(self.scorer[0](x)))).reshape(*evidence.shape[:-1], SCORER)
        x = jnp.concatenate([x, jnp.broadcast_to(x.max(axis=1, keepdims=True), x.shape)], axis=-1)
        x = leaky_relu(self.scorer[2](x.reshape(-1, *x.shape[2:])))
        return self.scorer[3](x).reshape(candidates.shape[:-1])


def best(candidates: Candidates, scores: Scores) -> Flow:
    """The candidate with the highest score at each cell."""
    return jnp.take_along_axis(candidates, jnp.argmax(scores, axis=1)[:, None, ..., None], axis=1)[:, 0]


def unit(x: Keys) -> Keys:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def distance(a: Float[Array, "*n 2"], b: Float[Array, "*m 2"]) -> Float[Array, "*k 1"]:
    """log(1 + |a - b|)."""
    difference = a - b
    return jnp.log1p(jnp.sqrt(jnp.sum(difference * difference, axis=-1, keepdims=True)))


def neighbours(flow: Flow, cells: int) -> list[Flow]:
    """The flow at the cells to the left, right, above and below, so far away; of the nearest one beyond the edge."""
    height, width = flow.shape[1:3]
    rows, columns = jnp.arange(height), jnp.arange(width)
    ways = [(0, -cells), (0, cells), (-cells, 0), (cells, 0)]
    return [flow[:, jnp.clip(rows + y, 0, height - 1)][:, :, jnp.clip(columns + x, 0, width - 1)] for y, x in ways]


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
