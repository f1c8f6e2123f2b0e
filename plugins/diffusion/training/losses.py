"""Losses and metrics of diffusion training, objects that a config lists; `common/training/objectives.py` has others."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from common.training.objectives import Scope, Weight, as_schedule


@dataclasses.dataclass(frozen=True)
class Denoising:
    """Squared error of the prediction, averaged over each example's latents, times the weight of its timestep.

    With weights of 1 this is the simple loss of DDPM (2006.11239, equation 14).
    """

    weight: Weight = 1.0

    def __post_init__(self):
        object.__setattr__(self, "weight", as_schedule(self.weight, "weight of Denoising"))

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return jnp.mean(scope["output.weight"] * per_example(scope["output.prediction"], scope["output.target"]))


@dataclasses.dataclass(frozen=True)
class ErrorBetween:
    """A metric: the unweighted squared error of the examples whose timestep lies in [first, last); 0 without any.

    A step's loss depends far more on its timesteps than on the model; within a narrow range, less so.
    """

    first: int
    last: int
    weight: Weight = 1.0

    def __post_init__(self):
        if not 0 <= self.first < self.last:
            raise ValueError(f"ErrorBetween: timesteps [{self.first}, {self.last}) hold none; give 0 <= first < last")

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        t = scope["output.t"]
        inside = ((t >= self.first) & (t < self.last)).astype(jnp.float32)
        errors = per_example(scope["output.prediction"], scope["output.target"])
        return jnp.sum(inside * errors) / jnp.maximum(jnp.sum(inside), 1)


@dataclasses.dataclass(frozen=True)
class Kl:
    """KL divergence of the latents to the standard normal distribution, nats per latent value."""

    weight: Weight = 1e-6

    def __post_init__(self):
        object.__setattr__(self, "weight", as_schedule(self.weight, "weight of Kl"))

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        posterior = scope["output.posterior"]
        return jnp.mean(posterior.kl()) / (posterior.mean.size / len(posterior.mean))


@dataclasses.dataclass(frozen=True)
class LatentStd:
    """A metric: standard deviation of the latents over batch, space and channels; its inverse is the scaling factor."""

    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return jnp.std(scope["output.latents"])


def per_example(prediction: Float[Array, "b ..."], target: Float[Array, "b ..."]) -> Float[Array, " b"]:
    """Mean squared error of each example."""
    return jnp.mean(jnp.square(prediction - target), axis=tuple(range(1, target.ndim)))
