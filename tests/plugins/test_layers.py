"""Layers against their formulas in float64 NumPy, and the sinusoid of timesteps against the paper's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plugins.diffusion.networks.layers import (
    AFTER,
    AROUND,
    Conv,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    upsample_nearest,
)
from plugins.diffusion.networks.unet import sinusoid

RNG = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("layer, axes", [(GroupNorm(3, 12, 1e-2), (1, 3)), (LayerNorm(12, 1e-2), (3,))])
def test_norms(layer, axes):
    x = 5 + normal(2, 4, 5, 12)
    layer.scale[...], layer.bias[...] = normal(12), normal(12)
    wide = np.asarray(x, np.float64)
    wide = wide.reshape(2, 20, 3, 4) if isinstance(layer, GroupNorm) else wide
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    expected = ((wide - mean) / np.sqrt(variance + 1e-2)).reshape(x.shape) * layer.scale[...] + layer.bias[...]
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def test_norms_keep_float32_statistics():
    """Around 100 bfloat16 has steps of 0.5: the deviation of 1 is seen, but only if sums are not rounded."""
    x = (100 + normal(1, 64, 64, 4)).astype(jnp.bfloat16)
    out = GroupNorm(1, 4, 1e-5)(x)
    assert out.dtype == jnp.bfloat16
    assert abs(float(out.astype(jnp.float32).mean())) < 0.01
    assert float(out.astype(jnp.float32).std()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("padding", "stride"), [(AROUND, 2), (AFTER, 2), (1, 1)])
def test_conv_against_sums(padding, stride):
    layer, x = Conv(3, 4, stride=stride, padding=padding, rngs=nnx.Rngs(0)), normal(1, 6, 7, 3)
    layer.bias[...] = normal(4)
    (top, bottom), (left, right) = layer.padding
    padded = np.pad(np.asarray(x, np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    expected = np.einsum("bhwikl,klio->bhwo", windows, layer.kernel[...]) + np.asarray(layer.bias[...])
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def test_linear_and_embedding():
    layer, x = Linear(3, 4, bias=False, rngs=nnx.Rngs(0)), normal(2, 5, 3)
    np.testing.assert_allclose(layer(x), np.asarray(x) @ np.asarray(layer.kernel[...]), atol=1e-6)
    assert [path for path, _ in nnx.to_flat_state(nnx.state(layer))] == [("kernel",)]
    table = Embedding(10, 3, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(table(jnp.array([[4, 1]]))[0, 1], table.embedding[...][1])


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (6, 7), (5, 7)])
def test_upsampling_is_the_nearest_of_pytorch(size):
    """Pixel i reads floor(i * n_in / n_out), also where the size was odd."""
    x = normal(1, 3, 4, 2)
    rows, columns = (np.arange(m) * n // m for n, m in zip((3, 4), size, strict=True))
    np.testing.assert_array_equal(upsample_nearest(x, size), np.asarray(x)[:, rows][:, :, columns])


def test_sinusoid():
    """At time 0 all cosines are 1 and all sines 0; the first frequency is 1, and `shift` 1 makes the last 1 / 10000."""
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6)[0], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6, cosine_first=False)[0], [0, 0, 0, 1, 1, 1])
    waves = np.asarray(sinusoid(jnp.array([2.5]), 6, shift=1)[0])
    frequencies = 10_000.0 ** (-np.arange(3) / 2)
    np.testing.assert_allclose(waves, [*np.cos(2.5 * frequencies), *np.sin(2.5 * frequencies)], rtol=1e-5)
