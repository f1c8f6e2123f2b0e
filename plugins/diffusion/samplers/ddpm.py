"""DDPM: ancestral sampling of denoising diffusion probabilistic models (Ho et al., 2006.11239), on any timesteps.

A step draws from the posterior q(x_s | x_t, x_0) at the predicted x_0, where s is the next call's timestep. The
variance is the posterior's ("fixed_small") or the step's beta ("fixed_large"): the two extremes of section 3.2.
"""

import numpy as np
from jaxtyping import Array

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State
from plugins.diffusion.samplers.schedules import Schedule, check_choice, whole_timesteps


def ddpm_plan(schedule: Schedule, steps: int, start: int = 0, *, variance: str = "fixed_small") -> Plan:
    """Equation 7's coefficients for a step from t to s, whose beta is 1 - alpha_bar_t / alpha_bar_s."""
    check_choice("variance", variance, ("fixed_small", "fixed_large"))
    t = whole_timesteps(schedule, steps)[start:]
    here = schedule.alpha_bar(t)
    there = np.append(schedule.alpha_bar(t[1:]), 1.0)  # the last step ends at the image
    beta = 1 - here / there
    posterior = (1 - there) / (1 - here) * beta
    columns = {
        "x0": there**0.5 * beta / (1 - here),
        "x": (here / there) ** 0.5 * (1 - there) / (1 - here),
        "noise": np.where(t > 0, posterior if variance == "fixed_small" else beta, 0) ** 0.5,
    }
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns, draws=True)


def ddpm_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array) -> State:
    """Equations 6 and 7 at the predicted x_0."""
    return row["x0"] * prediction.x0 + row["x"] * x + row["noise"] * noise, history


ddpm = Sampler("ddpm", ddpm_plan, ddpm_update)
