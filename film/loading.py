"""Weights by name or path: `film.load()` gives the default that comes with the package.

A weights file is safetensors with its architecture in the metadata, so nothing else is needed to build the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from common.training.task import Params
from common.weights import Metadata, load_weights, save_weights
from film.model import Film, FilmConfig
from film.porting import from_params

KIND = "film"
WEIGHTS = Path(__file__).parent / "weights"
DEFAULT = "film-small"
FILE = "weights.safetensors"


def names() -> list[str]:
    """Names of the weights that come with the package."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{FILE}"))


def find(name_or_path: str | Path | None = None) -> Path:
    """The file of a shipped name, or the path itself (a file, or a folder that holds `weights.safetensors`)."""
    wanted = name_or_path or DEFAULT
    shipped = WEIGHTS / str(wanted) / FILE
    if str(wanted) in names():
        return shipped
    path = Path(wanted)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        shipped_names = ", ".join(names()) or "none is shipped"
        raise FileNotFoundError(
            f"no weights {str(wanted)!r}: give a .safetensors file, a run's folder or a name ({shipped_names})"
        )
    return path


def is_ours(name_or_path: str | Path) -> bool:
    """Whether this looks like our weights: a shipped name, a .safetensors file, or a folder that holds one of ours."""
    path = Path(name_or_path)
    return str(name_or_path) in names() or path.suffix == ".safetensors" or (path / FILE).is_file()


def load(name_or_path: str | Path | None = None) -> Film:
    """A FILM network ready to call, in float32.

    Args:
      name_or_path: a shipped name, a file, a run's folder, or None for the default.

    Raises:
      FileNotFoundError: no such name or file.
      ValueError: not FILM weights of this project.
    """
    return load_with_metadata(name_or_path)[0]


def load_with_metadata(name_or_path: str | Path | None = None) -> tuple[Film, Metadata]:
    """`load`, and what the file says about itself."""
    path = find(name_or_path)
    params, metadata = load_weights(path, expect_kind=KIND)
    try:
        config = FilmConfig(**metadata.config)
    except TypeError as error:
        raise ValueError(f"{path}: its config is not one of FILM's ({error}); update this program") from error
    return from_params(params, config), metadata


def save(
    path: str | Path,
    params: Params,
    config: FilmConfig,
    metadata: Mapping[str, Any] | None = None,
    *,
    dtype: str = "float32",
    overwrite: bool = False,
) -> None:
    """Writes weights that `load` reads."""
    save_weights(
        path,
        params,
        kind=KIND,
        config=dataclasses.asdict(config),
        metadata=metadata or {},
        dtype=dtype,
        overwrite=overwrite,
    )


def save_model(path: str | Path, model: Film, metadata: Mapping[str, Any] | None = None, **options: Any) -> None:
    """`save` for a network."""
    save(path, nnx.to_pure_dict(nnx.state(model)), model.config, metadata, **options)
