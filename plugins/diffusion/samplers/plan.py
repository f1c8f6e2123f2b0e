"""A run as a table: one row for each call of the model, with everything that is known before the first.

A sampler's coefficients depend on the schedule and the number of steps alone, so they are computed in float64 numpy
before tracing; the loop scans over them in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Row = Mapping[str, Array]
Past = tuple[Array, ...]


class Step(NamedTuple):
    """What a model is told at call `index` of n: the timestep, and that the call covers [fraction, until) of the run.

    A control that acts from `start` to `end` of a run acts where fraction >= start and until <= end.
    """

    t: Float[Array, ""]
    index: Int[Array, ""]
    fraction: Float[Array, ""]
    until: Float[Array, ""]

    def within(self, start: float | Array, end: float | Array) -> Array:
        """Whether this call lies in that part of the run: a boolean scalar."""
        slack = 1e-6  # index / n is rounded
        return (self.fraction >= start - slack) & (self.until <= end + slack)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A run's n calls.

    Attributes:
      timesteps: what the model is told.
      alpha, sigma: the model's input is alpha x_0 + sigma eps.
      columns: the sampler's own coefficients, by name.
      scale_in: the model's input is the sample times this; None means 1.
      start_scale: standard deviation of the noise that a whole run starts from (init_noise_sigma).
      sigmas: noise levels sigma / alpha before each call and after the last, where the sampler thinks in them.
      draws: whether calls draw noise.
    """

    timesteps: Float[np.ndarray, " n"]
    alpha: Float[np.ndarray, " n"]
    sigma: Float[np.ndarray, " n"]
    columns: Mapping[str, Float[np.ndarray, "n ..."]]
    scale_in: Float[np.ndarray, " n"] | None = None
    start_scale: float = 1.0
    sigmas: Float[np.ndarray, " n+1"] | None = None
    draws: bool = False

    def rows(self) -> dict[str, Array]:
        """All columns as arrays to scan over, float32."""
        n = len(self.timesteps)
        index = np.arange(n)
        columns = {
            "t": self.timesteps,
            "fraction": index / n,
            "until": (index + 1) / n,
            "alpha": self.alpha,
            "sigma": self.sigma,
            "scale_in": np.ones(n) if self.scale_in is None else self.scale_in,
            **self.columns,
        }
        return {name: jnp.asarray(column, jnp.float32) for name, column in columns.items()} | {
            "index": jnp.asarray(index, jnp.int32)
        }

    def noised(self, image: Float[Array, "b ..."], noise: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
        """The sample at the first call of a run that starts from `image`."""
        scale = 1.0 if self.scale_in is None else float(self.scale_in[0])
        return (float(self.alpha[0]) * image + float(self.sigma[0]) * noise) / scale
