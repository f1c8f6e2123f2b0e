"""A frame's image and features as one array, so that both are warped in one lookup and convolved without a copy.

    packed [b h w 3 + GAP + f] = image (3) | zeros (GAP) | features (f)

The zeros fill the image up to a whole group of channels (`film.ops.convolution.GROUP`).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from film.ops.convolution import GROUP

COLORS = 3
GAP = -COLORS % GROUP


def pack(image: Float[Array, "b h w 3"], features: Float[Array, "b h w f"]) -> Float[Array, "b h w p"]:
    return jnp.concatenate([image, jnp.zeros((*image.shape[:3], GAP), image.dtype), features], axis=-1)


def unpack(packed: Float[Array, "b h w p"]) -> tuple[Float[Array, "b h w 3"], Float[Array, "b h w f"]]:
    return packed[..., :COLORS], packed[..., COLORS + GAP :]


def split_kernel(kernel: Float[Array, "kh kw i o"], packed: int) -> tuple[Array, Array, Array]:
    """Slices of the kernel for two packed frames of `packed` channels each, and for all channels after them.

    The kernel's inputs are [x0, features0, x1, features1, rest]. The sum of three convolutions needs no concatenation.
    """
    features = packed - COLORS - GAP
    image0, features0, image1, features1, rest = jnp.split(kernel, np.cumsum([COLORS, features] * 2), axis=2)
    gap = jnp.zeros((*kernel.shape[:2], GAP, kernel.shape[3]), kernel.dtype)
    first, second = (jnp.concatenate([x, gap, f], axis=2) for x, f in ((image0, features0), (image1, features1)))
    return first, second, rest
