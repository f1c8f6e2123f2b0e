"""Every sampler against 38 recorded runs of diffusers 0.42.1 (schedulers.json, schedulers.npz).

A run is named <scheduler>_<model>; the two models are plain functions of the scaled input. A trajectory is the start
and the sample after each call; noise is what the reference drew, in order.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from plugins.diffusion import samplers
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


def test_all_runs_are_here():
    assert len(RUNS) == 38


@pytest.mark.parametrize("name", RUNS)
def test_recorded_run(name):
    run, arrays = RUNS[name], recorded(name)
    sampler, schedule = samplers.from_json({"_class_name": run["cls"], **run["config"]})
    plan = sampler.plan(schedule, run["steps"], **run["step_kw"])
    # The reference's schedule is float32: at its lowest noise level five digits are left, and Karras' timesteps follow.
    np.testing.assert_allclose(plan.timesteps, arrays["timesteps"], rtol=5e-5, atol=1e-9)
    np.testing.assert_allclose(plan.start_scale, arrays["init_noise_sigma"], rtol=1e-6)
    if "sigmas" in arrays:
        assert plan.sigmas is not None
        np.testing.assert_allclose(plan.sigmas, arrays["sigmas"], rtol=2e-5)
    trajectory = arrays["traj"]
    noise = drawn(arrays["noise"], len(plan.timesteps)) if "noise" in arrays else None
    final, samples = sampler(
        MODELS[run["model"]],
        jnp.asarray(trajectory[0]),
        schedule,
        steps=run["steps"],
        noise=noise,
        trajectory=True,
        **run["step_kw"],
    )
    np.testing.assert_allclose(samples, trajectory, atol=6e-5)
    np.testing.assert_array_equal(final, samples[-1])


def drawn(noise: np.ndarray, calls: int) -> jnp.ndarray:
    """The reference draws nothing at a last step that has no noise; ours has a draw for each call."""
    missing = np.zeros((calls - len(noise), *noise.shape[1:]), noise.dtype)
    return jnp.concatenate([noise, missing])


def test_a_round_trip_starts_where_the_inversion_ended():
    inverted, back = recorded("ddim_inverse_nl")["traj"], recorded("ddim_roundtrip_nl")["traj"]
    np.testing.assert_allclose(back[0], inverted[-1], atol=1e-6)


SD15 = {"_class_name": "PNDMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def test_a_file_names_sampler_and_options():
    sampler, schedule = samplers.from_json(
        {
            **SD15,
            "_class_name": "DPMSolverMultistepScheduler",
            "algorithm_type": "sde-dpmsolver++",
            "solver_order": 1,
            "use_karras_sigmas": True,
        }
    )
    assert dict(sampler.options) == {"order": 1, "sde": True}
    assert schedule.sigma_spacing == "karras"
    assert samplers.from_json(SD15) == (samplers.plms, Schedule(steps_offset=0))
    flow = samplers.from_json({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})
    assert flow == (samplers.flow_euler, FlowSchedule(shift=3.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": "DEISMultistepScheduler"}, "DEISMultistepScheduler"),
        ({"_class_name": None}, "None"),
        ({"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "dpmsolver"}, "algorithm_type='dpmsolver'"),
        ({"_class_name": "DPMSolverMultistepScheduler", "solver_order": "2"}, "solver_order='2'"),
        ({"_class_name": "DDPMScheduler", "variance_type": "learned"}, "variance_type='learned'"),
        ({"_class_name": "UniPCMultistepScheduler", "disable_corrector": [0]}, "disable_corrector"),
    ],
)
def test_a_file_that_asks_for_something_else_is_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        samplers.from_json({**SD15, **change})
    assert "\n" not in str(caught.value)


def test_names():
    assert samplers.by_name("dpm_3m").options == (("order", 3),)
    with pytest.raises(ValueError, match=r"'dpm2m'.*dpm_karras"):
        samplers.by_name("dpm2m")
