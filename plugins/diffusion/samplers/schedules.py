"""Noise schedules: signal and noise levels of a sample at each training timestep.

A diffusion model is trained on x_t = alpha_t x_0 + sigma_t eps, with alpha_t^2 + sigma_t^2 = 1 and eps standard normal.
The schedule is a list of betas, and alpha_t^2 = prod_{s<=t} (1 - beta_s) is called alphas_cumprod (DDPM, 2006.11239,
equation 4). Samplers that work on noise levels use s_t = sigma_t / alpha_t, here `sigmas`.

`Schedule` holds what training fixed (betas, prediction type) and what its authors advise for sampling (timestep
spacing, clipping); `Schedule()` is that of Stable Diffusion 1.5, `scheduler_config.py` reads others from diffusers'
files. `FlowSchedule` is the straight line x_s = (1 - s) x_0 + s eps of flow matching.

Arrays are float64 numpy, computed once, before tracing. Both classes are hashable and may be static arguments.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

SIGMA_SPACINGS = ("timesteps", "karras", "exponential")
CHOICES = {
    "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2"),
    "prediction_type": ("epsilon", "v_prediction", "sample"),
    "timestep_spacing": (None, "leading", "linspace", "trailing"),
    "sigma_spacing": SIGMA_SPACINGS,
    "final_sigmas_type": ("zero", "sigma_min"),
}
SMALLEST_ALPHA = 2.0**-24  # replaces an alphas_cumprod of 0, whose noise level would be infinite


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A noise schedule with alpha^2 + sigma^2 = 1; field names and values are diffusers', except `sigma_spacing`.

    Attributes:
      num_train_timesteps: N; timesteps are 0 (nearly the image) to N - 1 (nearly noise).
      beta_start, beta_end: first and last beta; unused by "squaredcos_cap_v2".
      beta_schedule: "linear", "scaled_linear" (linear in the square root) or "squaredcos_cap_v2" (2102.09672).
      trained_betas: the betas themselves, instead of the three above.
      rescale_betas_zero_snr: shift the schedule so that timestep N - 1 is noise alone.
      prediction_type: "epsilon", "v_prediction" or "sample".
      timestep_spacing: "leading", "linspace" or "trailing" (`spacing.py`); None: the sampler's default.
      steps_offset: added to leading timesteps.
      set_alpha_to_one: DDIM's last step ends at the image itself, not at timestep 0.
      clip_sample, clip_sample_range: clip predictions of x_0 to [-range, range].
      thresholding, dynamic_thresholding_ratio, sample_max_value: dynamic thresholding (Imagen, 2205.11487, 2.3).
      sigma_spacing: "timesteps" (the noise levels of the timesteps), "karras" or "exponential".
      sigma_min, sigma_max: ends for the latter two; None: the schedule's own.
      final_sigmas_type: "zero" or "sigma_min", where the last step ends.
    """

    num_train_timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    beta_schedule: str = "scaled_linear"
    trained_betas: Sequence[float] | None = None
    rescale_betas_zero_snr: bool = False
    prediction_type: str = "epsilon"
    timestep_spacing: str | None = None
    steps_offset: int = 1
    set_alpha_to_one: bool = False
    clip_sample: bool = False
    clip_sample_range: float = 1.0
    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0
    sigma_spacing: str = "timesteps"
    sigma_min: float | None = None
    sigma_max: float | None = None
    final_sigmas_type: str = "zero"

    def __post_init__(self):
        if self.trained_betas is not None:
            object.__setattr__(self, "trained_betas", tuple(float(beta) for beta in self.trained_betas))
            object.__setattr__(self, "num_train_timesteps", len(self.trained_betas))
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        betas = self.trained_betas or (self.beta_start, self.beta_end)
        sigmas = [sigma for sigma in (self.sigma_min, self.sigma_max) if sigma is not None]
        rules = [
            (self.num_train_timesteps >= 2, "num_train_timesteps is at least 2"),
            (all(0 < beta < 1 for beta in betas), "betas lie strictly between 0 and 1"),
            (self.steps_offset >= 0, "steps_offset is not negative"),
            (self.clip_sample_range > 0 and self.sample_max_value > 0, "clipping ranges are positive"),
            (0 < self.dynamic_thresholding_ratio <= 1, "dynamic_thresholding_ratio lies in (0, 1]"),
            (all(sigma > 0 for sigma in sigmas), "sigma_min and sigma_max are positive"),
            (
                not self.rescale_betas_zero_snr or self.prediction_type != "epsilon",
                "rescale_betas_zero_snr needs v_prediction or sample (at zero SNR epsilon does not determine x_0)",
            ),
        ]
        broken = [rule for holds, rule in rules if not holds]
        if broken:
            raise ValueError(f"a noise schedule breaks: {'; '.join(broken)}")

    @functools.cached_property
    def betas(self) -> Float[np.ndarray, " n"]:
        """Variance of the noise that each timestep adds."""
        n = self.num_train_timesteps
        if self.trained_betas:
            betas = np.array(self.trained_betas)
        elif self.beta_schedule == "linear":
            betas = np.linspace(self.beta_start, self.beta_end, n)
        elif self.beta_schedule == "scaled_linear":
            betas = np.linspace(self.beta_start**0.5, self.beta_end**0.5, n) ** 2
        else:
            alpha_bar = np.cos((np.arange(n + 1) / n + 0.008) / 1.008 * np.pi / 2) ** 2
            betas = np.minimum(1 - alpha_bar[1:] / alpha_bar[:-1], 0.999)
        return zero_terminal_snr(betas) if self.rescale_betas_zero_snr else betas

    @functools.cached_property
    def alphas_cumprod(self) -> Float[np.ndarray, " n"]:
        """alpha_t^2, the image's share of a sample's variance; falling."""
        return np.cumprod(1 - self.betas)

    @functools.cached_property
    def sigmas(self) -> Float[np.ndarray, " n"]:
        """Noise levels sigma_t / alpha_t, rising and finite."""
        alpha_bar = np.maximum(self.alphas_cumprod, SMALLEST_ALPHA)
        return np.sqrt((1 - alpha_bar) / alpha_bar)

    def alpha_bar(self, timesteps: np.ndarray) -> Float[np.ndarray, " n"]:
        """`alphas_cumprod` at whole timesteps; a negative one is the end of DDIM's last step."""
        end = 1.0 if self.set_alpha_to_one else self.alphas_cumprod[0]
        index = np.asarray(timesteps, np.int64)
        return np.where(index < 0, end, self.alphas_cumprod[np.maximum(index, 0)])


