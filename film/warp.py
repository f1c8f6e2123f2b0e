"""Backward warping: for each output pixel, look up where it came from.

`out[y, x] = image[y + dy, x + dx]`, bilinear, with the position clamped to the picture's edge. Flow is (dx, dy) in
pixels of the image that is warped. The reference builds this on TensorFlow Addons' `dense_image_warp` (which
subtracts its flow and orders it (dy, dx)); this is the same function of the flow as the rest of FILM uses it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def backward_warp(image: Float[Array, "b h w c"], flow: Float[Array, "b h w 2"]) -> Float[Array, "b h w c"]:
    """Warps `image` (any range, any number of channels) by `flow` = (dx, dy) in pixels.

    Differentiable in both arguments; the gradient with respect to a flow that points outside the picture is zero, as
    in the reference. Needs height and width of at least 2.
    """
    height, width = image.shape[1:3]
    if height < 2 or width < 2:
        raise ValueError(f"cannot warp a {width}x{height} image: bilinear lookup needs at least 2x2; pad it first")
    rows = jnp.arange(height, dtype=flow.dtype)[:, None] + flow[..., 1]
    columns = jnp.arange(width, dtype=flow.dtype)[None, :] + flow[..., 0]
    y0, fy = _split(rows, height)
    x0, fx = _split(columns, width)
    pixels = image.reshape(image.shape[0], height * width, image.shape[3])
    corner = (y0 * width + x0).reshape(image.shape[0], height * width)

    def tap(offset: int) -> Array:
        taken = jax.vmap(lambda p, i: p.at[i + offset].get(mode="promise_in_bounds"))(pixels, corner)
        return taken.reshape(image.shape)

    fx, fy = fx[..., None].astype(image.dtype), fy[..., None].astype(image.dtype)
    top = tap(0) + fx * (tap(1) - tap(0))
    bottom = tap(width) + fx * (tap(width + 1) - tap(width))
    return top + fy * (bottom - top)


def _split(position: Float[Array, "b h w"], size: int) -> tuple[Array, Array]:
    """Integer cell in [0, size - 2] and the fraction inside it in [0, 1]: together, clamping to the edge."""
    cell = jnp.clip(jnp.floor(jax.lax.stop_gradient(position)), 0, size - 2)
    fraction = position - cell
    # Not jnp.clip: where the fraction is exactly 0 or 1 its gradient is a half, the reference's is 0 and 1.
    return cell.astype(jnp.int32), jnp.where(fraction <= 0, 0, jnp.where(fraction > 1, 1, fraction))
