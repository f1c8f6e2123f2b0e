"""Metrics and losses against the reference's numbers (`tf.image`), and values known by heart."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from common.losses import l1, masked_l1
from common.metrics import psnr, ssim


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return dict(np.load(Path(__file__).parents[1] / "data" / "film" / "losses.npz"))


def picture(height: int = 24, width: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((height, width, 3)).astype(np.float32)


@pytest.mark.parametrize(("metric", "name"), [(psnr, "psnr"), (ssim, "ssim")])
def test_metrics_equal_the_reference(reference, metric, name):
    pairs = zip(reference["prediction"], reference["y"], strict=True)
    assert np.mean([metric(*pair) for pair in pairs]) == pytest.approx(float(reference[name]), rel=2e-5)


def test_l1_equals_the_reference(reference):
    value = l1(jnp.asarray(reference["prediction"]), jnp.asarray(reference["y"]))
    assert float(value) == pytest.approx(float(reference["l1"]), rel=1e-5)


def test_psnr_of_known_errors():
    x = np.full((12, 12, 3), 0.5, np.float32)
    assert psnr(x + np.float32(0.1), x) == pytest.approx(20, abs=1e-4)
    assert psnr(x + np.float32(0.01), x) == pytest.approx(40, abs=1e-3)
    assert psnr(x, x) == np.inf


def test_metrics_look_at_the_clipped_picture():
    x = picture()
    x[:4], x[4:8] = 0, 1
    outside = x.copy()
    outside[:4], outside[4:8] = -3, 7
    assert psnr(outside, x) == np.inf and ssim(outside, x) == pytest.approx(1)


def test_ssim_of_known_pictures():
    x = picture()
    assert ssim(x, x) == pytest.approx(1)
    assert ssim(1 - x, x) < 0 < ssim(0.5 * x + 0.25, x) < 1
    flat, darker = np.full((11, 11, 3), 0.6, np.float32), np.full((11, 11, 3), 0.3, np.float32)
    assert ssim(flat, darker) == pytest.approx((2 * 0.6 * 0.3 + 1e-4) / (0.36 + 0.09 + 1e-4), rel=1e-5)
    assert ssim(x, picture(seed=1)) == pytest.approx(ssim(picture(seed=1), x))


def test_ssim_looks_only_where_its_window_fits():
    """Eleven pixels are one window: its Gaussian weights sum to one and fade towards the border."""
    x, y = picture(11, 11), picture(11, 11, seed=1)
    corner, centre = x.copy(), x.copy()
    corner[0, 0], centre[5, 5] = y[0, 0], y[5, 5]
    assert 1 - ssim(corner, x) < 1e-3 < 1 - ssim(centre, x)


def test_ssim_refuses_pictures_smaller_than_its_window():
    with pytest.raises(ValueError, match="at least 11"):
        ssim(picture(10, 40), picture(10, 40))


def test_l1_is_the_mean_of_distances():
    assert float(l1(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 4.0]))) == 1


def test_masked_l1_counts_only_what_the_mask_says():
    x, y = jnp.asarray(picture()[None]), jnp.asarray(picture(seed=1)[None])
    mask = np.zeros((1, 24, 30), np.float32)
    mask[:, :5] = 1
    assert float(masked_l1(x, y, jnp.asarray(mask))) == pytest.approx(float(l1(x[:, :5], y[:, :5])), rel=1e-5)
    assert float(masked_l1(x, y, jnp.ones((1, 24, 30)))) == pytest.approx(float(l1(x, y)), rel=1e-5)
    assert float(masked_l1(x, y, jnp.zeros((1, 24, 30)))) == 0
    grad = jax.grad(masked_l1)(x, y, jnp.asarray(mask))
    assert float(jnp.abs(grad[:, 5:]).max()) == 0 < float(jnp.abs(grad[:, :5]).min())
