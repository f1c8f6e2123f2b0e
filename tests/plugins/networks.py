"""The three small networks of the reference's fixtures: their files, and what two networks have in common."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import numpy as np
import safetensors.numpy
from flax import nnx

from common import porting
from plugins.diffusion.loading import load_component

DATA = Path(__file__).parents[1] / "data" / "plugins"
FILES = {
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
    "text_encoder": "model.safetensors",
}


def stored(kind) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(DATA / kind / FILES[kind])


def parameters(module) -> dict[str, np.ndarray]:
    leaves = porting.flatten(nnx.to_pure_dict(nnx.state(module)))
    return {path: np.asarray(leaf) for path, leaf in leaves.items()}


def assert_same(module, other):
    ours, theirs = parameters(module), parameters(other)
    assert ours.keys() == theirs.keys() and module.config == other.config
    for path, value in ours.items():
        assert value.dtype == theirs[path].dtype
        np.testing.assert_array_equal(value, theirs[path], path)


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def copy(kind, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", FILES[kind]):
        shutil.copy(DATA / kind / name, folder)
    return folder


def rewrite(kind, folder: Path, tensors, name=None) -> Path:
    """A folder with the network's config and other tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / kind / "config.json", folder)
    contiguous = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    safetensors.numpy.save_file(contiguous, folder / (name or FILES[kind]))
    return folder


@functools.cache
def network(kind):
    """One of them, as its folder gives it."""
    return load_component(kind, DATA / kind)
