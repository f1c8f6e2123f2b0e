"""PLMS: pseudo linear multistep sampling, "PNDM" without Runge-Kutta steps (Liu et al., 2202.09778).

Adams-Bashforth weights (equation 12) combine the last four predictions of eps into one, which moves the sample as DDIM
would (equation 11). Stable Diffusion 1.5's own sampler. The first step is done twice, as Heun does: a trial step, a
prediction at its end, then the step again with the mean of both. Hence steps + 1 calls, the second timestep twice.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.samplers.spacing import spaced_timesteps

# Row k: weights of the newest prediction and of those before it, when k of those exist.
ADAMS_BASHFORTH = np.array(((24, 0, 0, 0), (36, -12, 0, 0), (46, -32, 10, 0), (55, -59, 37, -9))) / 24
MEAN = np.array((0.5, 0.5, 0, 0))


def plms_plan(schedule: Schedule, steps: int, start: int = 0) -> Plan:
    """The weights of each call, and equation 11 as one factor for the sample and one for the combined prediction."""
    n = schedule.num_train_timesteps
    t = np.round(spaced_timesteps(n, steps, schedule.timestep_spacing or "leading", schedule.steps_offset))[start:]
    told, origin, second = t, t, np.zeros(len(t))
    weights = ADAMS_BASHFORTH[np.minimum(np.arange(len(t)), 3)]
    if len(t) > 1:
        told, origin, second = np.insert(t, 1, t[1]), np.insert(t, 1, t[0]), np.insert(second, 1, 1.0)
        weights = np.insert(weights, 1, MEAN, axis=0)
    here, there = schedule.alpha_bar(origin), schedule.alpha_bar(origin - n // steps)
    if here.min() <= 0:
        raise ValueError("plms divides by alpha, which a zero-terminal-SNR schedule takes to 0; use ddim or euler")
    kept = (there / here) ** 0.5
    columns = {"x": kept, "noise": (1 - there) ** 0.5 - kept * (1 - here) ** 0.5, "weights": weights, "second": second}
    kept = schedule.alpha_bar(told)
    return Plan(told, kept**0.5, (1 - kept) ** 0.5, columns)


def plms_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: None
) -> tuple[Float[Array, "b ..."], Past]:
    """Equation 11 with the combined prediction. `past` is the last three predictions and the sample before this one.

    The second call starts again from that sample, and its prediction is not remembered.
    """
    *older, before = past
    combined = sum(weight * eps for weight, eps in zip(row["weights"], (known.noise, *older), strict=True))
    second = row["second"] > 0
    origin = jnp.where(second, before, x)
    remembered = [jnp.where(second, old, new) for old, new in zip(older, (known.noise, *older[:2]), strict=True)]
    return row["x"] * origin + row["noise"] * combined, (*remembered, origin)


plms = Sampler("plms", plms_plan, plms_update, memory=4)
