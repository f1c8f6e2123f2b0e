"""The losses of REVEAL (`models/losses.py` and `KnowledgeFIDModel.loss_function` of the reference).

| function | asks for | weight, pre-training |
| --- | --- | --- |
| `generation` | the correct next token | 1 - r |
| `contrastive` | the query nearest to its own item among all in the batch | r = 0.01 (1/2 in the warm start) |
| `disentangle` | the value tokens of an item to differ | 0.01 |
| `gap` | value tokens as long as the query's tokens | 0.0001 |
| `reconstruct`: `generation` | an item's own text, generated from its value alone; ours, for a warm start | 0 |
| `gate` | trust in the source of the gold item; ours, for a warm start that knows it | 0 |

`Weights` makes them named terms of `common.training.objectives`, which read their inputs from an `Output` by path; a
task's `losses` adds further ones. A term of weight 0 is not computed, so it costs nothing and cannot spread a NaN.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from common.checked import AtLeast0, Checked, Share
from common.training.objectives import Scope, Term, Weight
from reveal.network.config import PAD
from reveal.network.heads import unit
from reveal.network.model import Query

EXCLUDED = -1e10  # score of a candidate that is left out
MIN_WEIGHT = 1e-6  # of all tokens together


class Output(NamedTuple):
    """What a stage computed of a batch: the inputs of losses. None: not computed."""

    query: Query
    values: Float[Array, "b k c d"]  # of the items that were read
    logits: Float[Array, "b o v"]  # of the answers
    keys: Float[Array, "b m e"] | None = None  # of the candidates of the contrastive loss, the gold item first
    ids: Int[Array, "b m"] | None = None
    source: Int[Array | np.ndarray, " b"] | None = None  # of the gold item
    text: Int[Array, "n l"] | None = None  # the items' own texts
    text_logits: Float[Array, "n l v"] | None = None
    text_weights: Float[Array, "n l"] | None = None  # how much each token counts


def generation(
    logits: Float[Array, "b n v"],
    targets: Int[Array | np.ndarray, "b n"],
    weights: Float[Array, "b n"] | None = None,
    smoothing: int | float = 0.01,
) -> Float[Array, ""]:
    """Cross-entropy per token that is not padding, against `1 - smoothing` on the target and the rest on all tokens.
    `weights` say how much each token counts; None: equally."""
    logits = logits.astype(jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    smoothed = (1 - smoothing) * target_logits + smoothing * logits.mean(axis=-1)
    counted = targets != PAD
    loss = jnp.where(counted, jax.nn.logsumexp(logits, axis=-1) - smoothed, 0)
    if weights is None:
        return loss.sum() / jnp.maximum(counted.sum(), 1)
    weights = jnp.where(counted, weights, 0)
    return (weights * loss).sum() / jnp.maximum(weights.sum(), MIN_WEIGHT)


class Contrast(NamedTuple):
    """The loss, and how often a query is nearest to its own item."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]


def contrastive(
    query: Float[Array, "b d"],
    keys: Float[Array, "b k d"],
    items: Int[Array, "b k"] | None = None,
    temperature: int | float = 0.2,
) -> Contrast:
    """InfoNCE: each query against the keys of the whole batch, all of unit length. `keys[i, 0]` is of the item that
    query i should find; all others are negatives, for all queries, but for other keys of the query's own item by the
    ids `items`."""
    b, k = keys.shape[:2]
    labels = jnp.arange(b) * k
    scores = jnp.einsum("bd,nd->bn", query, keys.reshape(b * k, -1), preferred_element_type=jnp.float32) / temperature
    if items is not None:
        own = jnp.arange(b * k) == labels[:, None]
        scores = jnp.where((items.reshape(-1) == items[:, :1]) & ~own, EXCLUDED, scores)
    positive = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(scores, axis=1) - positive)
    return Contrast(loss, jnp.mean(jnp.argmax(scores, axis=1) == labels))


def gate(log_gate: Float[Array, "b s"], source: Int[Array | np.ndarray, " b"]) -> Float[Array, ""]:
    """Cross-entropy of the source gate against the source of the gold item."""
    return -jnp.mean(jnp.take_along_axis(log_gate, source[:, None], axis=1))


def disentangle(values: Float[Array, "*b c d"]) -> Float[Array, ""]:
    """Mean over items and all c x c pairs of the squared cosine of two value tokens, each less the item's mean token;
    a pair counts once, and none with itself."""
    centred = unit(values - values.mean(axis=-2, keepdims=True))
    squared = jnp.square(jnp.einsum("...qd,...td->...qt", centred, centred))
    return jnp.tril(squared, -1).mean()


def gap(values: Float[Array, "*b c d"], tokens: Float[Array, "q m d"], mask: Bool[Array, "q m"]) -> Float[Array, ""]:
    """|1 - mean length of the value tokens / mean length of the query's tokens where `mask`|.

    The reference counts padding among the latter."""
    counted = mask.astype(jnp.float32)
    length = (_lengths(tokens) * counted).sum() / jnp.maximum(counted.sum(), 1)
    return jnp.abs(1 - _lengths(values).mean() / length)


def _lengths(x: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """Euclidean, with a finite gradient at zero."""
    return jnp.sqrt(jnp.square(x.astype(jnp.float32)).sum(axis=-1) + 1e-12)


@dataclasses.dataclass(frozen=True)
class Loss:
    """A term of `common.training.objectives`: `function` of the values at `paths` of the scope."""

    function: Callable[..., Float[Array, ""]]
    paths: tuple[str, ...]
    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return self.function(*(scope[path] for path in self.paths))


@dataclasses.dataclass(frozen=True)
class Weights(Checked):
    contrastive: Share = 0.01  # r; the generation loss has 1 - r
    disentangle: AtLeast0 = 0.01
    gap: AtLeast0 = 0.0001
    reconstruct: AtLeast0 = 0.0
    gate: AtLeast0 = 0.0

    def terms(self, smoothing: int | float, temperature: int | float) -> dict[str, Term]:
        """The losses of an `Output` that weigh something, by name."""
        text, info_nce = partial(generation, smoothing=smoothing), partial(contrastive, temperature=temperature)
        weight = {"generation": 1 - self.contrastive, **dataclasses.asdict(self)}
        losses: dict[str, tuple[Callable[..., Array], tuple[str, ...]]] = {
            "generation": (text, ("output.logits", "batch.answer")),
            "contrastive": (lambda *x: info_nce(*x).loss, ("output.query.vector", "output.keys", "output.ids")),
            "gate": (gate, ("output.query.log_gate", "output.source")),
            "disentangle": (disentangle, ("output.values",)),
            "gap": (gap, ("output.values", "output.query.states", "output.query.mask")),
            "reconstruct": (text, ("output.text_logits", "output.text", "output.text_weights")),
        }
        return {name: Loss(*loss, weight[name]) for name, loss in losses.items() if weight[name] != 0}
