"""UniPC (Zhao et al., 2302.04867): a predictor and a corrector of any order that share their model calls.

The predictor ("UniP", equation 9) moves the sample with the last p predictions of x_0. The model's next call, at the
end of the step, also corrects that step ("UniC", equation 8), and the next predictor starts from the corrected sample.
Both are weighted sums of the sample and predictions; the weights solve the small linear systems of appendix B for the
data-prediction form, with B(h) = h ("bh1") or e^h - 1 ("bh2").
"""

import math

import numpy as np
from jaxtyping import Array, Float

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State
from plugins.diffusion.samplers.schedules import Schedule, check_choice, levels, log_snr

MAX_ORDER = 3


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

    "predict_x" and "predict" weigh the corrected sample and the last predictions. "keep", "correct_x", "correct_new"
    and "correct" weigh the sample itself, the one before the last step, the new prediction and those before it."""
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
        """Equation 8's sum over differences to the newest known prediction, as weights of the predictions.

        `rho` weighs the differences of the older predictions, then of the new one."""
        older = -self.alpha * self.b * (rho[:-1] / self.r)
        new = -self.alpha * self.b * rho[-1]
        newest = -self.alpha * np.expm1(self.h) - older.sum() - new
        return np.concatenate([[new, newest], older])


def unipc_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """Correct the last step, then predict the next; `history` is the sample before it and the last predictions."""
    before, *older = history
    x = row["keep"] * x + row["correct_x"] * before + row["correct_new"] * prediction.x0 + _sum(row["correct"], older)
    older = [prediction.x0, *older[:-1]]
    return row["predict_x"] * x + _sum(row["predict"], older), (x, *older)


def _sum(weights: Float[Array, " k"], arrays: list[Array]) -> Array:
    return sum((weight * array for weight, array in zip(weights, arrays, strict=True)), start=0 * arrays[0])


unipc = Sampler("unipc", unipc_plan, unipc_update, history=1 + MAX_ORDER)
