"""Attention, softmax(q k' / sqrt(d)) v, on the fastest path of the machine.

Queries, keys and values are `b n h d`: batch, tokens, heads, head dimension. Three paths, equal up to rounding:

- "cudnn": cuDNN's flash attention. NVIDIA GPUs, half precision, no mask, supported head sizes.
- "xla": one product for all scores, softmax, one product with the values. Short sequences, and other accelerators.
- "blocked": one head and one block of queries at a time; the `n_q x n_k` scores are never stored, nor in the gradient,
  which computes each block again. 8 heads' scores of 4,096 tokens (a 64x64 latent) would be 537 MB. Blocks of two
  megabytes stay in a core's cache: 0.21 s of processor time against 1.2 s for "xla" there (2026-11, jax 0.10.2).

The softmax is float32 in all of them.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

Path = Literal["cudnn", "xla", "blocked"]
# Per backend: number of scores above which attention is blocked, and number of scores in a block.
CPU_SIZES = (2**20, 2**19)
ACCELERATOR_SIZES = (2**29, 2**26)  # 2 GB: only long float32 sequences, as in a VAE's middle at 1,500 pixels
MASKED = float(-0.7 * np.finfo(np.float32).max)  # finite: a row with every key masked averages them, as in JAX


def attend(
    q: Float[Array, "b n h d"],
    k: Float[Array, "b m h d"],
    v: Float[Array, "b m h d"],
    *,
    mask: Bool[Array, "#b #h #n #m"] | None = None,
    causal: bool = False,
    path: Path | None = None,
) -> Float[Array, "b n h d"]:
    """Attention in the type of q, k, v.

    `mask` is True where a query attends to a key, broadcast over axes of length 1; with `causal` query i attends to
    keys 0 to i only. `path`: None is the fastest."""
    path = path or fastest(q, k, masked=mask is not None)
    if path == "blocked":
        return _blocked(q, k, v, mask, causal)
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal, implementation=path)


def fastest(q: Float[Array, "b n h d"], k: Float[Array, "b m h d"], *, masked: bool) -> Path:
    """The path for these shapes on JAX's default backend."""
    b, n, h, d = q.shape
    if q.dtype in (jnp.bfloat16, jnp.float16) and not masked and d % 8 == 0 and d <= _largest_cudnn_head():
        return "cudnn"
    scores = b * h * n * k.shape[1]
    symbolic = not isinstance(scores, int)  # exported for any batch: other runtimes prefer one product to a loop
    return "xla" if symbolic or scores <= _sizes()[0] else "blocked"


def _largest_cudnn_head() -> int:
    """Largest head that cuDNN's flash attention takes on this machine; 0 where there is none (jax 0.10's checks)."""
    if jax.default_backend() != "gpu":
        return 0
    try:
        capability = float(getattr(jax.devices()[0], "compute_capability", ""))
    except ValueError:  # of an AMD GPU: "gfx90a"
        return 0
    return 0 if capability < 8 else 256 if capability >= 9 else 128


def _sizes() -> tuple[int, int]:
    return CPU_SIZES if jax.default_backend() == "cpu" else ACCELERATOR_SIZES


def _blocked(
    q: Float[Array, "b n h d"],
    k: Float[Array, "b m h d"],
    v: Float[Array, "b m h d"],
    mask: Bool[Array, "#b #h #n #m"] | None,
    causal: bool,
) -> Float[Array, "b n h d"]:
    """A loop over heads, and in it one over blocks of queries; the batch is not split, so that it can be sharded."""
    b, n, h, _ = q.shape
    count = -(-n * b * k.shape[1] // _sizes()[1])  # blocks of at most that many scores
    size = -(-n // min(count, n))
    count = -(-n // size)
    rows = (0, count * size - n)  # the last block is padded
    queries = jnp.pad(q, ((0, 0), rows, (0, 0), (0, 0))).reshape(b, count, size, h, -1).transpose(3, 1, 0, 2, 4)
    if mask is not None and mask.shape[2] > 1:
        mask = jnp.pad(mask, ((0, 0), (0, 0), rows, (0, 0)))

    def head(inputs):
        number, queries, keys, values = inputs

        @partial(jax.checkpoint, prevent_cse=False)  # or the gradient would keep all blocks' scores: the whole matrix
        def block(inputs):
            start, queries = inputs
            allowed = _allowed(mask, causal, number, start, size, keys.shape[-1])
            return _attend_once(queries, keys, values, allowed)

        return lax.map(block, (size * jnp.arange(count), queries))

    out = lax.map(head, (jnp.arange(h), queries, k.transpose(2, 0, 3, 1), v.transpose(2, 0, 1, 3)))
    return out.transpose(2, 1, 3, 0, 4).reshape(b, count * size, h, -1)[:, :n]


def _allowed(mask, causal: bool, head, start, size: int, keys: int) -> Bool[Array, "#b #n m"] | None:
    """The keys that a block of `size` queries from `start` on attends to; None for all."""
    allowed = None
    if mask is not None:
        mask = lax.dynamic_index_in_dim(mask, head if mask.shape[1] > 1 else 0, 1, keepdims=False)
        allowed = lax.dynamic_slice_in_dim(mask, start, size, 1) if mask.shape[1] > 1 else mask
        allowed = jnp.broadcast_to(allowed, (*allowed.shape[:2], keys))
    if causal:
        causal_mask = (start + jnp.arange(size))[:, None] >= jnp.arange(keys)
        allowed = causal_mask[None] if allowed is None else allowed & causal_mask
    return allowed


def _attend_once(
    q: Float[Array, "b n d"], k: Float[Array, "b d m"], v: Float[Array, "b m d"], allowed: Array | None
) -> Float[Array, "b n d"]:
    """One head, with transposed keys. Rows are divided by their sums after the product, where they are shorter."""
    scores = jnp.matmul(q, k, preferred_element_type=jnp.float32) * np.float32(q.shape[-1] ** -0.5)
    scores = scores if allowed is None else jnp.where(allowed, scores, MASKED)
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    out = jnp.matmul(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return (out / weights.sum(-1, keepdims=True)).astype(q.dtype)
