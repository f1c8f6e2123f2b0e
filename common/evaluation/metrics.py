"""Image metrics: the distance of a prediction to the true image, as named objects in a config.

    metrics:
      psnr:  {_target_: common.evaluation.metrics.Psnr}
      lpips: {_target_: common.perceptual.lpips.Lpips, weights: data/lpips_alex.safetensors}

Images are RGB in [0, 1], and clipped to that first. An image with NaN scores NaN.

Variants of SSIM differ in the second decimal. This one is Wang et al. 2004 as in `tf.image.ssim` and in scikit-image
with `gaussian_weights=True, sigma=1.5, use_sample_covariance=False`: an 11x11 Gaussian window, only where it fits, each
colour channel by itself, then the mean.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import cv2
import numpy as np
from jaxtyping import Float

from common.checked import Checked

K1, K2 = 0.01, 0.03
WINDOW, SIGMA = 11, 1.5

Picture = Float[np.ndarray, "h w c"]


def psnr(prediction: Float[np.ndarray, "*shape"], target: Float[np.ndarray, "*shape"]) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal images."""
    difference = np.clip(prediction, 0, 1).astype(np.float64) - np.clip(target, 0, 1)
    error = float(np.mean(np.square(difference)))
    return -10 * math.log10(error) if error else math.inf


def ssim(prediction: Picture, target: Picture) -> float:
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


@dataclass(frozen=True)
class Metric(Checked, ABC):
    """One number for a predicted and a true image. `digits`: decimals in tables. `pointwise`: independent of the
    position of a pixel, so that chosen pixels may be passed as an image one pixel wide."""

    higher_is_better: ClassVar[bool]
    pointwise: ClassVar[bool] = False
    digits: ClassVar[int] = 4
    unit: ClassVar[str] = ""

    @abstractmethod
    def __call__(self, prediction: Picture, target: Picture) -> float: ...

    def lead(self, value: float, other: float = 0.0) -> float:
        """The advantage of `value` over `other`; minus infinity if either is NaN."""
        difference = value - other if self.higher_is_better else other - value
        return -math.inf if math.isnan(difference) else difference

    def prepare(self) -> None:
        """Reads the files of the metric, so that a missing one is an error before the work."""


@dataclass(frozen=True)
class Psnr(Metric):
    """`psnr`, at most `cap` dB: one pair of equal images (a still scene) would make the mean infinite."""

    cap: float = 100.0
    higher_is_better: ClassVar[bool] = True
    pointwise: ClassVar[bool] = True
    digits: ClassVar[int] = 2
    unit: ClassVar[str] = "dB"

    def __call__(self, prediction: Picture, target: Picture) -> float:
        value = psnr(prediction, target)
        return self.cap if value > self.cap else value  # unlike min(), keeps NaN


@dataclass(frozen=True)
class Ssim(Metric):
    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        return ssim(prediction, target)


@dataclass(frozen=True)
class L1(Metric):
    """Mean absolute difference."""

    higher_is_better: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        return float(np.mean(np.abs(np.clip(prediction, 0, 1).astype(np.float64) - np.clip(target, 0, 1))))


@dataclass(frozen=True)
class InterpolationError(Metric):
    """Root mean square difference of images rounded to 8 bits, in 8-bit levels: IE of Baker et al., "A Database and
    Evaluation Methodology for Optical Flow" (IJCV 2011, section 4.1).

    `per="value"` takes the mean over pixels and colours, as most publications; `per="pixel"` first sums the squared
    colour differences of a pixel (the paper's L2 norm): sqrt(3) times as much. In some papers IE is 255 times `L1`."""

    per: Literal["value", "pixel"] = "value"
    higher_is_better: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    digits: ClassVar[int] = 2

    def __call__(self, prediction: Picture, target: Picture) -> float:
        a, b = (np.rint(255 * np.clip(x, 0, 1).astype(np.float64)) for x in (prediction, target))
        colours = prediction.shape[-1] if self.per == "pixel" else 1
        return math.sqrt(colours * float(np.mean(np.square(a - b))))


def _blur(x: Picture) -> Float[np.ndarray, "h2 w2 c"]:
    margin = WINDOW // 2
    blurred = cv2.GaussianBlur(x, (WINDOW, WINDOW), SIGMA).reshape(x.shape)
    return blurred[margin:-margin, margin:-margin]
