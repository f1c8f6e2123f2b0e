"""Noise schedules and scheduler_config.json against arrays of diffusers 0.42.1 (schedulers.npz, train/*)."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from plugins.diffusion.samplers.scheduler_config import read_schedule
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule, zero_terminal_snr
from plugins.diffusion.samplers.spacing import exponential_sigmas, karras_sigmas, solver_timesteps, spaced_timesteps

DATA = Path(__file__).parents[1] / "data/plugins"
TRAIN = np.load(DATA / "schedulers.npz", allow_pickle=False)
# The config.json of Stable Diffusion 1.5's first release, which names neither a spacing nor what is predicted.
SD15 = {
    "_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}


@pytest.mark.parametrize("name", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_betas(name):
    # The reference is float32: at 1 - alpha_bar it loses digits that ours keeps.
    np.testing.assert_allclose(Schedule(beta_schedule=name).betas, TRAIN[f"train/betas_{name}"], atol=5e-8)


def test_the_share_of_the_picture():
    schedule = Schedule()
    np.testing.assert_allclose(schedule.alphas_cumprod, TRAIN["train/alphas_cumprod"], atol=1e-6)
    np.testing.assert_allclose(schedule.sigmas**-2, TRAIN["train/snr"], rtol=5e-5)
    assert schedule.alpha_bar(np.array([-1.0]))[0] == schedule.alphas_cumprod[0]
    assert dataclasses.replace(schedule, set_alpha_to_one=True).alpha_bar(np.array([-1.0]))[0] == 1


def test_zero_terminal_snr_leaves_nothing_of_the_picture():
    np.testing.assert_allclose(zero_terminal_snr(Schedule().betas), TRAIN["train/betas_zsnr"], atol=1e-5)
    schedule = Schedule(rescale_betas_zero_snr=True, prediction_type="v_prediction")
    assert schedule.alphas_cumprod[-1] == 0
    np.testing.assert_allclose(schedule.alphas_cumprod[0], Schedule().alphas_cumprod[0], rtol=1e-12)
    assert np.isfinite(schedule.sigmas).all()


def test_given_betas_are_taken_as_they_are():
    schedule = Schedule(trained_betas=[0.1, 0.2, 0.3])
    assert schedule.num_train_timesteps == 3
    np.testing.assert_allclose(schedule.alphas_cumprod, [0.9, 0.72, 0.504])
    assert hash(schedule) == hash(Schedule(trained_betas=(0.1, 0.2, 0.3)))


def test_timesteps_of_noise_levels_are_found_again():
    schedule = Schedule()
    t = np.array([0.0, 17.0, 500.0, 999.0])
    np.testing.assert_allclose(schedule.timesteps_of(schedule.sigmas[t.astype(int)]), t, atol=1e-9)


def test_spacings():
    assert spaced_timesteps(1000, 4, "leading", 1).tolist() == [751, 501, 251, 1]
    assert spaced_timesteps(1000, 4, "trailing").tolist() == [999, 749, 499, 249]
    assert spaced_timesteps(1000, 4, "linspace").tolist() == [999, 666, 333, 0]
    assert solver_timesteps(1000, 4, "linspace").tolist() == [999, 749, 500, 250]
    assert solver_timesteps(1000, 4, "leading", 1).tolist() == [801, 601, 401, 201]
    assert spaced_timesteps(1000, 1, "linspace").tolist() == [999]


@pytest.mark.parametrize("space", [karras_sigmas, exponential_sigmas])
def test_respaced_noise_levels_keep_their_ends(space):
    sigmas = space(10.0, 0.1, 7)
    np.testing.assert_allclose(sigmas[[0, -1]], [10, 0.1])
    assert (np.diff(sigmas) < 0).all()


def test_flow_levels_are_shifted_up():
    plain, moved = FlowSchedule().levels(5), FlowSchedule(shift=3.0).levels(5)
    assert plain[0] == moved[0] == 1 and plain[-1] == moved[-1] == 0
    assert (moved[1:-1] > plain[1:-1]).all()


def test_an_old_file_means_its_class_defaults():
    assert read_schedule(SD15) == Schedule()
    assert read_schedule({"_class_name": "DDIMScheduler"}).clip_sample
    assert not read_schedule({"_class_name": "EulerDiscreteScheduler"}).clip_sample
    lcm = read_schedule({"_class_name": "LCMScheduler"})
    assert (lcm.beta_schedule, lcm.beta_end) == ("scaled_linear", 0.012)


def test_keys_that_change_the_schedule_are_read():
    changed = read_schedule({**SD15, "beta_end": 1 / 64, "prediction_type": "sample", "use_karras_sigmas": True})
    expected = Schedule(beta_end=1 / 64, prediction_type="sample", sigma_spacing="karras")
    assert changed == expected
    assert read_schedule({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3}) == FlowSchedule(shift=3.0)


@pytest.mark.parametrize(
    "change",
    [
        {"use_beta_sigmas": True},
        {"use_lu_lambdas": True},
        {"skip_prk_steps": False},
        {"beta_schedule": "sigmoid"},
        {"prediction_type": "flow_prediction"},
        {"timestep_spacing": "even"},
        {"beta_start": "0.1"},
        {"beta_start": 0.0},
        {"clip_sample": 1},
        {"trained_betas": [0.1, "x"]},
        {"rescale_betas_zero_snr": True},
        {"num_train_timesteps": 1},
        {"use_karras_sigmas": True, "use_exponential_sigmas": True},
    ],
)
def test_a_file_that_asks_for_something_else_is_refused_by_the_key(change):
    with pytest.raises(ValueError, match=next(iter(change)).removesuffix("_start")) as caught:
        read_schedule({**SD15, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spaced_timesteps(1000, 0, "leading"), "steps=0"),
        (lambda: spaced_timesteps(1000, 1001, "leading"), "steps=1001"),
        (lambda: spaced_timesteps(1000, 1000, "leading", 1), "timestep 1000"),
        (lambda: FlowSchedule().levels(0), "steps=0"),
        (lambda: FlowSchedule(shift=0.0), "shift"),
        (lambda: Schedule(sigma_min=-1.0), "sigma_min"),
    ],
)
def test_bad_numbers(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_schedule_is_a_static_argument():
    double = jax.jit(lambda x, schedule: x * schedule.num_train_timesteps, static_argnums=1)
    assert double(2.0, Schedule()) == 2000
    assert double(2.0, Schedule(prediction_type="sample")) == 2000
