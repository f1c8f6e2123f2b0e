"""What memory is made of: keys to find an item by, values to read it with, and a gate between sources.

(Hu et al., REVEAL, CVPR 2023, "memory construction"; `models/layers.py` of the reference.) All start from the states
of a query or of an item: its text tokens, then its picture tokens.

    key     encoder layers; first token -> norm -> projection -> unit length            b key_dim
    value   c learned vectors read the states in decoder layers (Perceiver); times 4    b c d
    gate    a linear map of the query, softmax                                          b sources

Queries and keys have stacks of their own and share the projection, so that the two live in one space. "First" is the
first token that may be looked at: a picture without text has its key at its first patch.

The value head has T5's decoder layers. Its vectors see each other without a mask, and with the decoder's one-sided
positions, as in the reference; the states they read know no position. Any number of vectors works.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Integer

from reveal.network.config import RevealConfig
from reveal.network.layers import Linear, RMSNorm, masking
from reveal.network.t5 import Encoder, staged
from reveal.network.t5_layers import DecoderLayer, Positions
from reveal.network.vit import TOKEN_SCALE

SMALLEST_SQUARE = 1e-10  # added to a squared length, as the reference does


def unit(x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
    """`x` at length 1."""
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + SMALLEST_SQUARE)


class Head(nnx.Module):
    """The stack of queries, or that of keys."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.encoder = Encoder(config, config.fusion_layers, rngs=rngs)
        self.norm = RMSNorm(config.width)

    def __call__(
        self, states: Float[Array, "b n d"], mask: Bool[Array, "b n"], projection: Linear, *, remat: bool = False
    ) -> Float[Array, "b k"]:
        """One vector of length 1 for each row, float32."""
        first = self.encoder(states, mask, remat=remat, only=jnp.argmax(mask, axis=1))[:, 0]
        return unit(projection(self.norm(first)))


class ValueHead(nnx.Module):
    """Compresses any number of states to `config.value_tokens`."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        shape = config.width, config.heads, config.head_dim, config.mlp
        self.latents = nnx.Param(jax.random.normal(rngs.params(), (1, config.value_tokens, config.width)))
        self.norm = RMSNorm(config.width)
        self.layers = nnx.List([DecoderLayer(*shape, rngs=rngs) for _ in range(config.fusion_layers)])
        self.positions = Positions(config.heads, both_ways=False, rngs=rngs)

    def __call__(
        self, states: Float[Array, "b n d"], mask: Bool[Array, "b n"], *, remat: bool = False
    ) -> Float[Array, "b c d"]:
        latents = self.latents[...].astype(states.dtype)
        x = jnp.broadcast_to(latents, (len(states), *latents.shape[1:]))
        context, length = self.norm(states), x.shape[1]
        places, masked = self.positions(length, length), masking(mask)
        for layer in self.layers:
            x = staged(remat)(lambda x, context, layer=layer: layer(x, context, places=places, masked=masked))(
                x, context
            )
        return TOKEN_SCALE * x


class SourceGate(nnx.Module):
    """How much a query trusts each source of knowledge."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.map = Linear(config.key_dim, config.sources, bias=True, rngs=rngs)

    def __call__(self, query: Float[Array, "b k"]) -> Float[Array, "b s"]:
        """Logarithms of the sources' probabilities, float32."""
        return jax.nn.log_softmax(self.map(query).astype(jnp.float32))


def scores(
    query: Float[Array, "b k"],
    keys: Float[Array, "b m k"],
    log_gate: Float[Array, "b s"] | None = None,
    sources: Integer[Array, "b m"] | None = None,
) -> Float[Array, "b m"]:
    """How well each key answers its query: their cosine, plus the log-gate of the key's source.

    Adding before anything is selected keeps one order for selection, prior and gradient. The reference multiplies
    cosine by gate, which ranks an item of negative cosine higher the less its source is trusted."""
    cosine = jnp.einsum("bk,bmk->bm", query, keys, preferred_element_type=jnp.float32)
    if log_gate is None or sources is None:
        return cosine
    return cosine + jnp.take_along_axis(log_gate, sources.astype(jnp.int32), axis=1)
