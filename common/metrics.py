"""How close a picture is to the truth: PSNR and SSIM. Pictures are RGB in [0, 1] and clipped to that first.

SSIM has several published variants that differ in the second decimal. This one is Wang et al. 2004 as in
`tf.image.ssim` and as in scikit-image with `gaussian_weights=True, sigma=1.5, use_sample_covariance=False`: an 11x11
Gaussian window, only where the window fits, each colour channel by itself, then the mean.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from jaxtyping import Float

K1, K2 = 0.01, 0.03
WINDOW, SIGMA = 11, 1.5


def psnr(prediction: Float[np.ndarray, "*shape"], target: Float[np.ndarray, "*shape"]) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal pictures."""
    difference = np.clip(prediction, 0, 1).astype(np.float64) - np.clip(target, 0, 1)
    error = float(np.mean(np.square(difference)))
    return -10 * math.log10(error) if error else math.inf


def ssim(prediction: Float[np.ndarray, "h w c"], target: Float[np.ndarray, "h w c"]) -> float:
    """Structural similarity, at most 1; sides of at least 11 pixels."""
    if min(prediction.shape[:2]) < WINDOW:
        raise ValueError(f"SSIM needs sides of at least {WINDOW} pixels, not {prediction.shape[1::-1]}")
    a, b = (np.clip(x, 0, 1).astype(np.float64) for x in (prediction, target))
    mean_a, mean_b = _blur(a), _blur(b)
    var_a, var_b = _blur(a * a) - mean_a**2, _blur(b * b) - mean_b**2
    covariance = _blur(a * b) - mean_a * mean_b
    c1, c2 = K1**2, K2**2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    structure = (2 * covariance + c2) / (var_a + var_b + c2)
    return float(np.mean(luminance * structure))


def _blur(x: Float[np.ndarray, "h w c"]) -> Float[np.ndarray, "h2 w2 c"]:
    margin = WINDOW // 2
    blurred = cv2.GaussianBlur(x, (WINDOW, WINDOW), SIGMA).reshape(x.shape)
    return blurred[margin:-margin, margin:-margin]
