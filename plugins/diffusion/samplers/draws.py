"""Random draws that depend on an image's own key and the number of the draw, and on nothing else.

Every image has a key. Its starting noise comes from fold_in(key, 0), the noise of call i of a run from
fold_in(key, 1 + i). So a picture does not change with the batch it is made in, its place there, or the number of
devices. A single key for a batch stands for the keys fold_in(key, 0), fold_in(key, 1), ... of its images.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Shaped


def keys_of_seeds(seeds: Sequence[int]) -> Key[Array, " b"]:
    """One key per image from one whole number per image. Raises ValueError for no seeds or one outside [0, 2^32)."""
    wrong = [seed for seed in seeds if not 0 <= seed < 2**32]
    if wrong or not len(seeds):
        raise ValueError(f"seeds={list(seeds)} have to be one or more whole numbers in [0, 2^32)")
    return jax.vmap(jax.random.key)(jnp.array(list(seeds), jnp.uint32))


def image_keys(key: Shaped[Array, "*k"], batch: int) -> Key[Array, " batch"]:
    """The keys of `batch` images: `key` itself if it is one per image. Raises ValueError for another shape or type."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(f"key is an array of {key.dtype}; make it with jax.random.key(seed) or keys_of_seeds")
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch))
    if key.shape != (batch,):
        raise ValueError(f"keys of shape {key.shape} do not fit {batch} images; give one key, or one per image")
    return key


def starting_noise(key: Shaped[Array, "*k"], shape: Sequence[int]) -> Float[Array, "b ..."]:
    """Standard normal noise of `shape` (b, ...), where a run starts."""
    return normal(image_keys(key, shape[0]), 0, tuple(shape[1:]))


def step_noise(keys: Key[Array, " b"], index: Int[Array, ""], shape: tuple[int, ...]) -> Float[Array, "b ..."]:
    """The noise of call `index` of a run, for images of `shape`."""
    return normal(keys, 1 + index, shape)


def normal(keys: Key[Array, " b"], number: int | Int[Array, ""], shape: tuple[int, ...]) -> Float[Array, "b ..."]:
    """Draw `number` of each key."""
    return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, number), shape))(keys)
