"""DDIM: denoising diffusion implicit models (Song et al., 2010.02502), and the same steps backwards.

A step predicts the picture and the noise in the sample, and mixes them again at the next, lower noise level. With
eta = 0 nothing is drawn and the map from noise to picture is nearly invertible; eta = 1 is DDPM's ancestral sampling.

`ddim_inversion` runs from a picture to the noise that `ddim` turns back into it: the start of Plug-and-Play and of
many editing methods. It takes eps(x_t) for eps(x_{t-1}), so the round trip's error falls as 1 / steps.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.samplers.spacing import spaced_timesteps

LANDINGS = ("stride", "next")


def ddim_plan(schedule: Schedule, steps: int, start: int = 0, *, eta: float = 0.0, landing: str = "stride") -> Plan:
    """Coefficients of equation 12, and sigma of equation 16 times `eta` in [0, 1].

    `landing` is the timestep that a step ends at: "stride" takes N // steps off, as published (Stable Diffusion's
    pictures were made so); "next" ends exactly at the next call's timestep, which differs for "linspace" spacing and
    for step counts that do not divide N. Raises ValueError for other values.
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"ddim: eta={eta} has to lie in [0, 1]; 0 draws nothing, 1 is DDPM")
    if landing not in LANDINGS:
        raise ValueError(f"ddim: landing={landing!r} is not known; choose {' or '.join(LANDINGS)}")
    t, before = _timesteps(schedule, steps, landing)
    here, there = schedule.alpha_bar(t[start:]), schedule.alpha_bar(before[start:])
    variance = eta**2 * (1 - there) / (1 - here) * (1 - here / there)
    columns = {"sample": there**0.5, "noise": np.maximum(1 - there - variance, 0) ** 0.5, "draw": variance**0.5}
    return Plan(t[start:], here**0.5, (1 - here) ** 0.5, columns, draws=eta > 0)


def _timesteps(schedule: Schedule, steps: int, landing: str) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Where each step starts, and where it ends; -1 is the picture."""
    n = schedule.num_train_timesteps
    t = np.round(spaced_timesteps(n, steps, schedule.timestep_spacing or "leading", schedule.steps_offset))
    return t, t - n // steps if landing == "stride" else np.append(t[1:], -1.0)


def ddim_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: Float[Array, "b ..."] | None
) -> tuple[Float[Array, "b ..."], Past]:
    """Equation 12: the predicted picture, the direction that points back at x_t, and random noise."""
    x = row["sample"] * known.sample + row["noise"] * known.noise
    return (x if noise is None else x + row["draw"] * noise), past


def inversion_plan(schedule: Schedule, steps: int, start: int = 0) -> Plan:
    """DDIM's steps with eta = 0 from each level to the next higher one; `start` leaves out the highest.

    The model is told the timestep that a step ends at, so a round trip asks about the same timesteps twice.
    """
    t, before = (part[::-1][: steps - start] for part in _timesteps(schedule, steps, "stride"))
    here, there = schedule.alpha_bar(before), schedule.alpha_bar(t)
    if schedule.prediction_type == "sample" and here[0] == 1:
        raise ValueError("ddim_inversion starts from a clean picture, where 'sample' predictions hold no noise")
    columns = {"sample": there**0.5, "noise": (1 - there) ** 0.5}
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns)


ddim = Sampler("ddim", ddim_plan, ddim_update)
ddim_inversion = Sampler("ddim_inversion", inversion_plan, ddim_update)
