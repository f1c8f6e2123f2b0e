"""Noise schedules, spacing, predictions, training targets and guidance against arrays of diffusers 0.42.1."""

import dataclasses
import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused

from plugins.diffusion.samplers import schedules
from plugins.diffusion.samplers.sampler import predict
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule, solver_timesteps, spaced_timesteps
from plugins.diffusion.steering import guide
from plugins.diffusion.training.losses import add_noise, min_snr_weight, scales, snr, target, training_target

DATA = Path(__file__).parents[1] / "data/plugins"
TRAIN = np.load(DATA / "schedulers.npz", allow_pickle=False)  # of 1,000 timesteps every ninth, first and last included
ZERO_SNR = Schedule(rescale_betas_zero_snr=True, prediction_type="v_prediction")
X0, EPS = (jnp.asarray(TRAIN[f"train/{name}"], jnp.float32) for name in ("x0", "noise"))
T = jnp.asarray(TRAIN["train/t"], jnp.int32)


@pytest.mark.parametrize("name", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_betas(name):
    # The reference is float32: at 1 - alpha_bar it loses digits that ours keeps.
    np.testing.assert_allclose(Schedule(beta_schedule=name).betas[::9], TRAIN[f"train/betas_{name}"], atol=5e-8)


def test_alphas_and_sigmas():
    schedule = Schedule()
    np.testing.assert_allclose(schedule.alphas_cumprod[::9], TRAIN["train/alphas_cumprod"], atol=1e-6)
    np.testing.assert_allclose(schedule.sigmas[::9] ** -2, TRAIN["train/snr"], rtol=5e-5)
    assert schedule.alpha_bar(np.array([-1.0]))[0] == schedule.alphas_cumprod[0]
    assert dataclasses.replace(schedule, set_alpha_to_one=True).alpha_bar(np.array([-1.0]))[0] == 1
    given = Schedule(trained_betas=[0.1, 0.2, 0.3])
    assert given.num_train_timesteps == 3 and hash(given) == hash(Schedule(trained_betas=(0.1, 0.2, 0.3)))
    np.testing.assert_allclose(given.alphas_cumprod, [0.9, 0.72, 0.504])


def test_zero_terminal_snr():
    np.testing.assert_allclose(schedules.zero_terminal_snr(Schedule().betas)[::9], TRAIN["train/betas_zsnr"], atol=1e-5)
    assert ZERO_SNR.alphas_cumprod[-1] == 0 and np.isfinite(ZERO_SNR.sigmas).all()
    np.testing.assert_allclose(ZERO_SNR.alphas_cumprod[0], Schedule().alphas_cumprod[0], rtol=1e-12)


def test_spacings():
    assert spaced_timesteps(1000, 4, "leading", 1).tolist() == [751, 501, 251, 1]
    assert spaced_timesteps(1000, 4, "trailing").tolist() == [999, 749, 499, 249]
    assert spaced_timesteps(1000, 4, "linspace").tolist() == [999, 666, 333, 0]
    assert solver_timesteps(1000, 4, "linspace").tolist() == [999, 749, 500, 250]
    assert solver_timesteps(1000, 4, "leading", 1).tolist() == [801, 601, 401, 201]
    assert np.all(np.diff(solver_timesteps(1000, 999, "leading")) == -1)
    refused(ValueError, solver_timesteps, 1000, 1000, "leading", match="1 to 999")
    assert spaced_timesteps(1000, 1, "linspace").tolist() == [999]
    for space in (schedules.karras_sigmas, schedules.exponential_sigmas):
        sigmas = space(10.0, 0.1, 7)
        np.testing.assert_allclose(sigmas[[0, -1]], [10, 0.1])
        assert (np.diff(sigmas) < 0).all()


def test_flow_levels_are_shifted_up():
    plain, moved = FlowSchedule().levels(5), FlowSchedule(shift=3.0).levels(5)
    assert plain[0] == moved[0] == 1 and plain[-1] == moved[-1] == 0
    assert (moved[1:-1] > plain[1:-1]).all()


def test_noisy_samples_and_velocities():
    np.testing.assert_allclose(add_noise(Schedule(), X0, EPS, T), TRAIN["train/noisy"], atol=2e-6)
    velocity = training_target(Schedule(prediction_type="v_prediction"), X0, EPS, T)
    np.testing.assert_allclose(velocity, TRAIN["train/velocity"], atol=2e-6)


def test_min_snr_weights():
    ratio = snr(Schedule(), jnp.arange(1000))
    np.testing.assert_allclose(ratio[::9], TRAIN["train/snr"], rtol=5e-5)
    np.testing.assert_allclose(min_snr_weight(ratio[::9], "epsilon"), TRAIN["train/min_snr5_eps"], rtol=5e-5)
    np.testing.assert_allclose(min_snr_weight(ratio[::9], "v_prediction"), TRAIN["train/min_snr5_v"], rtol=5e-5)
    ratio = snr(ZERO_SNR, jnp.arange(1000))
    for kind, last in (("epsilon", 1), ("v_prediction", 0), ("sample", 0)):
        weights = min_snr_weight(ratio, kind)
        assert jnp.isfinite(weights).all() and weights[-1] == last
    weights = min_snr_weight(ratio, "v_prediction")  # so the shipped base was trained on without: docs/diffusion.md
    assert weights[667:].sum() / weights.sum() == pytest.approx(0.024, abs=0.001)


# v belongs to alpha^2 + sigma^2 = 1, flow to alpha + sigma = 1, the others to both.
@pytest.mark.parametrize("kinds, alpha", [(("epsilon", "v_prediction", "sample"), 0.8), (("epsilon", "flow"), 0.4)])
def test_every_prediction_gives_x0_and_eps(kinds, alpha):
    alpha, sigma = jnp.float32(alpha), jnp.float32(0.6)
    for source, other in itertools.product(kinds, repeat=2):
        output = target(source, X0, EPS, alpha, sigma)
        prediction = predict(source, output, alpha * X0 + sigma * EPS, alpha, sigma)
        expected = target(other, X0, EPS, alpha, sigma)
        np.testing.assert_allclose(target(other, prediction.x0, prediction.eps, alpha, sigma), expected, atol=3e-6)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_the_training_target_is_the_samplers_prediction(kind):
    schedule = Schedule(prediction_type=kind)
    output, x = training_target(schedule, X0, EPS, T), add_noise(schedule, X0, EPS, T)
    prediction = predict(kind, output, x, *scales(schedule, T, x.ndim))
    np.testing.assert_allclose(prediction.x0, X0, atol=5e-5)
    np.testing.assert_allclose(prediction.eps, EPS, atol=5e-4)


def test_guidance():
    data = np.load(DATA / "cfg_io.npz", allow_pickle=False)
    uncond, cond, scale = jnp.asarray(data["uncond"]), jnp.asarray(data["cond"]), float(data["scale"])
    for phi, name in ((0.0, "guided"), (0.7, "rescaled_phi07")):  # every seventh element
        np.testing.assert_allclose(guide(uncond, cond, scale, phi).ravel()[::7], data[name], atol=1e-5)
    np.testing.assert_array_equal(guide(uncond, cond, 0.0), uncond)


ONES = jnp.ones(2)


@pytest.mark.parametrize("call, message", [
    (lambda: guide(ONES, ONES, 7.5, 1.5), "1.5"),
    (lambda: predict("noise", ONES, ONES, ONES, ONES), "noise"),
    (lambda: target("score", ONES, ONES, ONES, ONES), "score"),
    (lambda: min_snr_weight(ONES, "flow"), "flow"),
    (lambda: min_snr_weight(ONES, "epsilon", 0.0), "gamma=0.0"),
    (lambda: spaced_timesteps(1000, 0, "leading"), "steps=0"),
    (lambda: spaced_timesteps(1000, 1000, "leading", 1), "timestep 1000"),
])  # fmt: skip
def test_bad_arguments(call, message):
    refused(ValueError, call, match=message)
