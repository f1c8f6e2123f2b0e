"""REVEAL: Retrieval-Augmented Visual-Language Pre-Training with a multi-source memory (Hu et al., CVPR 2023).

A picture and a text in, a text out, with the help of K items from a memory of pictures and texts.

1. `encode_query`  ViT (`vit.py`) and T5's lower layers -> states; query head -> where to look (`heads.py`)
2. `encode_item`   the same two encoders -> key head, value head: what the memory holds of an item
3. (the memory finds the K best items by `heads.scores`)
4. `fuse`          T5's upper layers over [query ; values], the scores as prior (`fusion.py`)
5. `logits`, `generate`   T5's decoder (`generator.py`)

The reference is `scenic/projects/knowledge_visual_language/models`. Dimensions: b rows, i text tokens, n picture
tokens, d width, k items, c value tokens. Tokens are int32 with 0 for padding; pictures RGB in [0, 1].

What is missing. A row may have a text, a picture or both: a text that is all padding and a picture whose entry in
`has_image` is False are masked wherever they could be looked at, and their values do not matter, NaN included.
Where a whole batch has none, leave the argument out and nothing is computed for it: keys and values are the same, but
in the fusion the items' tokens stand closer to the query's then, which T5's positions see.

The network computes in the type of its parameters. Keys, queries, scores and logits are float32.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from reveal.network.config import PAD, RevealConfig
from reveal.network.fusion import AttentiveFusion, Fused
from reveal.network.generator import Decoding, Generated, Greedy, generate, rows_of
from reveal.network.heads import Head, SourceGate, ValueHead
from reveal.network.layers import Embedding, Linear
from reveal.network.t5 import Decoder, Encoder
from reveal.network.vit import Vit

Tokens = Int[Array | np.ndarray, "b i"]
Images = Float[Array | np.ndarray, "b h w 3"]
Flags = Bool[Array | np.ndarray, " b"]


class Frozen(NamedTuple):
    """First layers of the two encoders that get no gradient (nor does what is below them)."""

    text: int = 0
    image: int = 0


NONE_FROZEN, GREEDY = Frozen(), Greedy()


class States(NamedTuple):
    """A row as the encoders see it: text tokens, then picture tokens; `mask` says which are there."""

    states: Float[Array, "b n d"]
    mask: Bool[Array, "b n"]


class Query(NamedTuple):
    """What is asked, and where to look for it.

    Attributes:
      states, mask: as in `States`.
      vector: of unit length, to be compared with keys.
      log_gate: logarithm of the probability of each source.
    """

    states: Float[Array, "b n d"]
    mask: Bool[Array, "b n"]
    vector: Float[Array, "b e"]
    log_gate: Float[Array, "b s"]


class Item(NamedTuple):
    """What a memory keeps of an item: a key of unit length and its compressed tokens."""

    key: Float[Array, "b e"]
    value: Float[Array, "b c d"]


class Reveal(nnx.Module):
    """The networks. The methods are pure functions for use inside `jit` and `grad`; only `generate` compiles itself.

    `remat` of a method forgets every layer's inner activations and computes them again for the gradient."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width, rngs=rngs)
        self.text = Encoder(config, config.text_layers, rngs=rngs)
        self.vit = Vit(config.vit, config.width, rngs=rngs)
        self.query_head = Head(config, rngs=rngs)
        self.key_head = Head(config, rngs=rngs)
        self.projection = Linear(config.width, config.key_dim, rngs=rngs)
        self.value_head = ValueHead(config, rngs=rngs)
        self.gate = SourceGate(config, rngs=rngs)
        self.fusion = AttentiveFusion(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)

    def encode(
        self,
        tokens: Tokens | None = None,
        image: Images | None = None,
        has_image: Flags | None = None,
        *,
        frozen: Frozen = NONE_FROZEN,
        remat: bool = False,
    ) -> States:
        """Both encoders.

        Args:
          tokens: texts; None if no row has one.
          image: pictures; None if no row has one.
          has_image: which rows have a picture; None: all.
          frozen, remat: for training.

        Raises:
          ValueError: neither tokens nor image, a picture of another size, more frozen layers than there are.
        """
        _check(self.config, tokens, image, frozen)
        parts, masks = [], []
        if tokens is not None:
            tokens = jnp.asarray(tokens)
            masks.append(tokens != PAD)
            parts.append(self.text(self.embedding(tokens), masks[-1], frozen=frozen.text, remat=remat))
        if image is not None:
            there = jnp.ones(len(image), bool) if has_image is None else jnp.asarray(has_image)
            shown = jnp.where(there[:, None, None, None], 2 * jnp.asarray(image) - 1, 0)  # or NaN got into the gradient
            found = self.vit(shown, frozen=frozen.image, remat=remat).tokens
            masks.append(jnp.broadcast_to(there[:, None], found.shape[:2]))
            parts.append(jnp.where(there[:, None, None], found, 0))
        return States(jnp.concatenate(parts, axis=1), jnp.concatenate(masks, axis=1))

    def encode_query(
        self,
        tokens: Tokens | None = None,
        image: Images | None = None,
        has_image: Flags | None = None,
        *,
        frozen: Frozen = NONE_FROZEN,
        remat: bool = False,
    ) -> Query:
        """What is asked; arguments as in `encode`."""
        states, mask = self.encode(tokens, image, has_image, frozen=frozen, remat=remat)
        vector = self.query_head(states, mask, self.projection, remat=remat)
        return Query(states, mask, vector, self.gate(vector))

    def encode_item(
        self,
        tokens: Tokens | None = None,
        image: Images | None = None,
        has_image: Flags | None = None,
        *,
        frozen: Frozen = NONE_FROZEN,
        remat: bool = False,
    ) -> Item:
        """What the memory keeps of each of `b` items; arguments as in `encode`."""
        states, mask = self.encode(tokens, image, has_image, frozen=frozen, remat=remat)
        key = self.key_head(states, mask, self.projection, remat=remat)
        return Item(key, self.value_head(states, mask, remat=remat))

    def fuse(
        self,
        query: Query | States,
        values: Float[Array, "b k c d"] | None = None,
        scores: Float[Array, "b k"] | None = None,
        present: Bool[Array, "b k"] | None = None,
        *,
        mode: str | None = None,
        shares: bool = False,
        remat: bool = False,
    ) -> Fused:
        """The query with its items; without `values`, the query alone.

        Args:
          query: from `encode_query`.
          values: of the k items.
          scores: of the items (`heads.scores`); None: all alike.
          present: False where fewer than k were found.
          mode, shares, remat: as in `AttentiveFusion`.
        """
        b = len(query.states)
        if values is None or values.shape[1] == 0:
            values, prior = jnp.zeros((b, 0, self.config.value_tokens, self.config.width)), jnp.zeros((b, 0))
        else:
            prior = self.fusion.prior(jnp.zeros(values.shape[:2]) if scores is None else scores, present)
        there = jnp.ones(values.shape[:2], bool) if present is None else present
        mask = jnp.broadcast_to(there[..., None], values.shape[:3])
        values = jnp.where(mask[..., None], values, 0)
        return self.fusion(query.states, query.mask, values, mask, prior, mode=mode, shares=shares, remat=remat)

    def logits(self, fused: Fused, tokens: Int[Array, "b o"], *, remat: bool = False) -> Float[Array, "b o v"]:
        """Of what follows each of `tokens`, which begin with `config.bos`."""
        return self.decoder(self.embedding, tokens, fused.states, fused.mask, remat=remat)

    def generate(self, fused: Fused, how: Decoding = GREEDY, key: PRNGKeyArray | None = None) -> Generated:
        """The answers; compiled once per shape and `how`. `key` is for sampling."""
        graphdef, params = nnx.split(self)
        return _generate(graphdef, nnx.to_pure_dict(params), fused.states, fused.mask, how, key)


@partial(jax.jit, static_argnums=(0, 4))
def _generate(graphdef, params, states: Array, mask: Array, how: Decoding, key: PRNGKeyArray | None) -> Generated:
    model = nnx.merge(graphdef, params)
    cache = model.decoder.start(states, mask, length=how.length, rows=rows_of(how))
    step = partial(model.decoder.step, model.embedding)
    return generate(step, cache, how, bos=model.config.bos, eos=model.config.eos, key=key)


def _check(config: RevealConfig, tokens: Tokens | None, image: Images | None, frozen: Frozen) -> None:
    if tokens is None and image is None:
        raise ValueError("neither tokens nor image: a row has a text, a picture or both")
    side = config.vit.image_size
    if image is not None and image.shape[1:3] != (side, side):
        raise ValueError(f"pictures are {image.shape[1]}x{image.shape[2]}, this network reads {side}x{side}: resize")
    limits = Frozen(config.text_layers, config.vit.depth)
    if not all(0 <= n <= most for n, most in zip(frozen, limits, strict=True)):
        raise ValueError(f"{frozen} freezes layers that are not there; the encoders have {limits.text}, {limits.image}")
