"""Noise schedules: signal and noise levels of a sample at each training timestep, and the timesteps of a run.

A diffusion model is trained on x_t = alpha_t x_0 + sigma_t eps, with alpha_t^2 + sigma_t^2 = 1 and eps standard normal.
The schedule is a list of betas, and alpha_t^2 = prod_{s<=t} (1 - beta_s) is called alphas_cumprod (DDPM, 2006.11239,
equation 4). Samplers that work on noise levels use s_t = sigma_t / alpha_t, here `sigmas`.

`Schedule` holds what training fixed and what its authors advise for sampling; `Schedule()` is Stable Diffusion 1.5's,
`scheduler_config.py` reads others. `FlowSchedule` is the straight line x_s = (1 - s) x_0 + s eps of flow matching. Both
are hashable and may be static arguments; arrays are float64 numpy, computed once, before tracing.

Timesteps of a run fall from noise to image (compared in 2305.08891, table 2):

    leading    0, r, 2r, ... with r = N // steps, plus an offset: Stable Diffusion 1.5's; omits the noisiest timesteps
    linspace   from N - 1 down to 0, both included
    trailing   N - 1 first, then strides of N / steps: for few steps and for zero terminal SNR

Of samplers on noise levels, Euler's family reaches the last timestep, and timesteps need not be whole; for DPM-Solver
and UniPC, on whole timesteps, `steps + 1` are spaced, and noise level 0 replaces the last.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from common.checked import Above0, Checked, NotNegative, PositiveShare, Rule, real, whole

SigmaSpacing = Literal["timesteps", "karras", "exponential"]
Beta = Annotated[float | int, real(above=0, below=1)]
Betas = Annotated[Sequence[Beta], Rule(lambda betas: len(betas) > 1, "two or more")]
Levels = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n+1"]]
SMALLEST_ALPHA = 2.0**-24  # replaces an alphas_cumprod of 0, whose noise level would be infinite
RHO = 7.0  # of Karras' noise levels


@dataclasses.dataclass(frozen=True)
class Schedule(Checked):
    """A noise schedule with alpha^2 + sigma^2 = 1; field names and values are diffusers', except `sigma_spacing`."""

    num_train_timesteps: Annotated[int, whole(2)] = 1000  # N; timesteps 0 (nearly the image) to N - 1 (nearly noise)
    beta_start: Beta = 0.00085  # first and last beta; unused by "squaredcos_cap_v2" (2102.09672)
    beta_end: Beta = 0.012
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "scaled_linear"  # of the square root
    trained_betas: Betas | None = None  # the betas themselves, instead of the three above
    rescale_betas_zero_snr: bool = False  # shift the schedule so that timestep N - 1 is noise alone
    prediction_type: Literal["epsilon", "v_prediction", "sample"] = "epsilon"
    timestep_spacing: Literal["leading", "linspace", "trailing", None] = None  # None: the sampler's default
    steps_offset: NotNegative = 1  # added to leading timesteps
    set_alpha_to_one: bool = False  # DDIM's last step ends at the image itself, not at timestep 0
    clip_sample: bool = False  # clip predictions of x_0 to [-range, range]
    clip_sample_range: Above0 = 1.0
    thresholding: bool = False  # dynamically, with the next two (Imagen, 2205.11487, 2.3)
    dynamic_thresholding_ratio: PositiveShare = 0.995
    sample_max_value: Above0 = 1.0
    sigma_spacing: SigmaSpacing = "timesteps"  # the noise levels of the timesteps
    sigma_min: Above0 | None = None  # ends of "karras" and "exponential"; None: the schedule's own
    sigma_max: Above0 | None = None
    final_sigmas_type: Literal["zero", "sigma_min"] = "zero"  # where the last step ends

    def __post_init__(self):
        super().__post_init__()
        if self.trained_betas is not None:
            object.__setattr__(self, "num_train_timesteps", len(self.trained_betas))

    def rules(self):
        determined = not self.rescale_betas_zero_snr or self.prediction_type != "epsilon"
        rule = "rescale_betas_zero_snr needs the prediction_type v_prediction or sample; at zero SNR epsilon has no x_0"
        yield determined, rule

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
class FlowSchedule(Checked):
    """x_s = (1 - s) x_0 + s eps for s in [0, 1]; the model predicts the velocity eps - x_0 (2209.03003, 2403.03206)."""

    num_train_timesteps: Annotated[int, whole(2)] = 1000  # N; the model's timestep at level s is s N
    shift: Above0 = 1.0  # moves the noise levels up; Stable Diffusion 3 uses 3

    prediction_type = "flow"
    clip_sample = False
    thresholding = False

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
    alpha_bar = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2
    return 1 - np.concatenate([alpha_bar[:1], alpha_bar[1:] / alpha_bar[:-1]])


