"""Old names in configs, run folders and headers of weights: still read, under what they are called now.

`MODULES` maps the module of a `_target_`, `TARGETS` a whole one, `FIELDS` the fields of a target (by its new name), and
`OVERRIDES` how an override on the command line begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODULES = {
    "common.lpips": "common.perceptual.lpips",
    "common.metrics": "common.evaluation.metrics",
    "common.objectives": "common.training.objectives",
    "common.training.renewal": "common.training.refresh",
    "film.data": "film.data.triplet_batches",
    "film.evaluation": "film.evaluation.triplet_evaluation",
    "film.flow_task": "recipes.film_small.flow_pretraining",
    "film.layouts": "film.data.datasets",
    "film.layouts_4k": "film.data.datasets",
    "film.objectives": "film.training.losses",
    "film.pictures": "film.training.image_summaries",
    "film.procedural": "film.data.procedural",
    "film.reference_augment": "film.data.reference_augment",
    "film.sources": "film.data.record_sources",
    "film.synthetic": "recipes.film_small.moving_photographs",
    "film.synthetic_data": "recipes.film_small.moving_photograph_batches",
    "film.task": "film.training.interpolation_task",
    "film.tfrecord": "film.data.record_sources",
    "plugins.control.comparison": "plugins.evaluation.comparison",
    "plugins.control.data": "plugins.data.captioned_batches",
    "plugins.control.evaluation": "plugins.evaluation.control_fidelity",
    "plugins.control.own_data": "plugins.data.own_batches",
    "plugins.control.task": "plugins.control.training.control_task",
    "plugins.data.controlled_batches": "plugins.data.captioned_batches",
    "plugins.diffusion.autoencoder_task": "plugins.diffusion.training.autoencoder_task",
    "plugins.diffusion.data": "plugins.data.captioned_batches",
    "plugins.diffusion.objectives": "plugins.diffusion.training.losses",
    "plugins.diffusion.sample_sheet": "plugins.diffusion.training.summaries",
    "plugins.diffusion.schedules": "plugins.diffusion.samplers.schedules",
    "plugins.diffusion.task": "plugins.diffusion.training.denoising_task",
    "plugins.diffusion.text": "plugins.diffusion.networks.text_encoder",
    "plugins.diffusion.unet_config": "plugins.diffusion.networks.unet_config",
    "plugins.diffusion.vae_config": "plugins.diffusion.networks.vae_config",
    "plugins.sources": "plugins.data",
    "reveal.augment": "reveal.training.augment",
    "reveal.config": "reveal.network.config",
    "reveal.countries.data": "recipes.countries.data",
    "reveal.countries.evaluation": "recipes.countries.evaluation",
    "reveal.evaluation": "reveal.evaluation.memory_evaluation",
    "reveal.evaluation_sets": "reveal.evaluation.benchmarks",
    "reveal.joint": "reveal.training.joint",
    "reveal.losses": "reveal.training.losses",
    "reveal.own_data": "reveal.training.own_batches",
    "reveal.task": "reveal.training.warm_start",
    "reveal.world.data": "recipes.small_world.data",
    "reveal.world.evaluation": "recipes.small_world.evaluation",
}
TARGETS: dict[str, str] = {
    "common.training.refresh.RenewalConfig": "common.training.task.RefreshConfig",
    "plugins.data.captioned_batches.ControlledConfig": "plugins.data.captioned_batches.CaptionedConfig",
}
FIELDS: dict[str, dict[str, str]] = {
    "reveal.training.joint.Joint": {"renewal": "refresh"},
    "film.evaluation.triplet_evaluation.FilmEvaluation": {"beside": "compare_with"},
    "film.model.FilmConfig": {"between": "bilateral", "flow_search": "correlation_radius"},
    "film.training.interpolation_task.FilmTask": {"panels": "image_summaries", "plain_start": "random_init"},
    "plugins.evaluation.comparison.ControlComparison": {"ways": "methods", "scores": "metrics"},
    "plugins.evaluation.control_fidelity.ControlEvaluation": {"scores": "metrics"},
}
OVERRIDES = {  # the first that fits
    "task.renewal": "task.refresh",
    "evaluation.beside=": "evaluation.compare_with=",
    "evaluation.ways.layout=": "evaluation.methods.plug_and_play=",
    "evaluation.ways": "evaluation.methods",
    "task.model.between=": "task.model.bilateral=",
    "task.model.flow_search=": "task.model.correlation_radius=",
    "task.panels": "task.image_summaries",
    "task.plain_start=": "task.random_init=",
    "evaluation.scores": "evaluation.metrics",
}


def target(path: str) -> str:
    """The present name of a class or preset: "film.data.TripletConfig" is "film.data.triplet_batches.TripletConfig"."""
    parts = path.split(".")
    first = next((i for i, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    module = ".".join(parts[:first])
    present = ".".join([MODULES.get(module, module), *parts[first:]])
    return TARGETS.get(present, present)


def node(old: Mapping[str, Any]) -> dict[str, Any]:
    """A config node with a `_target_` as it would be written today. Nodes inside it are left alone."""
    if "_target_" not in old:
        return dict(old)
    path = target(str(old["_target_"]))
    fields = FIELDS.get(path) or FIELDS.get(path.rpartition(".")[0], {})  # of the class, or of a preset's class
    return {fields.get(key, key): value for key, value in old.items()} | {"_target_": path}


def override(word: str) -> str:
    """A word of a command as it would be written today: "evaluation.beside=[a]" is "evaluation.compare_with=[a]"."""
    signs = word[: len(word) - len(word.lstrip("+~"))]
    rest = word.removeprefix(signs)
    old = next((old for old in OVERRIDES if rest.startswith(old)), "")
    return signs + OVERRIDES.get(old, "") + rest.removeprefix(old)
