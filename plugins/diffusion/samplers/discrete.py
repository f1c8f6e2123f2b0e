"""Samplers on whole timesteps: DDIM, DDPM, PLMS, and LCM for distilled models.

DDIM (Song et al., 2010.02502): a step predicts x_0 and eps and mixes them again at the next, lower noise level. With
eta = 0 no noise is drawn and the map from noise to image is nearly invertible; eta = 1 is DDPM's ancestral sampling.
`ddim_inversion` runs from an image to the noise that `ddim` turns back into it, the start of Plug-and-Play. It replaces
eps(x_{t-1}) by eps(x_t), so the round trip's error falls as 1 / steps.

DDPM (Ho et al., 2006.11239), on any timesteps: a step from t to the next call's s draws from the posterior
q(x_s | x_t, x_0) at the predicted x_0. The variance is the posterior's ("fixed_small") or the step's beta
("fixed_large"): the two extremes of section 3.2.

PLMS ("PNDM" without Runge-Kutta steps, Liu et al., 2202.09778), Stable Diffusion 1.5's default: Adams-Bashforth weights
(equation 12) combine the model's last four outputs into one, which moves the sample as DDIM would (equation 11). The
first step is done twice, as in Heun's method: a trial step, a prediction at its end, then the step again with the mean
of both; hence steps + 1 calls, the second timestep twice. Outputs other than eps are combined first and become eps at
the step's start, as in the PyTorch library.

LCM (Luo et al., 2310.04378): a distilled model maps any noise level to the image in one call; the image gets noise of
the next level, and so on, 2 to 8 times. The consistency function (equation 9) is f(x, t) = c_skip(t) x + c_out(t) x_0,
equal to x at t = 0.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State, weighted_sum
from plugins.diffusion.samplers.schedules import Schedule, check_choice, whole_timesteps

# Row k: weights of the newest prediction and of those before it, when k of those exist.
ADAMS_BASHFORTH = np.array(((24, 0, 0, 0), (36, -12, 0, 0), (46, -32, 10, 0), (55, -59, 37, -9))) / 24
MEAN = np.array((0.5, 0.5, 0, 0))
SIGMA_DATA = 0.5  # of equation 9


def ddim_plan(schedule: Schedule, steps: int, start: int = 0, *, eta: float = 0.0, landing: str = "stride") -> Plan:
    """Coefficients of equation 12, and sigma of equation 16 times `eta` in [0, 1]. `landing`: a step ends N // steps
    below its timestep ("stride", as published), or exactly at the next call's ("next"), which differs for "linspace"
    spacing and for step counts that do not divide N."""
    if not 0 <= eta <= 1:
        raise ValueError(f"ddim: eta={eta} has to lie in [0, 1]; 0 draws no noise, 1 is DDPM")
    check_choice("landing", landing, ("stride", "next"))
    t = whole_timesteps(schedule, steps)
    end = t - schedule.num_train_timesteps // steps if landing == "stride" else np.append(t[1:], -1.0)
    here, there = schedule.alpha_bar(t[start:]), schedule.alpha_bar(end[start:])
    variance = eta**2 * (1 - there) / (1 - here) * (1 - here / there)
    columns = {"x0": there**0.5, "eps": np.maximum(1 - there - variance, 0) ** 0.5, "noise": variance**0.5}
    return Plan(t[start:], here**0.5, (1 - here) ** 0.5, columns, draws=eta > 0)


def ddim_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array | None) -> State:
    """Equation 12: the predicted x_0, the direction that points to x_t, and random noise."""
    x = row["x0"] * prediction.x0 + row["eps"] * prediction.eps
    return (x if noise is None else x + row["noise"] * noise), history


def inversion_plan(schedule: Schedule, steps: int, start: int = 0) -> Plan:
    """DDIM's steps with eta = 0 from each level to the next higher one; `start` leaves out the highest. A call has the
    timestep that its step ends at, so a round trip calls the model at the same timesteps twice."""
    t = whole_timesteps(schedule, steps)[::-1][: steps - start]
    here, there = schedule.alpha_bar(t - schedule.num_train_timesteps // steps), schedule.alpha_bar(t)
    if schedule.prediction_type == "sample" and here[0] == 1:
        raise ValueError("ddim_inversion starts from a clean image, where a 'sample' prediction does not give eps")
    return Plan(t, here**0.5, (1 - here) ** 0.5, {"x0": there**0.5, "eps": (1 - there) ** 0.5})


def ddpm_plan(schedule: Schedule, steps: int, start: int = 0, *, variance: str = "fixed_small") -> Plan:
    """Equation 7's coefficients for a step from t to s, whose beta is 1 - alpha_bar_t / alpha_bar_s."""
    check_choice("variance", variance, ("fixed_small", "fixed_large"))
    t = whole_timesteps(schedule, steps)[start:]
    here = schedule.alpha_bar(t)
    there = np.append(schedule.alpha_bar(t[1:]), 1.0)  # the last step ends at the image
    beta = 1 - here / there
    posterior = (1 - there) / (1 - here) * beta
    columns = {
        "x0": there**0.5 * beta / (1 - here),
        "x": (here / there) ** 0.5 * (1 - there) / (1 - here),
        "noise": np.where(t > 0, posterior if variance == "fixed_small" else beta, 0) ** 0.5,
    }
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns, draws=True)


