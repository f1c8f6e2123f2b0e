"""What training optimises: FILM's middle frame against the true one.

The network is run on a batch of triplets; the losses, metrics and pictures that the config lists look at the result
(`common/training/objectives.py`, `film/training/losses.py`, `film/training/image_summaries.py`). The paper's three recipes are
`configs/experiment/film/film_l1.yaml`, `film_vgg.yaml` and `film_style.yaml`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from common.perceptual.vgg_weights import load_vgg
from common.training.mesh import by_share
from common.training.objectives import L1, Psnr, Scope, Term, report, total
from common.training.task import Batch, Context, Metrics, Params
from film.io.weights import load, save
from film.model import Film, FilmConfig, FilmOutput
from film.training.image_summaries import ImageSummary, TripletSheet
from film.training.initialization import initialize

DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class FilmTask:
    """FILM's training objective.

    Attributes:
      model: shape of the network.
      losses: named terms that are added up; metrics: named terms that are only logged.
      networks: files of perceptual networks that terms compare features in, by name (`common/perceptual/vgg_weights.py`).
      image_summaries: named pictures of the run.
      start_from: weights to begin with (a shipped name, a file or a run's folder); None begins as `film/training/initialization.py`
        or, with `random_init`, at random as the reference does.
      levels: pyramid levels while training; None: as the model. The weights are the same for any number above
        `specialized_levels`; a small crop has no use for the coarsest.
      dtype: what the network computes in, float32 or bfloat16. Parameters, flows and losses stay float32.
      remat: forget each stage's inner activations and compute them again for the gradient: less memory, more time.
    """

    model: FilmConfig
    losses: Mapping[str, Term] = dataclasses.field(default_factory=lambda: {"l1": L1()})
    metrics: Mapping[str, Term] = dataclasses.field(default_factory=lambda: {"psnr": Psnr()})
    networks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    image_summaries: Mapping[str, ImageSummary] = dataclasses.field(
        default_factory=lambda: {"triplets": TripletSheet()}
    )
    start_from: str | None = None
    random_init: bool = False
    levels: int | None = None
    dtype: str = "float32"
    remat: bool = False

    def __post_init__(self):
        if not self.losses:
            raise ValueError("task.losses is empty: list at least one, for instance common.training.objectives.L1")
        if self.dtype not in DTYPES:
            raise ValueError(f"task.dtype is {self.dtype!r}: choose {' or '.join(DTYPES)}")
        _ = self.shape  # raises for levels that the model cannot have

    @property
    def shape(self) -> FilmConfig:
        """The model's shape while training."""
        return dataclasses.replace(self.model, pyramid_levels=self.levels or self.model.pyramid_levels)

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef[Film]:
        return nnx.graphdef(nnx.eval_shape(lambda: Film(self.shape, rngs=nnx.Rngs(0))))

    def init(self, key: PRNGKeyArray) -> Params:
        model = Film(self.model, rngs=nnx.Rngs(key))
        return nnx.to_pure_dict(nnx.state(model if self.random_init else initialize(model)))

    def start(self) -> Params | None:
        if self.start_from is None:
            return None
        model = load(self.start_from)
        if model.config != self.model:
            raise ValueError(f"start_from={self.start_from} holds {model.config}, the task asks for {self.model}")
        return nnx.to_pure_dict(nnx.state(model))

    def frozen(self) -> dict[str, Any]:
        return {name: load_vgg(path).astype(self.dtype) for name, path in self.networks.items()}

    def forward(self, params: Params, batch: Batch, mesh: Mesh | None = None) -> FilmOutput:
        """The network on a batch, by each device on its share; picture and warped frames come back as float32."""

        def run(params: Params, batch: Batch) -> FilmOutput:
            x0, x1 = (batch[name].astype(self.dtype) for name in ("x0", "x1"))
            output = nnx.merge(self.graphdef, params).forward(x0, x1, batch["time"], remat=self.remat)
            return jax.tree.map(lambda x: x.astype(jnp.float32), output)

        return by_share(run, mesh)(params, {name: batch[name] for name in ("x0", "x1", "time")})

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        scope = Scope(self.forward(params, batch, context.mesh), batch, context)
        loss, values = total(self.losses, scope)
        return loss, values | report(self.metrics, scope)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        if not self.image_summaries:
            return {}
        shown = max(panel.rows for panel in self.image_summaries.values())
        names = ("x0", "x1", "y", "time")
        rows = {name: np.asarray(batch[name][:shown]) for name in names}
        output = jax.device_get(_forward(self.graphdef, params, rows["x0"], rows["x1"], rows["time"]))
        return {name: panel(rows, output) for name, panel in self.image_summaries.items()}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        return save(path, params, self.model, metadata, overwrite=True)


@functools.partial(jax.jit, static_argnums=0)
def _forward(graphdef, params: Params, x0: Array, x1: Array, time: Array) -> FilmOutput:
    return nnx.merge(graphdef, params).forward(x0, x1, time)
