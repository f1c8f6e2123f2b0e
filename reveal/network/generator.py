"""Decoding an answer, greedily or by beam search, in one loop on the device.

The decoder appears here only as a `Step`: tokens of `r` rows and a cache of their past, to the logits of each next
token and the cache with them. A text begins with `bos` and ends with `eos` and padding, or after `length` tokens.

Beam search keeps the `width` best hypotheses by

    log p(tokens) / ((5 + n) / 6)^penalty                         n tokens, `eos` included

(Wu et al., 2016). Penalty 0 compares plain probabilities, which favours short texts; 1 nearly the mean per token. A
finished hypothesis stays in the beam as long as nothing beats it, compared at its own length. Width 1 is greedy
decoding, where the penalty has no effect.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from common.checked import AtLeast0, Checked, Positive
from reveal.network.config import PAD
from reveal.network.t5 import Cache

Step = Callable[[Int[Array, " r"], Cache], tuple[Float[Array, "r v"], Cache]]


@dataclasses.dataclass(frozen=True)
class Decoding(Checked):
    length: Positive = 32
    width: Positive = 1
    penalty: AtLeast0 = 0


class Generated(NamedTuple):
    tokens: Int[Array, "b n"]
    log_probability: Float[Array, " b"]


class _Beams(NamedTuple):
    """Loop state: `w` hypotheses per context, the best first, and how many tokens each has."""

    tokens: Int[Array, "b w n"]
    last: Int[Array, "b w"]
    ended: Bool[Array, "b w"]
    log_probability: Float[Array, "b w"]
    lengths: Int[Array, "b w"]
    cache: Cache


def generate(step: Step, cache: Cache, decoding: Decoding, *, bos: int, eos: int) -> Generated:
    """Decodes one text per context of the empty `cache`, which has `decoding.width` rows for each."""
    length, b, w, penalty = decoding.length, len(cache.context_bias), decoding.width, decoding.penalty

    def advance(now: _Beams) -> _Beams:
        logits, cache = step(now.last.reshape(-1), now.cache)
        gain = jax.nn.log_softmax(logits).reshape(b, w, -1)
        vocab_size = gain.shape[-1]
        padding = jnp.where(jnp.arange(vocab_size) == PAD, 0.0, -jnp.inf)  # the only continuation of an ended text
        total = now.log_probability[..., None] + jnp.where(now.ended[..., None], padding, gain)
        lengths = now.lengths + ~now.ended
        penalised = total / (((5 + lengths) / 6) ** penalty)[..., None]
        best = lax.top_k(penalised.reshape(b, -1), w)[1]
        parent, token = best // vocab_size, (best % vocab_size).astype(jnp.int32)

        def of_parent(x: Array) -> Array:
            return jnp.take_along_axis(x, parent.reshape(b, w, *[1] * (x.ndim - 2)), axis=1)

        return _Beams(
            lax.dynamic_update_slice_in_dim(of_parent(now.tokens), token[..., None], now.cache.position, axis=2),
            token,
            of_parent(now.ended) | (token == eos),
            jnp.take_along_axis(total.reshape(b, -1), best, axis=1),
            of_parent(lengths),
            cache if w == 1 else cache.select((parent + w * jnp.arange(b)[:, None]).reshape(-1)),
        )

    def unfinished(now: _Beams) -> Bool[Array, ""]:
        """Whether to go on; without a penalty nothing overtakes an ended text that is best."""
        ended = now.ended if penalty else now.ended[:, 0]
        return (now.cache.position < length) & ~ended.all()

    tokens, last = jnp.full((b, w, length), PAD, jnp.int32), jnp.full((b, w), bos, jnp.int32)
    first = jnp.where(jnp.arange(w) == 0, 0.0, -jnp.inf)  # all hypotheses begin equal: only one of them counts
    log_probability, lengths = jnp.tile(first, (b, 1)), jnp.zeros((b, w), jnp.int32)
    start = _Beams(tokens, last, jnp.zeros((b, w), bool), log_probability, lengths, cache)
    end = lax.while_loop(unfinished, advance, start)
    return Generated(end.tokens[:, 0], end.log_probability[:, 0])
