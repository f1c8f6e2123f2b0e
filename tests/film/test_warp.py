"""Backward warping: the reference's values and gradients, flow as (dx, dy), clamped at the edge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipe import DATA
from refusal import refused

import film.warp
from film.ops.row_tiling import even_share
from film.warp import backward_warp, forward_warp

REFERENCE = np.load(DATA / "warp.npz")
one_by_one = jax.vmap(lambda image, flow: backward_warp(image[None], flow[None])[0])
MODES = {"jit": jax.jit(backward_warp), "vmap": jax.jit(one_by_one)}
IMAGE = np.random.default_rng(0).random((2, 5, 6, 3)).astype(np.float32)


def constant_flow(dx: float, dy: float) -> jax.Array:
    return jnp.broadcast_to(jnp.array([dx, dy], jnp.float32), (2, 5, 6, 2))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(("case", "mode"), [*((case, "jit") for case in range(5)), (2, "vmap")])
def test_values_and_both_gradients_equal_the_reference(monkeypatch, case, mode, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    jax.clear_caches()
    image, flow, cotangent = (jnp.asarray(REFERENCE[f"{k}_{case}"]) for k in ("image", "flow", "cotangent"))
    out, pull = jax.vjp(MODES[mode], image, flow)
    grad_image, grad_flow = pull(cotangent)
    np.testing.assert_allclose(out, REFERENCE[f"out_{case}"], atol=2e-6)
    np.testing.assert_allclose(grad_image, REFERENCE[f"grad_image_{case}"], atol=5e-6)
    np.testing.assert_allclose(grad_flow, REFERENCE[f"grad_flow_{case}"], atol=5e-6)


@pytest.mark.parametrize(("dx", "dy", "x", "y"), [(-1e6, -1e6, 0, 0), (1e6, -1e6, -1, 0)])
def test_far_outside_is_the_corner_with_no_gradient(dx, dy, x, y):
    out, pull = jax.vjp(lambda flow: MODES["jit"](jnp.asarray(IMAGE), flow), constant_flow(dx, dy))
    np.testing.assert_allclose(out, np.broadcast_to(IMAGE[:, y, x][:, None, None], out.shape), atol=1e-6)
    np.testing.assert_array_equal(pull(jnp.ones_like(out))[0], 0)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_many_gradients_of_bfloat16_add_up(monkeypatch, backend):
    """In bfloat16 a sum of ones ends at 256."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    image, to_corner = jnp.zeros((1, 32, 32, 1), jnp.bfloat16), jnp.full((1, 32, 32, 2), -1e6)
    gradient = jax.grad(lambda image: backward_warp(image, to_corner).astype(jnp.float32).sum())(image)
    assert gradient.dtype == jnp.bfloat16
    assert gradient[0, 0, 0, 0] == gradient.sum() == 32 * 32


def test_nan_is_not_hidden():
    out = np.asarray(MODES["jit"](jnp.asarray(IMAGE), constant_flow(0, 0).at[0, 2, 3, 0].set(jnp.nan)))
    assert np.isnan(out[0, 2, 3]).all() and np.isnan(out).sum() == 3


@pytest.mark.parametrize("size", [(1, 8), (8, 1)])
def test_one_pixel_sides_are_refused(size):
    refused(ValueError, backward_warp, jnp.zeros((1, *size, 3)), jnp.zeros((1, *size, 2)), match=f"{size[1]}x{size[0]}")


def test_rows_and_tiles_equal_the_whole(monkeypatch):
    rng = np.random.default_rng(5)
    image, flow = (jnp.asarray(rng.normal(0, 4, (2, 9, 7, c)).astype(np.float32)) for c in (5, 2))
    whole = backward_warp(image, flow)
    for top in (0, 3, 5):
        rows = MODES["jit"](image, flow[:, top : top + 4], jnp.asarray(top))
        np.testing.assert_allclose(rows, whole[:, top : top + 4], atol=1e-6)
    for values in (1, 40, 200):
        monkeypatch.setattr("film.warp.TILE_VALUES", values)
        assert even_share(2 * 9, 7 * 5, film.warp.TILE_VALUES) < 2 * 9
        np.testing.assert_allclose(backward_warp(image, flow), whole, atol=1e-6)


def test_the_forward_warp_is_the_transpose():
    keys = jax.random.split(jax.random.key(0), 3)
    image, values = (jax.random.normal(key, (2, 6, 7, 3)) for key in keys[:2])
    flow = 4 * jax.random.normal(keys[2], (2, 6, 7, 2))
    one = jnp.vdot(backward_warp(image, flow), values)
    np.testing.assert_allclose(one, jnp.vdot(image, forward_warp(values, flow)), rtol=1e-4)
