"""Schedules, predictions, training targets, guidance and 38 runs of samplers against arrays of diffusers 0.42.1.

A run is named <scheduler>_<model>; the two models are plain functions of the scaled input. A trajectory is the start
and the sample after each call, every seventh element of each (7 divides no size); noise is what the reference drew, in
order. Both of schedulers.json and schedulers.npz; and scheduler_config.json.
"""

import dataclasses
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused

from plugins.diffusion import samplers
from plugins.diffusion.samplers import schedules
from plugins.diffusion.samplers.sampler import predict
from plugins.diffusion.samplers.scheduler_config import CLASSES, from_json, read_schedule, to_json
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule, solver_timesteps, spaced_timesteps
from plugins.diffusion.steering import guide
from plugins.diffusion.training.losses import add_noise, min_snr_weight, snr, target, training_target

DATA = Path(__file__).parents[1] / "data/plugins"
ARRAYS = np.load(DATA / "schedulers.npz", allow_pickle=False)
ZERO_SNR = Schedule(rescale_betas_zero_snr=True, prediction_type="v_prediction")
X0, EPS = (jnp.asarray(ARRAYS[f"train/{name}"], jnp.float32) for name in ("x0", "noise"))
T = jnp.asarray(ARRAYS["train/t"], jnp.int32)  # of 1,000 timesteps every ninth, first and last included


@pytest.mark.parametrize("name", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_betas(name):
    # The reference is float32: at 1 - alpha_bar it loses digits that ours keeps.
    np.testing.assert_allclose(Schedule(beta_schedule=name).betas[::9], ARRAYS[f"train/betas_{name}"], atol=5e-8)


def test_alphas_and_sigmas():
    schedule = Schedule()
    np.testing.assert_allclose(schedule.alphas_cumprod[::9], ARRAYS["train/alphas_cumprod"], atol=1e-6)
    np.testing.assert_allclose(schedule.sigmas[::9] ** -2, ARRAYS["train/snr"], rtol=5e-5)
    assert schedule.alpha_bar(np.array([-1.0]))[0] == schedule.alphas_cumprod[0]
    assert dataclasses.replace(schedule, set_alpha_to_one=True).alpha_bar(np.array([-1.0]))[0] == 1
    given = Schedule(trained_betas=[0.1, 0.2, 0.3])
    assert given.num_train_timesteps == 3 and hash(given) == hash(Schedule(trained_betas=(0.1, 0.2, 0.3)))
    np.testing.assert_allclose(given.alphas_cumprod, [0.9, 0.72, 0.504])


def test_zero_terminal_snr():
    betas = schedules.zero_terminal_snr(Schedule().betas)
    np.testing.assert_allclose(betas[::9], ARRAYS["train/betas_zsnr"], atol=1e-5)
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


def test_noisy_samples_and_velocities():
    np.testing.assert_allclose(add_noise(Schedule(), X0, EPS, T), ARRAYS["train/noisy"], atol=2e-6)
    velocity = training_target(Schedule(prediction_type="v_prediction"), X0, EPS, T)
    np.testing.assert_allclose(velocity, ARRAYS["train/velocity"], atol=2e-6)


def test_min_snr_weights():
    ratio = snr(Schedule(), jnp.arange(1000))
    np.testing.assert_allclose(ratio[::9], ARRAYS["train/snr"], rtol=5e-5)
    np.testing.assert_allclose(min_snr_weight(ratio[::9], "epsilon"), ARRAYS["train/min_snr5_eps"], rtol=5e-5)
    np.testing.assert_allclose(min_snr_weight(ratio[::9], "v_prediction"), ARRAYS["train/min_snr5_v"], rtol=5e-5)
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


def test_guidance():
    data = np.load(DATA / "cfg_io.npz", allow_pickle=False)
    uncond, cond, scale = jnp.asarray(data["uncond"]), jnp.asarray(data["cond"]), float(data["scale"])
    for phi, name in ((0.0, "guided"), (0.7, "rescaled_phi07")):  # every seventh element
        np.testing.assert_allclose(guide(uncond, cond, scale, phi).ravel()[::7], data[name], atol=1e-5)
    np.testing.assert_array_equal(guide(uncond, cond, 0.0), uncond)


ONES = jnp.ones(2)


@pytest.mark.parametrize("call, message", [
    (lambda: predict("noise", ONES, ONES, ONES, ONES), "noise"),
    (lambda: spaced_timesteps(1000, 1000, "leading", 1), "timestep 1000"),
])  # fmt: skip
def test_bad_arguments(call, message):
    refused(ValueError, call, match=message)


RUNS = json.loads((DATA / "schedulers.json").read_text())["runs"]
MODELS = {
    "lin": lambda x, step: 0.1 * x,
    "nl": lambda x, step: 0.6 * jnp.tanh(x) + 0.3 * jnp.sin(2 * x) * (step.t / 1000),
}


def recorded(name: str) -> dict[str, np.ndarray]:
    return {key.split("/")[1]: ARRAYS[key] for key in ARRAYS.files if key.startswith(f"{name}/")}


@pytest.mark.parametrize("name", RUNS)
def test_recorded_run(name, monkeypatch):
    run, arrays = RUNS[name], recorded(name)
    sampler, schedule = from_json({"_class_name": run["cls"], **run["config"]})
    plan = sampler.plan(schedule, run["steps"], **run["step_kw"])
    # The reference's schedule is float32: at its lowest noise level five digits are left, and Karras' timesteps follow.
    np.testing.assert_allclose(plan.timesteps, arrays["timesteps"], rtol=5e-5, atol=1e-9)
    np.testing.assert_allclose(plan.start_scale, arrays["init_noise_sigma"], rtol=1e-6)
    if "sigmas" in arrays:
        assert plan.sigmas is not None
        np.testing.assert_allclose(plan.sigmas, arrays["sigmas"], rtol=2e-5)
    # The reference draws nothing at a last step without noise: an index past the end gives the last draw, times 0.
    drawn = jnp.asarray(arrays.get("noise", 0))
    monkeypatch.setattr("plugins.diffusion.samplers.sampler._normal", lambda keys, draw, shape: drawn[draw - 1])
    settings = {"steps": run["steps"], "trajectory": True, "key": jax.random.key(0), **run["step_kw"]}
    final, samples = sampler(MODELS[run["model"]], jnp.asarray(arrays["start"]), schedule, **settings)
    np.testing.assert_allclose(samples.reshape(len(samples), -1)[:, ::7], arrays["traj"], atol=6e-5)
    np.testing.assert_array_equal(final, samples[-1])


def test_all_runs_are_there_and_the_round_trip_starts_where_the_inversion_ended():
    assert len(RUNS) == 38
    inverted, back = recorded("ddim_inverse_nl")["traj"], recorded("ddim_roundtrip_nl")["traj"]
    np.testing.assert_allclose(back[0], inverted[-1], atol=1e-6)


# The config.json of Stable Diffusion 1.5's first release, which names neither a spacing nor a prediction type.
SD15 = {
    "_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0", "beta_start": 0.00085, "beta_end": 0.012,
    "beta_schedule": "scaled_linear", "clip_sample": False, "num_train_timesteps": 1000, "set_alpha_to_one": False,
    "skip_prk_steps": True, "steps_offset": 1, "trained_betas": None,
}  # fmt: skip
FLOW = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3}
DPM = {"_class_name": "DPMSolverMultistepScheduler"}


