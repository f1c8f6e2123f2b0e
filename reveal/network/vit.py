"""The image encoder: big_vision's ViT (Dosovitskiy et al., 2021; `big_vision/models/vit.py`), for tokens.

    patches of p x p pixels, each through one linear map, + a position table     b n w
    x + attention(norm x);  x + mlp(norm x)                                      depth times
    norm, then the head, a linear map to T5's width, times 4                     b n d

The head is the published network's classifier, applied to every patch instead of their mean; the factor scales tokens
to the size of T5's embeddings, which have deviation 1. Attention is scaled and every linear map has a bias, unlike
T5's. The reference's has no class token and the GELU's tanh form; a config may have what other published ViTs have: a
class token, whose state is dropped at the end, another activation, a norm before the layers.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from common.nn.layers import LayerNorm
from common.nn.transformer import ACTIVATIONS
from reveal.network.config import VitConfig
from reveal.network.layers import PLAIN, Linear, Mode, attend

TOKEN_SCALE = 4  # of image tokens and of value tokens


class Block(nnx.Module):
    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs):
        width = config.width
        self.heads, self.activation = config.heads, config.activation
        self.attention_norm = LayerNorm(width, config.norm_eps)
        self.query, self.key, self.value, self.out = (Linear(width, width, bias=True, rngs=rngs) for _ in range(4))
        self.mlp_norm = LayerNorm(width, config.norm_eps)
        self.mlp_in = Linear(width, config.mlp, bias=True, rngs=rngs)
        self.mlp_out = Linear(config.mlp, width, bias=True, rngs=rngs)

    def __call__(self, x: Float[Array, "b n w"]) -> Float[Array, "b n w"]:
        y = self.attention_norm(x)
        q, k, v = (linear(y).reshape(*y.shape[:2], self.heads, -1) for linear in (self.query, self.key, self.value))
        x = x + self.out(attend(q, k, v, scale=q.shape[-1] ** -0.5)[0].reshape(x.shape))
        return x + self.mlp_out(ACTIVATIONS[self.activation](self.mlp_in(self.mlp_norm(x))))


class Vit(nnx.Module):
    def __init__(self, config: VitConfig, outputs: int, *, rngs: nnx.Rngs):
        self.config = config
        self.patches = Linear(config.patch**2 * 3, config.width, bias=True, rngs=rngs)
        table = jax.random.normal(rngs.params(), (1, config.tokens, config.width))
        self.positions = nnx.Param(table * config.width**-0.5)
        token = jax.random.normal(rngs.params(), (1, 1, config.width)) if config.class_token else None
        self.class_token = None if token is None else nnx.Param(token)  # its position is in it
        self.pre_norm = LayerNorm(config.width, config.norm_eps) if config.pre_norm else None
        self.layers = nnx.List([Block(config, rngs=rngs) for _ in range(config.depth)])
        self.norm = LayerNorm(config.width, config.norm_eps)
        self.head = Linear(config.width, outputs, bias=True, rngs=rngs)

    def __call__(self, image: Float[Array, "b h w 3"], *, mode: Mode = PLAIN) -> Float[Array, "b n d"]:
        """Tokens of square images in [-1, 1], as big_vision's networks take them."""
        x = self.patches(patches(image, self.config.patch).astype(self.patches.kernel.dtype))
        x = x + self.positions[...].astype(x.dtype)
        if self.class_token is not None:
            token = jnp.broadcast_to(self.class_token[...].astype(x.dtype), (len(x), 1, x.shape[-1]))
            x = jnp.concatenate([token, x], axis=1)
        x = x if self.pre_norm is None else self.pre_norm(x)
        for layer in self.layers:
            x = mode.wrap(layer)(x)
        x = x if self.class_token is None else x[:, 1:]
        return TOKEN_SCALE * self.head(self.norm(x))


def patches(image: Float[Array, "b h w c"], side: int) -> Float[Array, "b n p"]:
    """The squares of an image in row-major order, each as one vector: rows, columns, channels."""
    b, h, w, c = image.shape
    grid = image.reshape(b, h // side, side, w // side, side, c)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, side * side * c)
