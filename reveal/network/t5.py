"""T5 1.1 (Raffel et al., 2020; v1.1: Shazeer, 2020): layers, the encoder stack, and the decoder that generates answers.

    encoder layer   x + attention(norm x);                                   x + mlp(norm x)
    decoder layer   x + attention(norm x);  x + attention(norm x, context);  x + mlp(norm x)

- RMS norms come first. No linear map has a bias.
- Attention logits are not divided by sqrt(d): the query kernel is initialised that much smaller instead.
- The MLP multiplies the GELU (tanh form) of one linear map with another one.
- A relative position bias per head is added to the logits. Distances fall into 32 buckets, exact when near and
  logarithmic up to 128 tokens; an encoder spends half of them on each direction, a decoder all on the past. All layers
  of a stack share one table. Cross-attention has no positions.

REVEAL uses the encoder four times, each with its own parameters: T5's lower layers encode text, its upper ones fuse
(`fusion.py`), and two stacks embed the query and the key (`heads.py`). It takes states, not tokens, and has no final
norm, because those four need different ones. `prior` is REVEAL's addition (`fusion.py`).

The decoder runs on whole texts, as in training, or token by token with a `Cache`, with the same numbers. The caller
passes the embedding, which the text encoder shares.
"""

import functools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from reveal.network.config import RevealConfig
from reveal.network.layers import MASKED, PLAIN, Embedding, Linear, Mode, RMSNorm, attend, mask_bias

BUCKETS, MAX_DISTANCE = 32, 128
KeysValues = tuple[Float[Array, "_ _ h d"], Float[Array, "_ _ h d"]]
table_init = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


@functools.lru_cache(maxsize=64)
def position_buckets(queries: int, keys: int, bidirectional: bool) -> np.ndarray:
    """Bucket of each (query, key) by their distance; with `bidirectional` the upper half is for later keys."""
    distance = np.arange(queries)[:, None] - np.arange(keys)[None]
    count = BUCKETS // 2 if bidirectional else BUCKETS
    later = count * (distance < 0) if bidirectional else 0
    distance = np.abs(distance) if bidirectional else np.maximum(distance, 0)
    exact = count // 2
    # t5x's rounding: float32, with an epsilon that puts 16, 32, 64 at the start of their buckets
    octaves = np.log(distance.astype(np.float32) / exact + np.finfo(np.float32).eps) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + (octaves * (count - exact)).astype(np.int32), count - 1)
    return (later + np.where(distance < exact, distance, far)).astype(np.int32)


class RelativePositionBias(nnx.Module):
    """The position table of a stack, `heads x buckets`."""

    def __init__(self, heads: int, *, bidirectional: bool, rngs: nnx.Rngs):
        self.bidirectional = bidirectional
        self.rel_embedding = nnx.Param(table_init(rngs.params(), (heads, BUCKETS)))

    def __call__(self, length: int) -> Float[Array, "1 h n n"]:
        """The bias on the logits of a sequence's self-attention."""
        table = self.rel_embedding[...].astype(jnp.float32)
        return table[:, position_buckets(length, length, self.bidirectional)][None]


def causal_bias(length: int) -> Float[Array, "1 1 n n"]:
    return jnp.where(np.tri(length, dtype=bool), 0.0, MASKED)[None, None]


