"""DDIM: denoising diffusion implicit models (Song et al., 2010.02502), and its inversion.

A step predicts x_0 and eps and mixes them again at the next, lower noise level. With eta = 0 no noise is drawn and the
map from noise to image is nearly invertible; eta = 1 is DDPM's ancestral sampling.

`ddim_inversion` runs from an image to the noise that `ddim` turns back into it: the start of Plug-and-Play and of many
editing methods. It replaces eps(x_{t-1}) by eps(x_t), so the round trip's error falls as 1 / steps.
"""

import numpy as np
from jaxtyping import Array

from plugins.diffusion.samplers.sampler import History, Plan, Prediction, Row, Sample, Sampler, State
from plugins.diffusion.samplers.schedules import Schedule, check_choice, whole_timesteps


def ddim_plan(schedule: Schedule, steps: int, start: int = 0, *, eta: float = 0.0, landing: str = "stride") -> Plan:
    """Coefficients of equation 12, and sigma of equation 16 times `eta` in [0, 1].

    `landing` is the timestep that a step ends at: "stride" subtracts N // steps, as published (Stable Diffusion's
    images were made so); "next" ends exactly at the next call's timestep, which differs for "linspace" spacing and for
    step counts that do not divide N."""
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
    """DDIM's steps with eta = 0 from each level to the next higher one; `start` leaves out the highest.

    A call has the timestep that its step ends at, so a round trip calls the model at the same timesteps twice."""
    t = whole_timesteps(schedule, steps)[::-1][: steps - start]
    here, there = schedule.alpha_bar(t - schedule.num_train_timesteps // steps), schedule.alpha_bar(t)
    if schedule.prediction_type == "sample" and here[0] == 1:
        raise ValueError("ddim_inversion starts from a clean image, where a 'sample' prediction does not give eps")
    return Plan(t, here**0.5, (1 - here) ** 0.5, {"x0": there**0.5, "eps": (1 - there) ** 0.5})


ddim = Sampler("ddim", ddim_plan, ddim_update)
ddim_inversion = Sampler("ddim_inversion", inversion_plan, ddim_update)
