"""Local correlation of two feature maps: the cost volume of FlowNet and PWC-Net."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from film.ops.row_tiling import even_share

TILE_VALUES = 1 << 17  # feature values compared at a time on a CPU


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def correlation(a: Float[Array, "b h w k"], b: Float[Array, "b h w k"], radius: int) -> Float[Array, "b h w m"]:
    """Mean over channels of `a(x) b(x + d)` for all m = (2 radius + 1)^2 displacements d in whole pixels, row by row; b
    is zero outside the image. For normalised vectors it is the cosine of their angle.

    It loops, and has its own gradient: unrolled, XLA compiles the producers of `a` and `b` into every one of the terms.
    Channels come first, so that the sum runs along a row; and on a CPU a few rows at a time, which stay in the cache.
    """
    (batch, height, width, channels), side = a.shape, 2 * radius + 1
    on_cpu, padded = jax.default_backend() == "cpu", _pad(b, radius)
    rows = even_share(height, batch * width * channels, TILE_VALUES) if on_cpu else height

    def tile(number: Array) -> Array:
        own = jax.lax.dynamic_slice_in_dim(a, number * rows, rows, axis=1)
        other = jax.lax.dynamic_slice_in_dim(padded, number * rows, rows + 2 * radius, axis=1)
        own, other = (jnp.moveaxis(x, -1, 0).astype(jnp.float32) for x in (own, other))

        def compare(step: Array) -> Array:
            shifted = jax.lax.dynamic_slice(other, (0, 0, step // side, step % side), own.shape)
            return sum((own[c] * shifted[c] for c in range(1, channels)), own[0] * shifted[0]) / channels

        return jnp.moveaxis(jax.lax.map(compare, jnp.arange(side**2)), 0, -1)

    tiles = jax.lax.map(tile, jnp.arange(height // rows))
    return jnp.moveaxis(tiles, 0, 1).reshape(batch, height, width, side**2).astype(a.dtype)


def _gradient(radius: int, inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    a, b = inputs
    gradient = gradient / a.shape[-1]
    shifts_a, shifts_b, shifts_gradient = (_shifts(x, radius) for x in (a, b, gradient))
    terms = range(len(shifts_b))
    to_a = sum(gradient[..., d, None] * shifts_b[d] for d in terms)
    to_b = sum(shifts_gradient[-1 - d][..., d, None] * shifts_a[-1 - d] for d in terms)
    return jnp.asarray(to_a), jnp.asarray(to_b)


correlation.defvjp(lambda a, b, radius: (correlation(a, b, radius), (a, b)), _gradient)


def _pad(x: Float[Array, "b h w c"], radius: int) -> Array:
    return jnp.pad(x, ((0, 0), (radius, radius), (radius, radius), (0, 0)))


def _shifts(x: Float[Array, "b h w c"], radius: int) -> list[Array]:
    """`x(x + d)` for all d, in the order of `correlation`."""
    (height, width), padded, offsets = x.shape[1:3], _pad(x, radius), range(2 * radius + 1)
    return [padded[:, i : i + height, j : j + width] for i in offsets for j in offsets]