def test_a_file_names_sampler_options_and_schedule():
    options = {"algorithm_type": "sde-dpmsolver++", "solver_order": 1, "use_karras_sigmas": True}
    sampler, schedule = from_json({**SD15, **DPM, **options})
    assert dict(sampler.options) == {"order": 1, "sde": True} and schedule.sigma_spacing == "karras"
    assert from_json(SD15) == (samplers.plms, Schedule())
    assert from_json(FLOW) == (samplers.flow_euler, FlowSchedule(shift=3.0))
    changed = read_schedule({**SD15, "beta_end": 1 / 64, "prediction_type": "sample", "use_karras_sigmas": True})
    assert changed == Schedule(beta_end=1 / 64, prediction_type="sample", sigma_spacing="karras")


def test_a_missing_key_has_the_default_of_its_class():
    assert read_schedule({"_class_name": "DDIMScheduler"}).clip_sample
    assert not read_schedule({"_class_name": "EulerDiscreteScheduler"}).clip_sample
    lcm = read_schedule({"_class_name": "LCMScheduler"})
    assert (lcm.beta_schedule, lcm.beta_end) == ("scaled_linear", 0.012)


@pytest.mark.parametrize("change, message", [
    ({"_class_name": "DEISMultistepScheduler"}, "DEISMultistepScheduler"),
    ({"_class_name": None}, "None"),
    ({**DPM, "algorithm_type": "dpmsolver"}, "algorithm_type='dpmsolver'"),
    ({**DPM, "solver_order": "2"}, "solver_order='2'"),
    ({"_class_name": "DDPMScheduler", "variance_type": "learned"}, "variance_type='learned'"),
    ({"_class_name": "UniPCMultistepScheduler", "disable_corrector": [0]}, "disable_corrector"),
    ({**FLOW, "use_karras_sigmas": True}, "use_karras_sigmas"),
    ({"use_beta_sigmas": True}, "use_beta_sigmas"),
    ({"skip_prk_steps": False}, "skip_prk_steps=False"),
    ({"skip_prk_steps": ...}, "skip_prk_steps=False.*PNDMScheduler"),  # missing
    ({"beta_schedule": "sigmoid"}, "beta_schedule"),
    ({"prediction_type": "flow_prediction"}, "flow_prediction"),
    ({"timestep_spacing": "even"}, "timestep_spacing"),
    ({"beta_start": "0.1"}, "beta_start"),
    ({"trained_betas": [0.1, "x"]}, "trained_betas"),
    ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr"),
    ({"use_karras_sigmas": True, "use_exponential_sigmas": True}, "use_karras_sigmas"),
])  # fmt: skip
def test_unsupported_files_are_refused(change, message):
    mapping = {key: value for key, value in {**SD15, **change}.items() if value is not ...}
    refused(ValueError, from_json, mapping, match=message)


def test_every_sampler_with_a_class_is_written_as_it_is_read():
    for name, run in RUNS.items():
        if run["cls"] in CLASSES:
            known = from_json({"_class_name": run["cls"], **run["config"]})
            written = json.loads(json.dumps(to_json(*known)))
            sampler, schedule = from_json(written)
            assert (written["_class_name"], sampler.options, schedule) == (run["cls"], known[0].options, known[1]), name
    assert to_json(samplers.plms, Schedule())["skip_prk_steps"] is True  # diffusers' default is False
    for name in samplers.SAMPLERS:
        schedule = FlowSchedule(shift=3.0) if name == "flow_euler" else Schedule(timestep_spacing="leading")
        sampler = samplers.by_name(name)
        again, read = from_json(to_json(sampler, schedule))
        ours, theirs = sampler.plan(schedule, 10), again.plan(read, 10)
        np.testing.assert_array_equal(ours.timesteps, theirs.timesteps, name)
        for column in ours.columns:
            np.testing.assert_array_equal(ours.columns[column], theirs.columns[column], name)
    refused(ValueError, lambda: to_json(samplers.ddim.with_options(eta=0.5), Schedule()), match=r"eta=0\.5")
