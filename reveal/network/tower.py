"""The picture tower: a small convolutional network that embeds an image by its colours and their places.

REVEAL's heads read an image through patches that a ViT has learnt from captions (`heads.py`); one of two layers that
was trained on thousands of drawings compares pictures no better than their pixels do. A network may therefore have this
tower too, whose embedding is a part of every query and key of its own:

    q = [sqrt(h) head(text, image); sqrt(w) tower(image)]
    q . k = h cosine of the heads + w cosine of the pictures         h = 1 - w, or of its own

    image in [-1, 1]  48 x 48
    3 x 3 convolutions, stride 2                     24 x 24 x c/4, 12 x 12 x c/2
    residual blocks of two 3 x 3 convolutions        12 x 12 x c/2
    2 x 2 convolution, stride 2, residual blocks     6 x 6 x c
    norm, one linear map of all places, unit length  e

The last map has a weight for every place: where a colour is decides which flag it is. What has no image has the learnt
vector `none`, and training puts whatever is no picture of a known kind near it (`reveal/training/picture_pairs.py`).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from common.nn.layers import convolution
from reveal.network.config import TowerConfig
from reveal.network.layers import RMSNorm


class Convolution(nnx.Module):
    """A square convolution; strides cover the image without overlap beyond the kernel's."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1, *, rngs: nnx.Rngs):
        shape = (side, side, inputs, outputs)
        self.kernel = nnx.Param(jax.nn.initializers.he_normal()(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros((outputs,)))
        self.stride = stride

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b g v o"]:
        y = convolution(x, self.kernel[...].astype(x.dtype), self.stride)
        return y + self.bias[...].astype(x.dtype)


class Residual(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.norm = RMSNorm(width)
        self.first, self.second = (Convolution(width, width, 3, rngs=rngs) for _ in range(2))

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return x + self.second(jax.nn.gelu(self.first(self.norm(x))))


class Tower(nnx.Module):
    def __init__(self, config: TowerConfig, image_size: int, *, rngs: nnx.Rngs):
        quarter, half, whole = config.width // 4, config.width // 2, config.width
        self.stem = nnx.List([Convolution(3, quarter, 3, 2, rngs=rngs), Convolution(quarter, half, 3, 2, rngs=rngs)])
        self.fine = nnx.List([Residual(half, rngs=rngs) for _ in range(config.depth)])
        self.down = Convolution(half, whole, 2, 2, rngs=rngs)
        self.coarse = nnx.List([Residual(whole, rngs=rngs) for _ in range(config.depth)])
        self.norm = RMSNorm(whole)
        places = (image_size // 8) ** 2 * whole
        self.map = nnx.Param(jax.random.normal(rngs.params(), (places, config.key_dim)) * places**-0.5)
        self.none = nnx.Param(jax.random.normal(rngs.params(), (config.key_dim,)))

    def __call__(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b e"]:
        """Embeddings, not yet of unit length, of images in [-1, 1]."""
        x = image.astype(self.map[...].dtype)
        for layer in self.stem:
            x = jax.nn.gelu(layer(x))
        for layer in (*self.fine, self.down, *self.coarse):
            x = layer(x)
        return self.norm(x).reshape(len(x), -1) @ self.map[...]
