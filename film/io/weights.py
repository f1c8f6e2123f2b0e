"""Weights by name or path: `film.load()` gives the default that comes with the package.

A weights file is safetensors with its architecture in the metadata, so nothing else is needed to build the network.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from common.io.tensor_files import about
from common.training.task import Params
from common.weights.model_file import Metadata, load_weights, save_weights
from common.weights.porting import assemble
from film.config import FilmConfig
from film.io.pretrained import find
from film.model import Film

KIND = "film"


def load(name_or_path: str | Path | None = None) -> Film:
    """A FILM network in float32, from a shipped name (None: the default), a file, a run's folder or an address."""
    return load_with_metadata(name_or_path)[0]


def load_with_metadata(name_or_path: str | Path | None = None) -> tuple[Film, Metadata]:
    """`load`, and the header of the file."""
    path = find(name_or_path)
    params, metadata = load_weights(path, expect_kind=KIND)
    with about(path):
        try:
            config = FilmConfig(**metadata.config)
        except (TypeError, ValueError) as error:
            raise ValueError(f"its config is not one of FILM's ({error}); update this program") from error
        return assemble(Film, config, params), metadata


def save(
    path: str | Path, params: Params, config: FilmConfig, metadata: Mapping[str, Any] | None = None, **options: Any
) -> Path:
    """Writes weights that `load` reads, in float32 by default; `options` as of `save_weights`. Returns the path."""
    options = {"dtype": "float32"} | options
    return save_weights(path, params, kind=KIND, config=dataclasses.asdict(config), metadata=metadata, **options)


def save_model(path: str | Path, model: Film, metadata: Mapping[str, Any] | None = None, **options: Any) -> None:
    save(path, nnx.to_pure_dict(nnx.state(model)), model.config, metadata, **options)
