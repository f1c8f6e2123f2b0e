"""Which of the training timesteps a sampler visits, and the noise levels that Karras et al. would visit instead.

All functions are plain float64 numpy, run once before tracing. Timesteps fall from noise to picture.

    leading    0, r, 2r, ... with r = N // steps, plus an offset: Stable Diffusion 1.5's own; never sees the noisiest t
    linspace   from N - 1 down to 0, both included
    trailing   N - 1 first, then strides of N / steps: what few steps and zero-terminal SNR need

"Common Diffusion Noise Schedules and Sample Steps are Flawed" (2305.08891), table 2, compares the three.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

SPACINGS = ("leading", "linspace", "trailing")
SIGMA_SPACINGS = ("timesteps", "karras", "exponential")


def check_steps(steps: int, total: int) -> None:
    """Raises ValueError unless 1 <= steps <= total."""
    if not 1 <= steps <= total:
        raise ValueError(f"steps={steps} cannot be spaced over {total} training timesteps; choose 1 to {total}")


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


def shifted(sigmas: Float[np.ndarray, " n"], shift: float) -> Float[np.ndarray, " n"]:
    """Flow-matching noise levels in [0, 1] moved to where larger pictures need them (2403.03206, equation 23)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def _inside(timesteps: Float[np.ndarray, " n"], total: int, steps: int, offset: int) -> Float[np.ndarray, " n"]:
    if timesteps[0] >= total:
        raise ValueError(
            f"steps={steps} with steps_offset={offset} asks for timestep {timesteps[0]:.0f} of 0 to {total - 1}; "
            "take fewer steps, or another timestep_spacing"
        )
    return timesteps
