"""High-order solvers in lambda = log(alpha / sigma), half the log SNR: DPM-Solver++ and UniPC.

DPM-Solver++ (Lu et al., 2211.01095). The exact step from s to t, with h = lambda_t - lambda_s, is (equation 8)

    x_t = (sigma_t / sigma_s) x_s + sigma_t int exp(lambda) x_0(lambda) dlambda

and the solvers expand the predicted x_0 around s: order 1 is DDIM; in order 2 ("2M", algorithm 2) and 3 ("3M") the last
predictions give the derivatives by finite differences. The SDE form ("2M SDE", appendix) draws noise at each step.

UniPC (Zhao et al., 2302.04867): a predictor and a corrector of any order that share their model calls. The predictor
("UniP", equation 9) moves the sample with the last p predictions of x_0. The model's next call, at the end of the step,
also corrects that step ("UniC", equation 8), and the next predictor starts from the corrected sample. The weights solve
the small linear systems of appendix B for the data-prediction form, with B(h) = h ("bh1") or e^h - 1 ("bh2").

In both, a step is a weighted sum of the sample, the last predictions and noise.
"""

import math

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State, weighted_sum
from plugins.diffusion.samplers.schedules import Schedule, check_choice, levels, log_snr

FEW_STEPS = 15  # below this, high orders are unstable at the end
MAX_ORDER = 3


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
    """Weights of each step. `expansion` is the treatment of order 2's derivative: "midpoint" or "heun" (exponential
    integrator). `lower_order_final` lowers the order of the last steps of short runs, `euler_at_final` that of the last
    always."""
    if order not in (1, 2, 3) or (sde and order == 3):
        raise ValueError(f"dpm: order={order} is not supported{' with sde' if sde else ''}; choose 1 or 2, or 3 as ODE")
    check_choice("expansion", expansion, ("midpoint", "heun"))
    t, s = levels(schedule, steps, start, sigma_spacing, solver=True)
    alpha, sigma, lam = log_snr(s)
    lowered = lower_order_final and steps < FEW_STEPS
    # At noise level 0 lambda is infinite: only order 1 has a limit there.
    last = 1 if euler_at_final or lowered or s[-1] == 0 else order

    def order_at(i: int) -> int:
        if i == len(t) - 1:
            return min(last, i + 1)
        return min(order, i + 1, 2 if lowered and i == len(t) - 2 else MAX_ORDER)

    rows = [
        _row(lam[max(i - 2, 0) : i + 2], alpha[i + 1], sigma[i : i + 2], order_at(i), sde, expansion)
        for i in range(len(t))
    ]
    x, x0, noise = (np.array(column) for column in zip(*rows, strict=True))
    return Plan(t, alpha[:-1], sigma[:-1], {"x": x, "x0": x0, "noise": noise}, sigmas=s, draws=sde)


def _row(
    lam: np.ndarray, alpha: float, sigma: np.ndarray, order: int, sde: bool, expansion: str
) -> tuple[float, Float[np.ndarray, " 3"], float]:
    """Weights of the sample, of the last three predictions (newest first) and of noise. `lam` ends with lambda before
    and after the step, `alpha` is after it, `sigma` before and after it."""
    h = lam[-1] - lam[-2]
    x, decay, noise = sigma[1] / sigma[0], np.exp(-h), 0.0
    if sde:  # the integrals are the ODE's with twice the step
        x, decay, noise = x * decay, decay**2, sigma[1] * np.sqrt(-np.expm1(-2 * h))
        h = 2 * h
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
    x = row["x"] * x + weighted_sum(row["x0"], predictions)
    return (x if noise is None else x + row["noise"] * noise), predictions[:-1]


