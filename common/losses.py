"""Losses between two batches of pictures: one number each, the mean over the batch.

Pictures are RGB in [0, 1], b h w c, and are not clipped: a prediction outside is to be pulled back, not hidden.

| function | falls to | what it asks for |
| --- | --- | --- |
| `l1`, `l2`, `charbonnier` | 0 | equal pixels: sharp in the median, blurred in the mean, in between |
| `psnr`, `ssim` | rise to 100 dB, 1 | the benchmarks' numbers; differentiable, give them a negative weight |
| `vgg` | 0 | equal activations of a network that knows objects, place by place: sharp textures |
| `style` | 0 | equal *statistics* of them, no matter where: sharpness where motion leaves the place unsure |

`vgg` and `style` follow FILM's reference (`losses/vgg19_loss.py`): five layers, weighted as in Chen & Koltun 2017.
They need a network, from `common/perceptual/vgg_weights.py`. Its two passes cost more than all the other losses together, so
whoever wants both calls `vgg_and_style`, or takes `perceptual_features` and builds on it. Only the prediction gets
gradients; the target's pass is kept apart from it, so that it has no backward pass at all. The network may compute in
bfloat16: what is summed over places and channels is summed in float32.
"""

from __future__ import annotations

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
UNIT = 255.0  # activations of pictures in [0, 255] are brought to the scale of [0, 1]
SMALLEST_ERROR = 1e-10  # mean square below which `psnr` is constant, as the logarithm of 0 has no gradient

Features = Mapping[str, Float[Array, "b _ _ _"]]  # activations by layer
Mask = Float[Array, "b h w 1"]


