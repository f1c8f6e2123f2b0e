"""What samplers compute beyond the recorded runs: the right distributions, orders of convergence, few steps.

The exact problem. Where the data are normal with mean M and deviation S, the best prediction is known, and the
deterministic flow takes M alpha + z sqrt(S^2 alpha^2 + sigma^2) at every level to the picture M + z S.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.diffusion import samplers
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

MEAN, DEVIATION = 0.5, 0.3
SCHEDULE = Schedule(set_alpha_to_one=True, steps_offset=0)
FLOW = FlowSchedule()
SAMPLERS = {name: s for name, s in samplers.SAMPLERS.items() if name != "ddim_inversion"}
DRAWS = ("ddpm", "euler_ancestral", "dpm_sde", "dpm_sde_karras", "lcm")


def schedule_of(sampler: samplers.Sampler) -> Schedule | FlowSchedule:
    return FLOW if sampler.runs_on is FlowSchedule else SCHEDULE


def scales(t, schedule: Schedule | FlowSchedule):
    """alpha and sigma at a timestep between whole ones too."""
    if isinstance(schedule, FlowSchedule):
        sigma = t / schedule.num_train_timesteps
        return 1 - sigma, sigma
    levels = jnp.asarray(schedule.sigmas, jnp.float32)
    level = jnp.exp(jnp.interp(t, jnp.arange(len(levels)), jnp.log(levels)))
    return 1 / jnp.sqrt(1 + level**2), level / jnp.sqrt(1 + level**2)


def best(schedule: Schedule | FlowSchedule = SCHEDULE, jump: bool = False) -> Callable:
    """The best prediction about normal data; with `jump`, the end of the deterministic flow (a consistency model)."""

    def model(x, step):
        alpha, sigma = scales(step.t, schedule)
        variance = alpha**2 * DEVIATION**2 + sigma**2
        gain = DEVIATION / jnp.sqrt(variance) if jump else alpha * DEVIATION**2 / variance
        picture = MEAN + gain * (x - alpha * MEAN)
        return (x - picture) / sigma if isinstance(schedule, FlowSchedule) else (x - alpha * picture) / sigma

    return model


def error(name: str, steps: int) -> float:
    """Of a deterministic sampler's pictures, on the exact problem."""
    sampler = samplers.by_name(name)
    schedule = schedule_of(sampler)
    z = jnp.linspace(-2, 2, 9)[:, None]
    plan = sampler.plan(schedule, steps)
    alpha, sigma = plan.alpha[0], plan.sigma[0]
    x = alpha * MEAN + np.sqrt(alpha**2 * DEVIATION**2 + sigma**2) * z
    x = x if plan.scale_in is None else x / plan.scale_in[0]
    picture = sampler(best(schedule), x, schedule, steps=steps)
    return float(jnp.abs(picture - (MEAN + DEVIATION * z)).max())


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - set(DRAWS)))
def test_deterministic_samplers_find_the_picture(name):
    coarse, fine = error(name, 10), error(name, 100)
    assert fine < 0.04
    assert fine < coarse / 5


def test_higher_orders_need_fewer_steps():
    first = error("euler_karras", 20)
    assert error("dpm_karras", 20) < first / 5
    assert error("plms", 20) < error("ddim", 20) / 5
    assert error("heun", 20) < error("euler", 20) / 3
    assert error("lms", 20) < error("euler", 20) / 2


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in DRAWS), ("ddim", {"eta": 1.0})])
def test_sampling_with_noise_gives_the_right_distribution(name, options):
    sampler = samplers.by_name(name)
    steps = 4 if name == "lcm" else 300
    noise = samplers.starting_noise(jax.random.key(1), (8, 2048))
    x = sampler.start(noise, SCHEDULE, steps=steps, **options)
    pictures = sampler(best(jump=name == "lcm"), x, SCHEDULE, steps=steps, key=jax.random.key(2), **options)
    assert abs(float(pictures.mean()) - MEAN) < 0.02
    assert abs(float(pictures.std()) / DEVIATION - 1) < 0.05
    again = sampler(best(jump=name == "lcm"), x, SCHEDULE, steps=steps, key=jax.random.key(3), **options)
    assert float(jnp.abs(again - pictures).mean()) > 0.05


def wavy(x, step):
    return 0.6 * jnp.tanh(x) + 0.3 * jnp.sin(2 * x) * (step.t / 1000)


def test_inverting_ddim_comes_back_better_with_more_steps():
    picture = jax.random.normal(jax.random.key(0), (2, 4, 4, 4))

    def round_trip(steps):
        noise = samplers.ddim_inversion(wavy, picture, Schedule(), steps=steps)
        return float(jnp.abs(samplers.ddim(wavy, noise, Schedule(), steps=steps) - picture).mean())

    coarse, fine = round_trip(10), round_trip(100)
    assert 0.005 < coarse < 0.1
    assert fine < coarse / 4


def test_landing_on_the_next_timestep_is_more_exact():
    schedule = dataclasses.replace(SCHEDULE, timestep_spacing="linspace")
    t = samplers.ddim.plan(schedule, 10, landing="next")
    assert t.columns["sample"][0] == pytest.approx(schedule.alphas_cumprod[888] ** 0.5)
    assert samplers.ddim.plan(schedule, 10).columns["sample"][0] == pytest.approx(schedule.alphas_cumprod[899] ** 0.5)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_the_fewest_steps(name, steps):
    sampler = samplers.by_name(name)
    schedule = schedule_of(sampler)
    noise = samplers.starting_noise(jax.random.key(0), (2, 3, 3, 1))
    x = sampler.start(noise, schedule, steps=steps)
    out = sampler(wavy, x, schedule, steps=steps, key=jax.random.key(1))
    assert out.shape == x.shape and jnp.isfinite(out).all()
    assert jnp.abs(out - x).max() > 1e-4


@pytest.mark.parametrize("variant", ["bh1", "bh2"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_form_of_unipc_is_exact_in_the_limit(order, variant):
    sampler = samplers.unipc.with_options(order=order, variant=variant, sigma_spacing="karras")
    z = jnp.linspace(-2, 2, 9)[:, None]
    plan = sampler.plan(SCHEDULE, 60)
    alpha, sigma = plan.alpha[0], plan.sigma[0]
    x = alpha * MEAN + np.sqrt(alpha**2 * DEVIATION**2 + sigma**2) * z
    out = sampler(best(), x, SCHEDULE, steps=60)
    np.testing.assert_allclose(out, MEAN + DEVIATION * z, atol=0.02)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_image_to_image_with_little_noise_keeps_the_image(name):
    sampler = samplers.by_name(name)
    schedule = schedule_of(sampler)
    image = jnp.full((2, 64), MEAN)
    noise = samplers.starting_noise(jax.random.key(0), (2, 64))
    distance = []
    for strength in (0.1, 1.0):
        x = sampler.start(noise, schedule, steps=30, image=image, strength=strength)
        out = sampler(best(schedule), x, schedule, steps=30, strength=strength, key=jax.random.key(1))
        distance.append(float(jnp.abs(out - image).mean()))
    assert distance[0] < 0.97 * distance[1]
