"""REVEAL: Retrieval-Augmented Visual-Language Pre-Training with a multi-source memory (Hu et al., CVPR 2023).

An image and a text in, a text out, with the help of K items retrieved from a memory of images and texts.

1. `encode_query`  ViT (`vit.py`) and T5's lower layers -> states; query head -> embedding, source gate (`heads.py`)
2. `encode_item`   the same two encoders -> key head, value head: the key-value pair of a memory item
3. (the memory retrieves the K items with the highest `heads.scores`)
4. `fuse`          T5's upper layers over [query ; values], the scores as prior (`fusion.py`)
5. `logits`, `generate`   T5's decoder (`generator.py`)

The reference is `scenic/projects/knowledge_visual_language/models`. Dimensions: b rows, i text tokens, n image tokens,
d width, k items, c value tokens. Tokens are int32 with 0 for padding; images RGB in [0, 1].

**Missing modalities.** A row may have a text, an image or both: a text that is all padding and an image whose entry in
`has_image` is False are masked everywhere, and their values do not matter, NaN included. Where a whole batch has none,
leave the argument out and nothing is computed for it: keys and values are the same, but in the fusion the items' tokens
are closer to the query's, which T5's positions see.

The network computes in the type of its parameters. Keys, queries, scores and logits are float32. `mode` of a method
is for training (`layers.Mode`): activations that are recomputed for the gradient, dropout.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from common.nn.init import split
from reveal.network.config import PAD, RevealConfig
from reveal.network.fusion import AttentiveFusion, Fused
from reveal.network.generator import Decoding, Generated, generate
from reveal.network.heads import EmbeddingHead, SourceGate, ValueHead, unit
from reveal.network.layers import PLAIN, Embedding, Linear, Mode
from reveal.network.t5 import Decoder, Encoder
from reveal.network.tower import Tower
from reveal.network.vit import Vit

Tokens = Int[Array | np.ndarray, "b i"] | None
Images = Float[Array | np.ndarray, "b h w 3"] | None
Present = Bool[Array | np.ndarray, " b"] | None  # rows with an image; None: all


class States(NamedTuple):
    """The encoders' output: text tokens, then image tokens."""

    states: Float[Array, "b n d"]
    mask: Bool[Array, "b n"]


class Query(NamedTuple):
    """An encoded question: `States`, and what the memory is searched by."""

    states: Float[Array, "b n d"]
    mask: Bool[Array, "b n"]
    vector: Float[Array, "b e"]  # the query embedding, of unit length without a tower
    log_gate: Float[Array, "b s"]  # log-probability of each source
    no_picture: Float[Array, " b"]  # the tower's part of a score, with its `none` as the item's picture; 0 without one


class Item(NamedTuple):
    """The key-value pair of a memory item: a vector as a query's and compressed tokens."""

    key: Float[Array, "b e"]
    value: Float[Array, "b c d"]


