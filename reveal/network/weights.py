"""Weights of a REVEAL network in a file: they say their own shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.weights import model_file
from common.weights.porting import Tree, unflatten_like
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal

KIND = "reveal"
FILE = "weights.safetensors"


def save(
    path: str | Path,
    params: Tree,
    config: RevealConfig,
    *,
    metadata: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes parameters and shape; raises as `common.weights.model_file.save_weights`."""
    shape = dataclasses.asdict(config)
    return model_file.save_weights(
        path, params, kind=KIND, config=shape, metadata=metadata, dtype=dtype, overwrite=overwrite
    )


def load(path: str | Path) -> Reveal:
    """The network of a file, or of a run's folder. Raises FileNotFoundError or ValueError in one line."""
    return load_with_metadata(path)[0]


def load_with_metadata(path: str | Path) -> tuple[Reveal, model_file.Metadata]:
    """The network and the file's header; raises as `load`."""
    flat, config, header = _read(path)
    model = nnx.eval_shape(lambda: Reveal(config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    return nnx.merge(graph, _fitted(flat, nnx.to_pure_dict(state), path)), header


def load_params(path: str | Path, config: RevealConfig) -> Tree:
    """The parameters of a file, for a network of that shape, whatever it makes of the prior. Raises ValueError if the
    file has another's."""
    flat, found, _ = _read(path)
    if dataclasses.replace(found, prior=config.prior) != config:
        raise ValueError(f"{path} holds {found}, the task asks for {config}: give task.network that shape")
    state = nnx.state(nnx.eval_shape(lambda: Reveal(config, rngs=nnx.Rngs(0))))
    return _fitted(flat, nnx.to_pure_dict(state), path)


def file_of(path: str | Path) -> Path:
    """The file itself, or that of a run's folder."""
    path = Path(path)
    return path / FILE if path.is_dir() else path


def _read(path: str | Path) -> tuple[dict[str, np.ndarray], RevealConfig, model_file.Metadata]:
    flat, header = model_file.load_weights(file_of(path), expect_kind=KIND)
    return flat, RevealConfig.from_json(header.config), header


def _fitted(flat: Mapping[str, np.ndarray], shapes: Tree, path: str | Path) -> Tree:
    try:
        return unflatten_like({name: jnp.asarray(x) for name, x in flat.items()}, shapes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
