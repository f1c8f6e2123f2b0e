"""Weights by the recipe of the reference fixtures: each variable is drawn from a seed made of its own name.

`crc32(name)` seeds a RandomState; kernels are scaled by sqrt(2 / (kh * kw * inputs)), biases by 0.05. The manifests
beside the fixtures hold sums to check the regeneration against.
"""

import json
import zlib
from pathlib import Path

import numpy as np

from film.model import Film, FilmConfig
from film.porting import from_tf_variables

DATA = Path(__file__).parents[1] / "data" / "film"


def manifest(name: str) -> dict:
    return json.loads((DATA / f"{name}_manifest.json").read_text())


def config(name: str) -> FilmConfig:
    return FilmConfig(**manifest(name)["config"])


def variable(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    scale = np.sqrt(2 / np.prod(shape[:3])) if name.endswith("kernel") else 0.05
    return (values * scale).astype(np.float32)


def variables(name: str) -> dict[str, np.ndarray]:
    """All variables of the "tiny" or "full" network by TensorFlow name."""
    return {entry["name"]: variable(entry["name"], tuple(entry["shape"])) for entry in manifest(name)["variables"]}


def model(name: str) -> Film:
    return from_tf_variables(variables(name), config(name))
