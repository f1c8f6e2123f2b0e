"""Conversions between predictions, training targets and weights, and guidance."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from plugins.diffusion.samplers.predictions import (
    add_noise,
    answer,
    convert,
    estimate,
    min_snr_weight,
    scales,
    snr,
    training_target,
    velocity,
)
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.steering import guide

DATA = Path(__file__).parents[1] / "data/plugins"
TRAIN = np.load(DATA / "schedulers.npz", allow_pickle=False)


def example():
    """Picture, noise, timesteps."""
    sample, noise = (jnp.asarray(TRAIN[f"train/{name}"], jnp.float32) for name in ("x0", "noise"))
    return sample, noise, jnp.asarray(TRAIN["train/t"], jnp.int32)


def test_noisy_samples_and_velocities():
    sample, noise, t = example()
    np.testing.assert_allclose(add_noise(Schedule(), sample, noise, t), TRAIN["train/noisy"], atol=2e-6)
    np.testing.assert_allclose(velocity(Schedule(), sample, noise, t), TRAIN["train/velocity"], atol=2e-6)


def test_weights_of_timesteps():
    ratio = snr(Schedule(), jnp.arange(1000))
    np.testing.assert_allclose(ratio, TRAIN["train/snr"], rtol=5e-5)
    np.testing.assert_allclose(min_snr_weight(ratio, "epsilon"), TRAIN["train/min_snr5_eps"], rtol=5e-5)
    np.testing.assert_allclose(min_snr_weight(ratio, "v_prediction"), TRAIN["train/min_snr5_v"], rtol=5e-5)


def test_weights_stay_finite_where_nothing_of_the_picture_is_left():
    schedule = Schedule(rescale_betas_zero_snr=True, prediction_type="v_prediction")
    ratio = snr(schedule, jnp.arange(1000))
    assert ratio[-1] == 0
    for kind, last in (("epsilon", 1), ("v_prediction", 0), ("sample", 0)):
        weights = min_snr_weight(ratio, kind)
        assert jnp.isfinite(weights).all() and weights[-1] == last


# v belongs to alpha^2 + sigma^2 = 1, flow to alpha + sigma = 1, the others to both.
@pytest.mark.parametrize(
    ("source", "target", "alpha"),
    [
        *((*pair, 0.8) for pair in itertools.product(("epsilon", "v_prediction", "sample"), repeat=2)),
        *((*pair, 0.4) for pair in itertools.product(("epsilon", "flow", "sample"), repeat=2)),
    ],
)
def test_every_prediction_says_the_same(source, target, alpha):
    sample, noise, _ = example()
    alpha, sigma = jnp.float32(alpha), jnp.float32(0.6)
    given, wanted = (answer(kind, sample, noise, alpha, sigma) for kind in (source, target))
    converted = convert(source, target, given, alpha * sample + sigma * noise, alpha, sigma)
    np.testing.assert_allclose(converted, wanted, atol=3e-6)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_the_training_target_is_what_the_samplers_take(kind):
    sample, noise, t = example()
    schedule = Schedule(prediction_type=kind)
    target, x = training_target(schedule, sample, noise, t), add_noise(schedule, sample, noise, t)
    known = estimate(kind, target, x, *scales(schedule, t, x.ndim))
    np.testing.assert_allclose(known.sample, sample, atol=5e-5)
    np.testing.assert_allclose(known.noise, noise, atol=5e-4)


def test_guidance():
    data = np.load(DATA / "cfg_io.npz", allow_pickle=False)
    uncond, cond, scale = jnp.asarray(data["uncond"]), jnp.asarray(data["cond"]), float(data["scale"])
    np.testing.assert_allclose(guide(uncond, cond, scale), data["guided"], atol=1e-5)
    np.testing.assert_allclose(guide(uncond, cond, scale, 0.7), data["rescaled_phi07"], atol=1e-5)
    np.testing.assert_array_equal(guide(uncond, cond, 0.0), uncond)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: guide(x, x, 7.5, 1.5), "1.5"),
        (lambda x: estimate("noise", x, x, x, x), "noise"),
        (lambda x: convert("epsilon", "score", x, x, x, x), "score"),
        (lambda x: min_snr_weight(x, "flow"), "flow"),
        (lambda x: min_snr_weight(x, "epsilon", 0.0), "gamma=0.0"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(jnp.ones(2))
    assert "\n" not in str(caught.value)


def test_min_snr_leaves_the_noisiest_timesteps_out():
    """Of a schedule that ends in noise alone, with v-prediction: why the shipped base was trained further without."""
    schedule = Schedule(prediction_type="v_prediction", rescale_betas_zero_snr=True)
    weights = np.asarray(min_snr_weight(snr(schedule, jnp.arange(1000)), "v_prediction"))
    assert weights[-1] == 0 and weights[667:].sum() / weights.sum() == pytest.approx(0.024, abs=0.001)
