"""The reference's fixtures, the networks that they were made with, and a smaller one at random."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.nn.init import blank
from common.weights import porting
from reveal.network.config import RevealConfig, VitConfig
from reveal.network.model import Reveal
from reveal.network.porting import merged, source_name

DATA = Path(__file__).parents[1] / "data" / "reveal"
# `meta_modules.json` of the fixtures
REFERENCE = RevealConfig(
    VitConfig(width=32, depth=1, heads=2, mlp=128, patch=8, image_size=16),
    vocab_size=96, width=32, heads=4, head_dim=8, mlp=48, encoder_layers=4, decoder_layers=2, fusion_layers=2,
    key_dim=16, value_tokens=3, sources=3, bos=90,
)  # fmt: skip
# Odd numbers of everything that may be odd, and attention as wide as the states nowhere.
SMALL = dataclasses.replace(
    REFERENCE, vocab_size=29, width=20, heads=3, head_dim=4,
    encoder_layers=3, fusion_layers=1, key_dim=7, sources=2, bos=2,
)  # fmt: skip


@functools.cache
def fixture(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def parameters(name: str) -> dict[str, np.ndarray]:
    """The reference's parameters of a fixture, by its names."""
    return {key.removeprefix("param:"): value for key, value in fixture(name).items() if key.startswith("param:")}


def arrays(name: str) -> dict[str, jax.Array]:
    return {key: jnp.asarray(value) for key, value in fixture(name).items()}


def filled(name: str, modules: dict[str, nnx.Module], prefix: str = "") -> dict[str, jax.Array]:
    """A fixture's arrays; gives modules, by their paths in `Reveal`, all its parameters, whose names lack `prefix`."""
    params = parameters(name)
    for ours, module in modules.items():
        state = nnx.to_pure_dict(nnx.state(module))
        names = {path: source_name(f"{ours}.{path}").removeprefix(prefix) for path in porting.flatten(state)}
        shapes = {path: leaf.shape for path, leaf in porting.flatten(state).items()}
        flat = {path: jnp.asarray(merged(params.pop(name), shapes[path])) for path, name in names.items()}
        nnx.update(module, porting.unflatten_like(flat, state))
    assert not params
    return arrays(name)


def drawn(config: RevealConfig, seed: int = 0) -> Reveal:
    """Nearly as `Reveal(config, rngs=...)`, drawn by NumPy: JAX would compile a program for each shape."""

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        if name in ("scale", "bias"):
            return jnp.full(leaf.shape, name == "scale", jnp.float32)
        variance = {"embedding": 1, "latents": 1, "kernel": 1 / np.prod(leaf.shape[:-1])}.get(name, 0.06)
        return jnp.asarray(rng.standard_normal(leaf.shape) * np.sqrt(variance), jnp.float32)

    rng = np.random.default_rng(seed)
    graph, shapes = blank(Reveal, config)
    return nnx.merge(graph, jax.tree.map_with_path(draw, shapes))


@functools.cache
def small(**changes) -> Reveal:
    """A network at random."""
    return drawn(dataclasses.replace(SMALL, **changes), 3)


def shallow(**changes) -> Reveal:
    """`small` with one layer in each stack: half the time to compile."""
    return small(encoder_layers=2, decoder_layers=1, **changes)


def close(ours, theirs, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=atol)
