"""Metrics against the numbers of the reference (`tf.image`) and scikit-image, and simple values."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from common.evaluation.metrics import L1, InterpolationError, Psnr, Ssim, psnr, ssim

DATA = Path(__file__).parents[1] / "data" / "common"
PAIRS = runpy.run_path(str(DATA / "make_pictures.py"))["pairs"]()
SKIMAGE = json.loads((DATA / "skimage.json").read_text())["scores"]


def picture(height: int = 24, width: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((height, width, 3)).astype(np.float32)


@pytest.mark.parametrize("name", PAIRS)
def test_metrics_equal_scikit_image(name):
    """tests/data/common/make_skimage.py made the numbers, from the same bytes in float64."""
    prediction, truth = (picture.astype(np.float32) / 255 for picture in PAIRS[name])
    expected = SKIMAGE[name]
    assert psnr(prediction, truth) == pytest.approx(expected["psnr"], abs=1e-5)
    assert ssim(prediction, truth) == pytest.approx(expected["ssim"], abs=1e-6)
    assert InterpolationError()(prediction, truth) == pytest.approx(expected["ie"], abs=1e-5)


def test_metrics_look_at_the_clipped_picture():
    x = picture()
    x[:4], x[4:8] = 0, 1
    outside = x.copy()
    outside[:4], outside[4:8] = -3, 7
    assert psnr(x, x) == psnr(outside, x) == np.inf and ssim(outside, x) == pytest.approx(1)
    assert L1()(np.full_like(x, 9), np.full_like(x, 1)) == 0


def test_ssim_of_known_pictures():
    x = picture()
    assert ssim(1 - x, x) < 0 < ssim(0.5 * x + 0.25, x) < 1
    assert "40, 10" in refused(ValueError, ssim, picture(10, 40), picture(10, 40))


def test_l1_and_the_interpolation_error_count_differences():
    x = np.full((4, 4, 3), 100 / 255, np.float32)
    y = x.copy()
    y[0] = 110 / 255  # a quarter of the pixels
    assert L1()(x, y) == pytest.approx(0.25 * 10 / 255, rel=1e-5)
    assert InterpolationError()(x, y) == pytest.approx(10 / 2)
    assert InterpolationError()(x + np.float32(0.4 / 255), x) == 0  # rounded to levels
    assert InterpolationError(per="pixel")(x, y) == pytest.approx(math.sqrt(3) * InterpolationError()(x, y))


def test_declared_directions_and_pointwise_metrics():
    x, y = picture(), picture(seed=1)
    for metric in (Psnr(), Ssim(), L1(), InterpolationError()):
        assert metric.lead(metric(0.9 * x, x), metric(1 - x, x)) > 0
        assert metric.lead(math.nan) == -math.inf
        if metric.pointwise:
            assert metric(x.reshape(-1, 1, 3), y.reshape(-1, 1, 3)) == pytest.approx(metric(x, y))


def test_equal_pictures_reach_the_cap_and_nan_is_never_a_good_score():
    x = picture()
    assert Psnr()(x, x) == 100 and Psnr(cap=60.0)(x + np.float32(1e-5), x) == 60
    broken = x.copy()
    broken[5, 5] = np.nan
    for metric in (Psnr(), Ssim(), L1(), InterpolationError()):
        assert math.isnan(metric(broken, x))
