"""Samplers that follow dx/ds = (x - x_0) / s in the noise level s = sigma / alpha (Karras et al., 2206.00364).

In these coordinates the sample is x_0 + s eps: the image is not scaled, noise is added to it, and the model's input is
x / sqrt(1 + s^2). The right-hand side is the predicted eps, so each method is a textbook one for y' = f(s, y):

    euler             one call a step (algorithm 1 without its second half)
    heun              trapezoidal rule, two calls a step except in the last (algorithm 1)
    lms               Adams-Bashforth of up to `order` on uneven levels (k-diffusion's linear multistep)
    euler_ancestral   a step too far down, then new noise back up (k-diffusion; DDPM's step in these coordinates)
    flow_euler        Euler for flow matching, x_s = (1 - s) x_0 + s eps, on a `FlowSchedule` (2403.03206)

Option `sigma_spacing` ("timesteps", "karras", "exponential") overrides the schedule's.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State, weighted_sum
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule, levels

MAX_ORDER = 4  # of lms; higher orders are unstable


def noise_plan(
    schedule: Schedule,
    t: Float[np.ndarray, " n"],
    s: Float[np.ndarray, " n+1"],
    columns: Mapping[str, Float[np.ndarray, "n ..."]],
    draws: bool = False,
) -> Plan:
    """The plan of a sampler whose sample is x_0 + s eps; column "level" is s before each call. A run from a leading
    timestep does not start from noise alone: there the deviation of x_0 counts as 1."""
    level = s[:-1]
    alpha = 1 / np.sqrt(1 + level**2)
    top = float(s[0])
    start_scale = (top**2 + 1) ** 0.5 if schedule.timestep_spacing == "leading" else top
    return Plan(t, alpha, level * alpha, {"level": level, **columns}, alpha, start_scale, s, draws)


def slope(x: Sample, prediction: Prediction, row: Row) -> Sample:
    """dx/ds (2206.00364, equation 3), with x_0 clipped as the schedule asks."""
    return (x - prediction.x0) / row["level"]


def euler_plan(schedule: Schedule, steps: int, start: int = 0, *, sigma_spacing: str | None = None) -> Plan:
    """The length of each step in noise level."""
    t, s = levels(schedule, steps, start, sigma_spacing)
    return noise_plan(schedule, t, s, {"step": np.diff(s)})


def euler_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """x + (s' - s) dx/ds."""
    return x + row["step"] * slope(x, prediction, row), history


def heun_plan(schedule: Schedule, steps: int, start: int = 0, *, sigma_spacing: str | None = None) -> Plan:
    """Two rows a step, of the same length: from its start, and from its trial end. The last step is Euler's."""
    t, s = levels(schedule, steps, start, sigma_spacing)
    twice, level = np.repeat(t, 2)[1:], np.append(np.repeat(s[:-1], 2)[1:], s[-1])
    second = np.arange(len(twice)) % 2
    columns = {"step": np.repeat(np.diff(s), 2)[: len(twice)], "second": second.astype(np.float64)}
    return noise_plan(schedule, twice, level, columns)


def heun_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """Algorithm 1, lines 4 to 8; `history` is the sample and the slope at the start of the step."""
    here = slope(x, prediction, row)
    second = row["second"] > 0
    origin = jnp.where(second, history[0], x)
    mean = jnp.where(second, (history[1] + here) / 2, here)
    return origin + row["step"] * mean, (origin, here)


def lms_plan(
    schedule: Schedule, steps: int, start: int = 0, *, order: int = MAX_ORDER, sigma_spacing: str | None = None
) -> Plan:
    """Weights of the last `order` slopes."""
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"lms: order={order} has to be 1 to {MAX_ORDER}")
    t, s = levels(schedule, steps, start, sigma_spacing)
    weights = np.zeros((len(t), MAX_ORDER))
    for i in range(len(t)):
        known = min(i + 1, order)
        weights[i, :known] = adams_bashforth(s[i - known + 1 : i + 1][::-1], s[i], s[i + 1])
    return noise_plan(schedule, t, s, {"weights": weights})


def adams_bashforth(nodes: Float[np.ndarray, " k"], left: float, right: float) -> Float[np.ndarray, " k"]:
    """Integrals from left to right of the Lagrange polynomials of `nodes`: exact for slopes of degree k - 1."""
    weights = np.empty(len(nodes))
    for i, node in enumerate(nodes):
        others = np.delete(nodes, i)
        integral = np.polyint(np.poly1d(others, r=True) / np.prod(node - others))
        weights[i] = integral(right) - integral(left)
    return weights


def lms_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """x plus the integral of the polynomial through the last slopes; `history` is those before this one."""
    slopes = (slope(x, prediction, row), *history)
    return x + weighted_sum(row["weights"], slopes), slopes[:-1]


def ancestral_plan(schedule: Schedule, steps: int, start: int = 0, *, sigma_spacing: str | None = None) -> Plan:
    """The step down and the noise up: down^2 + up^2 = s'^2, with the `up` of DDPM's posterior."""
    t, s = levels(schedule, steps, start, sigma_spacing)
    up = (s[1:] ** 2 * (s[:-1] ** 2 - s[1:] ** 2) / s[:-1] ** 2) ** 0.5
    down = np.maximum(s[1:] ** 2 - up**2, 0) ** 0.5
    return noise_plan(schedule, t, s, {"step": down - s[:-1], "noise": up}, draws=True)


def ancestral_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array) -> State:
    """Euler's step, and noise."""
    return x + row["step"] * slope(x, prediction, row) + row["noise"] * noise, history


def flow_plan(schedule: FlowSchedule, steps: int, start: int = 0) -> Plan:
    """The length of each step along the straight line."""
    s = schedule.levels(steps)[start:]
    return Plan(s[:-1] * schedule.num_train_timesteps, 1 - s[:-1], s[:-1], {"step": np.diff(s)}, sigmas=s)


def flow_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """x + (s' - s) dx/ds, where dx/ds is the model's output."""
    return x + row["step"] * prediction.output, history


euler = Sampler("euler", euler_plan, euler_update)
euler_karras = euler.with_options(sigma_spacing="karras")
heun = Sampler("heun", heun_plan, heun_update, history=2)
lms = Sampler("lms", lms_plan, lms_update, history=MAX_ORDER - 1)
euler_ancestral = Sampler("euler_ancestral", ancestral_plan, ancestral_update)
flow_euler = Sampler("flow_euler", flow_plan, flow_update, runs_on=FlowSchedule)
