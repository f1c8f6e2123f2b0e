"""Losses against the numbers of the reference, and simple values."""

import inspect
import json
from unittest import mock

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipe
from refusal import refused

from common import losses
from common.evaluation import metrics
from common.losses import charbonnier, gram_matrix, l1, l2, masked_l1, psnr, ssim, style, vgg
from common.perceptual import vgg as networks
from common.perceptual.vgg import Vgg

VALUES = json.loads((recipe.DATA / "losses.json").read_text())


@pytest.fixture(scope="module")
def synthetic() -> Vgg:
    """The fixtures' VGG-19: each variable drawn from a seed made of its own name; it ends with conv5_2."""
    params: dict = {}
    for variable in VALUES["vgg_weights"]:
        _, layer, leaf = variable["name"].split("/")
        values = recipe.variable(variable["name"], tuple(variable["shape"]))
        assert values.sum(dtype=np.float64) == pytest.approx(variable["sum"], abs=1e-3)
        params.setdefault(layer, {})[leaf] = values
    return Vgg(params)


@pytest.fixture(scope="module")
def small() -> Vgg:
    """A narrow VGG-16: cheap, and good for everything but the reference's numbers."""
    with mock.patch.object(networks, "WIDTHS", (4, 8, 16, 32, 32)):
        return networks.random_vgg(16)


def pair(height: int = 20, width: int = 27, batch: int = 2) -> tuple[jax.Array, jax.Array]:
    draw = np.random.default_rng(3)
    return tuple(jnp.asarray(draw.random((batch, height, width, 3), np.float32)) for _ in range(2))


def vgg_and_style(prediction, target, network):
    """Both losses from the same passes."""
    features = losses.perceptual_features(prediction, target, network)
    return losses.feature_distance(*features), losses.style_distance(*features)


def test_masked_l1_counts_only_the_mask():
    x, y = pair(batch=1)
    mask = jnp.zeros((1, 20, 27)).at[:, :5].set(1)
    assert float(masked_l1(x, y, mask)) == pytest.approx(float(l1(x[:, :5], y[:, :5])), rel=1e-5)
    assert float(masked_l1(x, y, 0 * mask)) == 0
    grad = jax.grad(masked_l1)(x, y, mask)
    assert float(jnp.abs(grad[:, 5:]).max()) == 0 < float(jnp.abs(grad[:, :5]).min())


@pytest.mark.parametrize("loss", [l1, l2, ssim, psnr])
def test_pixel_losses_equal_the_reference(loss):
    given = recipe.losses()
    value = loss(jnp.asarray(given["prediction"]), jnp.asarray(given["y"]))
    assert float(value) == pytest.approx(VALUES["values"][loss.__name__], rel=2e-5)


@pytest.mark.long
def test_perceptual_losses_and_their_gradients_equal_the_reference(synthetic):
    """Activations, and values and gradients of both losses from one pass, with a synthetic VGG-19."""
    prediction, target = (jnp.asarray(recipe.losses()[name]) for name in ("prediction", "y"))
    expected = VALUES["values"]
    known = expected["vgg_features_of_y"]

    def both(prediction, network):
        values, pull_back = jax.vjp(lambda p: jnp.stack(vgg_and_style(p, target, network)), prediction)
        features = network.features(target, tuple(known))
        return values, [pull_back(row)[0] for row in jnp.eye(2)], features

    values, gradients, features = jax.jit(both)(prediction, synthetic)
    for name, value, gradient in zip(("vgg", "style"), values, gradients, strict=True):
        assert float(value) == pytest.approx(expected[name], rel=1e-4)
        assert float(jnp.linalg.norm(gradient)) == pytest.approx(expected[f"{name}_grad_l2"], rel=1e-4)
        assert float(gradient.sum()) == pytest.approx(expected[f"{name}_grad_sum"], rel=1e-3)  # terms cancel
    for layer, numbers in known.items():
        assert list(features[layer].shape) == numbers["shape"]
        assert float(features[layer].mean()) == pytest.approx(numbers["mean"], rel=1e-5)
        assert float(features[layer].max()) == pytest.approx(numbers["max"], rel=1e-5)


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


def test_refusals(small):
    assert "(40, 10)" in refused(ValueError, ssim, jnp.zeros((1, 10, 40, 3)), jnp.zeros((1, 10, 40, 3)))
    unchecked = inspect.unwrap(losses.perceptual_features)  # as outside of tests, without checks of shapes
    assert "21" in refused(ValueError, unchecked, pair()[0], pair(21)[1], small)


def test_perceptual_losses_are_zero_for_equal_images_and_grow_with_blur(small):
    """Both at once are the two alone; and only the prediction gets gradients."""
    sharp = np.asarray(pair(40, 40, batch=1)[1][0])
    target = jnp.asarray(sharp[None])
    both = jax.jit(vgg_and_style)
    images = [sharp, *(cv2.GaussianBlur(sharp, (0, 0), sigma) for sigma in (0.4, 0.7, 1.5))]
    values = np.array([both(jnp.asarray(image[None]), target, small) for image in images])
    assert (values[0] == 0).all() and (np.diff(values, axis=0) > 0).all()
    blurred = jnp.asarray(images[2][None])
    alone = jax.jit(lambda x: jnp.array([loss(x, target, small) for loss in (vgg, style)]))
    np.testing.assert_allclose(values[2], alone(blurred), rtol=1e-5)
    of_x, of_y = jax.jit(jax.grad(lambda x, y: sum(vgg_and_style(x, y, small)), argnums=(0, 1)))(blurred, target)
    assert float(jnp.abs(of_y).max()) == 0 < float(jnp.abs(of_x).min())


def test_each_picture_passes_the_network_once(small):
    """Two passes forward for both losses; backward (for the input alone, the weights are constants) one."""
    x, y = pair()
    forward = str(jax.make_jaxpr(lambda x: vgg_and_style(x, y, small))(x))
    assert forward.count("conv_general_dilated[") == 2 * 12  # conv1_1 to conv5_2
    backward = str(jax.make_jaxpr(jax.grad(lambda x: sum(vgg_and_style(x, y, small))))(x))
    assert backward.count("conv_general_dilated[") == 3 * 12


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1.0), ("bfloat16", 1e4), ("float16", 3e-3), ("float16", 1e4)])
def test_gram_matrix_of_a_large_frame_neither_overflows_nor_underflows(dtype, scale):
    """540 x 960 positive activations: squares of 1e4 leave float16, their sum leaves the precision of all that adds
    in half; scaled first, 3e-3 leaves float16 downward."""
    x = jnp.asarray(scale * np.random.default_rng(0).random((1, 540, 960, 4), np.float32), dtype)
    exact = np.asarray(x.astype(jnp.float32), np.float64).reshape(-1, 4)
    found = gram_matrix(x, 255.0)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[0], exact.T @ exact / len(exact) / 255.0**2, rtol=2e-5)


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
