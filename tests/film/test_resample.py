"""Resizing and pooling against TensorFlow's numbers, and the identities that the network relies on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipe import DATA

from film.ops.resample import _interpolate, average_pool, resize_bilinear, resize_nearest

REFERENCE = np.load(DATA / "resize.npz")


def maps(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, height, width, 2)).astype(np.float32)


@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize(("name", "resize"), [("bilinear", resize_bilinear), ("nearest", resize_nearest)])
def test_resizes_equal_the_reference(case, name, resize):
    expected = REFERENCE[f"{name}_{case}"]
    ours = jax.jit(lambda x: resize(x, expected.shape[1:3]))(REFERENCE[f"in_{case}"])
    np.testing.assert_allclose(ours, expected, atol=1e-6 if name == "bilinear" else 0)


@pytest.mark.parametrize("size", [(3, 5), (1, 7), (2, 1)])
def test_doubling_equals_the_general_path(size):
    x = jnp.asarray(maps(*size))
    height, width = 2 * size[0], 2 * size[1]
    doubled = jax.jit(lambda x: resize_bilinear(x, (height, width)))(x)
    general = jax.jit(lambda x: _interpolate(_interpolate(x, 1, height), 2, width))(x)
    np.testing.assert_allclose(doubled, general, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(6, 8), (7, 9)])
def test_pooling_is_the_mean_of_blocks_without_the_odd_line(height, width):
    x = maps(height, width)
    blocks = x[:, : height // 2 * 2, : width // 2 * 2].reshape(2, height // 2, 2, width // 2, 2, 2)
    np.testing.assert_allclose(average_pool(jnp.asarray(x)), blocks.mean(axis=(2, 4)), atol=1e-6)
