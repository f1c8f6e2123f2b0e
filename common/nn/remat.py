"""Rematerialisation: drop the inner activations of a stage, and recompute them for the gradient.

`jax.checkpoint` asks for the same, but XLA's CPU backend merges the two computations: nothing is saved (jax 0.10.2).
Here the inputs of the second depend on the incoming gradient, by adding zero times it, so that no backend can merge it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def remat(stage: Callable[..., Any]) -> Callable[..., Any]:
    """`stage` with the same value and gradient, which keeps only its inputs (and closed-over arrays)."""

    def wrapped(*inputs: Any) -> Any:
        pure, captured = jax.closure_convert(stage, *inputs)

        def call(inputs: tuple, captured: list) -> Any:
            return pure(*inputs, *captured)

        def forward(inputs: tuple, captured: list) -> tuple[Any, tuple]:
            return call(inputs, captured), (inputs, captured)

        def backward(kept: tuple, gradient: Any) -> tuple:
            return jax.vjp(call, *after(gradient, kept))[1](gradient)

        differentiable = jax.custom_vjp(call)
        differentiable.defvjp(forward, backward)
        return differentiable(inputs, captured)

    return wrapped


def after(earlier: Any, tree: Any) -> Any:
    """`tree`, available only after `earlier`. NaN in `earlier` becomes NaN in `tree`."""
    zero = sum(0 * jnp.ravel(leaf)[0].astype(jnp.float32) for leaf in jax.tree.leaves(earlier))
    return jax.tree.map(lambda x: x + jnp.asarray(zero, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
