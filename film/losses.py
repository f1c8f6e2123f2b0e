"""FILM's losses: the paper's `l1`, `vgg` and `style`, and two terms that supervise flow before the image can.

The paper's losses see the image alone (`common/training/objectives.py` has them as terms of a task). Short trainings
learn to blend before they learn motion, so two terms reach the flow without passing the decoder: `WarpedL1` (the
reference has the sum of both, switched off), and `TeacherFlow`, against the exact flow of photographs that the code
moves (`recipes/film_small`), or classical flow of a film (`film/data/cutting.py`). Two refine the image: `Visibility`
supervises the mixture (`film.fusion.blend`) where only one frame shows what the true middle frame does; `Laplacian`
compares images band by band.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from common.losses import l1, masked_l1
from common.losses import style as style
from common.losses import vgg as vgg
from common.training.objectives import Scope, Weight, Weighted
from common.training.task import Batch
from film.model import FilmOutput
from film.ops.resample import average_pool, resize_bilinear

EPSILON = 1e-6  # of a valid share
SMALLEST_WEIGHT = 1e-4  # of a frame in the mixture, below which `Visibility` has no gradient
TEACHER_LEVEL = 2  # teacher flow has a quarter of the image's resolution


@dataclasses.dataclass(frozen=True)
class WarpedL1(Weighted):
    """Mean over both frames of L1 between the frame, warped to the middle, and the truth."""

    target: str = "batch.y"
    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        y = scope[self.target]
        return 0.5 * (l1(scope["output.x0_warped"], y) + l1(scope["output.x1_warped"], y))


@dataclasses.dataclass(frozen=True)
class TeacherFlow(Weighted):
    """`flow_error` against the batch's teacher flow (`film.data.triplet_batches`)."""

    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        if "flow0" not in scope.roots["batch"]:
            raise ValueError("TeacherFlow: the batch has no flow0; use data=film_synthetic or film_triplets")
        return flow_error(scope.roots["output"], scope.roots["batch"])


@dataclasses.dataclass(frozen=True)
class Visibility(Weighted):
    """Cross entropy, in nats, between the mixture's weights and the frame that shows a pixel: mean over the pixels that
    the batch's teacher (see `TeacherFlow`) finds in one frame alone. An even mixture has 0.69."""

    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        mixture, batch = scope.roots["output"].weight, scope.roots["batch"]
        if mixture is None or "valid0" not in batch:
            raise ValueError("Visibility: needs a model with blend=true, and data=film_synthetic or film_triplets")
        cells = mixture.shape[1] // batch["valid0"].shape[1]
        first, second = (jnp.repeat(jnp.repeat(batch[key], cells, 1), cells, 2) for key in ("valid0", "valid1"))
        chosen = jnp.where(first > second, mixture[..., 0], 1 - mixture[..., 0])
        loss = -jnp.log(jnp.maximum(chosen, SMALLEST_WEIGHT))[..., None]
        return masked_l1(loss, jnp.zeros_like(loss), abs(first - second))


@dataclasses.dataclass(frozen=True)
class Laplacian(Weighted):
    """L1 of the bands of the Laplacian pyramids of `output.image` and the truth, each band twice the weight of the
    finer one (Bojanowski et al., ICML 2018; Niklaus and Liu, CVPR 2018)."""

    target: str = "batch.y"
    levels: int = 5
    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        difference, total = scope["output.image"] - scope[self.target], jnp.zeros(())
        for level in range(self.levels):
            coarser = average_pool(difference)
            band = difference - resize_bilinear(coarser, (difference.shape[1], difference.shape[2]))
            total += 2.0**level * jnp.mean(jnp.abs(band if level + 1 < self.levels else difference))
            difference = coarser
        return total


def flow_error(output: FilmOutput, batch: Batch) -> Float[Array, ""]:
    """Mean L1 distance of both flows to the teacher's, in full-resolution pixels, over all levels.

    The teacher's lead from the middle frame to each neighbour; FILM's lead all the way between the neighbours, and the
    warp takes its share of them: at constant speed the teacher's, divided by that share.
    """
    errors = []
    time = batch["time"][:, :, None, None]
    for flows, name, share in ((output.backward_flow, "0", time), (output.forward_flow, "1", 1 - time)):
        target, valid = batch["flow" + name] / share, batch["valid" + name]
        for level, flow in enumerate(flows):
            if level > TEACHER_LEVEL:
                target, valid = resize_valid(average_pool, target, valid)
            for _ in range(level, TEACHER_LEVEL):
                flow = average_pool(flow)
            errors.append(masked_l1(flow * 2.0**level, target, valid))
    return jnp.mean(jnp.stack(errors))


def resize_valid(
    resize: Callable[[Array], Array], flow: Float[Array, "b h w 2"], valid: Float[Array, "b h w"]
) -> tuple[Float[Array, "b h2 w2 2"], Float[Array, "b h2 w2"]]:
    """Flow at another size, the mean over valid pixels alone (0 without any), and their share; `resize` averages."""
    share = resize(valid[..., None])
    return resize(flow * valid[..., None]) / jnp.maximum(share, EPSILON), share[..., 0]
