"""Weight files of a REVEAL network, which carry their own config."""

import dataclasses
from pathlib import Path
from typing import Any

from flax import nnx

from common.io.tensor_files import about
from common.nn.init import split
from common.weights import model_file
from common.weights.porting import Tree, assemble
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal
from reveal.network.tower import Tower

KIND = "reveal"
FILE = "weights.safetensors"


def save(path: str | Path, params: Tree, config: RevealConfig, **options: Any) -> Path:
    """`options` and errors as of `common.weights.model_file.save_weights`."""
    return model_file.save_weights(path, params, kind=KIND, config=dataclasses.asdict(config), **options)


def load(path: str | Path) -> Reveal:
    """The network in a file or a run's folder. Raises FileNotFoundError or ValueError."""
    return load_with_metadata(path)[0]


def load_with_metadata(path: str | Path) -> tuple[Reveal, model_file.Metadata]:
    """The network and the file's header; raises as `load`."""
    flat, header = model_file.load_weights(file_of(path), expect_kind=KIND)
    with about(Path(path)):
        return assemble(Reveal, RevealConfig.from_json(header.config), flat), header


def load_params(path: str | Path, config: RevealConfig) -> Tree:
    """The parameters in a file, for a network of `config`, whose prior and weights in a score may differ, and which may
    have a tower that the file lacks: that begins at random. Raises ValueError for another."""
    flat, header = model_file.load_weights(file_of(path), expect_kind=KIND)
    stored = RevealConfig.from_json(header.config)
    tower = stored.tower or config.tower
    if tower is not None and config.tower is not None:
        tower = dataclasses.replace(tower, weight=config.tower.weight, heads_weight=config.tower.heads_weight)
    if dataclasses.replace(stored, prior=config.prior, tower=tower) != config:
        raise ValueError(f"{path} holds {stored}, the task asks for {config}: set task.network to the file's")
    with about(Path(path)):
        params = split(assemble(Reveal, stored, flat))[1]
    if stored.tower is None and config.tower is not None:
        tower = Tower(config.tower, config.vit.image_size, rngs=nnx.Rngs(0))
        params = {**params, "tower": split(tower)[1]}
    return params


def file_of(path: str | Path) -> Path:
    path = Path(path)
    return path / FILE if path.is_dir() else path
