"""Noise schedules: how much picture and how much noise a sample holds at each of the training timesteps.

A diffusion model is trained on x_t = alpha_t x_0 + sigma_t eps with alpha_t^2 + sigma_t^2 = 1 and eps standard normal.
The schedule is the list of betas with alpha_t^2 = prod_{s<=t} (1 - beta_s), called alphas_cumprod (DDPM, 2006.11239,
equation 4). Samplers that think in noise levels use s_t = sigma_t / alpha_t, here `sigmas`.

`Schedule` holds what one training run fixed, and what its authors advise for sampling: what the model predicts, which
timesteps to visit, whether to clip. `scheduler_config.py` reads it from diffusers' files; `Schedule()` is that of
Stable Diffusion 1.5. `FlowSchedule` is the straight-line schedule x_s = (1 - s) x_0 + s eps of flow matching.

Everything is float64 numpy and made once, before tracing. Both classes can be hashed, so they may be static arguments.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

SPACINGS = ("leading", "linspace", "trailing")
SIGMA_SPACINGS = ("timesteps", "karras", "exponential")
BETA_SCHEDULES = ("linear", "scaled_linear", "squaredcos_cap_v2")
PREDICTIONS = ("epsilon", "v_prediction", "sample")
SMALLEST_ALPHA = 2.0**-24  # stands for an alphas_cumprod of 0, whose noise level would be infinite


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A noise schedule with alpha^2 + sigma^2 = 1; field names and values as in diffusers, but for the sigmas'.

    Attributes:
      num_train_timesteps: N; timesteps are 0 (nearly the picture) to N - 1 (nearly noise).
      beta_start, beta_end: first and last beta; unused by "squaredcos_cap_v2".
      beta_schedule: "linear", "scaled_linear" (linear in their root) or "squaredcos_cap_v2" (2102.09672).
      trained_betas: the betas themselves, instead of the three above.
      rescale_betas_zero_snr: shift the schedule until nothing of the picture is left at N - 1.
      prediction_type: "epsilon", "v_prediction" or "sample".
      timestep_spacing: see `spacing.py`; None leaves it to the sampler.
      steps_offset: added to leading timesteps.
      set_alpha_to_one: DDIM's last step ends at the picture itself, not at timestep 0.
      clip_sample, clip_sample_range: clip predicted pictures to [-range, range].
      thresholding, dynamic_thresholding_ratio, sample_max_value: dynamic thresholding (Imagen, 2205.11487, 2.3).
      sigma_spacing: "timesteps" (the noise levels of the timesteps), "karras" or "exponential".
      sigma_min, sigma_max: ends for the latter two; None takes them from the schedule.
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
        choices = {
            "beta_schedule": BETA_SCHEDULES,
            "prediction_type": PREDICTIONS,
            "timestep_spacing": (None, *SPACINGS),
            "sigma_spacing": SIGMA_SPACINGS,
            "final_sigmas_type": ("zero", "sigma_min"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                known = ", ".join(str(choice) for choice in allowed if choice)
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; choose one of {known}")
        self._check_numbers()

    def _check_numbers(self) -> None:
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
                "rescale_betas_zero_snr needs v_prediction or sample (at zero SNR epsilon says nothing of the picture)",
            ),
        ]
        broken = [rule for holds, rule in rules if not holds]
        if broken:
            raise ValueError(f"a noise schedule breaks: {'; '.join(broken)}")

    @functools.cached_property
    def betas(self) -> Float[np.ndarray, " n"]:
        """Variance of the noise that each timestep adds."""
        made = np.array(self.trained_betas) if self.trained_betas else self._made_betas()
        return zero_terminal_snr(made) if self.rescale_betas_zero_snr else made

    def _made_betas(self) -> Float[np.ndarray, " n"]:
        n = self.num_train_timesteps
        if self.beta_schedule == "linear":
            return np.linspace(self.beta_start, self.beta_end, n)
        if self.beta_schedule == "scaled_linear":
            return np.linspace(self.beta_start**0.5, self.beta_end**0.5, n) ** 2
        left = np.cos((np.arange(n + 1) / n + 0.008) / 1.008 * np.pi / 2) ** 2
        return np.minimum(1 - left[1:] / left[:-1], 0.999)

    @functools.cached_property
    def alphas_cumprod(self) -> Float[np.ndarray, " n"]:
        """alpha_t^2, the share of a sample's variance that is the picture's; falling."""
        return np.cumprod(1 - self.betas)

    @functools.cached_property
    def sigmas(self) -> Float[np.ndarray, " n"]:
        """Noise levels sigma_t / alpha_t, rising and finite."""
        kept = np.maximum(self.alphas_cumprod, SMALLEST_ALPHA)
        return np.sqrt((1 - kept) / kept)

    def alpha_bar(self, timesteps: np.ndarray) -> Float[np.ndarray, " n"]:
        """`alphas_cumprod` at whole timesteps; a negative one is the end of DDIM's last step."""
        end = 1.0 if self.set_alpha_to_one else self.alphas_cumprod[0]
        index = np.asarray(timesteps, np.int64)
        return np.where(index < 0, end, self.alphas_cumprod[np.maximum(index, 0)])

    def timesteps_of(self, sigmas: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The timesteps, usually between two whole ones, of given noise levels."""
        return np.interp(np.log(sigmas), np.log(self.sigmas), np.arange(self.num_train_timesteps))


@dataclasses.dataclass(frozen=True)
class FlowSchedule:
    """x_s = (1 - s) x_0 + s eps for s in [0, 1]; the model predicts the velocity eps - x_0 (2209.03003, 2403.03206).

    Attributes:
      num_train_timesteps: what s = 1 is called for the model: t = s * num_train_timesteps.
      shift: moves the noise levels up; 3 is Stable Diffusion 3's.
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
        """The noise levels that `steps` steps visit, falling, with 0 at the end."""
        check_steps(steps, self.num_train_timesteps)
        top, low = shifted(np.array([1.0, 1 / self.num_train_timesteps]), self.shift)
        # The ends are shifted a second time, as in the published sampler: its models are used with these levels.
        return np.append(shifted(np.linspace(float(top), float(low), steps), self.shift), 0.0)


def zero_terminal_snr(betas: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The betas for which the last alphas_cumprod is 0 and the first is unchanged (2305.08891, algorithm 1)."""
    root = np.sqrt(np.cumprod(1 - betas))
    root = (root - root[-1]) * root[0] / (root[0] - root[-1])
    kept = root**2
    return 1 - np.concatenate([kept[:1], kept[1:] / kept[:-1]])


def check_steps(steps: int, total: int) -> None:
    """Raises ValueError unless 1 <= steps <= total."""
    if not 1 <= steps <= total:
        raise ValueError(f"steps={steps} cannot be spaced over {total} training timesteps; choose 1 to {total}")


def shifted(sigmas: Float[np.ndarray, " n"], shift: float) -> Float[np.ndarray, " n"]:
    """Flow-matching noise levels in [0, 1] moved to where larger pictures need them (2403.03206, equation 23)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)
