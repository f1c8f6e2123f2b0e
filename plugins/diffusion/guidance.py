"""Classifier-free guidance (2207.12598): steer by the difference that the prompt makes.

A model asked with and without the prompt gives two predictions; the answer used lies on the line through both, beyond
the one with it. A negative prompt takes the empty one's place. It works on every kind of prediction, as all of them are
linear in eps for a given sample.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float


def guide(
    uncond: Float[Array, "b ..."], cond: Float[Array, "b ..."], scale: float | Float[Array, ""], rescale: float = 0.0
) -> Float[Array, "b ..."]:
    """uncond + scale (cond - uncond): scale 0 ignores the prompt, 1 is no guidance, 7.5 is customary.

    `rescale` in [0, 1] is the paper's phi (2305.08891, equations 14-16): it mixes in the guided prediction with each
    row's standard deviation brought back to that of `cond`, against over-exposure. Raises ValueError outside [0, 1].
    """
    if not 0 <= rescale <= 1:
        raise ValueError(f"guidance rescale={rescale} has to lie in [0, 1]; 0 is off, 0.7 is the paper's")
    guided = uncond + scale * (cond - uncond)
    if rescale == 0:
        return guided
    axes = tuple(range(1, cond.ndim))
    ratio = jnp.std(cond, axes, keepdims=True) / jnp.std(guided, axes, keepdims=True)
    return guided * (rescale * ratio + 1 - rescale)


def guided(pair: Callable, scale: float | Float[Array, ""], rescale: float = 0.0) -> Callable:
    """A model for the samplers from `pair(x, step) -> (uncond, cond)`. Raises as `guide`, when it is called."""

    def model(x: Float[Array, "b ..."], step) -> Float[Array, "b ..."]:
        uncond, cond = pair(x, step)
        return guide(uncond, cond, scale, rescale)

    return model