def ddpm_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array) -> State:
    """Equations 6 and 7 at the predicted x_0."""
    return row["x0"] * prediction.x0 + row["x"] * x + row["noise"] * noise, history


def plms_plan(schedule: Schedule, steps: int, start: int = 0) -> Plan:
    """The weights of each call, and equation 11 as one factor for the sample and one for the combined prediction."""
    t = whole_timesteps(schedule, steps)[start:]
    origin, second = t, np.zeros(len(t))
    weights = ADAMS_BASHFORTH[np.minimum(np.arange(len(t)), 3)]
    if len(t) > 1:
        t, origin, second = np.insert(t, 1, t[1]), np.insert(t, 1, t[0]), np.insert(second, 1, 1.0)
        weights = np.insert(weights, 1, MEAN, axis=0)
    here, there = schedule.alpha_bar(origin), schedule.alpha_bar(origin - schedule.num_train_timesteps // steps)
    if here.min() <= 0:
        raise ValueError("plms divides by alpha, which is 0 in a zero-terminal-SNR schedule; use ddim or euler")
    alpha, sigma, ratio = here**0.5, (1 - here) ** 0.5, (there / here) ** 0.5
    eps = (1 - there) ** 0.5 - ratio * sigma
    of_output, of_x = {  # eps of the combined output and the sample at the step's start
        "epsilon": (1.0, 0.0),
        "v_prediction": (alpha, sigma),
        "sample": (-alpha / sigma, 1 / sigma),
    }[schedule.prediction_type]
    alpha_bar = schedule.alpha_bar(t)
    columns = {"x": ratio + eps * of_x, "output": eps * of_output, "weights": weights, "second": second}
    return Plan(t, alpha_bar**0.5, (1 - alpha_bar) ** 0.5, columns)


def plms_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: None) -> State:
    """Equation 11 with the combined output; `history` is the last three outputs and the previous sample, from which the
    second call, whose output is not kept, starts again."""
    *older, previous = history
    outputs = (prediction.output, *older)
    second = row["second"] > 0
    origin = jnp.where(second, previous, x)
    kept = [jnp.where(second, old, new) for old, new in zip(older, outputs, strict=False)]
    return row["x"] * origin + row["output"] * weighted_sum(row["weights"], outputs), (*kept, origin)


def lcm_plan(
    schedule: Schedule, steps: int, start: int = 0, *, original_steps: int = 50, timestep_scaling: float = 10.0
) -> Plan:
    """c_skip and c_out, and alpha and sigma of the level to which noise is added. The timesteps are `steps` of the
    `original_steps` that distillation used, evenly chosen from the noisiest."""
    n = schedule.num_train_timesteps
    if not 1 <= steps <= original_steps <= n:
        raise ValueError(f"lcm: steps={steps} has to lie in 1 to original_steps={original_steps}, and that within {n}")
    trained = np.arange(1, original_steps + 1) * (n // original_steps) - 1.0
    chosen = np.floor(np.linspace(0, original_steps, steps, endpoint=False)).astype(int)
    t = trained[::-1][chosen][start:]
    here, there = schedule.alpha_bar(t), np.append(schedule.alpha_bar(t[1:]), 1.0)
    scaled = t * timestep_scaling
    columns = {
        "skip": SIGMA_DATA**2 / (scaled**2 + SIGMA_DATA**2),
        "out": scaled / np.sqrt(scaled**2 + SIGMA_DATA**2),
        "image": there**0.5,
        "noise": (1 - there) ** 0.5,
    }
    return Plan(t, here**0.5, (1 - here) ** 0.5, columns, draws=True)


def lcm_update(x: Sample, prediction: Prediction, row: Row, history: History, noise: Array) -> State:
    """Algorithm 3, line 5: the image, with noise of the next level; none after the last."""
    image = row["skip"] * x + row["out"] * prediction.x0
    return row["image"] * image + row["noise"] * noise, history


ddim = Sampler("ddim", ddim_plan, ddim_update)
ddim_inversion = Sampler("ddim_inversion", inversion_plan, ddim_update)
ddpm = Sampler("ddpm", ddpm_plan, ddpm_update)
plms = Sampler("plms", plms_plan, plms_update, history=4)
lcm = Sampler("lcm", lcm_plan, lcm_update)
