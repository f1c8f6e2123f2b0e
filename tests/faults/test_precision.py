"""In bfloat16 each network gives what it gives in float32, to the tolerance that docs/reliability.md states."""

from functools import partial

import drawn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from assistants import network as reveal
from flax import nnx
from little_worlds import WORLD
from networks import SMALL, UNet, folder, random
from networks import network as diffusers
from tiny_base import diffusion_base
from toy import toy

from plugins.control.loading import load

TOLERANCE = 0.05  # of the largest value


def film():
    frames = np.random.default_rng(0).random((2, 1, 32, 32, 3), np.float32)
    return toy(), lambda model, a, b: model(a, b, 0.5).image, frames


def unet():
    x, context = drawn.normal("x", (2, 8, 8, 3)), drawn.normal("context", (2, 7, 6))
    t = jnp.array([981, 20], jnp.int32)
    return random(UNet, SMALL), lambda model, x, context: model(x, t, context), (x, context)


def vae():
    return diffusers("vae"), lambda model, x: model.decode(x), (drawn.normal("z", (1, 4, 6, 8)).transpose(0, 2, 3, 1),)


def adapter():
    return load(folder("t2i_adapter")), lambda model, x: model.encode(x), (drawn.given("cond").transpose(0, 2, 3, 1),)


def plugin():
    image = np.random.default_rng(0).random((1, 64, 64, 3), np.float32)
    return load("mask-small"), lambda model, x: model.encode(x), (image,)


def fused():
    batch = WORLD.evaluation("held_out", 1)
    tokens = np.asarray(batch["tokens"])[:1] if "tokens" in batch else None
    assert tokens is not None
    return reveal(), lambda model, image: model.encode_query(image=image, tokens=tokens).vector, (batch["image"][:1],)


NETWORKS = {"film": film, "UNet": unet, "VAE": vae, "T2I-Adapter": adapter, "plugin": plugin, "reveal": fused}


def distance(name: str) -> float:
    """The largest difference, as a share of the largest value, of all arrays that a network gives."""
    network, call, inputs = NETWORKS[name]()
    graph, params = nnx.split(network)

    def of(dtype):
        cast = partial(jax.tree.map, lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x)
        run = jax.jit(lambda params, inputs: call(nnx.merge(graph, params), *inputs))
        found = run(cast(params), cast(tuple(map(jnp.asarray, inputs))))
        return [np.asarray(x, np.float32) for x in jax.tree.leaves(found)]

    pairs = list(zip(of(jnp.float32), of(jnp.bfloat16), strict=True))
    assert pairs and all(np.isfinite(low).all() and np.ptp(full) > 0 for full, low in pairs)
    return max(float(np.abs(full - low).max() / np.abs(full).max()) for full, low in pairs)


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_is_near_float32(name):
    assert 0 < distance(name) < TOLERANCE


@pytest.mark.long
def test_bfloat16_of_a_pipeline_and_of_a_search():
    pipeline = diffusion_base()
    full, low = (pipeline("a red apple", seeds=3, steps=2, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert 0 < np.abs(full - low).max() < 0.05
    keys = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    scores = keys @ keys.T
    rounded = keys.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (np.argmax(scores, 1) == np.argmax(rounded @ rounded.T, 1)).all()
