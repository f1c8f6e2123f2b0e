"""Pooling and resizing exactly as FILM's reference does them; all arrays are `b h w c`.

* `average_pool`: 2x2 mean, stride 2; an odd last row or column is dropped (TensorFlow's VALID padding).
* `resize_bilinear`: half-pixel centres, edge clamping, no antialiasing (`tf.image.resize`). Carries flow to the next
  finer level, nearly always twice the size: two weighted sums of neighbours and an interleave, without any gather.
* `resize_nearest`: half-pixel centres. The decoder's upsampling.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float


def average_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    total = lax.reduce_window(x, np.array(0, x.dtype), lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return total * 0.25


def resize_bilinear(x: Float[Array, "b h w c"], size: tuple[int, int]) -> Float[Array, "b h2 w2 c"]:
    for axis, length in zip((1, 2), size, strict=True):
        if length == 2 * x.shape[axis]:
            x = _double(x, axis)
        elif length != x.shape[axis]:
            x = _interpolate(x, axis, length)
    return x


def resize_nearest(x: Float[Array, "b h w c"], size: tuple[int, int]) -> Float[Array, "b h2 w2 c"]:
    for axis, length in zip((1, 2), size, strict=True):
        scale = x.shape[axis] / length
        index = np.minimum(np.floor((np.arange(length) + 0.5) * scale), x.shape[axis] - 1).astype(np.int32)
        x = jnp.take(x, index, axis=axis)
    return x


def interleave(even: Array, odd: Array, axis: int) -> Array:
    """even[0], odd[0], even[1], odd[1], ... along `axis`."""
    shape = list(even.shape)
    shape[axis] *= 2
    return jnp.stack([even, odd], axis=axis + 1).reshape(shape)


def _double(x: Array, axis: int) -> Array:
    pads = [(int(a == axis),) * 2 for a in range(x.ndim)]
    padded, length = jnp.pad(x, pads, mode="edge"), x.shape[axis]
    before, after = (lax.slice_in_dim(padded, start, start + length, axis=axis) for start in (0, 2))
    return interleave(0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after, axis)


def _interpolate(x: Array, axis: int, length: int) -> Array:
    last = x.shape[axis] - 1
    position = np.clip((np.arange(length) + 0.5) * (x.shape[axis] / length) - 0.5, 0, last)
    low = np.minimum(np.floor(position), max(last - 1, 0)).astype(np.int32)
    shape = [length if a == axis else 1 for a in range(x.ndim)]
    weight = jnp.asarray((position - low).reshape(shape), x.dtype)
    below, above = jnp.take(x, low, axis=axis), jnp.take(x, np.minimum(low + 1, last), axis=axis)
    return below * (1 - weight) + above * weight
