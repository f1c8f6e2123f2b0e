"""Old names in run folders and in headers of weights that are in use: still read, under their present names."""

from collections.abc import Mapping
from typing import Any

MODULES = {  # of a `_target_`
    "common.objectives": "common.training.objectives",
    "film.data": "film.data.triplet_batches",
    "film.objectives": "film.losses",
    "film.pictures": "film.visualization",
    "film.synthetic": "recipes.film_small.moving_photographs",
    "film.synthetic_data": "recipes.film_small.moving_photograph_batches",
    "film.task": "film.training.interpolation_task",
}
FIELDS: dict[str, dict[str, str]] = {  # by the present name of the target
    "film.model.FilmConfig": {"between": "bilateral", "flow_search": "correlation_radius"},
    "film.training.interpolation_task.FilmTask": {"panels": "image_summaries", "plain_start": "random_init"},
}


def node(old: Mapping[str, Any]) -> dict[str, Any]:
    """A config node under its present `_target_` and field names. Nodes inside it are left alone."""
    if "_target_" not in old:
        return dict(old)
    names = str(old["_target_"]).split(".")
    first = next((i for i, name in enumerate(names) if name[:1].isupper()), len(names) - 1)  # of the class
    module = ".".join(names[:first])
    path = ".".join([MODULES.get(module, module), *names[first:]])
    fields = FIELDS.get(path) or FIELDS.get(path.rpartition(".")[0], {})  # of the class, or of a preset's class
    return {fields.get(key, key): value for key, value in old.items()} | {"_target_": path}
