"""DPM-Solver++ (Lu et al., 2211.01095): multistep solvers in lambda = log(alpha / sigma), half the log SNR.

The exact step from s to t, with h = lambda_t - lambda_s, is (equation 8)

    x_t = (sigma_t / sigma_s) x_s + sigma_t int exp(lambda) x_0(lambda) dlambda

and the solvers expand the predicted x_0 around s: order 1 is DDIM; in order 2 ("2M", algorithm 2) and 3 ("3M") the last
predictions give the derivatives by finite differences. The SDE form ("2M SDE", appendix) draws noise at each step. For
every order a step is a weighted sum of the sample, the last three predictions and noise.
"""

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State
from plugins.diffusion.samplers.schedules import Schedule, check_choice, levels, log_snr

FEW_STEPS = 15  # below this, high orders are unstable at the end


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

    `expansion` is the treatment of order 2's derivative: "midpoint" or "heun" (exponential integrator).
    `lower_order_final` lowers the order of the last steps of short runs, `euler_at_final` that of the last always."""
    if order not in (1, 2, 3) or (sde and order == 3):
        raise ValueError(f"dpm: order={order} is not supported{' with sde' if sde else ''}; choose 1 or 2, or 3 as ODE")
    check_choice("expansion", expansion, ("midpoint", "heun"))
    t, s = levels(schedule, steps, start, sigma_spacing, solver=True)
    alpha, sigma, lam = log_snr(s)
    lowered = lower_order_final and steps < FEW_STEPS
    # At noise level 0 lambda is infinite: only order 1 has a limit there.
    last = 1 if euler_at_final or lowered or s[-1] == 0 else order
    orders = [order] * len(t)
    orders[-2:] = [min(order, 2) if lowered else order, last][-len(t) :]
    rows = [
        _row(lam[max(i - 2, 0) : i + 2], alpha[i + 1], sigma[i : i + 2], min(orders[i], i + 1), sde, expansion)
        for i in range(len(t))
    ]
    x, x0, noise = (np.array(column) for column in zip(*rows, strict=True))
    return Plan(t, alpha[:-1], sigma[:-1], {"x": x, "x0": x0, "noise": noise}, sigmas=s, draws=sde)


def _row(
    lam: np.ndarray, alpha: float, sigma: np.ndarray, order: int, sde: bool, expansion: str
) -> tuple[float, Float[np.ndarray, " 3"], float]:
    """Weights of the sample, of the last three predictions (newest first) and of noise.

    `lam` ends with lambda before and after the step, `alpha` is after it, `sigma` before and after it."""
    h = lam[-1] - lam[-2]
    ratio = sigma[1] / sigma[0]
    if sde:
        x, decay, noise = ratio * np.exp(-h), np.exp(-2 * h), sigma[1] * np.sqrt(-np.expm1(-2 * h))
        h = 2 * h  # the SDE's integrals are the ODE's with twice the step
    else:
        x, decay, noise = ratio, np.exp(-h), 0.0
    # Integrals of exp(lambda) times 1, lambda and lambda^2 / 2, relative to alpha at the end.
    phi = [1 - decay]
    if order > 1:
        phi.append((decay - 1) / h + 1 if expansion == "heun" or order == 3 else (1 - decay) / 2)
    if order > 2:
        phi.append(0.5 - (decay - 1 + h) / h**2)
    return x, alpha * np.array(phi) @ _derivatives(lam, order), noise


def _derivatives(lam: np.ndarray, order: int) -> Float[np.ndarray, "order 3"]:
    """Rows: weights of the last three predictions in x_0, h x_0' and h^2 x_0'', derivatives in lambda."""
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


def dpm_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array | None) -> State:
    """The weighted sum; `history` is the last two predictions."""
    predictions = (prediction.x0, *history)
    x = row["x"] * x + sum(weight * x0 for weight, x0 in zip(row["x0"], predictions, strict=True))
    return (x if noise is None else x + row["noise"] * noise), predictions[:-1]


dpm = Sampler("dpm", dpm_plan, dpm_update, history=2)
