"""Pyramid, flow and fusion: the shortcuts equal the plain arithmetic, and weights are shared as in the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

import film.ops.correlation
from film.config import FilmConfig
from film.flow import FlowEstimator
from film.fusion import BORDER, Fusion, blend, coverage, upsample_conv
from film.ops.convolution import Conv, conv2d
from film.ops.correlation import correlation
from film.ops.packing import pack, unpack
from film.ops.resample import resize_bilinear, resize_nearest
from film.ops.row_tiling import even_share
from film.warp import backward_warp

CONFIG = FilmConfig(4, 3, 2, 3, (1, 1, 1), (8, 8, 8), 4)


def uniform(seed: int, *shape: int) -> jax.Array:
    return jax.random.uniform(jax.random.key(seed), shape, minval=-1.0)


def plain(layer: Conv, x: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Upsampling, then TensorFlow's SAME 2x2 convolution: one row and column of zeros below and to the right."""
    up = jnp.pad(resize_nearest(x, size), ((0, 0), (0, 1), (0, 1), (0, 0)))
    return conv2d(up, layer.kernel[...], "VALID") + layer.bias[...]


@pytest.mark.parametrize("size", [(12, 16), (11, 15)])
def test_folded_upsampling_and_its_gradient_equal_the_plain_ones(size):
    layer, x = Conv(2, 5, 4, rngs=nnx.Rngs(3)), uniform(0, 2, 6, 8, 5)
    layer.bias[...] = uniform(9, 4)  # it starts at zero: a lost bias would not be seen

    @jax.jit
    def both(x):
        folded, pull_folded = jax.vjp(lambda x: upsample_conv(layer, x, size), x)
        expected, pull = jax.vjp(lambda x: plain(layer, x, size), x)
        return folded, expected, pull_folded(jnp.cos(expected))[0], pull(jnp.cos(expected))[0]

    folded, expected, gradient, expected_gradient = both(x)
    assert folded.shape == (2, *size, 4)
    np.testing.assert_allclose(folded, expected, atol=2e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 6])
def test_correlation_is_the_mean_of_products_and_zero_outside(rows, monkeypatch):
    a, b = uniform(0, 2, 6, 7, 5), uniform(1, 2, 6, 7, 5)
    padded = jnp.pad(b, ((0, 0), (2, 2), (2, 2), (0, 0)))
    expected = [jnp.mean(a * padded[:, y : y + 6, x : x + 7], axis=-1) for y in range(5) for x in range(5)]
    monkeypatch.setattr("film.ops.correlation.TILE_VALUES", rows * 2 * 7 * 5)
    np.testing.assert_allclose(correlation(a, b, 2), jnp.stack(expected, axis=-1), atol=1e-6)
    assert even_share(6, 2 * 7 * 5, film.ops.correlation.TILE_VALUES) == rows


