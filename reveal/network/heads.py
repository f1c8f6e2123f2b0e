"""The heads of the memory: a key to find an item by, a value to read it by, and a gate over the knowledge sources.

(Hu et al., REVEAL, CVPR 2023, "memory construction"; `models/layers.py` of the reference.) All take the states of a
query or an item: its text tokens, then its image tokens.

    key     encoder layers; first unmasked token -> norm -> projection -> unit length            b key_dim
    value   c learned latents attend to the states in decoder layers (Perceiver); times 4        b c d
    gate    a linear map of the query, softmax                                                   b sources

Query head and key head are separate stacks with one shared projection, so that both embed into one space. The value
head has T5's decoder layers: self-attention over the latents has no mask and the decoder's one-sided positions, as in
the reference; cross-attention has no positions. Any number of latents works.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Integer

from reveal.network.config import RevealConfig
from reveal.network.layers import PLAIN, Linear, Mode, RMSNorm, mask_bias
from reveal.network.t5 import DecoderLayer, Encoder, RelativePositionBias
from reveal.network.vit import TOKEN_SCALE

EPSILON = 1e-10  # added to a squared length, as the reference does


def unit(x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
    """`x` at length 1, float32."""
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + EPSILON)


class EmbeddingHead(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.encoder = Encoder(config, config.fusion_layers, rngs=rngs)
        self.norm = RMSNorm(config.width)

    def __call__(
        self, states: Float[Array, "b n d"], mask: Bool[Array, "b n"], projection: Linear, *, mode: Mode = PLAIN
    ) -> Float[Array, "b k"]:
        first = self.encoder(states, mask, mode=mode, only=jnp.argmax(mask, axis=1))[:, 0]
        return unit(projection(self.norm(first)))


class ValueHead(nnx.Module):
    """Compresses any number of states to `config.value_tokens`."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.latents = nnx.Param(jax.random.normal(rngs.params(), (1, config.value_tokens, config.width)))
        self.norm = RMSNorm(config.width)
        self.layers = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.fusion_layers)])
        self.positions = RelativePositionBias(config.heads, bidirectional=False, rngs=rngs)

    def __call__(
        self, states: Float[Array, "b n d"], mask: Bool[Array, "b n"], *, mode: Mode = PLAIN
    ) -> Float[Array, "b c d"]:
        latents = self.latents[...].astype(states.dtype)
        x, context = jnp.broadcast_to(latents, (len(states), *latents.shape[1:])), self.norm(states)
        biases = {"position_bias": self.positions(x.shape[1]), "context_bias": mask_bias(mask)}
        for i, layer in enumerate(self.layers):
            call = partial(layer, **biases, mode=mode.fold(i))
            x = mode.wrap(call)(x, context)
        return TOKEN_SCALE * x


class SourceGate(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.map = Linear(config.key_dim, config.sources, bias=True, rngs=rngs)

    def __call__(self, query: Float[Array, "b k"]) -> Float[Array, "b s"]:
        """Log-probabilities of the sources, float32."""
        return jax.nn.log_softmax(self.map(query).astype(jnp.float32))


def scores(
    query: Float[Array, "b k"],
    keys: Float[Array, "b m k"],
    log_gate: Float[Array, "b s"] | None = None,
    sources: Integer[Array, "b m"] | None = None,
) -> Float[Array, "b m"]:
    """Retrieval scores: query times key, plus the log-gate of the key's source.

    Adding it before selection keeps one order for selection, prior and gradient. The reference multiplies cosine by
    gate, so that of items with a negative cosine those of less trusted sources rank higher."""
    cosine = jnp.einsum("bk,bmk->bm", query, keys, preferred_element_type=jnp.float32)
    if log_gate is None or sources is None:
        return cosine
    return cosine + jnp.take_along_axis(log_gate, sources.astype(jnp.int32), axis=1)
