"""UniPC (Zhao et al., 2302.04867): a predictor and a corrector of any order that share their model calls.

The predictor ("UniP", equation 9) moves the sample with the last p predictions of x_0. At the next call the model's
answer there, had anyway, also corrects the step just done ("UniC", equation 8), and the next predictor starts from the
corrected sample. Both are weighted sums of the sample and predictions; the weights solve the small linear systems of
appendix B for the data-prediction form, with B(h) = h ("bh1") or e^h - 1 ("bh2").
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.dpm import scales_of
from plugins.diffusion.samplers.predictions import Estimate
from plugins.diffusion.samplers.sampler import Past, Plan, Row, Sampler
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.samplers.spacing import solver_levels

MOST_ORDER = 3
VARIANTS = ("bh1", "bh2")


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
    """Weights of each call: those that correct the step before it, then those of the step after it.

    "predict_x" and "predict" weigh the corrected sample and the last predictions. "keep", "correct_x", "correct_new"
    and "correct" weigh the sample itself, the one before the last step, the new prediction and those before it.
    Raises ValueError unless 1 <= order <= 3 and the variant is known.
    """
    if not 1 <= order <= MOST_ORDER:
        raise ValueError(f"unipc: order={order} has to be 1 to {MOST_ORDER}")
    if variant not in VARIANTS:
        raise ValueError(f"unipc: variant={variant!r} is not known; choose bh1 or bh2")
    t, s = solver_levels(schedule, steps, start, sigma_spacing)
    alpha, sigma, lam = scales_of(s)
    n = len(t)
    columns = {
        **{name: np.zeros(n) for name in ("predict_x", "keep", "correct_x", "correct_new")},
        **{name: np.zeros((n, MOST_ORDER)) for name in ("predict", "correct")},
    }
    columns["keep"][0] = 1
    for i in range(n):
        p = min(order, i + 1, n - i if lower_order_final else order)
        p = 1 if s[i + 1] == 0 else p  # lambda is infinite there: only order 1 has a limit
        step = SolverStep(lam[: i + 2], alpha[i + 1], sigma[i + 1] / sigma[i], variant)
        columns["predict_x"][i], columns["predict"][i, :p] = step.ratio, step.predictor(p)
        if i + 1 < n:
            weights = step.corrector(p)
            columns["correct_x"][i + 1], columns["correct_new"][i + 1] = step.ratio, weights[0]
            columns["correct"][i + 1, :p] = weights[1:]
    return Plan(t, alpha[:-1], sigma[:-1], columns, sigmas=s)


class SolverStep:
    """One step from lambda_s to lambda_t: `lam` holds all lambdas up to t, `alpha` is at t, `ratio` sigma_t/sigma_s."""

    def __init__(self, lam: np.ndarray, alpha: float, ratio: float, variant: str):
        self.lam, self.alpha, self.ratio = lam, alpha, ratio
        self.h = lam[-2] - lam[-1]  # negative: the data-prediction form
        self.b = self.h if variant == "bh1" else np.expm1(self.h)

    def system(self, p: int) -> tuple[Float[np.ndarray, "p p"], Float[np.ndarray, " p"]]:
        """Theorem 3.1: the Vandermonde matrix of r_k = (lambda_k - lambda_s) / h, and phi_k k! / B(h), k = 1 ... p."""
        r = np.append((self.lam[-3 : -2 - p : -1] - self.lam[-2]) / -self.h, 1.0)
        phi, right = np.expm1(self.h) / self.h - 1, np.empty(p)
        for k in range(1, p + 1):
            right[k - 1] = phi * math.factorial(k) / self.b
            phi = phi / self.h - 1 / math.factorial(k + 1)
        return np.vander(r, p, increasing=True).T, right

    def predictor(self, p: int) -> Float[np.ndarray, " {p}"]:
        """Weights of the last p predictions, newest first."""
        if p == 1:
            return np.array([-self.alpha * np.expm1(self.h)])
        matrix, right = self.system(p)
        # Order 2 takes the system's limit for small steps, 1/2, as published.
        rho = np.array([0.5]) if p == 2 else np.linalg.solve(matrix[:-1, :-1], right[:-1])
        return self.weights(np.append(rho, 0.0))[1:]

    def corrector(self, p: int) -> Float[np.ndarray, " {p}+1"]:
        """Weights of the new prediction, then of the last p before it; order 1 takes the limit 1/2 as well."""
        return self.weights(np.array([0.5]) if p == 1 else np.linalg.solve(*self.system(p)))

    def weights(self, rho: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p+1"]:
        """Equation 8's sum over differences to the newest known prediction, as weights of the predictions.

        `rho` weighs the differences of the older predictions, then of the new one.
        """
        p = len(rho)
        r = (self.lam[-3 : -2 - p : -1] - self.lam[-2]) / -self.h
        share = np.append(rho[:-1] / r, rho[-1])
        older = -self.alpha * self.b * share[:-1]
        new = -self.alpha * self.b * share[-1]
        newest = -self.alpha * np.expm1(self.h) - older.sum() - new
        return np.concatenate([[new, newest], older])


def unipc_update(
    x: Float[Array, "b ..."], known: Estimate, row: Row, past: Past, noise: None
) -> tuple[Float[Array, "b ..."], Past]:
    """Correct the last step, then predict the next. `past` is the sample before it and the last three predictions."""
    before, *older = past
    new = known.sample
    x = row["keep"] * x + row["correct_x"] * before + row["correct_new"] * new + _sum(row["correct"], older)
    older = [new, *older[:-1]]
    return row["predict_x"] * x + _sum(row["predict"], older), (x, *older)


def _sum(weights: Float[Array, " k"], arrays: list[Array]) -> Array:
    return sum((weight * array for weight, array in zip(weights, arrays, strict=True)), start=0 * arrays[0])


unipc = Sampler("unipc", unipc_plan, unipc_update, memory=1 + MOST_ORDER)
