"""T5's two stacks (`t5_layers.py`): an encoder of states, and the decoder that writes the answer.

REVEAL uses the encoder four times, each with parameters of its own: T5's lower layers read the text, its upper ones
fuse (`fusion.py`), and two stacks make the query and the key (`heads.py`). It is given states, not tokens, and has no
norm at its end, because those four need different ones.

The decoder can run on a whole row at once, as training does, or token by token with a `Cache`: the keys and values of
what was written, and those of the context, which never change. Both give the same numbers. The embedding is passed in
by the caller, since the text encoder has the same one and a parameter has one place in a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from common.nn.remat import remat as rematerialised
from reveal.network.config import RevealConfig
from reveal.network.layers import Embedding, Linear, RMSNorm, masking
from reveal.network.t5_layers import DecoderLayer, EncoderLayer, KeysValues, Positions, causal

Stage = Callable[[Callable[..., Any]], Callable[..., Any]]


def staged(remat: bool) -> Stage:
    """How a stack calls its layers: plainly, or so that a gradient keeps only what passes between them."""
    return rematerialised if remat else (lambda layer: layer)


class Encoder(nnx.Module):
    """`layers` encoder layers and their table of positions."""

    def __init__(self, config: RevealConfig, layers: int, *, rngs: nnx.Rngs):
        shape = config.width, config.heads, config.head_dim, config.mlp
        self.layers = nnx.List([EncoderLayer(*shape, rngs=rngs) for _ in range(layers)])
        self.positions = Positions(config.heads, both_ways=True, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b n c"],
        mask: Bool[Array, "b n"],
        *,
        prior: Float[Array, "b n 1"] | None = None,
        bias: Float[Array, "b 1 1 n"] | None = None,
        frozen: int = 0,
        remat: bool = False,
        seen: list | None = None,
        only: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b _ c"]:
        """The states after the last layer.

        Args:
          x: states.
          mask: True where a token may be looked at.
          prior: factor of each token's normed states in every layer.
          bias: added to every layer's logits, by key.
          frozen: no gradient goes into that many of the first layers, nor below them.
          remat: forget the layers' inner activations and compute them again for the gradient.
          seen: a list that takes each layer's attention weights, b h n n.
          only: the last layer computes this token of each row, and the result has no other.
        """
        added = self.positions(x.shape[1], x.shape[1]), masking(mask) if bias is None else masking(mask) + bias

        def run(layer: EncoderLayer, only: Array | None, x: Array) -> Any:
            x, weights = layer(x, *added, prior=prior, only=only)
            return x if seen is None else (x, weights)

        for i, layer in enumerate(self.layers):
            out = staged(remat)(partial(run, layer, only if i + 1 == len(self.layers) else None))(x)
            x = out if seen is None else out[0]
            x = lax.stop_gradient(x) if i + 1 == frozen else x
            if seen is not None:
                seen.append(out[1])
        return x


class Cache(NamedTuple):
    """What a decoder keeps from token to token: `r` rows of up to `n` tokens, on `b` contexts of `m`.

    Attributes:
      past: per layer, keys and values of the tokens so far, r n h d.
      context: per layer, keys and values of the context, b m h d; row i belongs to context `i // (r / b)`.
      masked: what is added to the logits of the context.
      place: of the next token.
    """

    past: tuple[KeysValues, ...]
    context: tuple[KeysValues, ...]
    masked: Float[Array, "b 1 1 m"]
    place: Int[Array, ""]

    def choose(self, rows: Int[Array, " r"]) -> Cache:
        """Row i continues what row `rows[i]` was, which has the same context."""
        return self._replace(past=jax.tree.map(lambda x: x[rows], self.past))


class Decoder(nnx.Module):
    """The generator: tokens and a context to the logits of each next token."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        shape = config.width, config.heads, config.head_dim, config.mlp
        self.head_dim = config.head_dim
        self.layers = nnx.List([DecoderLayer(*shape, rngs=rngs) for _ in range(config.decoder_layers)])
        self.positions = Positions(config.heads, both_ways=False, rngs=rngs)
        self.norm = RMSNorm(config.width)
        self.logits = None if config.tied else Linear(config.width, config.vocab_size, rngs=rngs)

    def __call__(
        self,
        embedding: Embedding,
        tokens: Int[Array, "b n"],
        context: Float[Array, "b m c"],
        mask: Bool[Array, "b m"],
        *,
        remat: bool = False,
    ) -> Float[Array, "b n v"]:
        """Logits of what follows each token, float32. `tokens` begin with `bos`; the context is read where `mask`."""
        x = embedding(tokens).astype(context.dtype)
        added = {"places": self.positions(*2 * x.shape[1:2]) + causal(x.shape[1]), "masked": masking(mask)}
        for layer in self.layers:
            x = staged(remat)(partial(layer, **added))(x, context)
        return self._predict(embedding, x)

    def start(self, context: Float[Array, "b m c"], mask: Bool[Array, "b m"], *, length: int, rows: int = 1) -> Cache:
        """An empty cache for `length` tokens of `rows` rows per context."""
        context_kept = tuple(layer.cross_attention.keys_values(context) for layer in self.layers)
        heads = context_kept[0][0].shape[2]
        empty = jnp.zeros((rows * len(context), length, heads, self.head_dim), context.dtype)
        return Cache(((empty, empty),) * len(self.layers), context_kept, masking(mask), jnp.zeros((), jnp.int32))

    def step(self, embedding: Embedding, tokens: Int[Array, " r"], cache: Cache) -> tuple[Float[Array, "r v"], Cache]:
        """Logits of what follows `tokens`, which stand at `cache.place`, and the cache with them in it."""
        x = embedding(tokens[:, None]).astype(cache.context[0][0].dtype)
        length = cache.past[0][0].shape[1]
        table = self.positions(length, length) + causal(length)
        added = {"places": lax.dynamic_slice_in_dim(table, cache.place, 1, axis=2), "masked": cache.masked}
        past = []
        for layer, before, context in zip(self.layers, cache.past, cache.context, strict=True):
            x, kept = layer.step(x, before, context, cache.place, **added)
            past.append(kept)
        return self._predict(embedding, x)[:, 0], cache._replace(past=tuple(past), place=cache.place + 1)

    def _predict(self, embedding: Embedding, x: Float[Array, "b n c"]) -> Float[Array, "b n v"]:
        """In float32 from here on, as T5: sums over the vocabulary follow."""
        x = self.norm(x)
        if self.logits is None:
            x, kernel = x * x.shape[-1] ** -0.5, embedding.embedding[...].T
        else:
            kernel = self.logits.kernel[...]
        return jnp.matmul(x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)
