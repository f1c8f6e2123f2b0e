"""The layers of T5 1.1 (Raffel et al., 2020; v1.1: Shazeer, 2020), for an encoder and for a decoder.

    encoder layer   x + attention(norm x);                              x + mlp(norm x)
    decoder layer   x + attention(norm x);  x + read(norm x, context);  x + mlp(norm x)

- Norms come first, and only divide by the root mean square. Nothing has a bias.
- Attention logits are not divided by sqrt(d): the query's kernel starts that much smaller instead.
- The mlp multiplies the GELU (tanh form) of one linear map with another one.
- Position is a number per head that is added to the logits, by the distance from query to key. Distances fall into 32
  buckets, fine when near and logarithmic up to 128 tokens; an encoder spends half of them on each direction, a decoder
  all on the past. A stack has one table, for all its layers. Cross-attention knows no position.

`prior` is REVEAL's addition to the encoder layer (`fusion.py`): a factor per token, on the normed states before
queries, keys and values are taken. Without it the layer is T5's.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from reveal.network.layers import MASKED, Linear, RMSNorm, attend

BUCKETS, FARTHEST = 32, 128
KeysValues = tuple[Float[Array, "_ _ h d"], Float[Array, "_ _ h d"]]
orthogonal = jax.nn.initializers.orthogonal()
table_start = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


@functools.lru_cache(maxsize=64)
def buckets(queries: int, keys: int, both_ways: bool) -> np.ndarray:
    """Bucket of each (query, key), by their distance; with `both_ways` the upper half is for keys that come later."""
    distance = np.arange(queries)[:, None] - np.arange(keys)[None]
    count = BUCKETS // 2 if both_ways else BUCKETS
    later = count * (distance < 0) if both_ways else 0
    distance = np.abs(distance) if both_ways else np.maximum(distance, 0)
    exact = count // 2
    # t5x's rounding: float32, with an epsilon that puts 16, 32, 64 at the start of their buckets
    octaves = np.log(distance.astype(np.float32) / exact + np.finfo(np.float32).eps) / math.log(FARTHEST / exact)
    far = np.minimum(exact + (octaves * (count - exact)).astype(np.int32), count - 1)
    return (later + np.where(distance < exact, distance, far)).astype(np.int32)


class Positions(nnx.Module):
    """The table of a stack: `heads x buckets` numbers."""

    def __init__(self, heads: int, *, both_ways: bool, rngs: nnx.Rngs):
        self.both_ways = both_ways
        self.rel_embedding = nnx.Param(table_start(rngs.params(), (heads, BUCKETS)))

    def __call__(self, queries: int, keys: int) -> Float[Array, "1 h n m"]:
        """What a layer adds to the logits of a row of `queries` and one of `keys` that begin at the same place."""
        return self.rel_embedding[...].astype(jnp.float32)[:, buckets(queries, keys, self.both_ways)][None]


def causal(length: int) -> Float[Array, "1 1 n n"]:
    """What a decoder adds so that nothing looks ahead."""
    return jnp.where(np.tri(length, dtype=bool), 0.0, MASKED)[None, None]


class Attention(nnx.Module):
    """Multi-head attention, unscaled. Keys and values can be had apart, to keep them."""

    def __init__(self, width: int, heads: int, head_dim: int, *, rngs: nnx.Rngs):
        self.heads = heads
        inner = heads * head_dim
        self.query = Linear(width, inner, gain=head_dim**-0.5, rngs=rngs)
        self.key = Linear(width, inner, rngs=rngs)
        self.value = Linear(width, inner, rngs=rngs)
        self.out = Linear(inner, width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b n c"], source: Float[Array, "b m c"], *added: Float[Array, "#b #h #n m"]
    ) -> tuple[Float[Array, "b n c"], Float[Array, "b h n m"]]:
        """What `x` reads from `source`, and the attention weights."""
        return self.read(x, self.keys_values(source), *added)

    def keys_values(self, source: Float[Array, "b m c"]) -> KeysValues:
        return self._split(self.key(source)), self._split(self.value(source))

    def read(
        self, x: Float[Array, "b n c"], keys_values: KeysValues, *added: Float[Array, "#b #h #n m"]
    ) -> tuple[Float[Array, "b n c"], Float[Array, "b h n m"]]:
        read, weights = attend(self._split(self.query(x)), *keys_values, *added)
        return self.out(read.reshape(*x.shape[:2], -1)), weights

    def hand_on(self, key: PRNGKeyArray) -> None:
        """Starts anew so that what is looked at is handed on as it is, as far as `heads * head_dim` numbers reach: the
        value's kernel is orthogonal, the output's its transpose (Trockman & Kolter, ICML 2023, "mimetic")."""
        kernel = orthogonal(key, self.value.kernel.shape)
        self.value.kernel[...], self.out.kernel[...] = kernel, kernel.T

    def _split(self, x: Float[Array, "b n hd"]) -> Float[Array, "b n h d"]:
        return x.reshape(*x.shape[:2], self.heads, -1)


class GatedMlp(nnx.Module):
    def __init__(self, width: int, inner: int, *, rngs: nnx.Rngs):
        self.wi_0, self.wi_1 = (Linear(width, inner, rngs=rngs) for _ in range(2))
        self.wo = Linear(inner, width, rngs=rngs)

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n c"]:
        return self.wo(jax.nn.gelu(self.wi_0(x), approximate=True) * self.wi_1(x))


class EncoderLayer(nnx.Module):
    def __init__(self, width: int, heads: int, head_dim: int, mlp: int, *, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(width)
        self.attention = Attention(width, heads, head_dim, rngs=rngs)
        self.mlp_norm = RMSNorm(width)
        self.mlp = GatedMlp(width, mlp, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b n c"],
        *added: Float[Array, "#b #h #n n"],
        prior: Float[Array, "b n 1"] | None = None,
        only: Int[Array, " b"] | None = None,
    ) -> tuple[Float[Array, "b _ c"], Float[Array, "b h _ n"]]:
        """The new states and the attention weights; of one token of each row if `only` says which."""
        y = self.attention_norm(x)
        y = y if prior is None else y * prior.astype(y.dtype)
        reading = y
        if only is not None:
            at = only[:, None, None]
            x, reading = (jnp.take_along_axis(states, at, axis=1) for states in (x, y))
            added = tuple(term if term.shape[2] == 1 else _rows(term, only) for term in added)
        read, weights = self.attention(reading, y, *added)
        x = x + read
        return x + self.mlp(self.mlp_norm(x)), weights


def _rows(added: Float[Array, "#b h n m"], only: Int[Array, " b"]) -> Float[Array, "b h 1 m"]:
    """What is added to the logits of one query of each row."""
    if added.shape[0] == 1:
        return jnp.moveaxis(added[0][:, only], 0, 1)[:, :, None]
    return jnp.take_along_axis(added, only[:, None, None, None], axis=2)


class DecoderLayer(nnx.Module):
    def __init__(self, width: int, heads: int, head_dim: int, mlp: int, *, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(width)
        self.attention = Attention(width, heads, head_dim, rngs=rngs)
        self.cross_norm = RMSNorm(width)
        self.cross_attention = Attention(width, heads, head_dim, rngs=rngs)
        self.mlp_norm = RMSNorm(width)
        self.mlp = GatedMlp(width, mlp, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b n c"],
        context: Float[Array, "b m c"],
        *,
        places: Float[Array, "1 h n n"],
        masked: Float[Array, "b 1 1 m"],
    ) -> Float[Array, "b n c"]:
        """All tokens at once. `places` is added to the logits among them, `masked` to those of the context."""
        y = self.attention_norm(x)
        x = x + self.attention(y, y, places)[0]
        return self._after_itself(x, self.cross_attention.keys_values(context), masked)

    def step(
        self,
        x: Float[Array, "r 1 c"],
        past: KeysValues,
        context: KeysValues,
        place: Int[Array, ""],
        *,
        places: Float[Array, "1 h 1 n"],
        masked: Float[Array, "b 1 1 m"],
    ) -> tuple[Float[Array, "r 1 c"], KeysValues]:
        """One token of each of `r` rows. `past` is `r n h d`, `context` `b m h d`: a context may serve several rows.

        Returns the new states, and the past with this token at `place`."""
        y = self.attention_norm(x)
        keys, values = (
            lax.dynamic_update_slice_in_dim(kept, new, place, axis=1)
            for kept, new in zip(past, self.attention.keys_values(y), strict=True)
        )
        x = x + self.attention.read(y, (keys, values), places)[0]
        beside = x.reshape(context[0].shape[0], -1, x.shape[-1])  # rows of one context side by side: b r/b c
        return self._after_itself(beside, context, masked).reshape(x.shape), (keys, values)

    def _after_itself(
        self, x: Float[Array, "b n c"], context: KeysValues, masked: Float[Array, "b 1 1 m"]
    ) -> Float[Array, "b n c"]:
        x = x + self.cross_attention.read(self.cross_norm(x), context, masked)[0]
        return x + self.mlp(self.mlp_norm(x))
