"""Losses against the reference's numbers, and values known by heart."""

import inspect
import json
import zlib
from pathlib import Path

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipe

from common import losses
from common.evaluation import metrics
from common.losses import charbonnier, gram_matrix, l1, l2, masked_l1, psnr, ssim, style, vgg, vgg_and_style
from common.perceptual.vgg import Vgg, param_shapes

DATA = Path(__file__).parents[1] / "data" / "film"
VALUES = json.loads((DATA / "losses.json").read_text())


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return recipe.losses()


@pytest.fixture(scope="module")
def synthetic() -> Vgg:
    """The fixtures' VGG-19: each variable drawn from a seed made of its own name; it ends with conv5_2."""
    params: dict = {}
    for variable in VALUES["vgg_weights"]:
        _, layer, leaf = variable["name"].split("/")
        shape = tuple(variable["shape"])
        values = np.random.RandomState(zlib.crc32(variable["name"].encode())).standard_normal(shape)
        values = (values * (np.sqrt(2 / (9 * shape[2])) if leaf == "kernel" else 0.05)).astype(np.float32)
        assert values.sum(dtype=np.float64) == pytest.approx(variable["sum"], abs=1e-3)
        params.setdefault(layer, {})[leaf] = values
    return Vgg(params)


@pytest.fixture(scope="module")
def small() -> Vgg:
    """The first channels only of a VGG-16: cheap, and good for everything but the reference's numbers."""
    draw = np.random.default_rng(0)
    params, inputs = {}, 3
    for name, leaf in param_shapes(16).items():
        width = leaf["bias"].shape[0] // 16
        kernel = draw.normal(0, np.sqrt(2 / (9 * inputs)), (3, 3, inputs, width)).astype(np.float32)
        params[name] = {"kernel": kernel, "bias": draw.normal(0, 0.05, width).astype(np.float32)}
        inputs = width
    return Vgg(params)


def pair(height: int = 20, width: int = 27, batch: int = 2) -> tuple[jax.Array, jax.Array]:
    draw = np.random.default_rng(3)
    return tuple(jnp.asarray(draw.random((batch, height, width, 3), np.float32)) for _ in range(2))


def picture(height: int = 24, width: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((height, width, 3)).astype(np.float32)


def test_l1_equals_the_reference(reference):
    value = l1(jnp.asarray(reference["prediction"]), jnp.asarray(reference["y"]))
    assert float(value) == pytest.approx(float(reference["l1"]), rel=1e-5)


def test_l1_is_the_mean_of_distances():
    assert float(l1(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 4.0]))) == 1


def test_masked_l1_counts_only_what_the_mask_says():
    x, y = jnp.asarray(picture()[None]), jnp.asarray(picture(seed=1)[None])
    mask = np.zeros((1, 24, 30), np.float32)
    mask[:, :5] = 1
    assert float(masked_l1(x, y, jnp.asarray(mask))) == pytest.approx(float(l1(x[:, :5], y[:, :5])), rel=1e-5)
    assert float(masked_l1(x, y, jnp.ones((1, 24, 30)))) == pytest.approx(float(l1(x, y)), rel=1e-5)
    assert float(masked_l1(x, y, jnp.zeros((1, 24, 30)))) == 0
    grad = jax.grad(masked_l1)(x, y, jnp.asarray(mask))
    assert float(jnp.abs(grad[:, 5:]).max()) == 0 < float(jnp.abs(grad[:, :5]).min())


@pytest.mark.parametrize(("loss", "name"), [(l2, "l2"), (ssim, "ssim"), (psnr, "psnr")])
def test_pixel_losses_equal_the_reference(reference, loss, name):
    value = loss(jnp.asarray(reference["prediction"]), jnp.asarray(reference["y"]))
    assert float(value) == pytest.approx(VALUES["values"][name], rel=2e-5)