@dataclasses.dataclass(frozen=True)
class FlowSchedule:
    """x_s = (1 - s) x_0 + s eps for s in [0, 1]; the model predicts the velocity eps - x_0 (2209.03003, 2403.03206).

    Attributes:
      num_train_timesteps: N; the model's timestep at level s is s N.
      shift: moves the noise levels up; Stable Diffusion 3 uses 3.
    """

    num_train_timesteps: int = 1000
    shift: float = 1.0

    prediction_type = "flow"
    clip_sample = False
    thresholding = False

    def __post_init__(self):
        if self.num_train_timesteps < 2 or not self.shift > 0:
            raise ValueError(f"{self} breaks: num_train_timesteps is at least 2 and shift is positive")

    def levels(self, steps: int) -> Float[np.ndarray, " {steps}+1"]:
        """The noise levels of `steps` steps, falling, with 0 at the end."""
        check_steps(steps, self.num_train_timesteps)
        top, low = self._shifted(np.array([1.0, 1 / self.num_train_timesteps]))
        # The ends are shifted a second time, as in the published sampler: its models are used with these levels.
        return np.append(self._shifted(np.linspace(float(top), float(low), steps)), 0.0)

    def _shifted(self, levels: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """2403.03206, equation 23."""
        return self.shift * levels / (1 + (self.shift - 1) * levels)


def zero_terminal_snr(betas: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The betas for which the last alphas_cumprod is 0 and the first is unchanged (2305.08891, algorithm 1)."""
    root = np.sqrt(np.cumprod(1 - betas))
    root = (root - root[-1]) * root[0] / (root[0] - root[-1])
    alpha_bar = root**2
    return 1 - np.concatenate([alpha_bar[:1], alpha_bar[1:] / alpha_bar[:-1]])


def check_steps(steps: int, total: int) -> None:
    """Raises ValueError unless 1 <= steps <= total."""
    if not 1 <= steps <= total:
        raise ValueError(f"steps={steps} cannot be spaced over {total} training timesteps; choose 1 to {total}")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raises ValueError for a value that is not one of `choices`."""
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ValueError(f"{name}={value!r} is not supported; choose one of {listed}")