def l1(prediction: Float[Array, "*shape"], target: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Mean absolute difference; FILM's first loss."""
    return jnp.mean(jnp.abs(prediction - target))


def masked_l1(
    prediction: Float[Array, "b h w c"], target: Float[Array, "b h w c"], mask: Float[Array, "b h w"]
) -> Float[Array, ""]:
    """Mean absolute difference where `mask` (in [0, 1]) says so; 0 where it says nothing."""
    total = jnp.sum(jnp.abs(prediction - target) * mask[..., None])
    return total / jnp.maximum(jnp.sum(mask) * prediction.shape[-1], 1.0)


def l2(prediction: Float[Array, "*shape"], target: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Mean squared difference."""
    return jnp.mean(jnp.square(prediction - target))


def charbonnier(
    prediction: Float[Array, "*shape"], target: Float[Array, "*shape"], eps: float = 1e-3
) -> Float[Array, ""]:
    """Mean of sqrt(difference^2 + eps^2): `l2` far below `eps`, `l1` far above, smooth throughout (Charbonnier et al.
    1994). Equal pictures cost `eps`."""
    return jnp.mean(jnp.sqrt(jnp.square(prediction - target) + eps**2))


def psnr(prediction: Float[Array, "b h w c"], target: Float[Array, "b h w c"]) -> Float[Array, ""]:
    """Peak signal-to-noise ratio of each picture in dB, averaged; at most 100 dB, where the gradient ends."""
    error = jnp.mean(jnp.square(prediction - target), axis=(1, 2, 3))
    return jnp.mean(-10 * jnp.log10(jnp.maximum(error, SMALLEST_ERROR)))


def ssim(prediction: Float[Array, "b h w c"], target: Float[Array, "b h w c"]) -> Float[Array, ""]:
    """Structural similarity, at most 1 (Wang et al. 2004); equals `tf.image.ssim` and `common.evaluation.metrics.ssim`.

    Raises ValueError for sides below 11 pixels."""
    if min(prediction.shape[1:3]) < WINDOW:
        raise ValueError(f"SSIM needs sides of at least {WINDOW} pixels, not {prediction.shape[2:0:-1]}")
    c1, c2 = K1**2, K2**2
    mean_a, mean_b = _blur(prediction), _blur(target)
    product, squares = mean_a * mean_b, jnp.square(mean_a) + jnp.square(mean_b)
    covariance = _blur(prediction * target) - product
    variances = _blur(jnp.square(prediction) + jnp.square(target)) - squares
    return jnp.mean((2 * product + c1) / (squares + c1) * (2 * covariance + c2) / (variances + c2))


def vgg(
    prediction: Float[Array, "b h w 3"], target: Float[Array, "b h w 3"], network: Vgg, mask: Mask | None = None
) -> Float[Array, ""]:
    """Perceptual loss: weighted mean distances of activations. `mask` weighs the pixels; see `style`."""
    return feature_distance(*perceptual_features(prediction, target, network), mask)


def style(
    prediction: Float[Array, "b h w 3"], target: Float[Array, "b h w 3"], network: Vgg, mask: Mask | None = None
) -> Float[Array, ""]:
    """Style loss: weighted mean squared distances of Gram matrices (Gatys et al. 2016; FILM-Style's third term).

    `mask` multiplies the activations, resized to theirs. Pixels where it is 0 still count as far as a filter that
    reaches them is centred where it is not; and the means are over all pixels, as in the reference."""
    return style_distance(*perceptual_features(prediction, target, network), mask)


def vgg_and_style(
    prediction: Float[Array, "b h w 3"], target: Float[Array, "b h w 3"], network: Vgg, mask: Mask | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(`vgg`, `style`) for the price of one."""
    pair = perceptual_features(prediction, target, network)
    return feature_distance(*pair, mask), style_distance(*pair, mask)


def perceptual_features(
    prediction: Float[Array, "b h w 3"], target: Float[Array, "b h w 3"], network: Vgg
) -> tuple[Features, Features]:
    """Activations of prediction and target at the layers of `LAYER_WEIGHTS`; the latter are constants to a gradient.

    One pass each. A single pass over both, stacked, would run backward through the target's half for nothing."""
    if prediction.shape != target.shape:
        raise ValueError(f"prediction is {prediction.shape}, target {target.shape}; crop them to the same pictures")
    layers = tuple(LAYER_WEIGHTS)
    return network.features(prediction, layers), network.features(jax.lax.stop_gradient(target), layers)


def feature_distance(prediction: Features, target: Features, mask: Mask | None = None) -> Float[Array, ""]:
    """`vgg` of activations: sum over layers of weight * mean |difference|, divided by 255."""
    total = jnp.zeros(())
    for layer, weight in LAYER_WEIGHTS.items():
        difference = prediction[layer].astype(jnp.float32) - target[layer].astype(jnp.float32)
        total += weight * jnp.mean(_masked(jnp.abs(difference), mask))
    return total / UNIT


def style_distance(prediction: Features, target: Features, mask: Mask | None = None) -> Float[Array, ""]:
    """`style` of activations: sum over layers of weight * mean (difference of Gram matrices)^2."""
    total = jnp.zeros(())
    for layer, weight in LAYER_WEIGHTS.items():
        grams = [gram_matrix(_masked(side[layer], mask), UNIT) for side in (prediction, target)]
        total += weight * l2(*grams)
    return total


def gram_matrix(features: Float[Array, "b h w c"], unit: float = 1.0) -> Float[Array, "b c c"]:
    """Mean over all places of the products of channels i and j, of activations measured in `unit`s; float32.

    Activations are divided by unit * sqrt(h w) *before* the product, in float32: then no partial sum is larger than
    the result, at any size, and activations in half precision neither overflow when squared nor underflow when
    scaled. The product asks for full precision, as the loss is a small difference of large matrices."""
    _, height, width, _ = features.shape
    scaled = features.astype(jnp.float32) * (1 / (unit * math.sqrt(height * width)))
    return jnp.einsum("bhwi,bhwj->bij", scaled, scaled, precision=jax.lax.Precision.HIGHEST)


def _masked(features: Float[Array, "b h w c"], mask: Float[Array, "b H W 1"] | None) -> Float[Array, "b h w c"]:
    """`features` times the mask, resized bilinearly (half-pixel centres, no antialiasing, as the reference does)."""
    if mask is None:
        return features
    return features * jax.image.resize(mask, (*features.shape[:3], 1), "bilinear", antialias=False)


def _blur(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """SSIM's Gaussian window, only where it fits. Sums of shifted pictures are one fused kernel on every device."""
    places = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-0.5 * np.square(places / SIGMA))
    weights = [float(weight) for weight in weights / weights.sum()]
    height, width = (side - WINDOW + 1 for side in x.shape[1:3])
    x = functools.reduce(operator.add, (weight * x[:, i : i + height] for i, weight in enumerate(weights)))
    return functools.reduce(operator.add, (weight * x[:, :, i : i + width] for i, weight in enumerate(weights)))
