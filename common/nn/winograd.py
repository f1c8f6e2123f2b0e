"""3x3 convolution with 16 products where 36 are usual: Winograd's F(2x2, 3x3), for a CPU.

Two neighbouring outputs of three taps need four products, of sums of inputs with sums of taps, not six (Winograd,
"Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR
2016). Along both axes that makes 16 for a tile of 2x2 outputs, each a matrix product over the channels:

    tile d [4 4 i], kernel g [3 3 i o]:    outputs [2 2 o] = A' ((G g G') * (B' d B)) A

B and A hold 0, 1 and -1, G also 1/2, so rounding errors are about those of a plain convolution. The sums are cheap
while the tiles are in the cache, so some rows of tiles at a time go all the way (`TILES`). They go along one axis at a
time, four large arrays and not sixteen small ones, since each array is a loop for XLA to compile.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

TILES = 256  # of 2x2 outputs at a time, about: enough rows for the matrix products, few enough for the cache
CHANNELS, PIXELS = 48, 256  # with fewer inputs, outputs or output pixels, XLA's convolution is as fast
PRODUCTS = 1 << 30  # of the plain convolution; with fewer the longer compilation is hardly earned back
B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)


def is_faster(x: Float[Array, "b h w i"], kernel: Float[Array, "kh kw i o"]) -> bool:
    """Whether `winograd_conv` suits an input and a kernel (`python -m benchmarks.winograd`)."""
    pixels = x.shape[0] * x.shape[1] * x.shape[2]
    large = min(kernel.shape[2:]) >= CHANNELS and pixels >= PIXELS and pixels * kernel.size >= PRODUCTS
    return large and kernel.shape[:2] == (3, 3) and x.dtype == kernel.dtype == jnp.float32


def winograd_conv(x: Float[Array, "b h w i"], kernel: Float[Array, "3 3 i o"]) -> Float[Array, "b h w o"]:
    """The convolution of stride 1 and padding "SAME", without bias."""
    (batch, height, width, _), outputs = x.shape, kernel.shape[3]
    across, even = -(-width // 2), height + height % 2
    step = min(even, 2 * -(-TILES // (across * batch)))  # rows at a time
    size = min(height, step + 2)
    # Not plain zeros, and not taps of the kernel alone: XLA would allocate them at the very start, all layers' at once.
    zero = 0 * x[0, 0, 0, 0]
    g = [kernel[:, j] + zero for j in range(3)]
    columns = [g[0], (g[0] + g[2] + g[1]) / 2, (g[0] + g[2] - g[1]) / 2, g[2]]
    taps = [_combine(G, list(column)) for column in columns]  # 4 columns of [4 i o]

    def block(top: Array | int) -> Float[Array, "b h2 w2 o"]:
        """`step` rows from row `top` on."""
        first = jnp.clip(top - 1, 0, height - size)
        edges = (1, max(2, step + 1 - size)), (1, 2 * across + 1 - width)
        near = jnp.pad(lax.dynamic_slice_in_dim(x, first, size, axis=1), ((0, 0), *edges, (0, 0)))
        window = lax.dynamic_slice_in_dim(near, top - first, step + 2, axis=1)
        down = _combine(B, [window[:, i : i + step - 1 : 2] for i in range(4)])
        d = [down[..., j : j + 2 * across - 1 : 2, :] for j in range(4)]
        tiles = d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]
        m = [jnp.einsum("abhwi,aio->abhwo", *pair) for pair in zip(tiles, taps, strict=True)]
        columns = m[0] + m[1] + m[2], m[1] - m[2] - m[3]
        left, right = ((c[0] + c[1] + c[2], c[1] - c[2] - c[3]) for c in columns)
        out = jnp.stack([jnp.stack(row, axis=3) for row in zip(left, right, strict=True)], axis=2)
        return out.reshape(batch, step, 2 * across, outputs)

    def fill(number: Array, filled: Array) -> Array:
        top = jnp.minimum(step * number, even - step)
        return lax.dynamic_update_slice_in_dim(filled, block(top), top, axis=1)

    empty = jnp.broadcast_to(zero, (batch, even, 2 * across, outputs))
    filled = block(0) if step == even else lax.fori_loop(0, -(-even // step), fill, empty)
    return filled[:, :height, :width]


def _combine(factors: np.ndarray, terms: list[Array]) -> Array:
    """The sums of `terms` with each row of `factors`, as one array."""
    columns = (column.reshape(-1, *[1] * terms[0].ndim) for column in factors.T)
    return sum((column * term for column, term in zip(columns, terms, strict=True)), jnp.zeros(()))
