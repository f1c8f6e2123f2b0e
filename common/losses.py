"""Losses between two pictures (or any two arrays): one number, the mean over everything."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def l1(prediction: Float[Array, "*shape"], target: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Mean absolute difference; FILM's first loss."""
    return jnp.mean(jnp.abs(prediction - target))


def masked_l1(
    prediction: Float[Array, "b h w c"], target: Float[Array, "b h w c"], mask: Float[Array, "b h w"]
) -> Float[Array, ""]:
    """Mean absolute difference where `mask` (in [0, 1]) says so; 0 where it says nothing."""
    total = jnp.sum(jnp.abs(prediction - target) * mask[..., None])
    return total / jnp.maximum(jnp.sum(mask) * prediction.shape[-1], 1.0)
