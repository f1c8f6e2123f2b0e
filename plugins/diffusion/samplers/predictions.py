"""What a diffusion model is asked for, and how one answer turns into another.

A sample is x = alpha x_0 + sigma eps. A model may be trained to answer with any of

    epsilon        eps                             (DDPM, 2006.11239)
    v_prediction   v = alpha eps - sigma x_0       (progressive distillation, 2202.00512, appendix D)
    sample         x_0
    flow           eps - x_0, where alpha = 1 - sigma (flow matching)

Knowing x, each of them gives x_0 and eps. The rest of the module makes training examples: noisy samples, targets, and
the weight of each timestep.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plugins.diffusion.samplers.schedules import Schedule


class Estimate(NamedTuple):
    """A model's answer: as it came, and as the picture and the noise that it implies."""

    raw: Float[Array, "*s"]
    sample: Float[Array, "*s"]
    noise: Float[Array, "*s"]


def estimate(
    kind: str,
    prediction: Float[Array, "*s"],
    x: Float[Array, "*s"],
    alpha: Float[Array, "*#s"],
    sigma: Float[Array, "*#s"],
) -> Estimate:
    """x_0 and eps from a prediction of `kind` about x = alpha x_0 + sigma eps; the scales broadcast.

    "epsilon" divides by alpha, "sample" by sigma. Raises ValueError for an unknown kind.
    """
    if kind == "epsilon":
        return Estimate(prediction, (x - sigma * prediction) / alpha, prediction)
    if kind == "v_prediction":
        return Estimate(prediction, alpha * x - sigma * prediction, alpha * prediction + sigma * x)
    if kind == "sample":
        return Estimate(prediction, prediction, (x - alpha * prediction) / sigma)
    if kind == "flow":
        return Estimate(prediction, x - sigma * prediction, x + alpha * prediction)
    raise ValueError(f"{kind!r} is nothing that a model predicts; choose epsilon, v_prediction, sample or flow")


def convert(
    source: str,
    target: str,
    prediction: Float[Array, "*s"],
    x: Float[Array, "*s"],
    alpha: Float[Array, "*#s"],
    sigma: Float[Array, "*#s"],
) -> Float[Array, "*s"]:
    """The prediction of kind `source` as one of kind `target`. Raises as `estimate`."""
    known = estimate(source, prediction, x, alpha, sigma)
    return answer(target, known.sample, known.noise, alpha, sigma)


def answer(
    kind: str,
    sample: Float[Array, "*s"],
    noise: Float[Array, "*s"],
    alpha: Float[Array, "*#s"],
    sigma: Float[Array, "*#s"],
) -> Float[Array, "*s"]:
    """What a perfect model of `kind` says about alpha * sample + sigma * noise. Raises ValueError for other kinds."""
    answers = {
        "epsilon": noise,
        "sample": sample,
        "v_prediction": alpha * noise - sigma * sample,
        "flow": noise - sample,
    }
    if kind not in answers:
        raise ValueError(f"{kind!r} is nothing that a model predicts; choose one of {', '.join(answers)}")
    return answers[kind]


def scales(schedule: Schedule, t: Int[Array, " b"], ndim: int) -> tuple[Float[Array, "b ..."], Float[Array, "b ..."]]:
    """alpha and sigma at timesteps `t`, shaped to broadcast over samples of `ndim` axes."""
    kept = schedule.alphas_cumprod
    shape = (-1, *(1,) * (ndim - 1))
    alpha, sigma = jnp.asarray(kept**0.5, jnp.float32), jnp.asarray((1 - kept) ** 0.5, jnp.float32)
    return alpha[t].reshape(shape), sigma[t].reshape(shape)


def add_noise(
    schedule: Schedule, sample: Float[Array, "b ..."], noise: Float[Array, "b ..."], t: Int[Array, " b"]
) -> Float[Array, "b ..."]:
    """x_t = alpha_t x_0 + sigma_t eps (DDPM, equation 4), with a timestep for each row."""
    alpha, sigma = scales(schedule, t, sample.ndim)
    return alpha * sample + sigma * noise


def training_target(
    schedule: Schedule, sample: Float[Array, "b ..."], noise: Float[Array, "b ..."], t: Int[Array, " b"]
) -> Float[Array, "b ..."]:
    """What the model should answer at `add_noise(schedule, sample, noise, t)`, by `schedule.prediction_type`."""
    alpha, sigma = scales(schedule, t, sample.ndim)
    return answer(schedule.prediction_type, sample, noise, alpha, sigma)


def velocity(
    schedule: Schedule, sample: Float[Array, "b ..."], noise: Float[Array, "b ..."], t: Int[Array, " b"]
) -> Float[Array, "b ..."]:
    """v_t = alpha_t eps - sigma_t x_0."""
    return answer("v_prediction", sample, noise, *scales(schedule, t, sample.ndim))


def snr(schedule: Schedule, t: Int[Array, " b"]) -> Float[Array, " b"]:
    """Signal-to-noise ratio alpha_t^2 / sigma_t^2."""
    kept = schedule.alphas_cumprod
    return jnp.asarray(kept / (1 - kept), jnp.float32)[t]


def min_snr_weight(ratio: Float[Array, " b"], kind: str, gamma: float = 5.0) -> Float[Array, " b"]:
    """Weight of a timestep's squared error in the model's own kind (Min-SNR, 2303.09556, section 3.4).

    The paper's weight of the error in x_0 is min(snr, gamma). An error in eps is that in x_0 times snr, one in v times
    snr + 1. Raises ValueError for gamma <= 0 or an unknown kind.
    """
    if gamma <= 0:
        raise ValueError(f"min-SNR's gamma={gamma} has to be positive; the paper's is 5")
    if kind == "epsilon":
        return jnp.minimum(1, gamma / ratio)  # min(snr, gamma) / snr, also where snr is 0
    if kind == "v_prediction":
        return jnp.minimum(ratio, gamma) / (ratio + 1)
    if kind == "sample":
        return jnp.minimum(ratio, gamma)
    raise ValueError(f"min-SNR knows epsilon, v_prediction and sample, not {kind!r}")
