"""Backward warping: `out[y, x] = image[y + dy, x + dx]`, bilinear, the position clamped to the image's edge.

Flow is (dx, dy) in pixels of the image that is warped. The reference builds this on TensorFlow Addons'
`dense_image_warp` (which subtracts its flow and orders it (dy, dx)); this is the same function of FILM's flow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from film.ops.row_tiling import Top, even_share

TILE_VALUES = 1 << 20  # values looked up at a time on a CPU
Image = Float[Array, "b h w c"]
Flow = Float[Array, "b r s 2"]
Output = Float[Array, "b r s c"]
Pixels = Float[Array, "g p c"]
Index = Int[Array, "g k"]
Fraction = Float[Array, "g k"]


def backward_warp(image: Image, flow: Flow, top: Top = 0) -> Output:
    """Warps `image` (any range, any number of channels) by `flow` = (dx, dy) in pixels.

    `flow` may have some rows alone, from row `top` on, and the first columns alone. Differentiable in both arguments;
    as in the reference, the gradient is zero for a flow that points outside the image. Height and width are at least 2.
    """
    height, width = image.shape[1:3]
    if height < 2 or width < 2:
        raise ValueError(f"cannot warp a {width}x{height} image: bilinear lookup needs at least 2x2; pad it first")
    return _warp(image, flow, jnp.asarray(top, flow.dtype))


@jax.custom_vjp
def _warp(image: Image, flow: Flow, top: Float[Array, ""]) -> Output:
    width, channels = image.shape[2:]
    pixels, *cells = _pixels_and_cells(image, flow, top)
    rows = flow.shape[0] * flow.shape[1]
    tiles = rows // even_share(rows, width * channels, TILE_VALUES)
    if jax.default_backend() != "cpu" or tiles == 1:
        return _bilinear(width, pixels, *cells).reshape(*flow.shape[:3], channels)

    # Tile by tile: the four corners of a whole image are four times its memory.
    tiled = [x.reshape(tiles, 1, -1) for x in cells]

    def fill(tile: Int[Array, ""], out: Float[Array, "t k c"]) -> Float[Array, "t k c"]:
        cells = (jax.lax.dynamic_index_in_dim(x, tile, keepdims=False) for x in tiled)
        return jax.lax.dynamic_update_slice(out, _bilinear(width, pixels, *cells), (tile, 0, 0))

    # Zeros that depend on the flow: XLA allocates plain ones at the very start, for all warps of the network at once.
    zero = (0 * cells[1][0, 0]).astype(image.dtype)
    empty = jnp.broadcast_to(zero, (tiles, tiled[0].shape[2], channels))
    return jax.lax.fori_loop(0, tiles, fill, empty).reshape(*flow.shape[:3], channels)


def outside(flow: Flow) -> Float[Array, "b r w 1"]:
    """How far outside of the picture each pixel looks up, in pixels, at most 1."""
    height, width = flow.shape[1:3]
    y, x = jnp.arange(height)[:, None] + flow[..., 1], jnp.arange(width) + flow[..., 0]
    beyond = jnp.maximum(jnp.maximum(-x, x - (width - 1)), jnp.maximum(-y, y - (height - 1)))
    return jnp.clip(beyond, 0, 1)[..., None]


def _bilinear(width: int, pixels: Pixels, corner: Index, fx: Fraction, fy: Fraction) -> Float[Array, "g k c"]:
    tap = [_lookup(pixels, corner + offset) for offset in (0, 1, width, width + 1)]
    fx, fy = (fraction[..., None].astype(pixels.dtype) for fraction in (fx, fy))
    above = tap[0] + fx * (tap[1] - tap[0])
    below = tap[2] + fx * (tap[3] - tap[2])
    return above + fy * (below - above)


def forward_warp(values: Float[Array, "b h w c"], flow: Flow) -> Image:
    """The transpose of `backward_warp` by `flow`: each pixel's values are added to the four pixels around the place
    that it looks up. Of ones it is how often each place is looked up."""
    top, zeros = jnp.zeros((), flow.dtype), jnp.zeros_like(values)
    return jax.linear_transpose(lambda image: _warp_by_weights(image, flow, top), zeros)(values)[0]


def _warp_by_weights(image: Image, flow: Flow, top: Float[Array, ""]) -> Output:
    """`_warp` as one lookup of all four corners and one product with their weights; only for its transpose.

    It needs four times the memory. Its transpose is one scatter instead of four, and one product instead of a chain of
    small ones: three times as fast on a CPU. Elsewhere a product for each pixel would be a call of a matrix library.
    """
    width = image.shape[2]
    pixels, corner, fx, fy = _pixels_and_cells(image, flow, top)
    corners = corner[..., None] + jnp.array([0, 1, width, width + 1])
    taps = _lookup(pixels, corners.reshape(len(pixels), -1)).reshape(*corners.shape, -1)
    weights = jnp.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx], axis=-1).astype(image.dtype)
    if jax.default_backend() == "cpu":
        output = jnp.einsum("gkt,gktc->gkc", weights, taps)
    else:
        output = (weights[..., None] * taps).sum(axis=2)
    return output.reshape(*flow.shape[:3], -1)


def _gradient(inputs: tuple[Array, Array, Array | np.ndarray], gradient: Array) -> tuple[Array, Array, Array]:
    """In float32: a sum of many bfloat16 numbers would be wrong, and no accelerator adds them in place at speed."""
    image, flow, top = inputs
    _, transposed = jax.vjp(_warp_by_weights, image.astype(jnp.float32), flow, top)
    to_image, *others = transposed(gradient.astype(jnp.float32))
    return to_image.astype(image.dtype), *others


_warp.defvjp(lambda *inputs: (_warp(*inputs), inputs), _gradient)


def _lookup(pixels: Pixels, index: Index) -> Float[Array, "g k c"]:
    if len(pixels) == 1:
        return pixels[0].at[index[0]].get(mode="promise_in_bounds")[None]
    return jax.vmap(lambda p, i: p.at[i].get(mode="promise_in_bounds"))(pixels, index)


def _pixels_and_cells(image: Image, flow: Flow, top: Float[Array, ""]) -> tuple[Pixels, Index, Fraction, Fraction]:
    """The image's pixels; and for each pixel of the output the index of the upper left corner of the cell that it looks
    up, and the fractions inside the cell to the right and down.

    On a CPU the batch is one list (g = 1), since XLA's batched lookup and its transpose are slow there. Elsewhere it
    stays a dimension (g = b), so that it may be sharded.
    """
    batch, height, width, channels = image.shape
    y0, fy = _split(top + jnp.arange(flow.shape[1], dtype=flow.dtype)[:, None] + flow[..., 1], height)
    x0, fx = _split(jnp.arange(flow.shape[2], dtype=flow.dtype) + flow[..., 0], width)
    corner, groups = y0 * width + x0, batch
    if jax.default_backend() == "cpu":
        corner, groups = corner + height * width * jnp.arange(batch)[:, None, None], 1
    corner, fx, fy = (x.reshape(groups, -1) for x in (corner, fx, fy))
    return image.reshape(groups, -1, channels), corner, fx, fy


def _split(position: Float[Array, "b h w"], size: int) -> tuple[Array, Array]:
    """Integer cell in [0, size - 2] and the fraction inside it in [0, 1]: together, clamping to the edge."""
    cell = jnp.clip(jnp.floor(jax.lax.stop_gradient(position)), 0, size - 2)
    fraction = position - cell
    # Not jnp.clip: where the fraction is exactly 0 or 1 its gradient is a half, the reference's is 0 and 1.
    return cell.astype(jnp.int32), jnp.where(fraction <= 0, 0, jnp.where(fraction > 1, 1, fraction))
