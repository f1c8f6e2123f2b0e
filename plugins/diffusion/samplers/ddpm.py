"""DDPM: ancestral sampling of denoising diffusion probabilistic models (Ho et al., 2006.11239), on any timesteps.

A step draws from the posterior q(x_s | x_t, x_0) at the predicted x_0, s being the next call's timestep. The variance
is that of the posterior ("fixed_small") or beta of the step ("fixed_large"): the two extremes of section 3.2.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.samplers.spacing import spaced_timesteps

VARIANCES = ("fixed_small", "fixed_large")


def ddpm_plan(schedule: Schedule, steps: int, start: int = 0, *, variance: str = "fixed_small") -> Plan:
    """Equation 7's coefficients for a step from t to s, whose beta is 1 - alpha_bar_t / alpha_bar_s.

    Raises ValueError for another variance than VARIANCES.
    """
    if variance not in VARIANCES:
        raise ValueError(f"ddpm: variance={variance!r} is not supported; choose {' or '.join(VARIANCES)}")
    spacing = schedule.timestep_spacing or "leading"
    t = np.round(spaced_timesteps(schedule.num_train_timesteps, steps, spacing, schedule.steps_offset))[start:]
    here = schedule.alpha_bar(t)
    there = np.append(schedule.alpha_bar(t[1:]), 1.0)  # the last step ends at the picture
    beta = 1 - here / there
    posterior = (1 - there) / (1 - here) * beta
    columns = {
        "sample": there**0.5 * beta / (1 - here),
        "x": (here / there) ** 0.5 * (1 - there) / (1 - here),
        "draw": np.where(t > 0, posterior if variance == "fixed_small" else beta, 0) ** 0.5,
    }
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns, draws=True)


def ddpm_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: Float[Array, "b ..."]
) -> tuple[Float[Array, "b ..."], Past]:
    """Equations 6 and 7 at the predicted x_0."""
    return row["sample"] * known.sample + row["x"] * x + row["draw"] * noise, past


ddpm = Sampler("ddpm", ddpm_plan, ddpm_update)
