"""FILM's own loss terms: what helps flow before the picture can (see `common/training/objectives.py` for the others).

The paper's losses look at the picture alone. Short trainings learn to blend before they learn to move, so two helpers
reach the flow without passing the decoder:

* `WarpedL1`: each warped frame against the truth; the reference has it too (`l1_warped`), switched off;
* `TeacherFlow`: FILM's flows against a *privileged teacher*, which sees what the network has to guess: the exact
  flow of photographs that the code moves (`recipes/film_small/moving_photographs.py`); of a film, classical optical flow from the true middle
  frame to both neighbours, computed when the data was cut (`film/data/cutting.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from common.losses import l1, masked_l1
from common.training.objectives import Scope, Weight, as_schedule
from common.training.task import Batch
from film.model import FilmOutput
from film.resample import average_pool

LEAST = 1e-6  # of a pixel that is valid
TEACHER_LEVEL = 2  # teacher flow has a quarter of the picture's resolution


@dataclasses.dataclass(frozen=True)
class WarpedL1:
    """Mean over both frames of L1 between the frame, warped to the middle, and the truth."""

    target: str = "batch.y"
    weight: Weight = 1.0

    def __post_init__(self):
        object.__setattr__(self, "weight", as_schedule(self.weight, "weight of WarpedL1"))

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        y = scope[self.target]
        return 0.5 * (l1(scope["output.x0_warped"], y) + l1(scope["output.x1_warped"], y))


@dataclasses.dataclass(frozen=True)
class TeacherFlow:
    """`flow_error`: distance of both flows to the teacher's; the batch has to bring it (`film.data.triplet_batches.TripletConfig`,
    `recipes.film_small.moving_photograph_batches.SyntheticConfig`)."""

    weight: Weight = 1.0

    def __post_init__(self):
        object.__setattr__(self, "weight", as_schedule(self.weight, "weight of TeacherFlow"))

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        if "flow0" not in scope.roots["batch"]:
            raise ValueError(
                "TeacherFlow: these data bring no teacher flow; train on data=film_synthetic or data=film_triplets, or "
                "drop the term"
            )
        return flow_error(scope.roots["output"], scope.roots["batch"])


def flow_error(output: FilmOutput, batch: Batch) -> Float[Array, ""]:
    """Mean L1 distance of both flows to the teacher's, in full-resolution pixels, over the levels it can speak of.

    `batch["flow0"]` and `["flow1"]` lead from the moment in between to each frame. FILM's flows lead all the way
    between the frames, and the warp takes its share of them: at constant speed the teacher's, divided by that share.
    """
    errors = []
    time = batch["time"][:, :, None, None]
    for flows, name, share in ((output.backward_flow, "0", time), (output.forward_flow, "1", 1 - time)):
        target, valid = batch["flow" + name] / share, batch["valid" + name]
        for level, flow in enumerate(flows):
            if level > TEACHER_LEVEL:
                target, valid = believed(average_pool, target, valid)
            for _ in range(level, TEACHER_LEVEL):
                flow = average_pool(flow)
            errors.append(masked_l1(flow * 2.0**level, target, valid))
    return jnp.mean(jnp.stack(errors))


def believed(
    resize: Callable[[Array], Array], flow: Float[Array, "b h w 2"], valid: Float[Array, "b h w"]
) -> tuple[Float[Array, "b h2 w2 2"], Float[Array, "b h2 w2"]]:
    """Flow and its validity in [0, 1] at another size: means over what is valid alone, and how much of it there is.

    `resize` is one of `film.resample`'s means of neighbours; where nothing is valid, flow is 0.
    """
    share = resize(valid[..., None])
    return resize(flow * valid[..., None]) / jnp.maximum(share, LEAST), share[..., 0]
