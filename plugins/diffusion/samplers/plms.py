"""PLMS: pseudo linear multistep sampling, "PNDM" without Runge-Kutta steps (Liu et al., 2202.09778).

Adams-Bashforth weights (equation 12) combine the last four predictions of eps into one, which moves the sample as DDIM
would (equation 11). Stable Diffusion 1.5's default sampler. The first step is done twice, as in Heun's method: a trial
step, a prediction at its end, then the step again with the mean of both. Hence steps + 1 calls, the second timestep
twice.
"""

import jax.numpy as jnp
import numpy as np

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State
from plugins.diffusion.samplers.schedules import Schedule, whole_timesteps

# Row k: weights of the newest prediction and of those before it, when k of those exist.
ADAMS_BASHFORTH = np.array(((24, 0, 0, 0), (36, -12, 0, 0), (46, -32, 10, 0), (55, -59, 37, -9))) / 24
MEAN = np.array((0.5, 0.5, 0, 0))


def plms_plan(schedule: Schedule, steps: int, start: int = 0) -> Plan:
    """The weights of each call, and equation 11 as one factor for the sample and one for the combined prediction."""
    t = whole_timesteps(schedule, steps)[start:]
    origin, second = t, np.zeros(len(t))
    weights = ADAMS_BASHFORTH[np.minimum(np.arange(len(t)), 3)]
    if len(t) > 1:
        t, origin, second = np.insert(t, 1, t[1]), np.insert(t, 1, t[0]), np.insert(second, 1, 1.0)
        weights = np.insert(weights, 1, MEAN, axis=0)
    here, there = schedule.alpha_bar(origin), schedule.alpha_bar(origin - schedule.num_train_timesteps // steps)
    if here.min() <= 0:
        raise ValueError("plms divides by alpha, which is 0 in a zero-terminal-SNR schedule; use ddim or euler")
    ratio = (there / here) ** 0.5
    eps = (1 - there) ** 0.5 - ratio * (1 - here) ** 0.5
    alpha_bar = schedule.alpha_bar(t)
    columns = {"x": ratio, "eps": eps, "weights": weights, "second": second}
    return Plan(t, alpha_bar**0.5, (1 - alpha_bar) ** 0.5, columns)


def plms_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """Equation 11 with the combined prediction; `history` is the last three predictions and the previous sample.

    The second call starts again from the previous sample, and its prediction is not kept."""
    *older, previous = history
    combined = sum(weight * eps for weight, eps in zip(row["weights"], (prediction.eps, *older), strict=True))
    second = row["second"] > 0
    origin = jnp.where(second, previous, x)
    kept = [jnp.where(second, old, new) for old, new in zip(older, (prediction.eps, *older[:2]), strict=True)]
    return row["x"] * origin + row["eps"] * combined, (*kept, origin)


plms = Sampler("plms", plms_plan, plms_update, history=4)
