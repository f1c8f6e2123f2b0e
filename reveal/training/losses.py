"""The losses of REVEAL (`models/losses.py` and `KnowledgeFIDModel.loss_function` of the reference).

| function | asks for | weight, pre-training |
| --- | --- | --- |
| `generation` | the right next token | 1 - r |
| `contrastive` | the query nearest to its own item among all in the batch | r = 0.01 (1/2 in the warm start) |
| `disentangle` | the value tokens of an item to say different things | 0.01 |
| `gap` | value tokens as long as the query's tokens | 0.0001 |
| `reconstruct` | an item's own text, written from its value alone; ours, for a warm start | 0 |
| `gate` | trust in the source of the right item; ours, for a warm start that knows it | 0 |

`total` adds them up. A term of weight 0 is not computed at all, so it can neither cost anything nor spread a NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from reveal.network.config import PAD
from reveal.network.heads import unit

APART = -1e10  # score of a candidate that is left out
SMALLEST_WEIGHT = 1e-6  # of all tokens together


def generation(
    logits: Float[Array, "b n v"],
    targets: Int[Array, "b n"],
    smoothing: int | float = 0.01,
    weights: Float[Array, "b n"] | None = None,
) -> Float[Array, ""]:
    """Cross-entropy per token that is not padding, against `1 - smoothing` on the target and the rest on all tokens.
    `weights` say how much each token counts; None: all alike."""
    logits = logits.astype(jnp.float32)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    wanted = (1 - smoothing) * right + smoothing * logits.mean(axis=-1)
    counted = targets != PAD
    loss = jnp.where(counted, jax.nn.logsumexp(logits, axis=-1) - wanted, 0)
    if weights is None:
        return loss.sum() / jnp.maximum(counted.sum(), 1)
    weights = jnp.where(counted, weights, 0)
    return (weights * loss).sum() / jnp.maximum(weights.sum(), SMALLEST_WEIGHT)


class Contrast(NamedTuple):
    """The loss, and how often the right item was nearest."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]


def contrastive(
    query: Float[Array, "b d"],
    keys: Float[Array, "b k d"],
    temperature: int | float = 0.2,
    *,
    items: Int[Array, "b k"] | None = None,
    axis: str | None = None,
) -> Contrast:
    """InfoNCE: each query against the keys of the whole batch.

    Args:
      query: of unit length.
      keys: of unit length; `keys[i, 0]` is what query i should find, the others are hard negatives, for all queries.
      temperature: that scores are divided by.
      items: numbers of the keys' items. Where another key is of the same item as a query's own it is left out, as it
        would be a negative that is right.
      axis: of a mesh (inside `shard_map`, `pmap` or `vmap`) over which the batch is spread; keys are gathered over it
        and the result is the mean over it. Outside, and under `jit` with sharded arrays, the batch is whole already.
    """
    b, k = keys.shape[:2]
    first = 0 if axis is None else lax.axis_index(axis) * b
    labels = (first + jnp.arange(b)) * k
    candidates = _gathered(keys, axis).reshape(-1, keys.shape[-1])
    scores = jnp.einsum("bd,nd->bn", query, candidates, preferred_element_type=jnp.float32) / temperature
    if items is not None:
        own = jnp.arange(len(candidates)) == labels[:, None]
        scores = jnp.where((_gathered(items, axis).reshape(-1) == items[:, :1]) & ~own, APART, scores)
    right = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    result = Contrast(
        jnp.mean(jax.nn.logsumexp(scores, axis=1) - right), jnp.mean(jnp.argmax(scores, axis=1) == labels)
    )
    return result if axis is None else lax.pmean(result, axis)


def gate(log_gate: Float[Array, "b s"], source: Int[Array | np.ndarray, " b"]) -> Float[Array, ""]:
    """Cross-entropy of the source gate against the source that has the answer, where somebody knows it."""
    return -jnp.mean(jnp.take_along_axis(log_gate, source[:, None], axis=1))


def disentangle(values: Float[Array, "b c d"]) -> Float[Array, ""]:
    """Mean over items and all c x c pairs of the squared cosine of two value tokens, each less the item's mean token;
    a pair counts once, and none with itself."""
    centred = unit(values - values.mean(axis=1, keepdims=True))
    squared = jnp.square(jnp.einsum("bqd,btd->bqt", centred, centred))
    return jnp.tril(squared, -1).mean()


def gap(
    values: Float[Array, "k c d"], tokens: Float[Array, "b m d"], mask: Bool[Array, "b m"] | None = None
) -> Float[Array, ""]:
    """|1 - mean length of the value tokens / mean length of the query's tokens (where `mask`)|.

    The reference counts padding among the latter, as None does here."""
    counted = jnp.ones(tokens.shape[:2]) if mask is None else mask.astype(jnp.float32)
    length = (_lengths(tokens) * counted).sum() / jnp.maximum(counted.sum(), 1)
    return jnp.abs(1 - _lengths(values).mean() / length)


@dataclasses.dataclass(frozen=True)
class Weights:
    """What each term counts.

    Attributes:
      contrastive: r; the generation counts 1 - r.
      disentangle, gap, reconstruct, gate: as they are.
    """

    contrastive: int | float = 0.01
    disentangle: int | float = 0.01
    gap: int | float = 0.0001
    reconstruct: int | float = 0.0
    gate: int | float = 0.0

    def __post_init__(self):
        if not 0 <= self.contrastive <= 1 or min(self.disentangle, self.gap, self.reconstruct, self.gate) < 0:
            raise ValueError(f"{self}: contrastive is a share from 0 to 1, the others are not negative")

    def of(self, name: str) -> float:
        return float(1 - self.contrastive if name == "generation" else getattr(self, name))


def total(
    terms: Mapping[str, Callable[[], Float[Array, ""]]], weights: Weights
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The weighted sum, and each term by itself. Only terms that weigh something are called.

    Args:
      terms: by the functions' names, what computes each. One that is not there counts as off, except that without
        "contrastive" the generation counts fully.
      weights: of the terms.
    """
    if "contrastive" not in terms:
        weights = dataclasses.replace(weights, contrastive=0)
    values = {name: term() for name, term in terms.items() if weights.of(name) != 0}
    return jnp.asarray(sum(weights.of(name) * value for name, value in values.items()), jnp.float32), values


def _gathered(x: Array, axis: str | None) -> Array:
    """`x` of all devices, in the order of their numbers."""
    return x if axis is None else lax.all_gather(x, axis, tiled=True)


def _lengths(x: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """Euclidean, with a finite gradient where a vector is all zeros."""
    return jnp.sqrt(jnp.square(x.astype(jnp.float32)).sum(axis=-1) + 1e-12)