def test_the_gradient_of_correlation():
    a, b, weights = uniform(0, 1, 4, 5, 3), uniform(1, 1, 4, 5, 3), uniform(2, 1, 4, 5, 9)

    def value(a, b):
        return jnp.sum(weights * correlation(jnp.asarray(a), jnp.asarray(b), 1))

    check_grads(value, (a, b), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_bilateral_flow_lies_on_the_grid_of_its_time():
    config = FilmConfig(3, 2, 1, 1, (1, 1), (8, 8), 4, correlation_radius=(1, 1), bilateral=True)
    estimator = FlowEstimator(config, rngs=nnx.Rngs(3))
    features = [uniform(level, 1, 16 >> level, 16 >> level, 4) for level in range(3)]

    @jax.jit
    def flows_and_the_second_level(features):
        flows = estimator.bilateral(features, features, jnp.full((1, 1), 0.25))
        v = resize_bilinear(2 * flows[2][..., 2:], (8, 8))
        own = backward_warp(features[1], -0.25 * v)
        residual = estimator.predictor(1)(own, backward_warp(features[1], 0.75 * v))
        return flows, v + residual

    flows, expected = flows_and_the_second_level(features)
    assert [flow.shape[1] for flow in flows] == [16, 8, 4]
    np.testing.assert_allclose(flows[1], jnp.concatenate([-expected, expected], axis=-1), atol=1e-5)


def test_blend_of_zeros_is_the_mean_by_time():
    x0, x1, still = uniform(0, 2, 3, 4, 3), uniform(1, 2, 3, 4, 3), jnp.zeros((2, 3, 4, 2))
    time = jnp.array([[0.25], [1.0]])
    mixed, weight = blend(x0, x1, jnp.zeros((2, 3, 4, 4)), time, still, still)
    np.testing.assert_allclose(weight[:, 0, 0, 0], [0.75, 0.0], atol=1e-6)
    np.testing.assert_allclose(mixed, jnp.stack([0.75 * x0[0] + 0.25 * x1[0], x1[1]]), atol=1e-6)
    certain, _ = blend(x0, x1, jnp.zeros((2, 3, 4, 4)).at[..., 3].set(50.0), time, still, still)
    np.testing.assert_allclose(certain[0], x0[0], atol=1e-6)


def test_a_frame_that_is_looked_up_outside_of_the_picture_counts_less():
    """A pan to the right by 2 px: x0 has what leaves on the right, x1 what enters on the left."""
    x0, x1 = uniform(0, 1, 3, 6, 3), uniform(1, 1, 3, 6, 3)
    to_x1 = jnp.broadcast_to(jnp.array([1.0, 0.0]), (1, 3, 6, 2))
    _, weight = blend(x0, x1, jnp.zeros((1, 3, 6, 4)), jnp.array([[0.5]]), -to_x1, to_x1)
    one_sided = 1 / (1 + np.exp(BORDER))
    np.testing.assert_allclose(weight[0, 1, :, 0], [one_sided, *[0.5] * 4, 1 - one_sided], atol=1e-6)


def test_coverage_finds_what_the_frame_hides():
    """A block of 4 pixels moves by 4 in front of a still ground: in x0 it hides the 4 pixels of ground behind it."""
    still, to_x0 = jnp.zeros((1, 6, 24, 2)), np.zeros((1, 6, 24, 2), np.float32)
    to_x0[:, :, 12:16, 0] = -4
    counts = coverage(jnp.asarray(to_x0), still)
    expected = np.zeros(24)
    expected[8:16] = 1  # ground, seen as the block, and the block
    np.testing.assert_allclose(counts[0, 3, :, 0], expected, atol=1e-6)
    np.testing.assert_array_equal(counts[..., 1], 0)


def test_the_decoder_ignores_the_zeros_of_a_pack():
    """They are there for speed: the decoder gives the same whatever they are."""
    decoder, sizes = Fusion(CONFIG, rngs=nnx.Rngs(2)), [(1, 9 >> level, 14 >> level) for level in range(3)]
    packs = [pack(uniform(0, *s, 3), uniform(1, *s, CONFIG.feature_channels(i))) for i, s in enumerate(sizes)]
    assert all(not x[..., 3].any() and x.shape[-1] % 4 == 0 for x in packs)
    image, features = unpack(packs[1])
    np.testing.assert_array_equal(image, uniform(0, *sizes[1], 3))
    np.testing.assert_array_equal(features, uniform(1, *sizes[1], CONFIG.feature_channels(1)))
    flows = [(uniform(2, *s, 2), uniform(3, *s, 2)) for s in sizes]

    @jax.jit
    def decoded(packs):
        return decoder([(x, x, *both) for x, both in zip(packs, flows, strict=True)])[0]

    assert decoded(packs).shape == (*sizes[0], 3)
    np.testing.assert_allclose(decoded([x.at[..., 3].set(9.0) for x in packs]), decoded(packs), atol=1e-6)
