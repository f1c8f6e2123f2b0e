"""A frame's image and features as one array, so that both are warped at once and convolved without a copy.

    pack [b h w 3 + GAP + f] = image (3) | zeros (GAP) | features (f)

The zeros bring the image to a whole group of channels (`film.ops.conv2d.GROUP`).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from film.ops.conv2d import GROUP

COLORS = 3
GAP = -COLORS % GROUP


def pack(image: Float[Array, "b h w 3"], features: Float[Array, "b h w f"]) -> Float[Array, "b h w p"]:
    return jnp.concatenate([image, jnp.zeros((*image.shape[:3], GAP), image.dtype), features], axis=-1)


def unpack(packed: Float[Array, "b h w p"]) -> tuple[Float[Array, "b h w 3"], Float[Array, "b h w f"]]:
    """The image and the features of a pack."""
    return packed[..., :COLORS], packed[..., COLORS + GAP :]


def split_kernel(kernel: Float[Array, "kh kw i o"], channels: int) -> tuple[Array, Array, Array]:
    """The kernel over two packs of `channels` each, and over the rest of [x0, features0, x1, features1, rest].

    The convolution is linear in its inputs, so it is the sum of three, and their concatenation, a copy, is never made.
    """
    features = channels - COLORS - GAP
    image0, features0, image1, features1, rest = jnp.split(kernel, np.cumsum([COLORS, features] * 2), axis=2)
    gap = jnp.zeros((*kernel.shape[:2], GAP, kernel.shape[3]), kernel.dtype)
    one, two = (jnp.concatenate([x, gap, f], axis=2) for x, f in ((image0, features0), (image1, features1)))
    return one, two, rest
