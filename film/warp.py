"""Backward warping: for each output pixel, look up where it came from.

`out[y, x] = image[y + dy, x + dx]`, bilinear, with the position clamped to the picture's edge. Flow is (dx, dy) in
pixels of the image that is warped. The reference builds this on TensorFlow Addons' `dense_image_warp` (which
subtracts its flow and orders it (dy, dx)); this is the same function of the flow as the rest of FILM uses it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from film.ops.row_tiling import even_share

TILE_VALUES = 1 << 20  # values that are looked up at a time on a CPU
Cells = tuple[Int[Array, "b k"], Float[Array, "b k"], Float[Array, "b k"]]  # upper left corners; fractions right, down


def backward_warp(
    image: Float[Array, "b h w c"], flow: Float[Array, "b r w 2"], top: int | Int[Array, ""] = 0
) -> Float[Array, "b r w c"]:
    """Warps `image` (any range, any number of channels) by `flow` = (dx, dy) in pixels.

    `flow` may be that of some rows alone, from row `top` on.

    Differentiable in both arguments; the gradient with respect to a flow that points outside the picture is zero, as
    in the reference. Needs height and width of at least 2.
    """
    height, width = image.shape[1:3]
    if height < 2 or width < 2:
        raise ValueError(f"cannot warp a {width}x{height} image: bilinear lookup needs at least 2x2; pad it first")
    return _warp(image, flow, jnp.asarray(top, flow.dtype))


@jax.custom_vjp
def _warp(
    image: Float[Array, "b h w c"], flow: Float[Array, "b r w 2"], top: Float[Array, ""]
) -> Float[Array, "b r w c"]:
    batch, height, width, channels = image.shape
    pixels, shape = image.reshape(-1, height * width, channels), (*flow.shape[:3], channels)
    cells = _cells(flow, height, width, top)
    rows = batch * flow.shape[1]
    tiles = rows // even_share(rows, width * channels, TILE_VALUES)
    if jax.default_backend() == "cpu" and tiles > 1:
        return _by_tiles(pixels, cells, width, tiles).reshape(shape)
    return _mix(pixels, cells, width).reshape(shape)


def _mix(pixels: Float[Array, "b p c"], cells: Cells, width: int) -> Float[Array, "b k c"]:
    """The four pixels of each cell, bilinearly."""
    corner, fx, fy = cells
    tap = [_lookup(pixels, corner + offset) for offset in (0, 1, width, width + 1)]
    fx, fy = (fraction[..., None].astype(pixels.dtype) for fraction in (fx, fy))
    top = tap[0] + fx * (tap[1] - tap[0])
    bottom = tap[2] + fx * (tap[3] - tap[2])
    return top + fy * (bottom - top)


def _by_tiles(pixels: Float[Array, "b p c"], cells: Cells, width: int, tiles: int) -> Float[Array, "t r c"]:
    """`_mix`, tile by tile of the batch: a whole picture's four corners are four times its memory."""
    (batch, count, channels), corners = pixels.shape, cells[0].shape[1]
    corner, fx, fy = cells
    corner = corner + count * jnp.arange(batch)[:, None]
    parts = [x.reshape(tiles, 1, -1) for x in (corner, fx, fy)]
    pixels = pixels.reshape(1, -1, channels)

    def fill(tile: Int[Array, ""], out: Float[Array, "t r c"]) -> Float[Array, "t r c"]:
        corner, fx, fy = (jax.lax.dynamic_index_in_dim(part, tile, keepdims=False) for part in parts)
        return jax.lax.dynamic_update_slice(out, _mix(pixels, (corner, fx, fy), width), (tile, 0, 0))

    # Zeros that depend on the flow: XLA would make plain ones at the very start, of all warps of the network at once.
    zero = (0 * fx[0, 0]).astype(pixels.dtype)
    return jax.lax.fori_loop(0, tiles, fill, jnp.broadcast_to(zero, (tiles, batch * corners // tiles, channels)))


def _warp_by_weights(
    image: Float[Array, "b h w c"], flow: Float[Array, "b r w 2"], top: Float[Array, ""]
) -> Float[Array, "b r w c"]:
    """`_warp` as one lookup of all four corners and one product with their weights.

    It needs four times the memory, so it is not how a warp is computed; its transpose, though, is one scatter instead
    of four and one product instead of a chain of small ones, three times as fast on a CPU.
    """
    height, width, channels = image.shape[1:]
    pixels = image.reshape(-1, height * width, channels)
    corner, fx, fy = _cells(flow, height, width, top)
    corners = corner[..., None] + jnp.array([0, 1, width, width + 1])
    taps = _lookup(pixels, corners.reshape(corner.shape[0], -1)).reshape(*corners.shape, channels)
    weights = jnp.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx], axis=-1).astype(image.dtype)
    return jnp.einsum("bpt,bptc->bpc", weights, taps).reshape(*flow.shape[:3], channels)


def _gradient(inputs: tuple[Array, Array, Array | np.ndarray], gradient: Array) -> tuple[Array, Array, Array]:
    return jax.vjp(_warp_by_weights, *inputs)[1](gradient)


_warp.defvjp(lambda *inputs: (_warp(*inputs), inputs), _gradient)


def _lookup(pixels: Float[Array, "b p c"], index: Int[Array, "b k"]) -> Float[Array, "b k c"]:
    """`pixels[b, index[b]]`. On a CPU the batch is one long list of pixels: XLA has no fast batched lookup there, and
    its transpose is slower still. Elsewhere the batch stays a dimension, so that it may be sharded."""
    if jax.default_backend() != "cpu":
        return jax.vmap(lambda p, i: p.at[i].get(mode="promise_in_bounds"))(pixels, index)
    batch, count, channels = pixels.shape
    index = index + count * jnp.arange(batch)[:, None]
    found = pixels.reshape(-1, channels).at[index.reshape(-1)].get(mode="promise_in_bounds")
    return found.reshape(batch, -1, channels)


def _cells(flow: Float[Array, "b r w 2"], height: int, width: int, top: Float[Array, ""]) -> Cells:
    """Where each pixel looks: the upper left corner's number, and the fractions to the right and down."""
    y0, fy = _split(top + jnp.arange(flow.shape[1], dtype=flow.dtype)[:, None] + flow[..., 1], height)
    x0, fx = _split(jnp.arange(width, dtype=flow.dtype)[None, :] + flow[..., 0], width)
    corner, fx, fy = (x.reshape(len(x), -1) for x in (y0 * width + x0, fx, fy))
    return corner, fx, fy


def _split(position: Float[Array, "b h w"], size: int) -> tuple[Array, Array]:
    """Integer cell in [0, size - 2] and the fraction inside it in [0, 1]: together, clamping to the edge."""
    cell = jnp.clip(jnp.floor(jax.lax.stop_gradient(position)), 0, size - 2)
    fraction = position - cell
    # Not jnp.clip: where the fraction is exactly 0 or 1 its gradient is a half, the reference's is 0 and 1.
    return cell.astype(jnp.int32), jnp.where(fraction <= 0, 0, jnp.where(fraction > 1, 1, fraction))