def test_perceptual_losses_and_their_gradients_equal_the_reference(reference, synthetic):
    """Values and gradients of FILM's reference with a synthetic VGG-19, and of both losses from one pass."""
    prediction, target = jnp.asarray(reference["prediction"]), jnp.asarray(reference["y"])

    def both(prediction, network):
        values, pull_back = jax.vjp(lambda p: jnp.stack(vgg_and_style(p, target, network)), prediction)
        return values, [pull_back(row)[0] for row in jnp.eye(2)]

    values, gradients = jax.jit(both)(prediction, synthetic)
    expected = VALUES["values"]
    for name, value, gradient in zip(("vgg", "style"), values, gradients, strict=True):
        assert float(value) == pytest.approx(expected[name], rel=1e-4)
        assert float(jnp.linalg.norm(gradient)) == pytest.approx(expected[f"{name}_grad_l2"], rel=1e-4)
        assert float(gradient.sum()) == pytest.approx(expected[f"{name}_grad_sum"], rel=1e-3)  # terms cancel


def test_activations_equal_the_reference(reference, synthetic):
    known = VALUES["values"]["vgg_features_of_y"]
    found = jax.jit(lambda network, x: network.features(x, tuple(known)))(synthetic, jnp.asarray(reference["y"]))
    for layer, expected in known.items():
        assert list(found[layer].shape) == expected["shape"]
        assert float(found[layer].mean()) == pytest.approx(expected["mean"], rel=1e-5)
        assert float(found[layer].max()) == pytest.approx(expected["max"], rel=1e-5)


def test_charbonnier_is_l2_far_below_eps_and_l1_far_above():
    zero = jnp.zeros((2, 3))
    assert float(charbonnier(zero, zero, eps=0.1)) == pytest.approx(0.1)
    assert float(charbonnier(zero + 1e-2, zero, eps=1.0)) - 1 == pytest.approx(0.5e-4, rel=1e-2)
    assert float(charbonnier(zero + 5, zero, eps=1e-3)) == pytest.approx(5)
    assert float(jnp.abs(jax.grad(charbonnier)(zero, zero)).max()) == 0


def test_psnr_is_the_mean_over_pictures_and_has_a_gradient_everywhere():
    x = jnp.full((2, 12, 12, 3), 0.5)
    y = x + jnp.array([0.1, 0.01])[:, None, None, None]
    assert float(psnr(y, x)) == pytest.approx(30, abs=1e-3)
    assert float(psnr(x, x)) == pytest.approx(100)
    assert float(jnp.abs(jax.grad(psnr)(x, x)).max()) == 0
    assert float(jax.grad(psnr)(y, x).max()) < 0, "further away, fewer dB"


def test_ssim_equals_the_metric_and_grows_along_its_gradient():
    x, y = pair()
    expected = np.mean([metrics.ssim(np.asarray(a), np.asarray(b)) for a, b in zip(x, y, strict=True)])
    assert float(ssim(x, y)) == pytest.approx(expected, abs=2e-6)
    slope = jax.jit(jax.grad(ssim))
    gradient = slope(x, y)
    assert float(ssim(x + 1e-3 * gradient / jnp.linalg.norm(gradient), y)) > float(ssim(x, y))
    assert float(ssim(x, x)) == pytest.approx(1) and bool(jnp.isfinite(slope(x, x)).all())
    with pytest.raises(ValueError, match=r"at least 11 pixels, not \(40, 10\)"):
        ssim(jnp.zeros((1, 10, 40, 3)), jnp.zeros((1, 10, 40, 3)))


@pytest.mark.parametrize("loss", [vgg, style])
def test_perceptual_losses_are_zero_for_equal_pictures_and_grow_with_blur(small, loss):
    sharp = np.asarray(pair(40, 40, batch=1)[1][0])
    blurred = [cv2.GaussianBlur(sharp, (0, 0), sigma) for sigma in (0.4, 0.7, 1.5)]
    target = jnp.asarray(sharp[None])
    values = [float(jax.jit(loss)(jnp.asarray(x[None]), target, small)) for x in (sharp, *blurred)]
    assert values[0] == 0 < values[1] < values[2] < values[3]


def test_only_the_prediction_gets_gradients(small):
    x, y = pair()
    of_x, of_y = jax.jit(jax.grad(lambda x, y: sum(vgg_and_style(x, y, small)), argnums=(0, 1)))(x, y)
    assert float(jnp.abs(of_y).max()) == 0 < float(jnp.abs(of_x).min())


