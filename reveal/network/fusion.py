"""Attentive knowledge fusion: the query attends to the retrieved items, weighted by their retrieval scores.

(Hu et al., REVEAL, CVPR 2023, "attentive knowledge fusion"; `FusedT5Encoder` of the reference.) T5's upper layers run
over one sequence of tokens,

    [query: text, image | item 1: c value tokens | ... | item K: c value tokens]

The score s_k of an item becomes its prior, which enters every layer:

    prior_k = K softmax_k(5 sigmoid(scale) s_k + bias)        mean 1 over the items that are present

That is the only path from the loss on the text to the retriever: a better item gets more weight, so the gradient asks
for a larger query . key. `scale` starts at 1, a factor of 3.66; `bias` has no effect under the softmax and is kept
because published networks would have it. Three ways to enter:

- `multiply`: it scales the normed states of each value token before queries, keys and values are taken, and the result
  once more, as in the reference. Query tokens have prior 1.
- `logits`: its logarithm is added to the attention logits of the item's tokens: a softmax over items, then tokens.
- `off`: not at all; other losses have to train the retriever.

T5's relative positions span the whole sequence, so the order of the items matters slightly.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from reveal.network.config import RevealConfig
from reveal.network.layers import MASKED, PLAIN, Mode, RMSNorm
from reveal.network.t5 import Encoder

MAX_SCALE = 5  # of scores
MIN_PRIOR = 1e-30  # before its logarithm is taken


def score_prior(
    scores: Float[Array, "b k"], scale: Float[Array, ""], bias: Float[Array, ""], present: Bool[Array, "b k"]
) -> Float[Array, "b k"]:
    """K softmax(5 sigmoid(scale) s + bias), where K counts the items that are `present`; 0 for the others."""
    logits = MAX_SCALE * jax.nn.sigmoid(scale) * scores + bias
    probability = jax.nn.softmax(jnp.where(present, logits, MASKED))
    return jnp.where(present, present.sum(axis=1, keepdims=True) * probability, 0)


class Fused(NamedTuple):
    """What the generator attends to: the query's tokens and all items'."""

    states: Float[Array, "b n d"]
    mask: Bool[Array, "b n"]
    prior: Float[Array, "b k"]
    shares: Float[Array, "b k"] | None  # of the query's attention (`attention_shares`), where requested


class AttentiveFusion(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.mode = config.prior
        self.scale, self.bias = nnx.Param(jnp.ones((1,))), nnx.Param(jnp.zeros((1,)))
        self.encoder = Encoder(config, config.fusion_layers, rngs=rngs)
        self.norm = RMSNorm(config.width)

    def prior(self, scores: Float[Array, "b k"], present: Bool[Array, "b k"]) -> Float[Array, "b k"]:
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
        shares: bool = False,
        mode: Mode = PLAIN,
    ) -> Fused:
        """Fuses the states of `b` queries with `k` items of `c` tokens each, k = 0 included; the prior has mean 1.
        `shares` measures attention per item."""
        (b, n, d), (k, c) = states.shape, values.shape[1:3]
        x = jnp.concatenate([states, values.reshape(b, k * c, d).astype(states.dtype)], axis=1)
        mask = jnp.concatenate([mask, values_mask.reshape(b, k * c)], axis=1)
        per_token = jnp.concatenate([jnp.ones((b, n)), jnp.repeat(prior, c, axis=1)], axis=1)
        factor = per_token[..., None] if self.mode == "multiply" else None
        bias = jnp.log(jnp.maximum(per_token, MIN_PRIOR))[:, None, None] if self.mode == "logits" else None
        weights: list[Array] | None = [] if shares else None
        x = self.norm(self.encoder(x, mask, prior=factor, bias=bias, mode=mode, weights=weights))
        x = x if factor is None else x * factor.astype(x.dtype)
        x = mode.drop(x[:, :, None], len(self.encoder.layers))[:, :, 0]  # here each token has zeros of its own
        return Fused(x, mask, prior, None if weights is None else attention_shares(weights, mask[:, :n], k, c))


def attention_shares(weights: list[Array], mask: Bool[Array, "b n"], k: int, c: int) -> Float[Array, "b k"]:
    """The share of the query tokens' attention that goes to each of k items of c tokens: the mean over layers, heads
    and tokens of `weights` (b h m m each, items last). The rest to 1 stays with the query."""
    n = mask.shape[1]
    per_key = jnp.mean(jnp.stack([layer.mean(axis=1)[:, :n] for layer in weights]), axis=0)
    mean = jnp.where(mask[..., None], per_key, 0).sum(axis=1) / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    return mean[:, n:].reshape(len(mask), k, c).sum(axis=-1)