class Attention(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.heads = config.heads
        width, inner = config.width, config.heads * config.head_dim
        self.query = Linear(width, inner, gain=config.head_dim**-0.5, rngs=rngs)
        self.key = Linear(width, inner, rngs=rngs)
        self.value = Linear(width, inner, rngs=rngs)
        self.out = Linear(inner, width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b n c"], keys_values: KeysValues, *biases: Float[Array, "#b #h #n m"], mode: Mode = PLAIN
    ) -> tuple[Float[Array, "b n c"], Float[Array, "b h n m"]]:
        read, weights = attend(self._split(self.query(x)), *keys_values, *biases, mode=mode)
        return mode.drop(self.out(read.reshape(*x.shape[:2], -1)), 1), weights

    def keys_values(self, context: Float[Array, "b m c"]) -> KeysValues:
        return self._split(self.key(context)), self._split(self.value(context))

    def init_as_copy(self, key: PRNGKeyArray) -> None:
        """Re-initialises so that attention copies what it attends to, up to `heads * head_dim` dimensions: the value
        kernel is orthogonal, the output kernel its transpose ("mimetic", Trockman & Kolter, ICML 2023)."""
        kernel = jax.nn.initializers.orthogonal()(key, self.value.kernel.shape)
        self.value.kernel[...], self.out.kernel[...] = kernel, kernel.T

    def _split(self, x: Float[Array, "b n hd"]) -> Float[Array, "b n h d"]:
        return x.reshape(*x.shape[:2], self.heads, -1)


class GatedMlp(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.wi_0, self.wi_1 = (Linear(config.width, config.mlp, rngs=rngs) for _ in range(2))
        self.wo = Linear(config.mlp, config.width, rngs=rngs)

    def __call__(self, x: Float[Array, "b n c"], mode: Mode = PLAIN) -> Float[Array, "b n c"]:
        hidden = jax.nn.gelu(self.wi_0(x), approximate=True) * self.wi_1(x)
        return mode.drop(self.wo(mode.drop(hidden, 2)), 3)


class _Layer(nnx.Module):
    cross = False

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.attention_norm, self.attention = RMSNorm(config.width), Attention(config, rngs=rngs)
        if self.cross:
            self.cross_norm, self.cross_attention = RMSNorm(config.width), Attention(config, rngs=rngs)
        self.mlp_norm, self.mlp = RMSNorm(config.width), GatedMlp(config, rngs=rngs)


class EncoderLayer(_Layer):
    def __call__(
        self,
        x: Float[Array, "b n c"],
        *biases: Float[Array, "#b #h #n n"],
        prior: Float[Array, "b n 1"] | None = None,
        only: Int[Array, " b"] | None = None,
        mode: Mode = PLAIN,
    ) -> tuple[Float[Array, "b _ c"], Float[Array, "b h _ n"]]:
        """The new states and the attention weights; with `only`, of that one token in each row."""
        y = self.attention_norm(x)
        y = y if prior is None else y * prior.astype(y.dtype)
        queries = y
        if only is not None:
            x, queries = (jnp.take_along_axis(states, only[:, None, None], axis=1) for states in (x, y))
            biases = tuple(bias if bias.shape[2] == 1 else _bias_of_query(bias, only) for bias in biases)
        read, weights = self.attention(queries, self.attention.keys_values(y), *biases, mode=mode)
        x = x + read
        return x + self.mlp(self.mlp_norm(x), mode), weights


def _bias_of_query(bias: Float[Array, "#b h n m"], query: Int[Array, " b"]) -> Float[Array, "b h 1 m"]:
    if bias.shape[0] == 1:
        return jnp.moveaxis(bias[0][:, query], 0, 1)[:, :, None]
    return jnp.take_along_axis(bias, query[:, None, None, None], axis=2)


class DecoderLayer(_Layer):
    cross = True

    def __call__(
        self,
        x: Float[Array, "b n c"],
        context: Float[Array, "b m c"],
        *,
        position_bias: Float[Array, "1 h n n"],
        context_bias: Float[Array, "b 1 1 m"],
        mode: Mode = PLAIN,
    ) -> Float[Array, "b n c"]:
        y = self.attention_norm(x)
        x = x + self.attention(y, self.attention.keys_values(y), position_bias, mode=mode)[0]
        return self._after_self_attention(x, self.cross_attention.keys_values(context), context_bias, mode.fold(4))

    def step(
        self,
        x: Float[Array, "r 1 c"],
        past: KeysValues,
        context: KeysValues,
        position: Int[Array, ""],
        *,
        position_bias: Float[Array, "1 h 1 n"],
        context_bias: Float[Array, "b 1 1 m"],
    ) -> tuple[Float[Array, "r 1 c"], KeysValues]:
        """One token of each of `r` rows. `past` is `r n h d`, `context` `b m h d`: rows may share a context. Returns
        the new states, and the past with this token at `position`."""
        y = self.attention_norm(x)
        keys, values = (
            lax.dynamic_update_slice_in_dim(kept, new, position, axis=1)
            for kept, new in zip(past, self.attention.keys_values(y), strict=True)
        )
        x = x + self.attention(y, (keys, values), position_bias)[0]
        grouped = x.reshape(context[0].shape[0], -1, x.shape[-1])  # rows of one context as its queries: b r/b c
        return self._after_self_attention(grouped, context, context_bias).reshape(x.shape), (keys, values)

    def _after_self_attention(
        self, x: Float[Array, "b n c"], context: KeysValues, context_bias: Float[Array, "b 1 1 m"], mode: Mode = PLAIN
    ) -> Float[Array, "b n c"]:
        x = x + self.cross_attention(self.cross_norm(x), context, context_bias, mode=mode)[0]
        return x + self.mlp(self.mlp_norm(x), mode)


class Encoder(nnx.Module):
    """`layers` encoder layers and their position table."""

    def __init__(self, config: RevealConfig, layers: int, *, rngs: nnx.Rngs):
        self.layers = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(layers)])
        self.positions = RelativePositionBias(config.heads, bidirectional=True, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b n c"],
        mask: Bool[Array, "b n"],
        *,
        prior: Float[Array, "b n 1"] | None = None,
        bias: Float[Array, "b 1 1 n"] | None = None,
        mode: Mode = PLAIN,
        weights: list | None = None,
        only: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b _ c"]:
        """The states after the last layer. `prior` multiplies each token's normed states in every layer, `bias` is
        added to every layer's logits by key, and the list `weights` collects each layer's attention, b h n n. With
        `only` the last layer computes this one token of each row, and the result holds no other."""
        biases = self.positions(x.shape[1]), mask_bias(mask) if bias is None else mask_bias(mask) + bias

        def run(layer: EncoderLayer, only: Array | None, mode: Mode, x: Array) -> Any:
            x, attention = layer(x, *biases, prior=prior, only=only, mode=mode)
            return x, None if weights is None else attention

        for i, layer in enumerate(self.layers):
            call = partial(run, layer, only if i + 1 == len(self.layers) else None, mode.fold(i))
            x, attention = mode.wrap(call)(x)
            if weights is not None:
                weights.append(attention)
        return x


class Cache(NamedTuple):
    """What a decoder keeps from token to token: `r` rows of up to `n` tokens, on `b` contexts of `m` tokens. Row i
    belongs to context `i // (r / b)`."""

    past: tuple[KeysValues, ...]  # per layer, of the tokens so far, r n h d
    context: tuple[KeysValues, ...]  # per layer, b m h d
    context_bias: Float[Array, "b 1 1 m"]
    position: Int[Array, ""]  # of the next token

    def select(self, rows: Int[Array, " r"]) -> "Cache":
        """Row i continues row `rows[i]`, which has the same context."""
        return self._replace(past=jax.tree.map(lambda x: x[rows], self.past))


class Decoder(nnx.Module):
    """The generator: tokens and a context to the logits of each next token."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.head_dim = config.head_dim
        self.layers = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.decoder_layers)])
        self.positions = RelativePositionBias(config.heads, bidirectional=False, rngs=rngs)
        self.norm = RMSNorm(config.width)
        self.logits = None if config.tied else Linear(config.width, config.vocab_size, rngs=rngs)

    def __call__(
        self,
        embedding: Embedding,
        tokens: Int[Array, "b n"],
        context: Float[Array, "b m c"],
        mask: Bool[Array, "b m"],
        *,
        mode: Mode = PLAIN,
    ) -> Float[Array, "b n v"]:
        """Logits of what follows each token, float32. `tokens` begin with `bos`."""
        x = mode.drop(embedding(tokens).astype(context.dtype), 0)
        position_bias = self.positions(x.shape[1]) + causal_bias(x.shape[1])
        for i, layer in enumerate(self.layers):
            call = partial(layer, position_bias=position_bias, context_bias=mask_bias(mask), mode=mode.fold(1 + i))
            x = mode.wrap(call)(x, context)
        return self._predict(embedding, mode.drop(self.norm(x), len(self.layers) + 1))

    def start(self, context: Float[Array, "b m c"], mask: Bool[Array, "b m"], *, length: int, rows: int = 1) -> Cache:
        """An empty cache for `length` tokens of `rows` rows per context."""
        keys_values = tuple(layer.cross_attention.keys_values(context) for layer in self.layers)
        heads = keys_values[0][0].shape[2]
        empty = jnp.zeros((rows * len(context), length, heads, self.head_dim), context.dtype)
        return Cache(((empty, empty),) * len(self.layers), keys_values, mask_bias(mask), jnp.zeros((), jnp.int32))

    def step(self, embedding: Embedding, tokens: Int[Array, " r"], cache: Cache) -> tuple[Float[Array, "r v"], Cache]:
        """Logits of what follows `tokens`, which are at `cache.position`, and the cache with them."""
        x = embedding(tokens[:, None]).astype(cache.context[0][0].dtype)
        length, past = cache.past[0][0].shape[1], []
        bias = lax.dynamic_slice_in_dim(self.positions(length) + causal_bias(length), cache.position, 1, axis=2)
        biases = {"position_bias": bias, "context_bias": cache.context_bias}
        for layer, before, context in zip(self.layers, cache.past, cache.context, strict=True):
            x, keys_values = layer.step(x, before, context, cache.position, **biases)
            past.append(keys_values)
        logits = self._predict(embedding, self.norm(x))[:, 0]
        return logits, cache._replace(past=tuple(past), position=cache.position + 1)

    def _predict(self, embedding: Embedding, x: Float[Array, "b n c"]) -> Float[Array, "b n v"]:
        """From normed states. Float32 from here on, as in T5: sums over the vocabulary follow."""
        if self.logits is None:
            x, kernel = x * x.shape[-1] ** -0.5, embedding.embedding[...].T
        else:
            kernel = self.logits.kernel[...]
        return jnp.matmul(x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)
