r"""DPM-Solver++ (Lu et al., 2211.01095): multistep solvers in half the log signal-to-noise ratio.

With lambda = log(alpha / sigma) the exact step from s to t, h = lambda_t - lambda_s, is (equation 8)

    x_t = (sigma_t / sigma_s) x_s + sigma_t int exp(lambda) x_0(lambda) dlambda

and the solvers expand the predicted x_0 around s: to order 1 that is DDIM, to order 2 ("2M", algorithm 2) and 3 ("3M")
the last predictions give the derivatives by finite differences. The SDE form ("2M SDE", appendix) draws noise at each
step. Whichever the order, a step is a weighted sum of the sample, the last three predictions and noise.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.samplers.spacing import solver_levels

ORDERS = (1, 2, 3)
EXPANSIONS = ("midpoint", "heun")
FEW_STEPS = 15  # below, high orders at the end are unstable


def dpm_plan(
    schedule: Schedule,
    steps: int,
    start: int = 0,
    *,
    order: int = 2,
    sde: bool = False,
    expansion: str = "midpoint",
    lower_order_final: bool = True,
    euler_at_final: bool = False,
    sigma_spacing: str | None = None,
) -> Plan:
    """Weights of each step.

    `expansion` is how order 2 treats its derivative: "midpoint" or "heun" (exponential integrator).
    `lower_order_final` lowers the order of the last steps of short runs, `euler_at_final` that of the last always.
    Raises ValueError for other orders than 1, 2 and 3, other expansions, and order 3 with `sde`.
    """
    if order not in ORDERS or (sde and order == 3):
        raise ValueError(f"dpm: order={order} is not supported{' with sde' if sde else ''}; choose 1 or 2, or 3 as ODE")
    if expansion not in EXPANSIONS:
        raise ValueError(f"dpm: expansion={expansion!r} is not known; choose midpoint or heun")
    t, s = solver_levels(schedule, steps, start, sigma_spacing)
    alpha, sigma, lam = scales_of(s)
    careful = lower_order_final and steps < FEW_STEPS
    # At noise level 0 lambda is infinite: only order 1 has a limit there.
    last = 1 if euler_at_final or careful or s[-1] == 0 else order
    most = [order] * len(t)
    most[-2:] = [min(order, 2) if careful else order, last][-len(t) :]
    rows = [
        _row(lam[max(i - 2, 0) : i + 2], alpha[i + 1], sigma[i : i + 2], min(most[i], i + 1), sde, expansion)
        for i in range(len(t))
    ]
    x, data, draw = (np.array(column) for column in zip(*rows, strict=True))
    return Plan(t, alpha[:-1], sigma[:-1], {"x": x, "data": data, "draw": draw}, sigmas=s, draws=sde)


def scales_of(s: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """alpha, sigma and lambda of noise levels; lambda is infinite at level 0."""
    alpha = 1 / np.sqrt(1 + s**2)
    with np.errstate(divide="ignore"):
        return alpha, s * alpha, -np.log(s)


def _row(
    lam: np.ndarray, alpha: float, sigma: np.ndarray, order: int, sde: bool, expansion: str
) -> tuple[float, Float[np.ndarray, " 3"], float]:
    """Weights of the sample, of the last three predictions (newest first) and of noise.

    `lam` ends with lambda before and after the step, `alpha` is after it, `sigma` before and after it.
    """
    h = lam[-1] - lam[-2]
    ratio = sigma[1] / sigma[0]
    if sde:
        kept, decay, draw = ratio * np.exp(-h), np.exp(-2 * h), sigma[1] * np.sqrt(-np.expm1(-2 * h))
        h = 2 * h  # the SDE's integrals are the ODE's with twice the step
    else:
        kept, decay, draw = ratio, np.exp(-h), 0.0
    # Integrals of exp(lambda) times 1, lambda and lambda^2 / 2, relative to alpha at the end.
    phi = [1 - decay]
    if order > 1:
        phi.append((decay - 1) / h + 1 if expansion == "heun" or order == 3 else (1 - decay) / 2)
    if order > 2:
        phi.append(0.5 - (decay - 1 + h) / h**2)
    return kept, alpha * np.array(phi) @ differences(lam, order), draw


def differences(lam: np.ndarray, order: int) -> Float[np.ndarray, "order 3"]:
    """Rows: the last prediction, and h times its first and h^2 its second derivative in lambda, from the last three."""
    rows = np.zeros((order, 3))
    rows[0, 0] = 1
    if order == 1:
        return rows
    h = lam[-1] - lam[-2]
    r0 = (lam[-2] - lam[-3]) / h
    newest = np.array([1, -1, 0]) / r0
    if order == 2:
        rows[1] = newest
        return rows
    r1 = (lam[-3] - lam[-4]) / h
    older = np.array([0, 1, -1]) / r1
    rows[1] = newest + r0 / (r0 + r1) * (newest - older)
    rows[2] = (newest - older) / (r0 + r1)
    return rows


def dpm_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: Float[Array, "b ..."] | None
) -> tuple[Float[Array, "b ..."], Past]:
    """The weighted sum. `past` is the last two predicted pictures."""
    pictures = (known.sample, *past)
    x = row["x"] * x + sum(weight * each for weight, each in zip(row["data"], pictures, strict=True))
    return (x if noise is None else x + row["draw"] * noise), pictures[:-1]


dpm = Sampler("dpm", dpm_plan, dpm_update, memory=2)
