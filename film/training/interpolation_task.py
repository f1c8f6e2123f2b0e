"""The training objective: FILM's middle frame against the true one.

The network runs on a batch of triplets; the losses, metrics and image summaries that the config lists see the result
(`common/training/objectives.py`, `film/losses.py`, `film/visualization.py`). The paper's three recipes are
`configs/experiment/film/film_l1.yaml`, `film_vgg.yaml` and `film_style.yaml`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from common.checked import Checked, Dtype, Named
from common.nn.init import COMPILE_FAST, Keys, blank
from common.perceptual.vgg_weights import load_vgg
from common.training.mesh import by_share
from common.training.objectives import L1, Psnr, Scope, Term, total
from common.training.task import Batch, Context, Metrics, Params
from common.weights.porting import flatten, unflatten_like
from film.config import FilmConfig
from film.io.weights import load, save
from film.model import Film, FilmOutput
from film.training.initialization import glorot, initialize
from film.visualization import ImageSummary, TripletSheet

ADDED = "coverage", "sided_levels", "matching"  # fields of `FilmConfig` in which `start_from` may differ


@dataclass(frozen=True)
class FilmTask(Checked):
    """FILM's training objective.

    `losses` are added up, `metrics` only logged. `networks` are files of the perceptual networks of terms that compare
    features (`common/perceptual/vgg_weights.py`). The weights are the same for any number of `levels` above
    `specialized_levels`; a small crop has no use for the coarsest. Parameters, flows and losses stay float32; the
    perceptual networks compute their features in `dtype`.
    """

    model: FilmConfig
    losses: Named[Term] = field(default_factory=lambda: {"l1": L1()})
    metrics: Mapping[str, Term] = field(default_factory=lambda: {"psnr": Psnr()})
    networks: Mapping[str, str] = field(default_factory=dict)
    image_summaries: Mapping[str, ImageSummary] = field(default_factory=lambda: {"triplets": TripletSheet()})
    start_from: str | None = None  # initial weights: a shipped name, a file or a run's folder; see ADDED
    random_init: bool = False  # without `start_from`: kernels as the reference draws them, not by `initialize`
    levels: int | None = None  # pyramid levels while training; None: as the model
    dtype: Dtype = "float32"  # of the network's computation
    remat: bool = False  # recompute each stage's activations for the gradient: less memory, more time

    def __post_init__(self):
        super().__post_init__()
        _ = self.shape  # raises for levels that the model cannot have

    @property
    def shape(self) -> FilmConfig:
        """The model's shape while training: without a search, which has nothing to learn."""
        return replace(self.model, pyramid_levels=self.levels or self.model.pyramid_levels, matching=False)

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef[Film]:
        return blank(Film, self.shape)[0]

    def init(self, key: PRNGKeyArray) -> Params:
        model = Film(self.model, rngs=Keys(key))
        return nnx.to_pure_dict(nnx.state(glorot(model, key) if self.random_init else initialize(model)))

    def start(self) -> Params | None:
        if self.start_from is None:
            return None
        model = load(self.start_from)
        if model.config != replace(self.model, **{name: getattr(model.config, name) for name in ADDED}):
            raise ValueError(f"start_from={self.start_from} holds {model.config}, the task asks for {self.model}")
        found, whole = flatten(nnx.to_pure_dict(nnx.state(model))), jax.eval_shape(self.init, jax.random.key(0))
        if flatten(whole).keys() - found.keys():
            whole = jax.jit(self.init, compiler_options=COMPILE_FAST)(jax.random.key(0))
        if dropped := sorted(found.keys() - flatten(whole).keys()):
            raise ValueError(f"start_from={self.start_from} has parts that task.model lacks: {', '.join(dropped)}")
        return unflatten_like({**flatten(whole), **found}, whole)

    def frozen(self) -> dict[str, Any]:
        return {name: load_vgg(path).astype(self.dtype) for name, path in self.networks.items()}

    def forward(self, params: Params, batch: Batch, mesh: Mesh | None = None) -> FilmOutput:
        """The network on a batch, split over the devices of `mesh`; all outputs are float32."""

        def run(params: Params, batch: Batch) -> FilmOutput:
            x0, x1 = (batch[name].astype(self.dtype) for name in ("x0", "x1"))
            output = nnx.merge(self.graphdef, params).forward(x0, x1, batch["time"], remat=self.remat)
            return jax.tree.map(lambda x: x.astype(jnp.float32), output)

        return by_share(run, mesh)(params, {name: batch[name] for name in ("x0", "x1", "time")})

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        scope = Scope(self.forward(params, batch, context.mesh), batch, context)
        return total(self.losses, scope, self.metrics)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        if not self.image_summaries:
            return {}
        shown = max(summary.rows for summary in self.image_summaries.values())
        rows = {name: np.asarray(batch[name][:shown]) for name in ("x0", "x1", "y", "time")}
        output = jax.device_get(nnx.merge(self.graphdef, params)(rows["x0"], rows["x1"], rows["time"]))
        return {name: summary(rows, output) for name, summary in self.image_summaries.items()}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        return save(path, params, self.model, metadata, overwrite=True)
