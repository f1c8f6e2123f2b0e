"""Row tiling: a level of a large picture is computed some rows at a time, so that only theirs are ever in memory.

The activations of the finest level are most of the memory that flow and decoder need, and a row of them depends only on
the few rows around it that its convolutions reach. So a tile is computed from a window: its own rows, and `reach`
more on either side. A window that would stick out of the picture is moved inside. Its edge then is the picture's, with
the zeros that the convolutions pad it with; every other edge is at least `reach` rows away from the tile. So what is
kept of a window is what the whole picture gives, and no layer has to know of it. Only the warps have to: they look
things up in the whole picture, and need the row at which the window begins.

This is for a CPU and for large pictures. An accelerator has its memory to fill, and the gradient of a crop keeps all
activations anyway (`common.nn.remat` is what helps there).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

PIXELS = 1 << 16  # of a tile, about
FEWEST = 8  # tiles that are worth it: of a smaller picture the overlaps cost more than they save
ROWS = 32  # of a tile at least, or the overlaps of a wide picture were more than it
EVEN = 8  # the rows of a window are a multiple of this, so that what is inside can be halved and cut again
Top = int | Int[Array, ""]  # the row of the picture at which a window begins


def even_share(rows: int, values: int, most: int) -> int:
    """How many of `rows`, each of so many values, are done at a time: the largest divisor of them that keeps to `most`
    values; one where none does."""
    return max((n for n in range(1, rows + 1) if rows % n == 0 and n * values <= most), default=1)


def by_rows(function: Callable[..., Any], near: Sequence[Float[Array, "b _h _w _c"]], reach: int) -> Any:
    """`function(0, *near)`, on a CPU tile by tile where the picture is large.

    Args:
      function: takes the row at which its window begins, and windows of `near`; returns arrays `b h w c` (a tree of
        them) of the rows of the first window. A row may depend on `reach` rows on either side of it.
      near: the first array sets the picture's height; others may be half as high.
      reach: rows.

    Returns:
      What `function(0, *near)` does, up to rounding. It is just that if there are fewer than FEWEST tiles, or an odd
      row that a half does not have.
    """
    height, width = near[0].shape[1:3]
    rows, reach = max(ROWS, PIXELS // width // EVEN * EVEN), reach + -reach % (EVEN // 2)
    window, scales = rows + 2 * reach, [height // x.shape[1] for x in near]
    odd = any(x.shape[1] * scale != height for x, scale in zip(near, scales, strict=True))
    if jax.default_backend() != "cpu" or height < max(FEWEST * rows, window) or odd:
        return function(0, *near)

    def run(top: Top) -> Any:
        arrays = zip(near, scales, strict=True)
        return function(top, *(lax.dynamic_slice_in_dim(x, top // n, window // n, axis=1) for x, n in arrays))

    def tile(number: Int[Array, ""], filled: Any) -> Any:
        first = jnp.minimum(number * rows, height - rows)
        top = jnp.clip(first - reach, 0, height - window)
        kept = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first - top, rows, axis=1), run(top))
        return jax.tree.map(lambda x, rows: lax.dynamic_update_slice_in_dim(x, rows, first, axis=1), filled, kept)

    shapes = jax.eval_shape(run, 0)
    zero = 0 * near[0][0, 0, 0, 0]  # plain zeros would be made at the very start, as in `film.warp`
    empty = jax.tree.map(lambda x: jnp.full((x.shape[0], height, *x.shape[2:]), zero, x.dtype), shapes)
    return lax.fori_loop(0, -(-height // rows), tile, empty)