def unipc_plan(
    schedule: Schedule,
    steps: int,
    start: int = 0,
    *,
    order: int = 2,
    variant: str = "bh2",
    lower_order_final: bool = True,
    sigma_spacing: str | None = None,
) -> Plan:
    """Weights of each call: of the corrector of the step before it, then of the predictor of the step after it.
    "predict_x" and "predict" weigh the corrected sample and the last predictions; "keep", "correct_x", "correct_new"
    and "correct" the sample itself, the one before the last step, the new prediction and those before it."""
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"unipc: order={order} has to be 1 to {MAX_ORDER}")
    check_choice("variant", variant, ("bh1", "bh2"))
    t, s = levels(schedule, steps, start, sigma_spacing, solver=True)
    alpha, sigma, lam = log_snr(s)
    n = len(t)
    columns = {name: np.zeros(n) for name in ("predict_x", "keep", "correct_x", "correct_new")}
    columns |= {name: np.zeros((n, MAX_ORDER)) for name in ("predict", "correct")}
    columns["keep"][0] = 1
    for i in range(n):
        p = min(order, i + 1, n - i if lower_order_final else order)
        p = 1 if s[i + 1] == 0 else p  # lambda is infinite there: only order 1 has a limit
        step, ratio = SolverStep(lam[: i + 2], alpha[i + 1], p, variant), sigma[i + 1] / sigma[i]
        columns["predict_x"][i], columns["predict"][i, :p] = ratio, step.predictor()
        if i + 1 < n:
            weights = step.corrector()
            columns["correct_x"][i + 1], columns["correct_new"][i + 1] = ratio, weights[0]
            columns["correct"][i + 1, :p] = weights[1:]
    return Plan(t, alpha[:-1], sigma[:-1], columns, sigmas=s)


class SolverStep:
    """Weights of one step of order p, from lambda_s to lambda_t: `lam` holds all lambdas up to t, `alpha` is at t."""

    def __init__(self, lam: np.ndarray, alpha: float, p: int, variant: str):
        self.alpha, self.p = alpha, p
        self.h = lam[-2] - lam[-1]  # negative: the data-prediction form
        self.b = self.h if variant == "bh1" else np.expm1(self.h)
        self.r = (lam[-3 : -2 - p : -1] - lam[-2]) / -self.h  # r_k = (lambda_k - lambda_s) / h of the older predictions

    def system(self) -> tuple[Float[np.ndarray, "{self.p} {self.p}"], Float[np.ndarray, " {self.p}"]]:
        """Theorem 3.1: the Vandermonde matrix of r_k, and phi_k k! / B(h), k = 1 ... p."""
        phi, right = np.expm1(self.h) / self.h - 1, np.empty(self.p)
        for k in range(1, self.p + 1):
            right[k - 1] = phi * math.factorial(k) / self.b
            phi = phi / self.h - 1 / math.factorial(k + 1)
        return np.vander(np.append(self.r, 1.0), self.p, increasing=True).T, right

    def predictor(self) -> Float[np.ndarray, " {self.p}"]:
        """Weights of the last p predictions, newest first."""
        if self.p == 1:
            return np.array([-self.alpha * np.expm1(self.h)])
        if self.p == 2:
            return self.weights(np.array([0.5, 0.0]))[1:]  # the system's limit for small steps, as published
        matrix, right = self.system()
        return self.weights(np.append(np.linalg.solve(matrix[:-1, :-1], right[:-1]), 0.0))[1:]

    def corrector(self) -> Float[np.ndarray, " {self.p}+1"]:
        """Weights of the new prediction, then of the last p before it; order 1 takes the limit 1/2 as well."""
        return self.weights(np.array([0.5]) if self.p == 1 else np.linalg.solve(*self.system()))

    def weights(self, rho: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p+1"]:
        """Equation 8's sum over differences to the newest known prediction, as weights of the predictions; `rho` weighs
        the differences of the older predictions, then of the new one."""
        older = -self.alpha * self.b * (rho[:-1] / self.r)
        new = -self.alpha * self.b * rho[-1]
        newest = -self.alpha * np.expm1(self.h) - older.sum() - new
        return np.concatenate([[new, newest], older])


def unipc_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """Correct the last step, then predict the next; `history` is the sample before it and the last predictions."""
    before, *older = history
    x = row["keep"] * x + row["correct_x"] * before + row["correct_new"] * prediction.x0
    x = x + weighted_sum(row["correct"], older)
    older = [prediction.x0, *older[:-1]]
    return row["predict_x"] * x + weighted_sum(row["predict"], older), (x, *older)


dpm = Sampler("dpm", dpm_plan, dpm_update, history=2)
dpm_karras = dpm.with_options(sigma_spacing="karras")
dpm_sde = dpm.with_options(sde=True)
dpm_sde_karras = dpm.with_options(sde=True, sigma_spacing="karras")
dpm_3m = dpm.with_options(order=3)
unipc = Sampler("unipc", unipc_plan, unipc_update, history=1 + MAX_ORDER)
