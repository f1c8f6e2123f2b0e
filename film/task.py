"""What training optimises: FILM's middle frame against the true one.

The paper's loss is L1 on the picture alone. Short trainings learn to blend before they learn to move, so two helpers
can be switched on, each with a weight that may change with the step:

* `warped`: L1 between each warped frame and the truth, which reaches the flow without passing the decoder;
* `flow`: L1 between FILM's flows and a *privileged teacher*: classical optical flow from the true middle frame to both
  neighbours, computed when the data was cut (`film/triplets.py`). It sees what the network has to guess.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from common.images import contact_sheet
from common.losses import l1, masked_l1
from common.training.task import Batch, Metrics, Params
from film.flow_picture import flow_picture
from film.loading import load, save
from film.model import Film, FilmConfig, FilmOutput
from film.resample import average_pool
from film.start import prepare

Schedule = Sequence[Sequence[int | float]]  # (step, weight) corners
TEACHER_LEVEL = 2  # teacher flow has a quarter of the picture's resolution


@dataclasses.dataclass(frozen=True)
class FilmTask:
    """FILM's training objective.

    Attributes:
      model: shape of the network.
      l1, warped, flow: weights of the losses, each a list of (step, weight), linear in between and constant outside.
      start_from: weights to begin with (a shipped name, a file or a run's folder); None begins as `film/start.py`.
      levels: pyramid levels while training; None: as the model. The weights are the same for any number above
        `specialized_levels`; a small crop has no use for the coarsest.
      rows: triplets shown in the sample picture.
    """

    model: FilmConfig
    l1: Schedule = ((0, 1.0),)
    warped: Schedule = ((0, 0.0),)
    flow: Schedule = ((0, 0.0),)
    start_from: str | None = None
    levels: int | None = None
    rows: int = 4

    def __post_init__(self):
        for name in ("l1", "warped", "flow"):
            object.__setattr__(self, name, tuple((int(s), float(w)) for s, w in getattr(self, name)))

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef[Film]:
        shape = dataclasses.replace(self.model, pyramid_levels=self.levels or self.model.pyramid_levels)
        return nnx.graphdef(nnx.eval_shape(lambda: Film(shape, rngs=nnx.Rngs(0))))

    def init(self, key: PRNGKeyArray) -> Params:
        if self.start_from:
            model = load(self.start_from)
            if model.config != self.model:
                raise ValueError(f"start_from={self.start_from} holds {model.config}, the task asks for {self.model}")
            return nnx.to_pure_dict(nnx.state(model))
        return nnx.to_pure_dict(nnx.state(prepare(Film(self.model, rngs=nnx.Rngs(key)))))

    def forward(self, params: Params, batch: Batch) -> FilmOutput:
        return nnx.merge(self.graphdef, params).forward(batch["x0"], batch["x1"], batch["time"])

    def loss(self, params: Params, batch: Batch, step: Array) -> tuple[Float[Array, ""], Metrics]:
        output, y = self.forward(params, batch), batch["y"]
        error = jnp.mean(jnp.square(output.image - y), axis=(1, 2, 3))
        metrics = {
            "l1": l1(output.image, y),
            "warped": 0.5 * (l1(output.x0_warped, y) + l1(output.x1_warped, y)),
            "psnr": jnp.mean(-10 * jnp.log10(error)),
        }
        if "flow0" in batch:
            metrics["flow"] = flow_error(output, batch)
        weights = {name: weight_at(getattr(self, name), step) for name in ("l1", "warped", "flow") if name in metrics}
        return jnp.stack([weight * metrics[name] for name, weight in weights.items()]).sum(), metrics

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        """One row per triplet: x0, x1, FILM's frame, the truth, both warped frames, the forward flow."""
        rows = jax.tree.map(lambda x: x[: self.rows], batch)
        output = jax.device_get(_forward(self.graphdef, params, rows["x0"], rows["x1"], rows["time"]))
        columns = (
            *(rows["x0"], rows["x1"], output.image, rows["y"], output.x0_warped, output.x1_warped),
            [flow_picture(flow) for flow in output.forward_flow[0]],
        )
        sheet = [np.asarray(column[i]) for i in range(len(rows["x0"])) for column in columns]
        return {"triplets": contact_sheet(sheet, columns=len(columns))}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> None:
        save(path, params, self.model, metadata, overwrite=True)


def flow_error(output: FilmOutput, batch: Batch) -> Float[Array, ""]:
    """Mean L1 distance of both flows to the teacher's, in full-resolution pixels, over the levels it can speak of.

    `batch["flow0"]` and `["flow1"]` lead from the middle to each frame. FILM's flows lead all the way between the
    frames and are halved by the warp: at constant speed they are twice the teacher's.
    """
    errors = []
    for flows, name in ((output.backward_flow, "0"), (output.forward_flow, "1")):
        target, valid = 2 * batch["flow" + name], batch["valid" + name]
        for level, flow in enumerate(flows):
            if level > TEACHER_LEVEL:
                target = average_pool(target)
                valid = average_pool(valid[..., None])[..., 0]
            for _ in range(level, TEACHER_LEVEL):
                flow = average_pool(flow)
            errors.append(masked_l1(flow * 2.0**level, target, valid))
    return jnp.mean(jnp.stack(errors))


def weight_at(schedule: Schedule, step: Array) -> Float[Array, ""]:
    """The piecewise-linear `schedule` at `step`."""
    steps, weights = zip(*schedule, strict=True)
    return jnp.interp(step.astype(jnp.float32), jnp.array(steps, jnp.float32), jnp.array(weights, jnp.float32))


@functools.partial(jax.jit, static_argnums=0)
def _forward(graphdef, params: Params, x0: Array, x1: Array, time: Array) -> FilmOutput:
    return nnx.merge(graphdef, params).forward(x0, x1, time)
