"""Row tiling: a level of a large image is computed some rows at a time, so that only their activations are in memory.

A row of a level's activations depends only on the few rows that its convolutions reach. So a tile is computed from a
window: its own rows, and `reach` more on either side. A window that would leave the image is moved inside: its edge
then is the image's, with the zero padding of the convolutions; every other edge is at least `reach` rows away from the
tile. So the rows that are kept are those of the whole image. Only warps have to know of it: they look up the whole
image, and need the row at which the window begins.

This is for large images on a CPU. On an accelerator, and for the gradient of a crop, `common.nn.remat` saves memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

VALUES = 3 << 21  # of a tile's widest array, at most
FEWEST = 2  # tiles; with fewer, the overlaps cost more than they save
ROWS = 88  # of a tile, at least; with fewer, the overlaps of a wide image are larger than the tile
EVEN = 4  # the rows of a window are a multiple of this, so that they can be halved and tiled again
Top = int | Int[Array, ""]  # the row of the image at which a window begins


def even_share(rows: int, values: int, most: int) -> int:
    """Rows per tile: the largest divisor of `rows` with at most `most` values, given `values` per row; at least 1."""
    return max((n for n in range(1, rows + 1) if rows % n == 0 and n * values <= most), default=1)


def by_rows(function: Callable[..., Any], near: Sequence[Float[Array, "b _h _w _c"]], reach: int, channels: int) -> Any:
    """`function(0, *near)` up to rounding; on a CPU tile by tile, if the image is large.

    Args:
      function: takes the row at which its window begins, and windows of `near`; returns a tree of arrays `b h w c` with
        the rows of the first window. A row may depend on `reach` rows on either side of it.
      near: the first array has the image's height; others may be half as high. With odd rows the image stays whole.
      channels: of the widest array that the function warps or makes.
    """
    height, width = near[0].shape[1:3]
    reach += -reach % (EVEN // 2)
    tiles = -(-height // max(ROWS, VALUES // (width * channels)))
    window = -(-(height + 2 * reach * (tiles - 1)) // tiles)  # the first and the last tile need `reach` on one side
    window += -window % EVEN
    scales = [height // x.shape[1] for x in near]
    odd = any(x.shape[1] * scale != height for x, scale in zip(near, scales, strict=True))
    if jax.default_backend() != "cpu" or tiles < FEWEST or height <= window or odd:
        return function(0, *near)

    def run(top: Top) -> Any:
        arrays = zip(near, scales, strict=True)
        return function(top, *(lax.dynamic_slice_in_dim(x, top // n, window // n, axis=1) for x, n in arrays))

    def tile(number: Int[Array, ""], filled: Any) -> Any:
        top = jnp.minimum(number * (window - 2 * reach), height - window)
        above = jnp.where(number == 0, 0, reach)  # rows that the tile before has; the next one replaces `reach` below
        kept = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, above, window - reach, axis=1), run(top))
        return jax.tree.map(lambda x, rows: lax.dynamic_update_slice_in_dim(x, rows, top + above, axis=1), filled, kept)

    shapes = jax.eval_shape(run, 0)
    zero = 0 * near[0][0, 0, 0, 0]  # not plain zeros, for the reason given in `film.warp`
    empty = jax.tree.map(lambda x: jnp.full((x.shape[0], height, *x.shape[2:]), zero, x.dtype), shapes)
    return lax.fori_loop(0, tiles, tile, empty)
