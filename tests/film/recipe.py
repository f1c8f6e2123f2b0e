"""What the reference fixtures were made from, drawn anew: weights by a seed, inputs by a formula.

Weights: `crc32(name)` seeds a RandomState; kernels are scaled by sqrt(2 / (kh * kw * inputs)), biases by 0.05. The
manifests beside the fixtures hold sums to check that against. Inputs: `scene`. Outputs of the reference program are
stored at every `STEP`-th row and column (`sampled`): every output depends on its whole surroundings, and 5 has no
factor in common with the pyramid's 2.
"""

import dataclasses
import functools
import json
import zlib
from pathlib import Path

import numpy as np

from common.nn.init import blank
from common.weights.porting import flatten
from film.model import Film, FilmConfig
from film.porting import from_tf_variables, key_table

STEP = 5
DATA = Path(__file__).parents[1] / "data" / "film"


def manifest(name: str) -> dict:
    return json.loads((DATA / f"{name}_manifest.json").read_text())


def config(name: str) -> FilmConfig:
    return FilmConfig(**manifest(name)["config"])


def variable(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    scale = np.sqrt(2 / np.prod(shape[:3])) if name.endswith("kernel") else 0.05
    return (values * scale).astype(np.float32)


@functools.cache
def variables(name: str) -> dict[str, np.ndarray]:
    """All variables of the "tiny" or "full" network by TensorFlow name."""
    return {entry["name"]: variable(entry["name"], tuple(entry["shape"])) for entry in manifest(name)["variables"]}


@functools.cache
def model(name: str) -> Film:
    return from_tf_variables(variables(name), config(name))


def narrow() -> Film:
    """The network in the PyTorch files: "tiny" with a quarter of its channels."""
    narrower = dataclasses.replace(config("tiny"), filters=2, flow_filters=(2, 4, 4))
    shapes = flatten(blank(Film, narrower)[1])
    names = {path: entry.source for path, entry in key_table(narrower, "variables").items()}
    return from_tf_variables({names[path]: variable(names[path], shapes[path].shape) for path in names}, narrower)


def scene(height: int, width: int, time: float) -> np.ndarray:
    """A disc that moves (12, 4.5) px over a ground that moves (6, -3) px in the time from 0 to 1; float32 [h w 3]."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    u, v = x - 6 * time, y + 3 * time
    waves = (np.sin(2 * np.pi * (u / (37 + 5 * c) + v / (53 - 4 * c)) + c) for c in range(3))
    ripples = (np.cos(2 * np.pi * (v / (29 + 3 * c) - u / 23) + 0.7 * c) for c in range(3))
    ground = np.stack([0.5 + 0.18 * a + 0.12 * b for a, b in zip(waves, ripples, strict=True)], -1)
    u, v = x - 12 * time, y - 4.5 * time
    outside = np.hypot(u - 0.4 * width, v - 0.55 * height) - 0.16 * min(height, width)
    alpha = 1 / (1 + np.exp(outside / 1.5))[..., None]
    disc = (0.75 + 0.25 * np.sin(u / 6))[..., None] * np.array([0.9, 0.35, 0.15])
    return (ground + (disc - ground) * alpha).astype(np.float32)


def pair(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """x0 and x1, float32 [1 h w 3]."""
    return scene(height, width, 0)[None], scene(height, width, 1)[None]


def two_pairs() -> tuple[np.ndarray, np.ndarray]:
    """x0 and x1, float32 [2 64 96 3]; the second pair is the first backwards and upside down."""
    x0, x1 = scene(64, 96, 0), scene(64, 96, 1)
    return np.stack([x0, x1[::-1]]), np.stack([x1, x0[::-1]])


def losses() -> dict[str, np.ndarray]:
    """The inputs `prediction` and `y` of the losses, float32 [2 64 96 3], with the reference's values of some."""
    x0, x1 = scene(64, 96, 0), scene(64, 96, 1)
    y = np.float32(0.9) * np.stack([x1, x1[:, ::-1]]) + np.float32(0.05)
    return dict(np.load(DATA / "losses.npz")) | {"prediction": np.stack([x0, x0[:, ::-1]]), "y": y}


def sampled(array: np.ndarray) -> np.ndarray:
    """What is stored of an output [... h w c]: all of a small one."""
    large = array.ndim >= 3 and min(array.shape[-3:-1]) >= 32
    return array[..., ::STEP, ::STEP, :] if large else array
