"""The arithmetic shortcuts of the network give what the plain arithmetic gives, and weights are shared as said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

import film.ops.correlation
from film.convolution import Conv
from film.flow import FlowEstimator
from film.fusion import Fusion, blend, upsample_conv
from film.ops.conv2d import conv2d
from film.ops.correlation import correlation
from film.ops.packing import pack, unpack
from film.ops.row_tiling import even_share
from film.pyramid import FeatureExtractor, feature_channels, image_pyramid
from film.resample import resize_bilinear, resize_nearest
from film.warp import backward_warp


def uniform(seed: int, *shape: int) -> jax.Array:
    return jax.random.uniform(jax.random.key(seed), shape, minval=-1.0)


def conv(size: int, inputs: int, outputs: int) -> Conv:
    layer = Conv(size, inputs, outputs, rngs=nnx.Rngs(3))
    layer.bias[...] = uniform(9, outputs)  # zero at the start: a lost bias would not be seen
    return layer


def plain(layer: Conv, x: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Upsampling, then TensorFlow's SAME 2x2 convolution: one row and column of zeros below and to the right."""
    up = jnp.pad(resize_nearest(x, size), ((0, 0), (0, 1), (0, 1), (0, 0)))
    return conv2d(up, layer.kernel[...], "VALID") + layer.bias[...]


@pytest.mark.parametrize("size", [(12, 16), (13, 17), (12, 17), (13, 16), (11, 15)])
def test_folded_upsampling_equals_the_plain_one(size):
    layer, x = conv(2, 5, 4), uniform(0, 2, 6, 8, 5)
    folded, expected = jax.jit(lambda x: (upsample_conv(layer, x, size), plain(layer, x, size)))(x)
    assert folded.shape == (2, *size, 4)
    np.testing.assert_allclose(folded, expected, atol=2e-6)


def test_folding_never_makes_the_big_map():
    """The point of it: no intermediate of the doubled size has the input's channels."""
    layer, x = conv(2, 64, 4), uniform(0, 1, 6, 8, 64)
    jaxpr = jax.make_jaxpr(lambda x: upsample_conv(layer, x, (12, 16)))(x)
    shapes = [v.aval.shape for equation in jaxpr.eqns for v in equation.outvars]
    assert (1, 12, 16, 64) not in shapes and (1, 12, 16, 4) in shapes


def test_gradients_of_the_folded_form_are_the_plain_ones():
    layer, x = conv(2, 3, 4), uniform(1, 1, 4, 5, 3)

    def pulled(forward):
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(forward(layer, x, (8, 10))))))(x)

    np.testing.assert_allclose(pulled(upsample_conv), pulled(plain), atol=1e-5)


def test_parts_of_a_convolution_sum_to_the_whole():
    layer, x = conv(3, 9, 4), uniform(2, 2, 7, 6, 9)
    parts = layer.part(x[..., :4], 0) + layer.part(x[..., 4:6], 4) + layer.part(x[..., 6:], 6)
    np.testing.assert_allclose(parts + layer.bias[...], layer(x), atol=3e-6)
    assert float(jnp.abs(layer.part(x[..., :4], 0) - layer.part(x[..., :4], 1)).max()) > 0.1  # `start` matters


def estimator(predictors: int = 3) -> FlowEstimator:
    return FlowEstimator(4, predictors, (1,) * predictors, (8,) * predictors, (0,) * predictors, rngs=nnx.Rngs(0))


def test_coarse_levels_share_the_last_predictor():
    flow = estimator()
    assert [flow.predictor(level) is flow.predictors[min(level, 2)] for level in range(6)] == [True] * 6
    assert flow.predictor(5) is flow.predictor(2) is not flow.predictor(1)


def test_each_level_answers_to_its_own_predictor():
    """Changing a predictor's last bias moves the flow at its own levels and, doubled, at all finer ones."""
    graphdef, state = nnx.split(estimator())
    features = [uniform(i, 1, 16 >> i, 16 >> i, feature_channels(4, 3, i)) for i in range(4)]

    @jax.jit
    def run(state):
        flow = nnx.merge(graphdef, state)
        return flow(flow.own_halves(features), features)

    def moved(predictor: int) -> list[float]:
        changed = jax.tree.map(jnp.copy, state)
        bias = changed["predictors"][predictor]["convs"][-1 + len(changed["predictors"][predictor]["convs"])]["bias"]
        bias[...] = bias[...] + 1e-3
        return [float(np.abs(after - b).mean()) for after, b in zip(run(changed), run(state), strict=True)]

    finest, middle, shared = (moved(predictor) for predictor in range(3))
    assert finest[1:] == [0, 0, 0] and finest[0] == pytest.approx(1e-3, rel=0.01)
    assert middle[2:] == [0, 0] and middle[1] == pytest.approx(1e-3, rel=0.01) and middle[0] > 1e-3
    assert shared[3] == pytest.approx(1e-3, rel=0.01) and shared[2] > 1.5e-3 and shared[0] > 1e-3


