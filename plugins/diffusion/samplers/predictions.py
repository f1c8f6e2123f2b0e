"""What a diffusion model predicts, and training targets and weights for each kind of prediction.

A sample is x = alpha x_0 + sigma eps. A model is trained to predict one of

    epsilon        eps                             (DDPM, 2006.11239)
    v_prediction   v = alpha eps - sigma x_0       (progressive distillation, 2202.00512, appendix D)
    sample         x_0
    flow           eps - x_0, where alpha = 1 - sigma (flow matching)

Given x, each of them determines x_0 and eps.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plugins.diffusion.samplers.schedules import Schedule, check_choice

KINDS = ("epsilon", "v_prediction", "sample", "flow")


class Prediction(NamedTuple):
    """A model's output, and the x_0 and eps that it implies."""

    output: Float[Array, "*s"]
    x0: Float[Array, "*s"]
    eps: Float[Array, "*s"]


def predict(
    kind: str, output: Float[Array, "*s"], x: Float[Array, "*s"], alpha: Float[Array, "*#s"], sigma: Float[Array, "*#s"]
) -> Prediction:
    """x_0 and eps from a model's output of `kind` for x = alpha x_0 + sigma eps; the scales broadcast.

    "epsilon" divides by alpha, "sample" by sigma."""
    check_choice("prediction_type", kind, KINDS)
    if kind == "epsilon":
        return Prediction(output, (x - sigma * output) / alpha, output)
    if kind == "v_prediction":
        return Prediction(output, alpha * x - sigma * output, alpha * output + sigma * x)
    if kind == "sample":
        return Prediction(output, output, (x - alpha * output) / sigma)
    return Prediction(output, x - sigma * output, x + alpha * output)


def target(
    kind: str, x0: Float[Array, "*s"], eps: Float[Array, "*s"], alpha: Float[Array, "*#s"], sigma: Float[Array, "*#s"]
) -> Float[Array, "*s"]:
    """The output of a perfect model of `kind` for x = alpha x_0 + sigma eps."""
    check_choice("prediction_type", kind, KINDS)
    return {"epsilon": eps, "sample": x0, "v_prediction": alpha * eps - sigma * x0, "flow": eps - x0}[kind]


def scales(schedule: Schedule, t: Int[Array, " b"], ndim: int) -> tuple[Float[Array, "b ..."], Float[Array, "b ..."]]:
    """alpha and sigma at timesteps `t`, shaped to broadcast over samples of `ndim` axes."""
    alpha_bar = schedule.alphas_cumprod
    shape = (-1, *(1,) * (ndim - 1))
    alpha, sigma = jnp.asarray(alpha_bar**0.5, jnp.float32), jnp.asarray((1 - alpha_bar) ** 0.5, jnp.float32)
    return alpha[t].reshape(shape), sigma[t].reshape(shape)


def add_noise(
    schedule: Schedule, x0: Float[Array, "b ..."], eps: Float[Array, "b ..."], t: Int[Array, " b"]
) -> Float[Array, "b ..."]:
    """x_t = alpha_t x_0 + sigma_t eps (DDPM, equation 4), with a timestep for each row."""
    alpha, sigma = scales(schedule, t, x0.ndim)
    return alpha * x0 + sigma * eps


def training_target(
    schedule: Schedule, x0: Float[Array, "b ..."], eps: Float[Array, "b ..."], t: Int[Array, " b"]
) -> Float[Array, "b ..."]:
    """The target of the model's output at `add_noise(schedule, x0, eps, t)`, by `schedule.prediction_type`."""
    return target(schedule.prediction_type, x0, eps, *scales(schedule, t, x0.ndim))


def snr(schedule: Schedule, t: Int[Array, " b"]) -> Float[Array, " b"]:
    """Signal-to-noise ratio alpha_t^2 / sigma_t^2."""
    alpha_bar = schedule.alphas_cumprod
    return jnp.asarray(alpha_bar / (1 - alpha_bar), jnp.float32)[t]


def min_snr_weight(snr: Float[Array, " b"], kind: str, gamma: float = 5.0) -> Float[Array, " b"]:
    """Weight of a timestep's squared error in the model's own kind (Min-SNR, 2303.09556, section 3.4).

    The paper weighs the error in x_0 by min(snr, gamma). The error in eps is that in x_0 times snr, the one in v times
    snr + 1. Raises ValueError for gamma <= 0 or a kind without such a weight."""
    check_choice("prediction_type", kind, KINDS[:3])
    if gamma <= 0:
        raise ValueError(f"min-SNR's gamma={gamma} has to be positive; the paper's is 5")
    if kind == "epsilon":
        return jnp.minimum(1, gamma / snr)  # min(snr, gamma) / snr, also where snr is 0
    return jnp.minimum(snr, gamma) / (snr + 1 if kind == "v_prediction" else 1)
