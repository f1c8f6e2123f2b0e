"""The noise levels s = sigma / alpha that a run visits, for samplers that work on them.

Two conventions exist, and published results depend on which was used:

    levels          Euler's family: the timesteps may lie between two whole ones, and reach down to the last
    solver_levels   DPM-Solver and UniPC: whole timesteps, one more of which would be the end (`solver_timesteps`)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from plugins.diffusion.samplers.plan import Plan
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.samplers.spacing import (
    SIGMA_SPACINGS,
    exponential_sigmas,
    karras_sigmas,
    solver_timesteps,
    spaced_timesteps,
)

Levels = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n+1"]]


def levels(schedule: Schedule, steps: int, start: int, sigma_spacing: str | None) -> Levels:
    """Timesteps of the calls, and the noise levels before each and after the last, without the first `start`."""
    t = spaced_timesteps(
        schedule.num_train_timesteps, steps, schedule.timestep_spacing or "linspace", schedule.steps_offset
    )
    s = at(schedule, t)
    spacing = _known(sigma_spacing or schedule.sigma_spacing)
    if spacing != "timesteps":
        s = _respaced(schedule, spacing, s[0], s[-1], steps)
        t = schedule.timesteps_of(s)
    return t[start:], np.append(s, _final(schedule))[start:]


def solver_levels(schedule: Schedule, steps: int, start: int, sigma_spacing: str | None) -> Levels:
    """As `levels`, by the other convention."""
    spacing = _known(sigma_spacing or schedule.sigma_spacing)
    t = solver_timesteps(
        schedule.num_train_timesteps, steps, schedule.timestep_spacing or "linspace", schedule.steps_offset
    )
    s = at(schedule, t)
    if spacing != "timesteps":
        s = _respaced(schedule, spacing, schedule.sigmas[-1], schedule.sigmas[0], steps)
        t = np.round(schedule.timesteps_of(s))
    return t[start:], np.append(s, _final(schedule))[start:]


def at(schedule: Schedule, timesteps: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Noise levels at timesteps, linear between whole ones."""
    return np.interp(timesteps, np.arange(schedule.num_train_timesteps), schedule.sigmas)


def noise_plan(
    schedule: Schedule,
    timesteps: Float[np.ndarray, " n"],
    sigmas: Float[np.ndarray, " n+1"],
    columns: Mapping[str, Float[np.ndarray, "n ..."]],
    draws: bool = False,
) -> Plan:
    """The plan of a sampler whose sample is x_0 + s eps; its rows hold s as "level".

    A start at a leading timestep is not all noise: there the standard deviation of x_0 counts as 1.
    """
    here = sigmas[:-1]
    alpha = 1 / np.sqrt(1 + here**2)
    top = float(sigmas[0])
    start_scale = (top**2 + 1) ** 0.5 if schedule.timestep_spacing == "leading" else top
    all_columns = {"level": here, **columns}
    return Plan(timesteps, alpha, here * alpha, all_columns, alpha, start_scale, sigmas, draws)


def _respaced(schedule: Schedule, spacing: str, high: float, low: float, steps: int) -> Float[np.ndarray, " steps"]:
    high, low = schedule.sigma_max or float(high), schedule.sigma_min or float(low)
    if not low < high and steps > 1:  # a single step takes the highest alone
        raise ValueError(f"sigma_min={low:g} has to lie below sigma_max={high:g}; leave out one of them")
    return (karras_sigmas if spacing == "karras" else exponential_sigmas)(high, low, steps)


def _final(schedule: Schedule) -> float:
    return 0.0 if schedule.final_sigmas_type == "zero" else float(schedule.sigmas[0])


def _known(spacing: str) -> str:
    if spacing not in SIGMA_SPACINGS:
        raise ValueError(f"sigma_spacing={spacing!r} is not known; choose one of {', '.join(SIGMA_SPACINGS)}")
    return spacing