def test_matches_are_means_of_products_and_zero_beyond_the_picture():
    a, b = uniform(0, 2, 5, 6, 3), uniform(1, 2, 5, 6, 3)
    found = np.asarray(correlation(a, b, 2)).reshape(2, 5, 6, 5, 5)
    np.testing.assert_allclose(found[:, 1, 2, 2 + 1, 2 - 2], np.mean(a[:, 1, 2] * b[:, 2, 0], axis=-1), rtol=1e-6)
    np.testing.assert_allclose(found[..., 2, 2], np.mean(a * b, axis=-1), rtol=1e-6)
    assert not found[:, 0, :, :2].any() and not found[:, :, 5, :, 3:].any()


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_matches_row_by_row_are_the_correlation(rows, monkeypatch):
    a, b = uniform(0, 2, 6, 7, 5), uniform(1, 2, 6, 7, 5)
    padded = jnp.pad(b, ((0, 0), (2, 2), (2, 2), (0, 0)))
    plain = [jnp.mean(a * padded[:, y : y + 6, x : x + 7], axis=-1) for y in range(5) for x in range(5)]
    monkeypatch.setattr("film.ops.correlation.TILE_VALUES", rows * 2 * 7 * 5)
    np.testing.assert_allclose(correlation(a, b, 2), jnp.stack(plain, axis=-1), atol=1e-6)
    assert even_share(6, 2 * 7 * 5, film.ops.correlation.TILE_VALUES) == rows


def test_the_gradient_of_matches_is_the_derivative():
    a, b, weights = uniform(0, 1, 4, 5, 3), uniform(1, 1, 4, 5, 3), uniform(2, 1, 4, 5, 9)

    def value(a, b):
        return jnp.sum(weights * correlation(jnp.asarray(a), jnp.asarray(b), 1))

    check_grads(value, (a, b), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_flow_in_between_lies_on_the_grid_of_its_moment():
    estimator = FlowEstimator(4, 1, (1,), (8,), (1,), rngs=nnx.Rngs(3))
    features = [uniform(level, 1, 16 >> level, 16 >> level, 4) for level in range(3)]
    time = jnp.full((1, 1), 0.25)
    finest, middle, coarsest = estimator.bilateral(features, features, time)
    assert [flow.shape[1] for flow in (finest, middle, coarsest)] == [16, 8, 4]
    v = resize_bilinear(2 * coarsest, (8, 8))
    own = backward_warp(features[1], -0.25 * v)
    residual = estimator.predictor(1)(estimator.predictor(1).own_half(own), backward_warp(features[1], 0.75 * v))
    np.testing.assert_allclose(middle, v + residual, atol=1e-5)


def test_a_decoder_that_says_nothing_gives_the_mean_of_its_time():
    x0, x1 = uniform(0, 2, 3, 4, 3), uniform(1, 2, 3, 4, 3)
    time = jnp.array([[0.25], [1.0]])
    mixed = blend(x0, x1, jnp.zeros((2, 3, 4, 4)), time)
    np.testing.assert_allclose(mixed[0], 0.75 * x0[0] + 0.25 * x1[0], atol=1e-6)
    np.testing.assert_allclose(mixed[1], x1[1], atol=1e-6)
    sure = blend(x0, x1, jnp.zeros((2, 3, 4, 4)).at[..., 3].set(50.0), time)
    np.testing.assert_allclose(sure[0], x0[0], atol=1e-6)


def test_feature_levels_stack_what_reaches_them():
    extractor, images = FeatureExtractor(4, 3, rngs=nnx.Rngs(1)), image_pyramid(uniform(5, 1, 32, 48, 3), 5)
    features, alone = jax.jit(lambda images: (extractor(images), extractor(images[3:4])))(images)
    assert [f.shape for f in features] == [(1, 32 >> i, 48 >> i, feature_channels(4, 3, i)) for i in range(5)]
    assert features[2].shape[-1] == features[4].shape[-1] == 4 + 8 + 16
    np.testing.assert_allclose(features[3][..., :4], alone[0], atol=1e-6)  # stage 0 of image 3


def test_the_decoder_paints_any_size():
    levels = 3
    decoder = Fusion(4, 3, levels, 2, rngs=nnx.Rngs(2))
    sizes = [(1, 21 >> level, 30 >> level) for level in range(levels)]
    packs = [pack(uniform(0, *size, 3), uniform(1, *size, feature_channels(4, 3, i))) for i, size in enumerate(sizes)]
    inputs = [(packs[i], packs[i], uniform(2, *size, 2), uniform(3, *size, 2)) for i, size in enumerate(sizes)]
    assert [painted.shape for painted in jax.eval_shape(decoder, inputs)] == [(1, 21, 30, 3)] * 3


def test_what_fills_a_pack_is_not_seen():
    """A pack's zeros are there for speed: the decoder gives the same whatever they are."""
    decoder = Fusion(4, 3, 3, 2, rngs=nnx.Rngs(2))
    sizes = [(1, 16 >> level, 24 >> level) for level in range(3)]
    packs = [pack(uniform(0, *size, 3), uniform(1, *size, feature_channels(4, 3, i))) for i, size in enumerate(sizes)]
    assert all(not x[..., 3].any() and x.shape[-1] % 4 == 0 for x in packs)
    image, features = unpack(packs[1])
    np.testing.assert_array_equal(image, uniform(0, *sizes[1], 3))
    np.testing.assert_array_equal(features, uniform(1, *sizes[1], feature_channels(4, 3, 1)))
    flows = [(uniform(2, *size, 2), uniform(3, *size, 2)) for size in sizes]

    def painted(packs):
        return decoder([(x, x, *both) for x, both in zip(packs, flows, strict=True)])[0]

    np.testing.assert_allclose(painted([x.at[..., 3].set(9.0) for x in packs]), painted(packs), atol=1e-6)
