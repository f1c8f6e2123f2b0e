"""LCM: latent consistency models (Luo et al., 2310.04378), which jump from any noise level to the picture.

A distilled model is asked for the picture, which is noised again to the next level, and so on: 2 to 8 calls make an
image. The consistency function (equation 9) is f(x, t) = c_skip(t) x + c_out(t) x_0, equal to x at t = 0.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import Schedule

DATA_DEVIATION = 0.5  # sigma_data of equation 9


def lcm_plan(
    schedule: Schedule, steps: int, start: int = 0, *, original_steps: int = 50, timestep_scaling: float = 10.0
) -> Plan:
    """Boundary conditions, and how each picture is noised again.

    The timesteps are `steps` of the `original_steps` that distillation skipped along, evenly chosen from the noisiest.
    Raises ValueError unless steps <= original_steps <= the schedule's timesteps.
    """
    n = schedule.num_train_timesteps
    if not 1 <= steps <= original_steps <= n:
        raise ValueError(f"lcm: steps={steps} has to lie in 1 to original_steps={original_steps}, and that within {n}")
    trained = np.arange(1, original_steps + 1) * (n // original_steps) - 1.0
    chosen = np.floor(np.linspace(0, original_steps, steps, endpoint=False)).astype(int)
    t = trained[::-1][chosen][start:]
    here, there = schedule.alpha_bar(t), np.append(schedule.alpha_bar(t[1:]), 1.0)
    scaled = t * timestep_scaling
    columns = {
        "skip": DATA_DEVIATION**2 / (scaled**2 + DATA_DEVIATION**2),
        "out": scaled / np.sqrt(scaled**2 + DATA_DEVIATION**2),
        "keep": there**0.5,
        "draw": (1 - there) ** 0.5,
    }
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns, draws=True)


def lcm_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: Float[Array, "b ..."]
) -> tuple[Float[Array, "b ..."], Past]:
    """Algorithm 3, line 5: the picture, and noise up to the next level; none after the last."""
    picture = row["skip"] * x + row["out"] * known.sample
    return row["keep"] * picture + row["draw"] * noise, past


lcm = Sampler("lcm", lcm_plan, lcm_update)
