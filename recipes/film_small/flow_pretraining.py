"""Flow pretraining: each flow predictor is trained on its own level, with the coarser levels forced.

FILM's predictor at level i sees both frames' features, warped by the coarser levels' flow, and predicts the residual.
Trained end to end, a fine level learns nothing until all coarser ones are right, and a coarse level's noise is
amplified by `2**i`. Here the known flow plus a smooth random error of up to a few pixels does the warping, and minus
that error is the target. So every level has a well-posed problem from the first step on.

The known flow is on the grid of the frame in between; the loss counts only points that both frames see. Not in the
paper; `film.training.interpolation_task` continues from these weights.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from common.losses import masked_l1
from common.training.mesh import by_share
from common.training.task import Batch, Context, Metrics, Params
from film.flow import bilateral_residual, both_ways
from film.losses import TEACHER_LEVEL, resize_valid
from film.ops.resample import average_pool, resize_bilinear
from film.pyramid import image_pyramid
from film.training.interpolation_task import FilmTask

CELL = 8  # pixels between independent values of the random error
SMALLEST_SIDE = 4  # of a trained level


@dataclasses.dataclass(frozen=True)
class FlowTask(FilmTask):
    """Residual flow of a bilateral network with the coarser levels forced; of `FilmTask` losses and metrics are not
    used."""

    errors: Sequence[float] = (0.1, 2.0)  # least and largest deviation of the forced error, pixels of each level

    def rules(self):
        yield self.model.bilateral, "flow pretraining needs a model with bilateral=true, such as FilmConfig.small()"

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        """Mean over levels of |prediction + error| where the teacher is valid, in pixels of each level."""
        height, width = batch["y"].shape[1:3]
        sizes = [(height >> level, width >> level) for level in range(self.model.pyramid_levels)]
        sizes = [size for size in sizes if min(size) >= SMALLEST_SIDE]
        levels = [teacher_at(batch, level, size) for level, size in enumerate(sizes)]
        errors = [
            smooth_error(jax.random.fold_in(context.key, level), flow.shape, self.errors)
            for level, (flow, _) in enumerate(levels)
        ]
        forced = [flow + error for (flow, _), error in zip(levels, errors, strict=True)]
        given = {name: batch[name] for name in ("x0", "x1", "time")} | {"forced": forced}
        predictions = by_share(self._predictions, context.mesh)(params, given)
        losses, metrics = [], {}
        for level, ((_, valid), error, prediction) in enumerate(zip(levels, errors, predictions, strict=True)):
            losses.append(masked_l1(prediction, -error, valid))
            metrics[f"missed_{level}"] = losses[-1] / masked_l1(error, jnp.zeros_like(error), valid)
        return jnp.mean(jnp.stack(losses)), metrics

    def _predictions(self, params: Params, given: Batch) -> list[Array]:
        """The residual of each level for a forced flow."""
        model, count = nnx.merge(self.graphdef, params), len(given["x0"])
        images = image_pyramid(jnp.concatenate([given["x0"], given["x1"]]), self.model.pyramid_levels)
        time = given["time"][:, :, None, None]
        residuals = (
            bilateral_residual(model.flow.predictor(level), both[:count], both[count:], both_ways(forced), time)
            for level, (both, forced) in enumerate(zip(model.extractor(images), given["forced"], strict=False))
        )
        return [residual[..., 2:] for residual in residuals]


def teacher_at(
    batch: Batch, level: int, size: tuple[int, int]
) -> tuple[Float[Array, "b h w 2"], Float[Array, "b h w"]]:
    """Teacher flow from x0 to x1 on y's grid, and where both frames see it, at a pyramid level."""
    flow = (batch["flow1"] - batch["flow0"]) / 2.0**level
    valid = batch["valid0"] * batch["valid1"]
    for _ in range(TEACHER_LEVEL, level):
        flow, valid = resize_valid(average_pool, flow, valid)
    return resize_valid(lambda x: resize_bilinear(x, size), flow, valid)


def smooth_error(key: PRNGKeyArray, shape: tuple[int, ...], deviations: Sequence[float]) -> Float[Array, "b h w 2"]:
    """Random flow errors, pixels: drawn every `CELL` pixels and interpolated, with an example's deviation in
    `deviations`."""
    count, height, width, _ = shape
    strength, field = jax.random.split(key)
    low, high = np.log(deviations)
    deviation = jnp.exp(jax.random.uniform(strength, (count, 1, 1, 1), minval=low, maxval=high))
    cells = (height // CELL + 1, width // CELL + 1)
    return resize_bilinear(deviation * jax.random.normal(field, (count, *cells, 2)), (height, width))
