"""A whole T5 1.1: what REVEAL's encoders and generator start from, and the reader of a memory without training.

    tokens -> embedding -> encoder, norm -> states;   the decoder writes

REVEAL's own network has the same layers in other places (`published.py` moves them). The config is a `RevealConfig`, of
which a T5 has the part about text.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from common.nn.init import split
from reveal.network.config import PAD, RevealConfig
from reveal.network.generator import Decoding, Generated, generate
from reveal.network.layers import Embedding, RMSNorm
from reveal.network.t5 import Decoder, Encoder


class T5(nnx.Module):
    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width, rngs=rngs)
        self.encoder = Encoder(config, config.encoder_layers, rngs=rngs)
        self.norm = RMSNorm(config.width)
        self.decoder = Decoder(config, rngs=rngs)

    def encode(self, tokens: Int[Array | np.ndarray, "b n"]) -> tuple[Float[Array, "b n d"], Bool[Array, "b n"]]:
        """States of texts that are padded with 0, and which of them are no padding."""
        tokens = jnp.asarray(tokens)
        mask = tokens != PAD
        return self.norm(self.encoder(self.embedding(tokens), mask)), mask

    def logits(
        self, tokens: Int[Array | np.ndarray, "b n"], answer: Int[Array | np.ndarray, "b o"]
    ) -> Float[Array, "b o v"]:
        """Logits of the token that follows each one of `answer`, which begins with 0."""
        return self.decoder(self.embedding, jnp.asarray(answer), *self.encode(tokens))

    def generate(self, tokens: Int[Array | np.ndarray, "b n"], decoding: Decoding) -> Generated:
        """A text for each row; compiled once per shape and `decoding`."""
        return _generate(*split(self), jnp.asarray(tokens), decoding)


@partial(jax.jit, static_argnums=(0, 3))
def _generate(graph, params, tokens: Array, decoding: Decoding) -> Generated:
    model = nnx.merge(graph, params)
    cache = model.decoder.start(*model.encode(tokens), length=decoding.length, rows=decoding.width)
    step = partial(model.decoder.step, model.embedding)
    return generate(step, cache, decoding, bos=PAD, eos=model.config.eos)
