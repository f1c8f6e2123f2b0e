"""The picture encoder: big_vision's ViT (Dosovitskiy et al., 2021; `big_vision/models/vit.py`), for tokens.

    patches of p x p pixels, each through one linear map, + a position table     b n w
    x + attention(norm x);  x + mlp(norm x)                                      depth times
    norm, then the head, a linear map to T5's width, times 4                     b n d

The head is the classifier's of the published network, applied to every patch instead of their mean; the factor brings
the tokens to the size of T5's word vectors, which have deviation 1. The mean before the head is the pooled feature.
There is no class token. The GELU is the tanh form, attention is scaled and everything has a bias, unlike T5's.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from reveal.network.config import VitConfig
from reveal.network.layers import LayerNorm, Linear, attend
from reveal.network.t5 import staged

TOKEN_SCALE = 4  # of picture tokens and of value tokens


class Picture(NamedTuple):
    """What the encoder knows about `b` pictures: `n` tokens in T5's width, and one vector in its own."""

    tokens: Float[Array, "b n d"]
    pooled: Float[Array, "b w"]


class Block(nnx.Module):
    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs):
        width = config.width
        self.heads = config.heads
        self.attention_norm = LayerNorm(width)
        self.query, self.key, self.value, self.out = (Linear(width, width, bias=True, rngs=rngs) for _ in range(4))
        self.mlp_norm = LayerNorm(width)
        self.mlp_in = Linear(width, config.mlp, bias=True, rngs=rngs)
        self.mlp_out = Linear(config.mlp, width, bias=True, rngs=rngs)

    def __call__(self, x: Float[Array, "b n w"]) -> Float[Array, "b n w"]:
        y = self.attention_norm(x)
        q, k, v = (map_(y).reshape(*y.shape[:2], self.heads, -1) for map_ in (self.query, self.key, self.value))
        x = x + self.out(attend(q, k, v, scale=q.shape[-1] ** -0.5)[0].reshape(x.shape))
        return x + self.mlp_out(jax.nn.gelu(self.mlp_in(self.mlp_norm(x)), approximate=True))


class Vit(nnx.Module):
    def __init__(self, config: VitConfig, outputs: int, *, rngs: nnx.Rngs):
        self.config = config
        self.patches = Linear(config.patch**2 * 3, config.width, bias=True, rngs=rngs)
        start = jax.random.normal(rngs.params(), (1, config.tokens, config.width))
        self.positions = nnx.Param(start * config.width**-0.5)
        self.layers = nnx.List([Block(config, rngs=rngs) for _ in range(config.depth)])
        self.norm = LayerNorm(config.width)
        self.head = Linear(config.width, outputs, bias=True, rngs=rngs)

    def __call__(self, image: Float[Array, "b h w 3"], *, frozen: int = 0, remat: bool = False) -> Picture:
        """Encodes square pictures in [-1, 1], as big_vision's networks take them.

        `frozen` first layers get no gradient; `remat` computes the layers' activations again for it."""
        x = self.patches(patches(image, self.config.patch).astype(self.patches.kernel.dtype))
        x = x + self.positions[...].astype(x.dtype)
        for i, layer in enumerate(self.layers):
            x = staged(remat)(partial(layer))(x)
            x = lax.stop_gradient(x) if i + 1 == frozen else x
        x = self.norm(x)
        return Picture(TOKEN_SCALE * self.head(x), x.mean(axis=1))


def patches(image: Float[Array, "b h w c"], side: int) -> Float[Array, "b n p"]:
    """The squares of a picture, row by row, each as one vector: rows, columns, colours."""
    b, h, w, c = image.shape
    grid = image.reshape(b, h // side, side, w // side, side, c)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, side * side * c)