def test_each_picture_passes_the_network_once(small):
    """Two passes forward for both losses; backward (for the input alone, the weights are constants) one."""
    x, y = pair()
    forward = str(jax.make_jaxpr(lambda x: vgg_and_style(x, y, small))(x))
    assert forward.count("conv_general_dilated[") == 2 * 12  # conv1_1 to conv5_2
    backward = str(jax.make_jaxpr(jax.grad(lambda x: sum(vgg_and_style(x, y, small))))(x))
    assert backward.count("conv_general_dilated[") == 3 * 12


def test_both_losses_at_once_are_the_two_alone(small):
    x, y = pair()
    mask = jnp.asarray(np.random.default_rng(4).random((2, 20, 27, 1), np.float32))
    alone = [jax.jit(loss)(x, y, small, mask) for loss in (vgg, style)]
    np.testing.assert_allclose(jax.jit(vgg_and_style)(x, y, small, mask), alone, rtol=1e-5)


def test_pictures_of_two_sizes_are_refused(small):
    unchecked = inspect.unwrap(losses.perceptual_features)  # as it runs outside of tests: shapes are not looked at
    with pytest.raises(ValueError, match="crop them"):
        unchecked(pair()[0], pair(21)[1], small)


def test_gram_matrix_is_the_mean_product_of_channels():
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 4)).astype(np.float32)
    expected = np.einsum("bhwi,bhwj->bij", x, x) / 35
    np.testing.assert_allclose(gram_matrix(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gram_matrix(jnp.asarray(x), 255.0), expected / 255**2, rtol=1e-4, atol=1e-10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("scale", [3e-3, 1e4])
def test_gram_matrix_of_a_film_frame_neither_overflows_nor_underflows(dtype, scale):
    """1080 x 1920 places of positive activations: squares of 1e4 leave float16, a sum of two million of them leaves
    the precision of anything that adds in half; scaled first, 3e-3 leaves float16 downward."""
    x = scale * np.random.default_rng(0).random((1, 1080, 1920, 4), np.float32)
    x = jnp.asarray(x, dtype)
    exact = np.asarray(x.astype(jnp.float32), np.float64).reshape(-1, 4)
    expected = exact.T @ exact / len(exact) / 255.0**2
    found = gram_matrix(x, 255.0)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[0], expected, rtol=2e-5)


def test_losses_in_bfloat16_are_close_and_have_finite_gradients(small):
    x, y = pair(33, 47, batch=1)

    @jax.jit
    def both(network):
        values, pull_back = jax.vjp(lambda x: jnp.stack(vgg_and_style(x, y, network)), x)
        return values, jnp.stack([pull_back(row)[0].ravel() for row in jnp.eye(2)])

    (exact, exact_slopes), (rough, rough_slopes) = both(small), both(small.astype("bfloat16"))
    assert rough.dtype == rough_slopes.dtype == jnp.float32
    np.testing.assert_allclose(rough, exact, rtol=0.05)
    lengths = jnp.linalg.norm(exact_slopes, axis=1) * jnp.linalg.norm(rough_slopes, axis=1)
    assert float(((exact_slopes * rough_slopes).sum(1) / lengths).min()) > 0.98


def test_mask_weighs_activations_in_place():
    """Half the places count: the distance keeps its mean over all places, the Gram matrix its division by them."""
    draw = np.random.default_rng(5)
    a, b = ({name: jnp.asarray(draw.random((1, 4, 8, 3), np.float32)) for name in losses.LAYER_WEIGHTS} for _ in "ab")
    mask = np.zeros((1, 8, 16, 1), np.float32)  # twice the activations' size: halved bilinearly, the edge stays sharp
    mask[:, :, :8] = 1
    left = [{name: value[:, :, :4] for name, value in side.items()} for side in (a, b)]
    half = losses.feature_distance(*left) / 2
    assert float(losses.feature_distance(a, b, jnp.asarray(mask))) == pytest.approx(float(half), rel=1e-5)
    quarter = losses.style_distance(*left) / 4
    assert float(losses.style_distance(a, b, jnp.asarray(mask))) == pytest.approx(float(quarter), rel=1e-5)
    ones = jnp.ones((1, 8, 16, 1))
    assert float(losses.style_distance(a, b, ones)) == pytest.approx(float(losses.style_distance(a, b)), rel=1e-5)
