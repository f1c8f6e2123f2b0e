"""The UNet's transformer: pixels look at each other, then at the words of the prompt.

    x + proj_out(block(proj_in(norm x)))        the picture as a row of h * w tokens
    block: x + attn1(norm x);  x + attn2(norm x, context);  x + ff(norm x)

Three details decide whether a published network works: the first norm's epsilon is 1e-6 here and 1e-5 in the residual
blocks; the feed-forward's GELU is the exact one, with erf; and `proj_in`, `proj_out` are 1x1 convolutions in Stable
Diffusion 1.x and linear maps in 2.x, which compute the same and are stored differently.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from plugins.diffusion.networks.attention import attend
from plugins.diffusion.networks.layers import Conv, GroupNorm, LayerNorm, Linear
from plugins.diffusion.networks.tap import Tap, untouched, within

NORM_EPS = 1e-6


class Attention(nnx.Module):
    """Multi-head attention from `x` to `context` (to itself where none is given). Only the output has a bias."""

    def __init__(self, width: int, context: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.to_q = Linear(width, width, bias=False, rngs=rngs)
        self.to_k = Linear(context, width, bias=False, rngs=rngs)
        self.to_v = Linear(context, width, bias=False, rngs=rngs)
        self.to_out = nnx.List([Linear(width, width, rngs=rngs)])

    def __call__(
        self, x: Float[Array, "b n c"], context: Float[Array, "b m d"] | None = None, tap: Tap = untouched
    ) -> Float[Array, "b n c"]:
        source = x if context is None else context
        q, k, v = tap("to_q", self.to_q(x)), tap("to_k", self.to_k(source)), tap("to_v", self.to_v(source))
        read = attend(*(part.reshape(*part.shape[:2], self.heads, -1) for part in (q, k, v)))
        return self.to_out[0](read.reshape(q.shape))


class GEGLU(nnx.Module):
    """One half of a linear map, gated by the GELU of the other (Shazeer, 2020)."""

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        self.proj = Linear(inputs, 2 * outputs, rngs=rngs)

    def __call__(self, x: Float[Array, "b n i"]) -> Float[Array, "b n o"]:
        value, gate = jnp.split(self.proj(x), 2, axis=-1)
        return value * jax.nn.gelu(gate, approximate=False)


class FeedForward(nnx.Module):
    """Four times as wide, and back. Files call the second layer `net.2`, after a dropout that has no parameters."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.net = nnx.List([GEGLU(width, 4 * width, rngs=rngs), Linear(4 * width, width, rngs=rngs)])

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n c"]:
        return self.net[1](self.net[0](x))


class TransformerBlock(nnx.Module):
    """Self-attention, cross-attention, feed-forward, each on normalised tokens and added to them."""

    def __init__(self, width: int, context: int, heads: int, *, rngs: nnx.Rngs):
        self.norm1 = LayerNorm(width)
        self.attn1 = Attention(width, width, heads, rngs=rngs)
        self.norm2 = LayerNorm(width)
        self.attn2 = Attention(width, context, heads, rngs=rngs)
        self.norm3 = LayerNorm(width)
        self.ff = FeedForward(width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b n c"], context: Float[Array, "b m d"], tap: Tap = untouched
    ) -> Float[Array, "b n c"]:
        x = x + tap("attn1", self.attn1(self.norm1(x), tap=within(tap, "attn1")))
        x = x + tap("attn2", self.attn2(self.norm2(x), context, within(tap, "attn2")))
        return x + tap("ff", self.ff(self.norm3(x)))


class Transformer(nnx.Module):
    """`layers` blocks on the pixels of a feature map, as a residual."""

    def __init__(self, width: int, context: int, heads: int, *, groups: int, layers: int, linear: bool, rngs: nnx.Rngs):
        self.norm = GroupNorm(groups, width, NORM_EPS)
        self.proj_in = _projection(width, linear, rngs)
        self.transformer_blocks = nnx.List([TransformerBlock(width, context, heads, rngs=rngs) for _ in range(layers)])
        self.proj_out = _projection(width, linear, rngs)

    def __call__(
        self, x: Float[Array, "b h w c"], context: Float[Array, "b m d"], tap: Tap = untouched
    ) -> Float[Array, "b h w c"]:
        y = self.proj_in(self.norm(x))
        tokens = y.reshape(y.shape[0], -1, y.shape[-1])
        for i, block in enumerate(self.transformer_blocks):
            name = f"transformer_blocks.{i}"
            tokens = tap(name, block(tokens, context, within(tap, name)))
        return x + self.proj_out(tokens.reshape(x.shape))


def _projection(width: int, linear: bool, rngs: nnx.Rngs) -> Linear | Conv:
    return Linear(width, width, rngs=rngs) if linear else Conv(width, width, 1, rngs=rngs)
