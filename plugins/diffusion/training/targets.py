"""Noisy samples, targets and weights of diffusion training, for each kind of prediction (`samplers/sampler.py`)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plugins.diffusion.samplers.sampler import KINDS
from plugins.diffusion.samplers.schedules import Schedule, check_choice


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
