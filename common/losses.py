"""Losses between two batches of images: one number each, the mean over the batch.

Images are RGB in [0, 1], b h w c, and not clipped, so that a prediction outside gets a gradient.

Where a prediction is unsure, `l1` is sharp, `l2` blurred, `charbonnier` in between; `psnr` and `ssim` rise, so give
them a negative weight. `vgg` asks for equal features at each place, `style` for equal *statistics* of features at any
place: sharpness where motion is ambiguous. Both follow FILM's reference (`losses/vgg19_loss.py`): five layers, weighted
as in Chen & Koltun 2017. The network's two passes cost more than all other losses together, so for both use
`perceptual_features`. It may compute in bfloat16; sums over places and channels are in float32.
"""

import functools
import math
import operator
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from common.evaluation.metrics import K1, K2, SIGMA, WINDOW
from common.perceptual.vgg import Vgg

LAYER_WEIGHTS = {"conv1_2": 1 / 2.6, "conv2_2": 1 / 4.8, "conv3_2": 1 / 3.7, "conv4_2": 1 / 5.6, "conv5_2": 10 / 1.5}
UNIT = 255.0  # activations of images in [0, 255] are scaled to [0, 1]
SMALLEST_ERROR = 1e-10  # mean square below which `psnr` is constant: the logarithm of 0 has no gradient

Scalar = Float[Array, ""]
Values = Float[Array, "*shape"]
Images = Float[Array, "b h w c"]
Rgb = Float[Array, "b h w 3"]
Features = Mapping[str, Float[Array, "b _ _ _"]]  # activations by layer


def l1(prediction: Values, target: Values) -> Scalar:
    """Mean absolute difference; FILM's first loss."""
    return jnp.mean(jnp.abs(prediction - target))


def masked_l1(prediction: Images, target: Images, mask: Float[Array, "b h w"]) -> Scalar:
    """Mean absolute difference weighted by `mask` (in [0, 1]); 0 for an empty mask."""
    total = jnp.sum(jnp.abs(prediction - target) * mask[..., None])
    return total / jnp.maximum(jnp.sum(mask) * prediction.shape[-1], 1.0)


def l2(prediction: Values, target: Values) -> Scalar:
    """Mean squared difference."""
    return jnp.mean(jnp.square(prediction - target))


def charbonnier(prediction: Values, target: Values, eps: float = 1e-3) -> Scalar:
    """Mean of sqrt(difference^2 + eps^2): `l2` far below `eps`, `l1` far above (Charbonnier et al. 1994)."""
    return jnp.mean(jnp.sqrt(jnp.square(prediction - target) + eps**2))


def psnr(prediction: Images, target: Images) -> Scalar:
    """Peak signal-to-noise ratio of each image in dB, averaged; at most 100 dB, where the gradient is 0."""
    error = jnp.mean(jnp.square(prediction - target), axis=(1, 2, 3))
    return jnp.mean(-10 * jnp.log10(jnp.maximum(error, SMALLEST_ERROR)))


def ssim(prediction: Images, target: Images) -> Scalar:
    """Structural similarity, at most 1 (Wang et al. 2004), as `common.evaluation.metrics.ssim`."""
    if min(prediction.shape[1:3]) < WINDOW:
        raise ValueError(f"SSIM needs sides of at least {WINDOW} pixels, not {prediction.shape[2:0:-1]}")
    c1, c2 = K1**2, K2**2
    mean_a, mean_b = _blur(prediction), _blur(target)
    product, squares = mean_a * mean_b, jnp.square(mean_a) + jnp.square(mean_b)
    covariance = _blur(prediction * target) - product
    variances = _blur(jnp.square(prediction) + jnp.square(target)) - squares
    return jnp.mean((2 * product + c1) / (squares + c1) * (2 * covariance + c2) / (variances + c2))


def vgg(prediction: Rgb, target: Rgb, network: Vgg) -> Scalar:
    """Perceptual loss: weighted mean distances of activations."""
    return feature_distance(*perceptual_features(prediction, target, network))


def style(prediction: Rgb, target: Rgb, network: Vgg) -> Scalar:
    """Style loss: weighted mean squared distances of Gram matrices (Gatys et al. 2016; FILM-Style's third term)."""
    return style_distance(*perceptual_features(prediction, target, network))


def perceptual_features(prediction: Rgb, target: Rgb, network: Vgg) -> tuple[Features, Features]:
    """Activations of prediction and target at the layers of `LAYER_WEIGHTS`; the latter are constants to a gradient, in
    a pass of their own, or it would run backward through them too."""
    if prediction.shape != target.shape:
        raise ValueError(f"prediction is {prediction.shape}, target {target.shape}; crop them to the same pictures")
    layers = tuple(LAYER_WEIGHTS)
    return network.features(prediction, layers), network.features(jax.lax.stop_gradient(target), layers)


def feature_distance(prediction: Features, target: Features) -> Scalar:
    """`vgg` of activations: sum over layers of weight * mean |difference|, divided by 255."""
    total = jnp.zeros(())
    for layer, weight in LAYER_WEIGHTS.items():
        total += weight * l1(prediction[layer].astype(jnp.float32), target[layer].astype(jnp.float32))
    return total / UNIT


def style_distance(prediction: Features, target: Features) -> Scalar:
    """`style` of activations: sum over layers of weight * mean (difference of Gram matrices)^2."""
    total = jnp.zeros(())
    for layer, weight in LAYER_WEIGHTS.items():
        total += weight * l2(*(gram_matrix(side[layer], UNIT) for side in (prediction, target)))
    return total


def gram_matrix(features: Images, unit: float = 1.0) -> Float[Array, "b c c"]:
    """Mean over all places of the products of channels i and j, of activations measured in `unit`s; float32.

    They are divided by unit * sqrt(h w) *before* the product: no partial sum exceeds the result, and half precision
    neither overflows nor underflows. Full precision, as the loss is a small difference of large matrices."""
    _, height, width, _ = features.shape
    scaled = features.astype(jnp.float32) * (1 / (unit * math.sqrt(height * width)))
    return jnp.einsum("bhwi,bhwj->bij", scaled, scaled, precision=jax.lax.Precision.HIGHEST)


def _blur(x: Images) -> Float[Array, "b h2 w2 c"]:
    """SSIM's Gaussian window, only where it fits, as a sum of shifted images: one fused kernel on every device."""
    places = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-0.5 * np.square(places / SIGMA))
    weights = [float(weight) for weight in weights / weights.sum()]
    height, width = (side - WINDOW + 1 for side in x.shape[1:3])
    x = functools.reduce(operator.add, (weight * x[:, i : i + height] for i, weight in enumerate(weights)))
    return functools.reduce(operator.add, (weight * x[:, :, i : i + width] for i, weight in enumerate(weights)))
