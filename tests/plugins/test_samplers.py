"""Samplers against 38 recorded runs of diffusers 0.42.1 (schedulers.json, schedulers.npz), and scheduler_config.json.

A run is named <scheduler>_<model>; the two models are plain functions of the scaled input. A trajectory is the start
and the sample after each call, every seventh element of each (7 divides no size); noise is what the reference drew, in
order.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused

from plugins.diffusion import samplers
from plugins.diffusion.samplers.scheduler_config import CLASSES, from_json, read_schedule, to_json
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

DATA = Path(__file__).parents[1] / "data/plugins"
RUNS = json.loads((DATA / "schedulers.json").read_text())["runs"]
ARRAYS = np.load(DATA / "schedulers.npz", allow_pickle=False)
MODELS = {
    "lin": lambda x, step: 0.1 * x,
    "nl": lambda x, step: 0.6 * jnp.tanh(x) + 0.3 * jnp.sin(2 * x) * (step.t / 1000),
}


def recorded(name: str) -> dict[str, np.ndarray]:
    return {key.split("/")[1]: ARRAYS[key] for key in ARRAYS.files if key.startswith(f"{name}/")}


@pytest.mark.parametrize("name", RUNS)
def test_recorded_run(name):
    run, arrays = RUNS[name], recorded(name)
    sampler, schedule = from_json({"_class_name": run["cls"], **run["config"]})
    plan = sampler.plan(schedule, run["steps"], **run["step_kw"])
    # The reference's schedule is float32: at its lowest noise level five digits are left, and Karras' timesteps follow.
    np.testing.assert_allclose(plan.timesteps, arrays["timesteps"], rtol=5e-5, atol=1e-9)
    np.testing.assert_allclose(plan.start_scale, arrays["init_noise_sigma"], rtol=1e-6)
    if "sigmas" in arrays:
        assert plan.sigmas is not None
        np.testing.assert_allclose(plan.sigmas, arrays["sigmas"], rtol=2e-5)
    start, noise = arrays["start"], None
    if "noise" in arrays:  # the reference draws nothing at a last step without noise; ours has a draw for each call
        missing = len(plan.timesteps) - len(arrays["noise"])
        noise = jnp.concatenate([arrays["noise"], np.zeros((missing, *start.shape), np.float32)])
    settings = {"steps": run["steps"], "noise": noise, "trajectory": True, **run["step_kw"]}
    final, samples = sampler(MODELS[run["model"]], jnp.asarray(start), schedule, **settings)
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
    ({"beta_start": 0.0}, "beta"),
    ({"clip_sample": 1}, "clip_sample"),
    ({"trained_betas": [0.1, "x"]}, "trained_betas"),
    ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr"),
    ({"num_train_timesteps": 1}, "num_train_timesteps"),
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
