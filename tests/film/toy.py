"""The smallest FILM that has every component, for tests of what is around the network. Its weights are random."""

import dataclasses
import functools
import json

import jax
import numpy as np
from flax import nnx

from common.nn.init import blank
from common.weights.porting import assemble, export, flatten
from film.model import Film, FilmConfig
from film.porting import key_table

CONFIG = FilmConfig(3, 2, 1, 2, (1, 1), (8, 8), 8)
WORDS = [  # of train.py: that network instead of an experiment's
    *("task.model._target_=film.model.FilmConfig", "++task.levels=3"),
    *(f"++task.model.{name}={json.dumps(value)}" for name, value in dataclasses.asdict(CONFIG).items()),
]
DIRECT = dataclasses.replace(CONFIG, correlation_radius=(1, 0), bilateral=True, blend=True)  # for any moment


def toy(config: FilmConfig = CONFIG, seed: int = 0) -> Film:
    """As `Film(config, rngs=...)`, drawn by NumPy: JAX would compile a program for each shape."""

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        scale = np.sqrt(2 / np.prod(shape[:-1])) if len(shape) > 1 else 0.01
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    rng = np.random.default_rng(seed)
    shapes = flatten(blank(Film, config)[1])
    return assemble(Film, config, {path: draw(leaf.shape) for path, leaf in shapes.items()})


network = functools.cache(toy)  # one for all tests that leave it as it is


def parameters(model: Film) -> dict[str, np.ndarray]:
    """Flat, by dotted name."""
    return {path: np.asarray(leaf) for path, leaf in flatten(nnx.to_pure_dict(nnx.state(model))).items()}


def foreign(model: Film, vocabulary: str) -> dict[str, np.ndarray]:
    """The parameters by their names in another program: the inverse of `film.porting`."""
    return export(nnx.to_pure_dict(nnx.state(model)), key_table(model.config, vocabulary))


def assert_same_parameters(one: Film, other: Film) -> None:
    assert one.config == other.config
    ours, theirs = parameters(one), parameters(other)
    assert ours.keys() == theirs.keys() and len(jax.tree.leaves(ours)) > 10
    for path, value in ours.items():
        assert value.dtype == theirs[path].dtype == np.float32
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)
