"""Which timesteps and noise levels a run visits.

All functions are plain float64 numpy, run once before tracing. Timesteps fall from noise to image:

    leading    0, r, 2r, ... with r = N // steps, plus an offset: Stable Diffusion 1.5's own; never sees the noisiest t
    linspace   from N - 1 down to 0, both included
    trailing   N - 1 first, then strides of N / steps: what few steps and zero-terminal SNR need

"Common Diffusion Noise Schedules and Sample Steps are Flawed" (2305.08891), table 2, compares the three. Samplers that
work on noise levels s = sigma / alpha follow one of two conventions, and published results depend on which:

    levels          Euler's family: the timesteps may lie between two whole ones, and reach down to the last
    solver_levels   DPM-Solver and UniPC: whole timesteps, one more of which would be the end (`solver_timesteps`)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from plugins.diffusion.samplers.sampler import Plan
from plugins.diffusion.samplers.schedules import SIGMA_SPACINGS, Schedule, check_steps

Levels = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n+1"]]


def spaced_timesteps(total: int, steps: int, spacing: str, offset: int = 0) -> Float[np.ndarray, " steps"]:
    """`steps` of the timesteps 0 ... total - 1, falling; those of "linspace" need not be whole.

    `offset` moves the leading ones only. Raises ValueError if they leave the range.
    """
    check_steps(steps, total)
    index = np.arange(steps, dtype=np.float64)
    if spacing == "leading":
        return _inside(index[::-1] * (total // steps) + offset, total, steps, offset)
    if spacing == "trailing":
        return np.round(total - index * (total / steps)) - 1
    # A single step has to start from the noise: np.linspace would give its first number, 0.
    return np.linspace(0, total - 1, steps)[::-1] if steps > 1 else np.array([total - 1.0])


def solver_timesteps(total: int, steps: int, spacing: str, offset: int = 0) -> Float[np.ndarray, " steps"]:
    """As `spaced_timesteps`, for solvers that end between the last timestep and the picture (DPM-Solver, UniPC).

    They space `steps + 1` timesteps and leave out the last, for which the noise level 0 stands.
    """
    check_steps(steps, total)
    index = np.arange(steps + 1, dtype=np.float64)
    if spacing == "leading":
        falling = index[::-1] * (total // (steps + 1)) + offset
        return _inside(falling[:-1], total, steps, offset)
    if spacing == "linspace":
        return np.round(np.linspace(0, total - 1, steps + 1))[::-1][:-1]
    return spaced_timesteps(total, steps, spacing)


def karras_sigmas(high: float, low: float, steps: int, rho: float = 7.0) -> Float[np.ndarray, " steps"]:
    """Equation 5 of "Elucidating the Design Space of Diffusion-Based Generative Models" (2206.00364)."""
    ramp = np.linspace(0, 1, steps)
    return (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho


def exponential_sigmas(high: float, low: float, steps: int) -> Float[np.ndarray, " steps"]:
    """Noise levels whose logarithms are evenly spaced."""
    return np.exp(np.linspace(np.log(high), np.log(low), steps))


def _inside(timesteps: Float[np.ndarray, " n"], total: int, steps: int, offset: int) -> Float[np.ndarray, " n"]:
    if timesteps[0] >= total:
        raise ValueError(
            f"steps={steps} with steps_offset={offset} asks for timestep {timesteps[0]:.0f} of 0 to {total - 1}; "
            "take fewer steps, or another timestep_spacing"
        )
    return timesteps


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
