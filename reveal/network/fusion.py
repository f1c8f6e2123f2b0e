"""Attentive fusion: the query reads the retrieved items, the more the better they matched.

(Hu et al., REVEAL, CVPR 2023, "attentive knowledge fusion"; `FusedT5Encoder` of the reference.) T5's upper layers run
over one row of tokens,

    [query: text, picture | item 1: c value tokens | ... | item K: c value tokens]

The score s_k of an item becomes its prior,

    prior_k = K softmax_k(5 sigmoid(scale) s_k + bias)        mean 1 over the items that are there

and the prior enters every layer. That is the only way from the loss on the text to the retriever: a better item gets
more weight, so the gradient asks for a larger query . key. `scale` starts at 1, a factor of 3.66; `bias` has no effect
under the softmax and is kept because published networks would have it. Three ways to enter:

| mode | what the prior does |
| --- | --- |
| `multiply` | scales each value token's normed states before queries, keys and values are taken, and the result once more: the reference's. Query tokens have prior 1 |
| `logits` | its logarithm is added to the attention logits of the item's tokens: a softmax over tokens becomes one over items first. Prior 1 changes nothing |
| `off` | nothing; the retriever has to be trained by other losses |

T5's relative positions span the whole row, so the order of the items matters slightly.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from reveal.network.config import PRIORS, RevealConfig
from reveal.network.layers import MASKED, RMSNorm
from reveal.network.t5 import Encoder

STEEPEST = 5  # the factor of scores never exceeds this
SMALLEST_PRIOR = 1e-30  # that has a logarithm of its own; nobody reads an item at that


def score_prior(
    scores: Float[Array, "b k"],
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    present: Bool[Array, "b k"] | None = None,
) -> Float[Array, "b k"]:
    """K softmax(5 sigmoid(scale) s + bias), where K counts the items that are `present`; 0 for the others."""
    logits = STEEPEST * jax.nn.sigmoid(scale) * scores + bias
    if present is None:
        return scores.shape[1] * jax.nn.softmax(logits)
    probability = jax.nn.softmax(jnp.where(present, logits, MASKED))
    return jnp.where(present, present.sum(axis=1, keepdims=True) * probability, 0)


class Fused(NamedTuple):
    """What the generator reads.

    Attributes:
      states: of the query's tokens and of all items'.
      mask: True where there is a token.
      prior: of each item.
      shares: of the query's attention, what went to each item (`attention_shares`); None unless it was asked for.
    """

    states: Float[Array, "b n d"]
    mask: Bool[Array, "b n"]
    prior: Float[Array, "b k"]
    shares: Float[Array, "b k"] | None


class AttentiveFusion(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.mode = config.prior
        self.scale, self.bias = nnx.Param(jnp.ones((1,))), nnx.Param(jnp.zeros((1,)))
        self.encoder = Encoder(config, config.fusion_layers, rngs=rngs)
        self.norm = RMSNorm(config.width)

    def prior(self, scores: Float[Array, "b k"], present: Bool[Array, "b k"] | None = None) -> Float[Array, "b k"]:
        """`score_prior` with this network's scale and bias."""
        scale, bias = (param[...].astype(jnp.float32)[0] for param in (self.scale, self.bias))
        return score_prior(scores, scale, bias, present)

    def __call__(
        self,
        states: Float[Array, "b n d"],
        mask: Bool[Array, "b n"],
        values: Float[Array, "b k c d"],
        values_mask: Bool[Array, "b k c"],
        prior: Float[Array, "b k"],
        *,
        mode: str | None = None,
        shares: bool = False,
        remat: bool = False,
    ) -> Fused:
        """Fuses the states of `b` queries with `k` items of `c` tokens each, k = 0 included.

        Args:
          states, mask: of the queries.
          values, values_mask: of the items; False where there is no item.
          prior: of the items, mean 1.
          mode: another use of the prior than the config's.
          shares: whether to measure attention per item.
          remat: as in `Encoder`.

        Raises:
          ValueError: an unknown `mode`.
        """
        mode = mode or self.mode
        if mode not in PRIORS:
            raise ValueError(f"prior mode is {mode!r}; choose one of {', '.join(PRIORS)}")
        b, n, d = states.shape
        x = jnp.concatenate([states, values.reshape(b, -1, d).astype(states.dtype)], axis=1)
        mask = jnp.concatenate([mask, values_mask.reshape(b, -1)], axis=1)
        per_token = jnp.concatenate([jnp.ones((b, n)), jnp.repeat(prior, values.shape[2], axis=1)], axis=1)
        factor = per_token[..., None] if mode == "multiply" else None
        bias = jnp.log(jnp.maximum(per_token, SMALLEST_PRIOR))[:, None, None] if mode == "logits" else None
        seen: list[Array] | None = [] if shares else None
        x = self.norm(self.encoder(x, mask, prior=factor, bias=bias, remat=remat, seen=seen))
        x = x if factor is None else x * factor.astype(x.dtype)
        found = attention_shares(seen, mask[:, :n], (values.shape[1], values.shape[2])) if seen is not None else None
        return Fused(x, mask, prior, found)


def attention_shares(weights: list[Array], mask: Bool[Array, "b n"], items: tuple[int, int]) -> Float[Array, "b k"]:
    """The part of the query tokens' attention that goes to each of k items of c tokens, `items` = (k, c): means over
    layers, heads and tokens of `weights` (b h m m each, the items' tokens last). The rest to 1 stayed with the query.
    """
    per_layer = [layer.mean(axis=1)[:, : mask.shape[1]] for layer in weights]  # b n m each
    per_key = jnp.mean(jnp.stack(per_layer), axis=0)
    mean = jnp.where(mask[..., None], per_key, 0).sum(axis=1) / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    return mean[:, mask.shape[1] :].reshape(len(mask), *items).sum(axis=-1)
