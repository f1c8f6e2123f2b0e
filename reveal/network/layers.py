"""Layers that all stacks of REVEAL share: linear map, T5's norm, embedding, attention.

A layer computes in the type of its input and casts its parameters to it, so a network whose parameters are bfloat16
runs in bfloat16. Statistics of the norms, attention logits and softmax are float32 whatever the type.

Masks are `b n` booleans, True for a token, and enter attention as a bias on its logits. Only keys are masked, never
queries: the output at a padded position has no meaning, but depends on unmasked tokens alone. (t5x masks both, so that
a padded position averages over everything, missing images included.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from common.nn import layers

MASKED = -1e10  # finite: a query without any key averages them all instead of becoming NaN
NORM_EPS = 1e-6


class Mode(NamedTuple):
    """What is done for a gradient only: activations that are not kept, and dropout in T5's layers."""

    remat: bool = False  # recompute the activations of a layer: less memory, more time
    dropout: float = 0.0  # probability of a zero
    key: PRNGKeyArray | None = None  # of the dropout; None: no dropout

    def fold(self, number: int) -> "Mode":
        """The same for one of several parts: its zeros are its own."""
        return self if self.key is None else self._replace(key=jax.random.fold_in(self.key, number))

    def drop(self, x: Float[Array, "*b n c"], number: int) -> Float[Array, "*b n c"]:
        """Dropout, as t5x's: channel by channel, all `n` tokens alike; what stays is divided by the share that stays.
        `number` tells the places of a part apart."""
        if self.key is None:
            return x
        shape = (*x.shape[:-2], 1, x.shape[-1])
        keep = jax.random.bernoulli(jax.random.fold_in(self.key, number), 1 - self.dropout, shape)
        return jnp.where(keep, x / (1 - self.dropout), 0)

    def wrap(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        if not self.remat:
            return layer
        from common.nn.remat import remat  # for training only

        return remat(layer)


PLAIN = Mode()


class Linear(layers.Linear):
    """A map of the last axis, as common's. The kernel is initialised normal with variance `gain**2 / inputs`."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, gain: int | float = 1, rngs: nnx.Rngs):
        self.kernel = nnx.Param(gain * jax.nn.initializers.lecun_normal()(rngs.params(), (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,))) if bias else None


class RMSNorm(nnx.Module):
    """Divides the last axis by its root mean square, then scales (Zhang & Sennrich, 2019): T5's norm."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones((width,)))

    def __call__(self, x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
        wide = x.astype(jnp.float32)
        gain = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + NORM_EPS)
        return (wide * gain * self.scale[...].astype(jnp.float32)).astype(x.dtype)


class Embedding(layers.Embedding):
    """A table of `count` vectors, as common's, initialised standard normal as T5's."""

    def __init__(self, count: int, width: int, *, rngs: nnx.Rngs):
        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (count, width)))


def attend(
    q: Float[Array, "b n h d"],
    k: Float[Array, "b m h d"],
    v: Float[Array, "b m h d"],
    *biases: Float[Array, "#b #h #n m"],
    scale: int | float = 1,
    mode: Mode = PLAIN,
) -> tuple[Float[Array, "b n h d"], Float[Array, "b h n m"]]:
    """softmax(scale * q k' + biases) v, and the softmax itself in float32, before dropout."""
    logits = scale * jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32)
    for bias in biases:
        logits = logits + bias
    weights = jax.nn.softmax(logits)
    return jnp.einsum("bhnm,bmhd->bnhd", mode.drop(weights, 0).astype(v.dtype), v), weights


def mask_bias(mask: Bool[Array, "b m"]) -> Float[Array, "b 1 1 m"]:
    return jnp.where(mask, 0.0, MASKED)[:, None, None, :]
