"""Coarse flow from nothing: the shared predictor learns to begin, at every level where it may have to.

`film.flow_task` teaches each level to correct a flow that is nearly right, on crops whose coarsest levels are a few
pixels wide and all border. At 1280x720 the coarsest level has 20 by 12 pixels, the flow so far is zero, and most motion
is a small part of one of its pixels. What is missed there, finer levels rarely find again.

All coarse levels share one predictor and see features of one kind, so what is learnt at level 3 of a small crop holds
for level 6 of a large picture. Here each shared level in turn is the first one: from zero flow, down to the finest
shared level, supervised at each step by the known flow (as in `film.flow_task`). The loss is the share of an example's
motion that is missed, so that a motion of a tenth of a pixel counts as much as one of two pixels. Freeze everything but
that predictor (`optim.multipliers`), and all that is finer goes on seeing what it was trained on. Not in the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from common.training.mesh import by_share
from common.training.task import Batch, Context, Metrics, Params
from film.flow import middle_residual
from film.flow_task import FlowTask, teacher_at
from film.loading import load_start
from film.pyramid import image_pyramid
from film.resample import resize_bilinear

REACH = 4.0  # px of the first level: what its search and its convolutions can see
LEAST = 0.05  # px of a level, added to the motion that an error is measured by


@dataclasses.dataclass(frozen=True)
class CoarseTask(FlowTask):
    """Flow of the shared levels, end to end, from each of them as the coarsest.

    Attributes:
      start_from: weights to go on with (a shipped name, a file or a run's folder).
    """

    start_from: str = "film-small"

    def start(self) -> Params:
        return load_start(self.start_from, self.model)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        """Mean over all levels that are asked, from all beginnings, of the share of the motion that is missed."""
        given = {name: batch[name] for name in ("x0", "x1", "time")}
        answers = by_share(self._answers, context.mesh)(params, given)
        teachers = {level: teacher_at(batch, level, size) for level, size in self._shared(batch["y"].shape)}
        losses, metrics = [], {}
        for (first, level), answer in answers.items():
            target, valid = teachers[level]
            reached = jnp.max(jnp.abs(target), axis=-1) * 2.0 ** (level - first) < REACH
            losses.append(missed(answer, target, valid * reached))
            metrics[f"missed_{first}_{level}"] = losses[-1]
        return jnp.mean(jnp.stack(losses)), metrics

    def _shared(self, shape: tuple[int, ...]) -> list[tuple[int, tuple[int, int]]]:
        """Number and size of each shared level that is asked."""
        return list(enumerate(self._sizes(*shape[1:3])))[self.model.specialized_levels :]

    def _answers(self, params: Params, given: Batch) -> dict[tuple[int, int], Array]:
        """Flow by (coarsest level, level)."""
        model, count = nnx.merge(self.graphdef, params), len(given["x0"])
        images = image_pyramid(jnp.concatenate([given["x0"], given["x1"]]), self.model.pyramid_levels)
        features = model.extractor(images)
        predictor = model.flow.predictor(self.model.pyramid_levels)
        shared = [level for level, _ in self._shared(given["x0"].shape)]

        def descend(first: int) -> Iterator[tuple[tuple[int, int], Array]]:
            v = jnp.zeros((count, *features[first].shape[1:3], 2))
            for level in range(first, shared[0] - 1, -1):
                a, b = jnp.split(features[level], 2)
                flow = v + middle_residual(predictor, a, b, v, given["time"][:, :, None, None])
                yield (first, level), flow
                height, width = features[level - 1].shape[1:3]
                v = resize_bilinear(2 * flow, (height, width))

        return dict(answer for first in shared for answer in descend(first))


def missed(
    answer: Float[Array, "b h w 2"], target: Float[Array, "b h w 2"], valid: Float[Array, "b h w"]
) -> Float[Array, ""]:
    """Mean over examples of |answer - target| by |target| + `LEAST`, each a mean where `valid` (in [0, 1]) says so."""

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.abs(x) * valid[..., None], (1, 2, 3)) / jnp.maximum(2 * jnp.sum(valid, (1, 2)), 1.0)

    return jnp.mean(mean(answer - target) / (mean(target) + LEAST))
