"""The training task of control networks: the frozen base's own objective, with a condition image.

    condition -> control network -> features or residuals -.
    image, t, noise -> x_t -----------------------> UNet(x_t, t, text states) -> loss against noise, v or x_0

Only the control network learns, but gradients pass through the base's activations, because features enter at the
encoder: `remat` saves memory. Timesteps are drawn by default cubic: most at the noisy end, where the layout is decided.

The loss hardly shows whether a control works, because all but the layout is as hard to predict with a condition as
without: look at the fidelity (`plugins/evaluation/control_fidelity.py`).

Batches are those of a base (`plugins/diffusion/training/denoising_task.py`), with `condition`, `b H W 3` in [0, 1].
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from common.checked import AtLeast0, Checked, Dtype, Named
from common.io.images import contact_sheet
from common.nn.init import blank, init_params, split
from common.training.objectives import Scope, Term, total
from common.training.task import Batch, Context, Metrics, Params
from plugins.control.contract import ControlNetwork
from plugins.control.controlnet import ControlNet
from plugins.control.loading import load, save
from plugins.control.mediapipe import MediaPipeConfig, MediaPipePlugin
from plugins.control.t2i_adapter import T2IAdapter
from plugins.diffusion import pipeline as bases
from plugins.diffusion.io.base import TEXT_TO_IMAGE
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.training.denoising_task import Denoised, DenoisingTask, cast, write_metadata
from plugins.diffusion.training.losses import Denoising

Kind = type[ControlNetwork]
KINDS: dict[str, Kind] = {"mediapipe": MediaPipePlugin, "controlnet": ControlNet, "t2i_adapter": T2IAdapter}


@dataclasses.dataclass(frozen=True)
class ControlSheet:
    """The image summary, on the first `rows` conditions of a batch, with its captions as prompts. Columns: the
    condition; the output without control; with it; with the next example's condition, whose layout it should then
    have."""

    rows: int = 4
    steps: int = 20
    guidance: float = 4.0

    def __call__(
        self, pipeline: Pipeline, network: ControlNetwork, batch: Mapping[str, Any]
    ) -> dict[str, Float[np.ndarray, "h w 3"]]:
        """{"samples": the sheet}; nothing without rows, or without tokens to read prompts from."""
        rows = min(self.rows, len(batch["condition"]))
        if rows == 0 or "tokens" not in batch:
            return {}
        prompts = [pipeline.base.texts[0][2].decode(ids) for ids in np.asarray(batch["tokens"][:rows])]
        own = np.asarray(batch["condition"][:rows], np.float32)
        drawn = {"without": (None, own), "with": (network, own), "wrong": (network, np.roll(own, -1, 0))}
        columns = {name: draw(pipeline, prompts, under, shown, self) for name, (under, shown) in drawn.items()}
        return {"samples": column_sheet({"condition": own, **columns}, rows)}


def column_sheet(columns: Mapping[str, Float[np.ndarray, "_ h w 3"]], rows: int) -> Float[np.ndarray, "h2 w2 3"]:
    """The first `rows` images of each column, under its name."""
    cells = [images[i] for i in range(rows) for images in columns.values()]
    return contact_sheet(cells, columns=len(columns), labels=[*columns, *[""] * (len(cells) - len(columns))])


@dataclasses.dataclass(frozen=True)
class ControlTask(Checked):
    """The training objective of a control network: `losses` are added up, `metrics` only logged."""

    base: str  # the frozen base: a folder, a single file, or a shipped name
    kind: Literal["mediapipe", "controlnet", "t2i_adapter"] = "mediapipe"
    shape: Any = None  # the network's config; None: the default for the base
    timesteps: Literal["uniform", "cubic"] = "cubic"
    losses: Named[Term] = dataclasses.field(default_factory=lambda: {"denoising": Denoising()})
    metrics: Mapping[str, Term] = dataclasses.field(default_factory=dict)
    min_snr: AtLeast0 = 0.0  # gamma of min-SNR weights (2303.09556); 0 weights all timesteps alike
    start_from: str | None = None  # weights to train further; None: new ones, a ControlNet from the base's encoder
    dtype: Dtype = "float32"  # of the computation and the base; what learns and losses stay float32
    remat: bool = False  # a gradient keeps only the inputs of each block: less memory, more time
    samples: ControlSheet = dataclasses.field(default_factory=ControlSheet)

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """The base, all but its autoencoder in `dtype`; read on first use, which may be while a function is traced."""
        with jax.ensure_compile_time_eval():
            base = bases.load(self.base)
            if self.dtype == "float32":
                return base
            parts = {kind: split(network) for kind, network in base.networks.items() if network and kind != "vae"}
            cheap = {kind: nnx.merge(graph, cast(params, self.dtype)) for kind, (graph, params) in parts.items()}
            return dataclasses.replace(base, **cheap)

    @functools.cached_property
    def denoising(self) -> DenoisingTask:
        """The base's objective: its graphs, text states and loss weights. ValueError for another base."""
        base, schedule = self.pipeline.base, self.pipeline.schedule
        if not isinstance(schedule, Schedule):
            raise ValueError(f"task.base={self.base} was trained by flow matching; name one that was trained on noise")
        if base.task != TEXT_TO_IMAGE or base.sizes or base.distilled:
            kind = "SDXL" if base.sizes else "a distilled base" if base.distilled else f"a base for {base.task}"
            raise ValueError(f"task.base={self.base} is {kind}: training takes text-to-image bases of SD 1.x and 2.x")
        options = {"timesteps": self.timesteps, "min_snr": self.min_snr, "dtype": self.dtype}
        return DenoisingTask(base.unet, schedule, base.text_encoder, **options)

    @functools.cached_property
    def config(self) -> Any:
        """The network's architecture."""
        base = self.pipeline.base
        return self.shape or KINDS[self.kind].config_class.for_unet(base.unet, base.unit)

    @functools.cached_property
    def graph(self) -> nnx.GraphDef:
        """The network without parameters, checked against the base."""
        graph, shapes = blank(KINDS[self.kind], self.config)
        nnx.merge(graph, shapes).check(self.pipeline.base.unet, self.pipeline.base.unit)
        return graph

    def network(self, params: Params) -> ControlNetwork:
        return nnx.merge(self.graph, params)

    def init(self, key: PRNGKeyArray) -> Params:
        return init_params(KINDS[self.kind], self.config, key)

    def start(self) -> Params | None:
        """Parameters from a file, or for a ControlNet from the base's encoder; None: new ones."""
        if self.start_from is not None:
            found = load(self.start_from)
            config = found.config
            if type(config) is type(self.config) is MediaPipeConfig:  # its weights do not depend on the condition
                config = dataclasses.replace(config, condition=self.config.condition)
            if config != self.config:
                raise ValueError(f"start_from={self.start_from} holds {found.config}, the task asks for {self.config}")
        elif self.kind == "controlnet":
            unit = self.pipeline.base.unit
            own = self.pipeline if self.dtype == "float32" else bases.load(self.base)  # without rounding
            found = ControlNet.from_unet(own.unet, unit, config=self.config, rngs=nnx.Rngs(0))
        else:
            return None
        return nnx.to_pure_dict(nnx.state(found))

    def frozen(self) -> dict[str, Any]:
        return {name: tree for name, tree in self.pipeline.compiled.params().items() if tree}

    def forward(self, params: Params, batch: Batch, context: Context) -> Denoised:
        """One noisy view of each example, and the prediction of the base with the control."""
        base, frozen = self.denoising, context.frozen
        noisy, target, t = base.noised(self.pipeline.vae, batch, context)
        states = jnp.asarray(batch["states"], self.dtype) if "states" in batch else base.states(frozen, batch)
        network, unet = self.network(params), nnx.merge(base.graphs["unet"], frozen["unet"])
        x, condition = noisy.astype(self.dtype), jnp.asarray(batch["condition"]).astype(self.dtype)
        features, residuals, middle = network(network.encode(condition), x, t, states, remat=self.remat)
        prediction = unet(x, t, states, features or None, residuals or None, middle, remat=self.remat)
        return Denoised(prediction.astype(jnp.float32), target, base.weights(t), t)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        scope = Scope(self.forward(params, batch, context), batch, context)
        return total(self.losses, scope, self.metrics)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        return self.samples(self.pipeline, self.network(jax.device_put(params)), batch)

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        """A folder that `plugins.control.load` reads."""
        target = path.with_suffix("")
        save(self.network(params), target, overwrite=True)
        write_metadata(target, metadata)
        return target


def draw(
    pipeline: Pipeline,
    prompts: Sequence[str],
    network: ControlNetwork | None,
    conditions: Float[np.ndarray, "n h w 3"],
    settings: Any,
    strength: float = 1.0,
    mesh: Mesh | None = None,
    first_seed: int = 0,
) -> Float[np.ndarray, "n h w 3"]:
    """An image of each prompt with its condition, or without control, of the seeds from `first_seed` on; `settings` has
    `steps` and `guidance`. Without `mesh` on one device, as a training whose others hold what it needs."""
    controls = [] if network is None else [network.on(conditions, strength=strength)]
    _, height, width, _ = conditions.shape
    options: dict[str, Any] = {"steps": settings.steps, "guidance": settings.guidance, "height": height, "width": width}
    seeds = range(first_seed, first_seed + len(prompts))
    return pipeline(prompts, seeds=seeds, controls=controls, mesh=mesh, **options)
