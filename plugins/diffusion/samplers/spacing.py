"""Timesteps and noise levels of a run: float64 numpy, computed once before tracing.

Timesteps fall from noise to image:

    leading    0, r, 2r, ... with r = N // steps, plus an offset: Stable Diffusion 1.5's; omits the noisiest timesteps
    linspace   from N - 1 down to 0, both included
    trailing   N - 1 first, then strides of N / steps: for few steps and for zero terminal SNR

(compared in 2305.08891, table 2). Samplers that work on noise levels s = sigma / alpha follow one of two conventions:

    Euler's family          timesteps need not be whole, and the last one is reached
    DPM-Solver and UniPC    whole timesteps; `steps + 1` are spaced, and noise level 0 replaces the last
"""

import numpy as np
from jaxtyping import Float

from plugins.diffusion.samplers.schedules import SIGMA_SPACINGS, Schedule, check_choice, check_steps

Levels = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n+1"]]


def spaced_timesteps(total: int, steps: int, spacing: str, offset: int = 0) -> Float[np.ndarray, " steps"]:
    """`steps` of the timesteps 0 ... total - 1, falling. `offset` moves the leading ones only."""
    check_steps(steps, total)
    index = np.arange(steps, dtype=np.float64)
    if spacing == "leading":
        return _in_range(index[::-1] * (total // steps) + offset, total, offset)
    if spacing == "trailing":
        return np.round(total - index * (total / steps)) - 1
    # A single step starts from the noise: np.linspace would give its first number, 0.
    return np.linspace(0, total - 1, steps)[::-1] if steps > 1 else np.array([total - 1.0])


def solver_timesteps(total: int, steps: int, spacing: str, offset: int = 0) -> Float[np.ndarray, " steps"]:
    """As `spaced_timesteps`, for solvers that end at noise level 0 in place of one more timestep."""
    check_steps(steps, total)
    index = np.arange(steps + 1, dtype=np.float64)
    if spacing == "leading":
        return _in_range((index[::-1] * (total // (steps + 1)) + offset)[:-1], total, offset)
    if spacing == "linspace":
        return np.round(np.linspace(0, total - 1, steps + 1))[::-1][:-1]
    return spaced_timesteps(total, steps, spacing)


def whole_timesteps(schedule: Schedule, steps: int) -> Float[np.ndarray, " steps"]:
    """`spaced_timesteps` of the schedule, rounded: for the samplers that work on whole timesteps (DDPM, DDIM, PLMS)."""
    spacing = schedule.timestep_spacing or "leading"
    return np.round(spaced_timesteps(schedule.num_train_timesteps, steps, spacing, schedule.steps_offset))


def levels(schedule: Schedule, steps: int, start: int, sigma_spacing: str | None, solver: bool = False) -> Levels:
    """Timesteps of the calls, and noise levels before each and after the last, without the first `start`.

    `solver` chooses the convention of DPM-Solver, `sigma_spacing` overrides the schedule's."""
    spacing, total = sigma_spacing or schedule.sigma_spacing, schedule.num_train_timesteps
    check_choice("sigma_spacing", spacing, SIGMA_SPACINGS)
    space = solver_timesteps if solver else spaced_timesteps
    t = space(total, steps, schedule.timestep_spacing or "linspace", schedule.steps_offset)
    s = np.interp(t, np.arange(total), schedule.sigmas)
    if spacing != "timesteps":
        high, low = (schedule.sigmas[-1], schedule.sigmas[0]) if solver else (s[0], s[-1])
        high, low = schedule.sigma_max or float(high), schedule.sigma_min or float(low)
        if not low < high and steps > 1:  # a single step takes the highest alone
            raise ValueError(f"sigma_min={low:g} has to lie below sigma_max={high:g}; leave out one of them")
        s = (karras_sigmas if spacing == "karras" else exponential_sigmas)(high, low, steps)
        t = np.interp(np.log(s), np.log(schedule.sigmas), np.arange(total))
        t = np.round(t) if solver else t
    final = 0.0 if schedule.final_sigmas_type == "zero" else float(schedule.sigmas[0])
    return t[start:], np.append(s, final)[start:]


def karras_sigmas(high: float, low: float, steps: int, rho: float = 7.0) -> Float[np.ndarray, " steps"]:
    """Equation 5 of "Elucidating the Design Space of Diffusion-Based Generative Models" (2206.00364)."""
    ramp = np.linspace(0, 1, steps)
    return (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho


def exponential_sigmas(high: float, low: float, steps: int) -> Float[np.ndarray, " steps"]:
    """Noise levels whose logarithms are evenly spaced."""
    return np.exp(np.linspace(np.log(high), np.log(low), steps))


def log_snr(s: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """alpha, sigma and lambda = log(alpha / sigma) of noise levels s; lambda is infinite at level 0."""
    alpha = 1 / np.sqrt(1 + s**2)
    with np.errstate(divide="ignore"):
        return alpha, s * alpha, -np.log(s)


def _in_range(timesteps: Float[np.ndarray, " n"], total: int, offset: int) -> Float[np.ndarray, " n"]:
    if timesteps[0] >= total:
        raise ValueError(
            f"steps={len(timesteps)} with steps_offset={offset} asks for timestep {timesteps[0]:.0f} of 0 to"
            f" {total - 1}; take fewer steps, or another timestep_spacing"
        )
    return timesteps