class Reveal(nnx.Module):
    """The networks. The methods are pure functions for use inside `jit` and `grad`; only `generate` compiles itself."""

    def __init__(self, config: RevealConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width, rngs=rngs)
        self.text = Encoder(config, config.text_layers, rngs=rngs)
        self.vit = Vit(config.vit, config.width, rngs=rngs)
        self.query_head = EmbeddingHead(config, rngs=rngs)
        self.key_head = EmbeddingHead(config, rngs=rngs)
        self.projection = Linear(config.width, config.key_dim, rngs=rngs)
        self.value_head = ValueHead(config, rngs=rngs)
        self.gate = SourceGate(config, rngs=rngs)
        self.fusion = AttentiveFusion(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)
        self.tower = None if config.tower is None else Tower(config.tower, config.vit.image_size, rngs=rngs)

    def encode(
        self, tokens: Tokens = None, image: Images = None, has_image: Present = None, *, mode: Mode = PLAIN
    ) -> States:
        """Both encoders. Raises ValueError for neither tokens nor image, or another size."""
        side = self.config.vit.image_size
        if tokens is None and image is None:
            raise ValueError("neither tokens nor image: a row has a text, an image or both")
        if image is not None and image.shape[1:3] != (side, side):
            raise ValueError(f"images are {image.shape[1]}x{image.shape[2]}, this network takes {side}x{side}: resize")
        states, masks = [], []
        if tokens is not None:
            tokens = jnp.asarray(tokens)
            masks.append(tokens != PAD)
            states.append(self.text(mode.drop(self.embedding(tokens), 0), masks[-1], mode=mode.fold(1)))
        if image is not None:
            present = jnp.ones(len(image), bool) if has_image is None else jnp.asarray(has_image)
            pixels = jnp.where(present[:, None, None, None], 2 * jnp.asarray(image) - 1, 0)  # NaN would reach gradients
            encoded = self.vit(pixels, mode=mode)
            masks.append(jnp.broadcast_to(present[:, None], encoded.shape[:2]))
            states.append(jnp.where(present[:, None, None], encoded, 0))
        return States(jnp.concatenate(states, axis=1), jnp.concatenate(masks, axis=1))

    def encode_query(
        self, tokens: Tokens = None, image: Images = None, has_image: Present = None, *, mode: Mode = PLAIN
    ) -> Query:
        """Questions; arguments as in `encode`."""
        states, mask = self.encode(tokens, image, has_image, mode=mode.fold(0))
        head = self.query_head(states, mask, self.projection, mode=mode.fold(1))
        vector = self._with_picture(head, image, has_image)
        return Query(states, mask, vector, self.gate(head), self._no_picture_score(vector))

    def encode_item(
        self, tokens: Tokens = None, image: Images = None, has_image: Present = None, *, mode: Mode = PLAIN
    ) -> Item:
        """Keys and values of items; arguments as in `encode`."""
        states, mask = self.encode(tokens, image, has_image, mode=mode.fold(0))
        key = self._with_picture(self.key_head(states, mask, self.projection, mode=mode.fold(1)), image, has_image)
        return Item(key, self.value_head(states, mask, mode=mode.fold(2)))

    def embed_pictures(self, image: Float[Array | np.ndarray, "b h w 3"]) -> Float[Array, "b e"]:
        """The tower's unit vectors of images in [0, 1], for networks that have a tower."""
        assert self.tower is not None, "the config has no tower"
        return unit(self.tower(2 * jnp.asarray(image) - 1))

    def view_vectors(
        self, query: Query, views: Float[Array | np.ndarray, "v s s 3"]
    ) -> tuple[Float[Array, "v e"], Float[Array, " v"]]:
        """`vector` and `no_picture` of one query, for each of several views of its image: only the tower's part of the
        vector differs."""
        assert self.config.tower is not None, "the config has no tower"
        heads = jnp.broadcast_to(query.vector[:, : self.config.key_dim], (len(views), self.config.key_dim))
        vectors = jnp.concatenate([heads, self.config.tower.weight**0.5 * self.embed_pictures(views)], axis=1)
        return vectors, self._no_picture_score(vectors)

    def no_picture(self) -> Float[Array, " e"]:
        """The tower's unit vector for what has no image."""
        assert self.tower is not None, "the config has no tower"
        return unit(self.tower.none[...])

    def _no_picture_score(self, vectors: Float[Array, "b e"]) -> Float[Array, " b"]:
        if self.config.tower is None:
            return jnp.zeros(len(vectors))
        return self.config.tower.weight**0.5 * vectors[:, self.config.key_dim :] @ self.no_picture()

    def _with_picture(self, vector: Float[Array, "b e"], image: Images, has_image: Present) -> Float[Array, "b v"]:
        """The heads' embedding, and the tower's where there is one (`tower.py`)."""
        if self.config.tower is None:
            return vector
        none, (heads, weight) = self.no_picture()[None], self.config.tower.weights
        if image is None:
            picture = jnp.broadcast_to(none, (len(vector), none.shape[1]))
        else:
            present = jnp.ones(len(image), bool) if has_image is None else jnp.asarray(has_image)
            shown = self.embed_pictures(jnp.where(present[:, None, None, None], jnp.asarray(image), 0.5))
            picture = jnp.where(present[:, None], shown, none)
        return jnp.concatenate([heads**0.5 * vector, weight**0.5 * picture], axis=1)

    def fuse(
        self,
        query: Query | States,
        values: Float[Array, "b k c d"] | None = None,
        scores: Float[Array, "b k"] | None = None,
        present: Bool[Array, "b k"] | None = None,
        *,
        shares: bool = False,
        mode: Mode = PLAIN,
    ) -> Fused:
        """The query with its k items; without `values`, the query alone. `scores` (`heads.scores`) are equal by
        default, `present` is False where fewer than k were found, and `shares` measures attention per item."""
        if values is None:
            values = jnp.zeros((len(query.states), 0, self.config.value_tokens, self.config.width))
        present = jnp.ones(values.shape[:2], bool) if present is None else present
        prior = self.fusion.prior(jnp.zeros(values.shape[:2]) if scores is None else scores, present)
        mask = jnp.broadcast_to(present[..., None], values.shape[:3])
        values = jnp.where(mask[..., None], values, 0)
        return self.fusion(query.states, query.mask, values, mask, prior, shares=shares, mode=mode)

    def logits(self, fused: Fused, tokens: Int[Array, "b o"], *, mode: Mode = PLAIN) -> Float[Array, "b o v"]:
        """Logits of the token that follows each of `tokens`, which begin with `config.bos`."""
        return self.decoder(self.embedding, tokens, fused.states, fused.mask, mode=mode)

    def text_logits(
        self, fused: Fused, text: Int[Array | np.ndarray, "b o"], *, mode: Mode = PLAIN
    ) -> Float[Array, "b o v"]:
        """Logits of each token of `text` after those before it (teacher forcing)."""
        text = jnp.asarray(text)
        inputs = jnp.concatenate([jnp.full_like(text[:, :1], self.config.bos), text[:, :-1]], axis=1)
        return self.logits(fused, inputs, mode=mode)

    def generate(self, fused: Fused, decoding: Decoding) -> Generated:
        """The answers; compiled once per shape and `decoding`."""
        return _generate(*split(self), fused.states, fused.mask, decoding)


@partial(jax.jit, static_argnums=(0, 4))
def _generate(graph, params, states: Array, mask: Array, decoding: Decoding) -> Generated:
    model = nnx.merge(graph, params)
    cache = model.decoder.start(states, mask, length=decoding.length, rows=decoding.width)
    step = partial(model.decoder.step, model.embedding)
    return generate(step, cache, decoding, bos=model.config.bos, eos=model.config.eos)
