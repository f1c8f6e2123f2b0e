"""LCM: latent consistency models (Luo et al., 2310.04378), which map any noise level to the image in one call.

A distilled model predicts the image, which gets noise of the next level, and so on: 2 to 8 calls make an image. The
consistency function (equation 9) is f(x, t) = c_skip(t) x + c_out(t) x_0, equal to x at t = 0.
"""

import numpy as np
from jaxtyping import Array

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State
from plugins.diffusion.samplers.schedules import Schedule

SIGMA_DATA = 0.5  # of equation 9


def lcm_plan(
    schedule: Schedule, steps: int, start: int = 0, *, original_steps: int = 50, timestep_scaling: float = 10.0
) -> Plan:
    """c_skip and c_out, and alpha and sigma of the level to which noise is added.

    The timesteps are `steps` of the `original_steps` that distillation used, evenly chosen from the noisiest."""
    n = schedule.num_train_timesteps
    if not 1 <= steps <= original_steps <= n:
        raise ValueError(f"lcm: steps={steps} has to lie in 1 to original_steps={original_steps}, and that within {n}")
    trained = np.arange(1, original_steps + 1) * (n // original_steps) - 1.0
    chosen = np.floor(np.linspace(0, original_steps, steps, endpoint=False)).astype(int)
    t = trained[::-1][chosen][start:]
    here, there = schedule.alpha_bar(t), np.append(schedule.alpha_bar(t[1:]), 1.0)
    scaled = t * timestep_scaling
    columns = {
        "skip": SIGMA_DATA**2 / (scaled**2 + SIGMA_DATA**2),
        "out": scaled / np.sqrt(scaled**2 + SIGMA_DATA**2),
        "image": there**0.5,
        "noise": (1 - there) ** 0.5,
    }
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns, draws=True)


def lcm_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array) -> State:
    """Algorithm 3, line 5: the image, with noise of the next level; none after the last."""
    image = row["skip"] * x + row["out"] * prediction.x0
    return row["image"] * image + row["noise"] * noise, history


lcm = Sampler("lcm", lcm_plan, lcm_update)
