"""Losses and metrics of diffusion training, objects that a config lists; and the noisy samples, targets and weights
that a loss compares, for each kind of prediction (`samplers/sampler.py`)."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from common.checked import Checked, NotNegative
from common.training.objectives import Scope, Weight, Weighted
from plugins.diffusion.samplers.schedules import Schedule

Rows = Float[Array, "b ..."]
Steps = Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class Denoising(Weighted):
    """Squared error of the prediction, averaged over each example's latents, times the weight of its timestep: with
    weights of 1 the simple loss of DDPM (2006.11239, equation 14)."""

    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return jnp.mean(scope["output.weight"] * per_example(scope["output.prediction"], scope["output.target"]))


@dataclasses.dataclass(frozen=True)
class ErrorBetween(Checked):
    """A metric: the unweighted squared error of the examples whose timestep lies in [first, last); 0 without any. A
    step's loss depends far more on its timesteps than on the model; within a narrow range, less so."""

    first: NotNegative
    last: int
    weight: Weight = 1.0

    def rules(self):
        yield self.first < self.last, "first is below last, or no timestep is between them"

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        t = scope["output.t"]
        inside = ((t >= self.first) & (t < self.last)).astype(jnp.float32)
        errors = per_example(scope["output.prediction"], scope["output.target"])
        return jnp.sum(inside * errors) / jnp.maximum(jnp.sum(inside), 1)


@dataclasses.dataclass(frozen=True)
class Kl(Weighted):
    """KL divergence of the latents to the standard normal distribution, nats per latent value."""

    weight: Weight = 1e-6

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        posterior = scope["output.posterior"]
        return jnp.mean(posterior.kl()) / (posterior.mean.size / len(posterior.mean))


@dataclasses.dataclass(frozen=True)
class LatentStd:
    """A metric: standard deviation of the latents over batch, space and channels; its inverse is the scaling factor."""

    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return jnp.std(scope["output.latents"])


def per_example(prediction: Rows, target: Rows) -> Float[Array, " b"]:
    """Mean squared error of each example."""
    return jnp.mean(jnp.square(prediction - target), axis=tuple(range(1, target.ndim)))


def target(
    kind: str, x0: Float[Array, "*s"], eps: Float[Array, "*s"], alpha: Float[Array, "*#s"], sigma: Float[Array, "*#s"]
) -> Float[Array, "*s"]:
    """The output of a perfect model of `kind` for x = alpha x_0 + sigma eps."""
    return {"epsilon": eps, "sample": x0, "v_prediction": alpha * eps - sigma * x0, "flow": eps - x0}[kind]


def scales(schedule: Schedule, t: Steps, ndim: int) -> tuple[Rows, Rows]:
    """alpha and sigma at timesteps `t`, shaped to broadcast over samples of `ndim` axes."""
    alpha_bar = schedule.alphas_cumprod
    shape = (-1, *(1,) * (ndim - 1))
    alpha, sigma = jnp.asarray(alpha_bar**0.5, jnp.float32), jnp.asarray((1 - alpha_bar) ** 0.5, jnp.float32)
    return alpha[t].reshape(shape), sigma[t].reshape(shape)


def add_noise(schedule: Schedule, x0: Rows, eps: Rows, t: Steps) -> Rows:
    """x_t = alpha_t x_0 + sigma_t eps (DDPM, equation 4), with a timestep for each row."""
    alpha, sigma = scales(schedule, t, x0.ndim)
    return alpha * x0 + sigma * eps


def training_target(schedule: Schedule, x0: Rows, eps: Rows, t: Steps) -> Rows:
    """The target of the model's output at `add_noise(schedule, x0, eps, t)`, by `schedule.prediction_type`."""
    return target(schedule.prediction_type, x0, eps, *scales(schedule, t, x0.ndim))


def snr(schedule: Schedule, t: Steps) -> Float[Array, " b"]:
    """Signal-to-noise ratio alpha_t^2 / sigma_t^2."""
    alpha_bar = schedule.alphas_cumprod
    return jnp.asarray(alpha_bar / (1 - alpha_bar), jnp.float32)[t]


def min_snr_weight(snr: Float[Array, " b"], kind: str, gamma: float = 5.0) -> Float[Array, " b"]:
    """Weight of a timestep's squared error in the model's own kind (Min-SNR, 2303.09556, section 3.4). The paper weighs
    the error in x_0 by min(snr, gamma). The error in eps is that in x_0 times snr, the one in v times snr + 1."""
    if kind == "epsilon":
        return jnp.minimum(1, gamma / snr)  # min(snr, gamma) / snr, also where snr is 0
    return jnp.minimum(snr, gamma) / (snr + 1 if kind == "v_prediction" else 1)