def spaced_timesteps(total: int, steps: int, spacing: str, offset: int = 0) -> Float[np.ndarray, " steps"]:
    """`steps` of the timesteps 0 ... total - 1, falling. `offset` moves the leading ones only."""
    check_steps(steps, total)
    index = np.arange(steps, dtype=np.float64)
    if spacing == "leading":
        return _in_range(index[::-1] * (total // steps) + offset, total, offset)
    if spacing == "trailing":
        return np.round(total - index * (total / steps)) - 1
    # A single step starts from the noise: np.linspace would give its first number, 0.
    return np.linspace(0, total - 1, steps)[::-1] if steps > 1 else np.array([total - 1.0])


def solver_timesteps(total: int, steps: int, spacing: str, offset: int = 0) -> Float[np.ndarray, " steps"]:
    """As `spaced_timesteps`, for solvers that end at noise level 0 in place of one more timestep."""
    check_steps(steps, total - (spacing == "leading"))
    index = np.arange(steps + 1, dtype=np.float64)
    if spacing == "leading":
        return _in_range((index[::-1] * (total // (steps + 1)) + offset)[:-1], total, offset)
    if spacing == "linspace":
        return np.round(np.linspace(0, total - 1, steps + 1))[::-1][:-1]
    return spaced_timesteps(total, steps, spacing)


def whole_timesteps(schedule: Schedule, steps: int) -> Float[np.ndarray, " steps"]:
    """`spaced_timesteps` of the schedule, rounded: for the samplers that work on whole timesteps (DDPM, DDIM, PLMS)."""
    spacing = schedule.timestep_spacing or "leading"
    return np.round(spaced_timesteps(schedule.num_train_timesteps, steps, spacing, schedule.steps_offset))


def levels(schedule: Schedule, steps: int, start: int, sigma_spacing: str | None, solver: bool = False) -> Levels:
    """Timesteps of the calls, and noise levels before each and after the last, without the first `start`. `solver`
    chooses the convention of DPM-Solver, `sigma_spacing` overrides the schedule's."""
    spacing, total = sigma_spacing or schedule.sigma_spacing, schedule.num_train_timesteps
    check_choice("sigma_spacing", spacing, get_args(SigmaSpacing))
    space = solver_timesteps if solver else spaced_timesteps
    t = space(total, steps, schedule.timestep_spacing or "linspace", schedule.steps_offset)
    s = np.interp(t, np.arange(total), schedule.sigmas)
    if spacing != "timesteps":
        high, low = (schedule.sigmas[-1], schedule.sigmas[0]) if solver else (s[0], s[-1])
        high, low = schedule.sigma_max or float(high), schedule.sigma_min or float(low)
        if not low < high and steps > 1:  # a single step takes the highest alone
            raise ValueError(f"sigma_min={low:g} has to lie below sigma_max={high:g}; leave out one of them")
        ramp = np.linspace(0, 1, steps)
        if spacing == "karras":  # 2206.00364, equation 5
            s = (high ** (1 / RHO) + ramp * (low ** (1 / RHO) - high ** (1 / RHO))) ** RHO
        else:
            s = np.exp(np.linspace(np.log(high), np.log(low), steps))
        t = np.interp(np.log(s), np.log(schedule.sigmas), np.arange(total))
        t = np.round(t) if solver else t
    final = 0.0 if schedule.final_sigmas_type == "zero" else float(schedule.sigmas[0])
    return t[start:], np.append(s, final)[start:]


def log_snr(s: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """alpha, sigma and lambda = log(alpha / sigma) of noise levels s; lambda is infinite at level 0."""
    alpha = 1 / np.sqrt(1 + s**2)
    with np.errstate(divide="ignore"):
        return alpha, s * alpha, -np.log(s)


def _in_range(timesteps: Float[np.ndarray, " n"], total: int, offset: int) -> Float[np.ndarray, " n"]:
    if timesteps[0] >= total:
        wrong = f"steps={len(timesteps)}, steps_offset={offset} ask for timestep {timesteps[0]:.0f} of 0 to {total - 1}"
        raise ValueError(f"{wrong}; take fewer steps, or another timestep_spacing")
    return timesteps


def check_steps(steps: int, total: int) -> None:
    if not 1 <= steps <= total:
        raise ValueError(f"steps={steps} cannot be spaced over {total} training timesteps; choose 1 to {total}")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ValueError(f"{name}={value!r} is not supported; choose one of {listed}")
