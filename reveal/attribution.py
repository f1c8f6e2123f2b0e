"""Leave-one-out attribution: how much less likely the same answer becomes without an item.

    effect_i = log p(answer | all items but i) - log p(answer | all items)

Below 0 the item supported the answer, above 0 it spoke against it. One batch computes all: row 0 has every item, row
i + 1 all but item i, whose place stays empty, so that the others keep their positions and the prior is shared among the
rest as if it had not been found. No other item takes its place.

Attention shares (`fusion.attention_shares`) show what was attended to, which need not have changed the answer.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from reveal.network.config import PAD
from reveal.network.generator import Decoding
from reveal.network.model import Query, Reveal


class Attributed(NamedTuple):
    """An answer and its attribution to the items."""

    tokens: Int[Array, " o"]  # of the answer, its end included
    log_probability: Float[Array, ""]  # of those tokens, with all items
    prior: Float[Array, " k"]  # retrieval prior, mean 1 over the items that are there
    shares: Float[Array, " k"]  # of the question's attention in the fusion
    effects: Float[Array, " k"]  # of leaving each item out; 0 where there is none


def answer(
    model: Reveal,
    query: Query,
    values: Float[Array | np.ndarray, "1 k c d"],
    scores: Float[Array | np.ndarray, "1 k"],
    present: Bool[Array | np.ndarray, "1 k"],
    how: Decoding,
) -> Attributed:
    """Answers one question with k items, 0 included, and leaves each out. For use inside `jit`; `how` is static."""
    k = values.shape[1]
    kept = jnp.concatenate([jnp.ones((1, k), bool), ~jnp.eye(k, dtype=bool)])
    there = kept & jnp.asarray(present)
    rows, every, score = (
        jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), k + 1, axis=0), part) for part in (query, values, scores)
    )
    fused = model.fuse(rows, every, score, there, shares=True)
    whole = fused._replace(states=fused.states[:1], mask=fused.mask[:1])
    tokens = model.generate(whole, how).tokens[0]
    inputs = jnp.concatenate([jnp.full((1,), model.config.bos, jnp.int32), tokens[:-1]])
    logits = model.logits(fused, jnp.broadcast_to(inputs, (k + 1, len(inputs))))
    per_token = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[None, :, None], axis=-1)[..., 0]
    likely = jnp.where(tokens == PAD, 0, per_token).sum(axis=1)
    shares = jnp.zeros((k,)) if fused.shares is None else fused.shares[0]
    return Attributed(tokens, likely[0], fused.prior[0], shares, jnp.where(present[0], likely[1:] - likely[0], 0))
