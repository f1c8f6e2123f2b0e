"""Samplers that follow dx/ds = (x - x_0) / s in the noise level s = sigma / alpha (Karras et al., 2206.00364).

In these coordinates the sample is x_0 + s eps: the picture is not shrunk, noise is added on top, and the model's input
is x / sqrt(1 + s^2). The right-hand side is the predicted eps, so each method is a textbook one for y' = f(s, y):

    euler             one call a step (algorithm 1 without its second half)
    heun              trapezoid rule, two calls a step but for the last (algorithm 1)
    lms               Adams-Bashforth of up to `order` on the uneven levels (k-diffusion's linear multistep)
    euler_ancestral   a step too far down, then new noise back up (k-diffusion; DDPM's step in these coordinates)
    flow_euler        Euler for flow matching, x_s = (1 - s) x_0 + s eps, on a `FlowSchedule` (2403.03206)

Option `sigma_spacing` ("timesteps", "karras", "exponential") overrides the schedule's.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule
from plugins.diffusion.samplers.spacing import levels, noise_plan

MOST_ORDER = 4  # of lms; more turns unstable


def euler_plan(schedule: Schedule, steps: int, start: int = 0, *, sigma_spacing: str | None = None) -> Plan:
    """The length of each step in noise level."""
    t, s = levels(schedule, steps, start, sigma_spacing)
    return noise_plan(schedule, t, s, {"step": np.diff(s)})


def euler_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: None
) -> tuple[Float[Array, "b ..."], Past]:
    """x + (s' - s) dx/ds."""
    return x + row["step"] * slope(x, known, row), past


def slope(x: Float[Array, "b ..."], known: Estimate, row: Row) -> Float[Array, "b ..."]:
    """dx/ds (2206.00364, equation 3), with the picture within the schedule's limits."""
    return (x - known.sample) / row["level"]


def heun_plan(schedule: Schedule, steps: int, start: int = 0, *, sigma_spacing: str | None = None) -> Plan:
    """Two rows a step, of the same length: from its start, and from its trial end. The last step is Euler's."""
    t, s = levels(schedule, steps, start, sigma_spacing)
    told, level = np.repeat(t, 2)[1:], np.append(np.repeat(s[:-1], 2)[1:], s[-1])
    second = np.arange(len(told)) % 2
    columns = {"step": np.repeat(np.diff(s), 2)[: len(told)], "second": second.astype(np.float64)}
    return noise_plan(schedule, told, level, columns)


def heun_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: None
) -> tuple[Float[Array, "b ..."], Past]:
    """Algorithm 1, lines 4 to 8. `past` is the sample and the slope at the start of the step."""
    here = slope(x, known, row)
    second = row["second"] > 0
    origin = jnp.where(second, past[0], x)
    mean = jnp.where(second, (past[1] + here) / 2, here)
    return origin + row["step"] * mean, (origin, here)


def lms_plan(
    schedule: Schedule, steps: int, start: int = 0, *, order: int = MOST_ORDER, sigma_spacing: str | None = None
) -> Plan:
    """Weights of the last `order` slopes. Raises ValueError unless 1 <= order <= 4."""
    if not 1 <= order <= MOST_ORDER:
        raise ValueError(f"lms: order={order} has to be 1 to {MOST_ORDER}")
    t, s = levels(schedule, steps, start, sigma_spacing)
    weights = np.zeros((len(t), MOST_ORDER))
    for i in range(len(t)):
        known = min(i + 1, order)
        weights[i, :known] = adams_bashforth(s[i - known + 1 : i + 1][::-1], s[i], s[i + 1])
    return noise_plan(schedule, t, s, {"weights": weights})


def adams_bashforth(nodes: Float[np.ndarray, " k"], left: float, right: float) -> Float[np.ndarray, " k"]:
    """Integrals from left to right of the Lagrange polynomials of `nodes`: exact for slopes of degree k - 1."""
    weights = np.empty(len(nodes))
    for i, node in enumerate(nodes):
        others = np.delete(nodes, i)
        lagrange = np.poly1d(others, r=True) / np.prod(node - others)
        whole = np.polyint(lagrange)
        weights[i] = whole(right) - whole(left)
    return weights


def lms_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: None
) -> tuple[Float[Array, "b ..."], Past]:
    """x plus the integral of the polynomial through the last slopes. `past` is those before this one."""
    slopes = (slope(x, known, row), *past)
    return x + sum(weight * each for weight, each in zip(row["weights"], slopes, strict=True)), slopes[:-1]


def ancestral_plan(schedule: Schedule, steps: int, start: int = 0, *, sigma_spacing: str | None = None) -> Plan:
    """The step down, and the noise up: down^2 + up^2 = s'^2, with the up of DDPM's posterior."""
    t, s = levels(schedule, steps, start, sigma_spacing)
    up = (s[1:] ** 2 * (s[:-1] ** 2 - s[1:] ** 2) / s[:-1] ** 2) ** 0.5
    down = np.maximum(s[1:] ** 2 - up**2, 0) ** 0.5
    return noise_plan(schedule, t, s, {"step": down - s[:-1], "draw": up}, draws=True)


def ancestral_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: Float[Array, "b ..."]
) -> tuple[Float[Array, "b ..."], Past]:
    """Euler's step, and noise."""
    return x + row["step"] * slope(x, known, row) + row["draw"] * noise, past


def flow_plan(schedule: FlowSchedule, steps: int, start: int = 0) -> Plan:
    """The length of each step along the straight line."""
    s = schedule.levels(steps)[start:]
    here = s[:-1]
    return Plan(here * schedule.num_train_timesteps, 1 - here, here, {"step": np.diff(s)}, sigmas=s)


def flow_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: None
) -> tuple[Float[Array, "b ..."], Past]:
    """x + (s' - s) dx/ds, where dx/ds is what the model predicts."""
    return x + row["step"] * known.raw, past


euler = Sampler("euler", euler_plan, euler_update)
heun = Sampler("heun", heun_plan, heun_update, memory=2)
lms = Sampler("lms", lms_plan, lms_update, memory=MOST_ORDER - 1)
euler_ancestral = Sampler("euler_ancestral", ancestral_plan, ancestral_update)
flow_euler = Sampler("flow_euler", flow_plan, flow_update, runs_on=FlowSchedule)
