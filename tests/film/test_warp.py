"""Backward warping: the reference's values and gradients, and what the words "flow" and "edge" promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recipe import DATA

import film.warp
from film.ops.row_tiling import even_share
from film.warp import backward_warp

CASES = range(5)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return dict(np.load(DATA / "warp.npz"))


@jax.jit
def one_by_one(image, flow):
    """`vmap` over the batch of a warp of one picture."""
    return jax.vmap(lambda i, f: backward_warp(i[None], f[None])[0])(image, flow)


MODES = {"eager": backward_warp, "jit": jax.jit(backward_warp), "vmap": one_by_one}


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((2, height, width, channels)).astype(np.float32)


def constant_flow(dx: float, dy: float, height: int, width: int) -> jax.Array:
    return jnp.broadcast_to(jnp.array([dx, dy], jnp.float32), (2, height, width, 2))


@pytest.mark.parametrize(("case", "mode"), [*((case, "jit") for case in CASES), (1, "eager"), (2, "vmap")])
def test_values_and_both_gradients_equal_the_reference(reference, case, mode):
    image, flow, cotangent = (jnp.asarray(reference[f"{k}_{case}"]) for k in ("image", "flow", "cotangent"))
    out, pull = jax.vjp(MODES[mode], image, flow)
    grad_image, grad_flow = pull(cotangent)
    np.testing.assert_allclose(out, reference[f"out_{case}"], atol=2e-6)
    np.testing.assert_allclose(grad_image, reference[f"grad_image_{case}"], atol=5e-6)
    np.testing.assert_allclose(grad_flow, reference[f"grad_flow_{case}"], atol=5e-6)


def test_the_reference_cases_reach_outside_the_picture(reference):
    """Else the clamping would be untested above."""
    outside = [np.abs(reference[f"flow_{case}"]).max() > reference[f"image_{case}"].shape[1] for case in CASES]
    assert any(outside)


def test_no_flow_is_the_identity():
    image = picture(5, 6)
    np.testing.assert_allclose(MODES["jit"](jnp.asarray(image), constant_flow(0, 0, 5, 6)), image, atol=1e-7)


@pytest.mark.parametrize(("dx", "dy"), [(2, 0), (-3, 0), (0, 1), (1, -2)])
def test_whole_pixels_shift_and_repeat_the_edge(dx, dy):
    image = picture(5, 6)
    rows, columns = np.clip(np.arange(5) + dy, 0, 4), np.clip(np.arange(6) + dx, 0, 5)
    warped = MODES["jit"](jnp.asarray(image), constant_flow(dx, dy, 5, 6))
    np.testing.assert_allclose(warped, image[:, rows][:, :, columns], atol=1e-6)


def test_half_a_pixel_is_the_mean_of_two():
    image = picture(5, 6)
    warped = MODES["jit"](jnp.asarray(image), constant_flow(0.5, 0, 5, 6))
    np.testing.assert_allclose(warped[:, :, :-1], 0.5 * (image[:, :, :-1] + image[:, :, 1:]), atol=1e-6)


@pytest.mark.parametrize(("dx", "dy", "corner"), [(1e6, 1e6, (-1, -1)), (-1e6, -1e6, (0, 0)), (1e6, -1e6, (0, -1))])
def test_far_outside_is_the_corner_and_moves_nothing(dx, dy, corner):
    image = jnp.asarray(picture(5, 6))
    warped, pull = jax.vjp(lambda flow: MODES["jit"](image, flow), constant_flow(dx, dy, 5, 6))
    expected = jnp.broadcast_to(image[:, corner[0], corner[1]][:, None, None], warped.shape)
    np.testing.assert_allclose(warped, expected, atol=1e-6)
    np.testing.assert_array_equal(pull(jnp.ones_like(warped))[0], 0)


def test_flow_is_x_then_y():
    ramp = np.broadcast_to(np.arange(6, dtype=np.float32)[None, None, :, None], (2, 5, 6, 3))
    moved_x, moved_y = (
        np.asarray(MODES["jit"](jnp.asarray(ramp), constant_flow(*v, 5, 6))) - ramp for v in ((1, 0), (0, 1))
    )
    np.testing.assert_allclose(moved_x[:, :, :-1], 1, atol=1e-6)
    np.testing.assert_array_equal(moved_y, 0)


def test_not_a_number_is_not_hidden():
    flow = constant_flow(0, 0, 5, 6).at[0, 2, 3, 0].set(jnp.nan)
    warped = np.asarray(MODES["jit"](jnp.asarray(picture(5, 6)), flow))
    assert np.isnan(warped[0, 2, 3]).all() and np.isnan(warped).sum() == 3


@pytest.mark.parametrize("size", [(1, 8), (8, 1), (1, 1)])
def test_one_pixel_sides_are_refused(size):
    with pytest.raises(ValueError, match="at least 2x2") as error:
        backward_warp(jnp.zeros((1, *size, 3)), jnp.zeros((1, *size, 2)))
    assert f"{size[1]}x{size[0]}" in str(error.value) and "\n" not in str(error.value)


def test_some_rows_are_those_of_the_whole():
    rng = np.random.default_rng(5)
    image, flow = (jnp.asarray(rng.normal(0, 4, (2, 9, 7, c)).astype(np.float32)) for c in (5, 2))
    whole = backward_warp(image, flow)
    for top in (0, 3, 5):
        rows = jax.jit(backward_warp)(image, flow[:, top : top + 4], jnp.asarray(top))
        np.testing.assert_allclose(rows, whole[:, top : top + 4], atol=1e-6)


@pytest.mark.parametrize("strip", [1, 40, 200])
def test_strips_give_what_the_whole_gives(strip, monkeypatch):
    rng = np.random.default_rng(3)
    image, flow = (jnp.asarray(rng.normal(0, 4, (2, 6, 7, c)).astype(np.float32)) for c in (5, 2))
    whole = backward_warp(image, flow)
    monkeypatch.setattr("film.warp.TILE_VALUES", strip)
    assert even_share(2 * 6, 7 * 5, film.warp.TILE_VALUES) < 2 * 6
    np.testing.assert_allclose(backward_warp(image, flow), whole, atol=1e-6)
