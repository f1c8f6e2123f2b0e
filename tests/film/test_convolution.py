"""Convolution: its own kernel gradient against XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from film.ops.convolution import TILE_PIXELS, conv2d


def plain(x, kernel, padding):
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(("size", "kernel", "padding"), [
    ((5, 9), (1, 2), [(0, 0), (0, 1)]),
    ((5, 9), (3, 3), "VALID"),
    ((96, 40), (3, 3), "SAME"),
    ((3, TILE_PIXELS + 1), (3, 3), [(2, 0), (0, 2)]),
], ids=str)  # fmt: skip
def test_gradients_are_those_of_the_convolution(size, kernel, padding):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, *size, 5)).astype(np.float32))
    weights = jnp.asarray(rng.normal(size=(*kernel, 5, 4)).astype(np.float32))
    ours, pull = jax.vjp(lambda x, k: conv2d(x, k, padding), x, weights)
    theirs, pull_theirs = jax.vjp(lambda x, k: plain(x, k, padding), x, weights)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    gradient = jnp.asarray(rng.normal(size=ours.shape).astype(np.float32))
    for mine, reference in zip(pull(gradient), pull_theirs(gradient), strict=True):
        np.testing.assert_allclose(mine, reference, atol=3e-5 * float(jnp.abs(reference).max()))


def test_bfloat16_sums_in_float32():
    rng = np.random.default_rng(1)
    x, g = (jnp.asarray(rng.normal(size=(2, 64, 64, 3)), jnp.bfloat16) for _ in range(2))
    kernel = jnp.zeros((3, 3, 3, 3), jnp.bfloat16)
    found = jax.vjp(lambda k: conv2d(x, k), kernel)[1](g)[0]
    x, g, kernel = (array.astype(np.float32) for array in (x, g, kernel))
    exact = jax.vjp(lambda k: plain(x, k, "SAME"), kernel)[1](g)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), exact[0], rtol=2**-8, atol=0.05)


def test_a_batch_on_two_devices_stays_there():
    """One all-reduce, for the sum over the batch, and none inside the loop over rows."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x = jax.device_put(jnp.ones((4, 256, 16, 3)), spread)
    kernel = jnp.ones((3, 3, 3, 8))
    compiled = jax.jit(jax.grad(lambda k, x: conv2d(x, k).sum())).lower(kernel, x).compile().as_text()
    assert compiled.count(" all-reduce(") == 1 and " all-gather(" not in compiled
    loop = compiled[: compiled.index("ENTRY")]  # bodies come before the program that runs them
    assert " dot(" in loop and "all-reduce(" not in loop
