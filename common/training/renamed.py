"""Old names in configs, run folders and headers of weights: still read, under their present names.

`MODULES` maps the module of a `_target_` (or the whole of it), `FIELDS` the fields of a target (by its present name),
and `OVERRIDES` the beginning of an override on the command line.
"""

from collections.abc import Mapping
from typing import Any

MODULES = {
    "common.lpips": "common.perceptual.lpips",
    "common.metrics": "common.evaluation.metrics",
    "common.objectives": "common.training.objectives",
    "common.training.renewal": "common.training.refresh",
    "common.training.refresh.RenewalConfig": "common.training.task.RefreshConfig",
    "film.data": "film.data.triplet_batches",
    "film.data.reference_augment": "film.data.augment",
    "film.evaluation": "film.evaluation.triplet_evaluation",
    "film.flow_task": "recipes.film_small.flow_pretraining",
    "film.layouts": "film.data.datasets",
    "film.layouts_4k": "film.data.datasets",
    "film.objectives": "film.losses",
    "film.pictures": "film.visualization",
    "film.procedural": "film.data.procedural",
    "film.reference_augment": "film.data.augment",
    "film.sources": "film.data.record_sources",
    "film.synthetic": "recipes.film_small.moving_photographs",
    "film.synthetic_data": "recipes.film_small.moving_photograph_batches",
    "film.task": "film.training.interpolation_task",
    "film.tfrecord": "film.data.record_sources",
    "film.training.image_summaries": "film.visualization",
    "film.training.losses": "film.losses",
    "plugins.conditions.onnx_depth": "plugins.conditions.depth",
    "plugins.control.comparison": "plugins.evaluation.comparison",
    "plugins.control.controlnet_config": "plugins.control.controlnet",
    "plugins.control.data": "plugins.data.captioned_batches",
    "plugins.control.evaluation": "plugins.evaluation.control_fidelity",
    "plugins.control.mediapipe_config": "plugins.control.mediapipe",
    "plugins.control.own_data": "plugins.data.own_batches",
    "plugins.control.t2i_adapter_config": "plugins.control.t2i_adapter",
    "plugins.control.task": "plugins.control.training.control_task",
    "plugins.control.training.summaries": "plugins.control.training.control_task",
    "plugins.data.captioned_batches.ControlledConfig": "plugins.data.captioned_batches.CaptionedConfig",
    "plugins.data.controlled_batches": "plugins.data.captioned_batches",
    "plugins.diffusion.autoencoder_task": "plugins.diffusion.training.autoencoder_task",
    "plugins.diffusion.data": "plugins.data.captioned_batches",
    "plugins.diffusion.networks.text_encoder": "common.nn.text_encoder",
    "plugins.diffusion.networks.vae_config": "plugins.diffusion.networks.vae",
    "plugins.diffusion.objectives": "plugins.diffusion.training.losses",
    "plugins.diffusion.sample_sheet": "plugins.diffusion.training.denoising_task",
    "plugins.diffusion.schedules": "plugins.diffusion.samplers.schedules",
    "plugins.diffusion.task": "plugins.diffusion.training.denoising_task",
    "plugins.diffusion.text": "common.nn.text_encoder",
    "plugins.diffusion.training.summaries": "plugins.diffusion.training.denoising_task",
    "plugins.diffusion.unet_config": "plugins.diffusion.networks.unet_config",
    "plugins.diffusion.vae_config": "plugins.diffusion.networks.vae",
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
FIELDS: dict[str, dict[str, str]] = {
    "reveal.training.joint.Joint": {"renewal": "refresh"},
    "film.evaluation.triplet_evaluation.FilmEvaluation": {"beside": "compare_with"},
    "film.model.FilmConfig": {"between": "bilateral", "flow_search": "correlation_radius"},
    "film.training.interpolation_task.FilmTask": {"panels": "image_summaries", "plain_start": "random_init"},
    "plugins.evaluation.comparison.ControlComparison": {"ways": "methods", "scores": "metrics"},
    "plugins.evaluation.control_fidelity.ControlEvaluation": {"scores": "metrics"},
}
OVERRIDES = {  # the first that matches
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
    names = path.split(".")
    first = next((i for i, name in enumerate(names) if name[:1].isupper()), len(names) - 1)  # of the class
    module = ".".join(names[:first])
    present = ".".join([MODULES.get(module, module), *names[first:]])
    return MODULES.get(present, present)


def node(old: Mapping[str, Any]) -> dict[str, Any]:
    """A config node under its present `_target_` and field names. Nodes inside it are left alone."""
    if "_target_" not in old:
        return dict(old)
    path = target(str(old["_target_"]))
    fields = FIELDS.get(path) or FIELDS.get(path.rpartition(".")[0], {})  # of the class, or of a preset's class
    return {fields.get(key, key): value for key, value in old.items()} | {"_target_": path}


def override(word: str) -> str:
    """The present form of an override: "evaluation.beside=[a]" is "evaluation.compare_with=[a]"."""
    rest = word.lstrip("+~")
    for old, new in OVERRIDES.items():
        if rest.startswith(old):
            return word[: len(word) - len(rest)] + new + rest.removeprefix(old)
    return word
