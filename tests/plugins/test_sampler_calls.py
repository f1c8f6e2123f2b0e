"""Calls of samplers: noise by image, one compilation, partial runs, errors; and convergence on an exact problem.

The exact problem: where the data are normal with mean M and deviation S, the best prediction is known, and the
deterministic flow takes M alpha + z sqrt(S^2 alpha^2 + sigma^2) at every level to the image M + z S.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused

from plugins.diffusion import samplers
from plugins.diffusion.samplers.sampler import clip_x0, image_keys
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule
from plugins.diffusion.training.losses import add_noise

MEAN, DEVIATION = 0.5, 0.3
SCHEDULE, FLOW = Schedule(set_alpha_to_one=True, steps_offset=0), FlowSchedule()
SAMPLERS = sorted(set(samplers.SAMPLERS) - {"ddim_inversion"})
DRAWS = ("ddpm", "euler_ancestral", "dpm_sde", "dpm_sde_karras", "lcm")


def sampler_of(name: str) -> tuple[samplers.Sampler, Schedule | FlowSchedule]:
    sampler = samplers.by_name(name)
    return sampler, FLOW if sampler.runs_on is FlowSchedule else SCHEDULE


def wavy(x, step):
    return 0.6 * jnp.tanh(x) + 0.3 * jnp.sin(2 * x) * (step.t / 1000)


def scales(t, schedule: Schedule | FlowSchedule):
    """alpha and sigma at a timestep, whole or not."""
    if isinstance(schedule, FlowSchedule):
        sigma = t / schedule.num_train_timesteps
        return 1 - sigma, sigma
    levels = jnp.asarray(schedule.sigmas, jnp.float32)
    level = jnp.exp(jnp.interp(t, jnp.arange(len(levels)), jnp.log(levels)))
    return 1 / jnp.sqrt(1 + level**2), level / jnp.sqrt(1 + level**2)


def best(schedule: Schedule | FlowSchedule = SCHEDULE, jump: bool = False) -> Callable:
    """The best prediction for normal data; with `jump`, the end of the deterministic flow (a consistency model)."""

    def model(x, step):
        alpha, sigma = scales(step.t, schedule)
        variance = alpha**2 * DEVIATION**2 + sigma**2
        gain = DEVIATION / jnp.sqrt(variance) if jump else alpha * DEVIATION**2 / variance
        image = MEAN + gain * (x - alpha * MEAN)
        return (x - image) / sigma if isinstance(schedule, FlowSchedule) else (x - alpha * image) / sigma

    return model


def error(name: str, steps: int, **options) -> float:
    """Error of a deterministic sampler's images on the exact problem."""
    sampler, schedule = sampler_of(name)
    z = jnp.linspace(-2, 2, 9)[:, None]
    plan = sampler.plan(schedule, steps, **options)
    alpha, sigma = plan.alpha[0], plan.sigma[0]
    x = alpha * MEAN + np.sqrt(alpha**2 * DEVIATION**2 + sigma**2) * z
    x = x if plan.scale_in is None else x / plan.scale_in[0]
    image = sampler(best(schedule), x, schedule, steps=steps, **options)
    return float(jnp.abs(image - (MEAN + DEVIATION * z)).max())


@pytest.mark.parametrize("name", sorted({*SAMPLERS} - {*DRAWS}))
def test_deterministic_samplers_converge_to_the_image(name):
    coarse, fine = error(name, 10), error(name, 100)
    assert fine < 0.04 and fine < coarse / 5


@pytest.mark.parametrize("variant", ["bh1", "bh2"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_form_of_unipc_is_exact_in_the_limit(order, variant):
    assert error("unipc", 60, order=order, variant=variant, sigma_spacing="karras") < 0.02


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in DRAWS), ("ddim", {"eta": 1.0})])
def test_sampling_with_noise_gives_the_right_distribution(name, options):
    sampler, steps = samplers.by_name(name), 4 if name == "lcm" else 300
    x = sampler.start(samplers.starting_noise(jax.random.key(1), (8, 512)), SCHEDULE, steps=steps, **options)
    run = jax.jit(lambda key: sampler(best(jump=name == "lcm"), x, SCHEDULE, steps=steps, key=key, **options))
    images, again = run(jax.random.key(2)), run(jax.random.key(3))
    assert abs(float(images.mean()) - MEAN) < 0.02
    assert abs(float(images.std()) / DEVIATION - 1) < 0.05
    assert float(jnp.abs(again - images).mean()) > 0.05


def test_inverting_ddim_comes_back_better_with_more_steps():
    image = jax.random.normal(jax.random.key(0), (2, 4, 4, 4))

    def round_trip(steps):
        noise = samplers.ddim_inversion(wavy, image, Schedule(), steps=steps)
        return float(jnp.abs(samplers.ddim(wavy, noise, Schedule(), steps=steps) - image).mean())

    coarse, fine = round_trip(10), round_trip(100)
    assert 0.005 < coarse < 0.1 and fine < coarse / 4


def test_landing_on_the_next_timestep_is_more_exact():
    schedule = dataclasses.replace(SCHEDULE, timestep_spacing="linspace")
    for landing, timestep in (("next", 888), ("stride", 899)):
        column = samplers.ddim.plan(schedule, 10, landing=landing).columns["x0"]
        assert column[0] == pytest.approx(schedule.alphas_cumprod[timestep] ** 0.5)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if "karras" not in name])
def test_the_fewest_steps(name):
    sampler, schedule = sampler_of(name)
    for steps in (1, 2):
        x = sampler.start(samplers.starting_noise(jax.random.key(0), (2, 3, 3, 1)), schedule, steps=steps)
        out = sampler(wavy, x, schedule, steps=steps, key=jax.random.key(1))
        assert out.shape == x.shape and jnp.isfinite(out).all() and jnp.abs(out - x).max() > 1e-4


@pytest.mark.parametrize("name", ["ddpm", "dpm_sde"])
def test_an_image_depends_on_its_own_key_alone(name):
    sampler = samplers.by_name(name)

    def make(keys):
        x = sampler.start(samplers.starting_noise(keys, (len(keys), 4, 4, 2)), SCHEDULE, steps=4)
        return sampler(wavy, x, SCHEDULE, steps=4, key=keys)

    three = make(samplers.keys_of_seeds([7, 8, 9]))
    np.testing.assert_allclose(make(samplers.keys_of_seeds([8]))[0], three[1], atol=1e-5)
    assert jnp.abs(three[0] - three[1]).max() > 0.1


def test_one_key_gives_the_same_images_whatever_the_batch():
    key = jax.random.key(3)
    np.testing.assert_array_equal(samplers.starting_noise(key, (2, 5)), samplers.starting_noise(key, (4, 5))[:2])
    assert jnp.unique(jax.random.key_data(image_keys(key, 64)), axis=0).shape[0] == 64


@pytest.mark.parametrize("name", ["ddim", "ddpm", "plms", "lcm", "heun", "lms", "dpm_3m", "unipc", "flow_euler"])
def test_the_model_is_traced_once_for_any_number_of_steps(name):
    (sampler, schedule), x = sampler_of(name), jnp.zeros((1, 2, 2, 1))
    traced = []

    def operations(steps):
        model = lambda x, step: traced.append(steps) or wavy(x, step)  # noqa: E731
        run = jax.make_jaxpr(lambda x, key: sampler(model, x, schedule, steps=steps, key=key))
        return str(run(x, jax.random.key(0))).count(" = ")

    assert operations(7) == operations(49) and traced == [7, 49]


@pytest.mark.parametrize("name", ["ddim", "euler", "heun", "flow_euler"])
def test_a_partial_run_is_the_second_half_of_a_whole_one(name):
    sampler, schedule = sampler_of(name)
    x = sampler.start(samplers.starting_noise(jax.random.key(0), (2, 3)), schedule, steps=10)
    final, samples = sampler(wavy, x, schedule, steps=10, trajectory=True)
    calls = len(sampler.plan(schedule, 10, 0.5).timesteps)
    rest = sampler(wavy, samples[-1 - calls], schedule, steps=10, strength=0.5)
    np.testing.assert_allclose(rest, final, atol=1e-5)


def test_a_start_from_an_image_is_that_image_with_noise():
    image, noise = jnp.full((1, 4), 0.7), samplers.starting_noise(jax.random.key(0), (1, 4))
    settings = {"steps": 10, "image": image, "strength": 0.5}
    t = int(samplers.ddim.plan(SCHEDULE, 10, 0.5).timesteps[0])
    expected = add_noise(SCHEDULE, image, noise, jnp.array([t]))
    np.testing.assert_allclose(samplers.ddim.start(noise, SCHEDULE, **settings), expected, atol=1e-6)
    levels = samplers.euler.plan(SCHEDULE, 10, 0.5).sigmas
    assert levels is not None
    np.testing.assert_allclose(samplers.euler.start(noise, SCHEDULE, **settings), image + levels[0] * noise, rtol=1e-5)


def test_steps_and_progress_inside_jit():
    steps, progress = [], []

    def model(x, step):
        active = step.within(0.25, 0.75)
        jax.debug.callback(lambda *values: steps.append(tuple(float(v) for v in values)), *step, active, ordered=True)
        return wavy(x, step)

    jax.jit(lambda x: samplers.ddim(model, x, SCHEDULE, steps=4))(jnp.ones((1, 2)))
    observe = lambda index, x0: jax.debug.callback(lambda i: progress.append(int(i)), index)  # noqa: E731
    jax.jit(lambda x: samplers.heun(wavy, x, SCHEDULE, steps=5, observe=observe))(jnp.ones((1, 2)))
    jax.effects_barrier()
    assert steps == [(750, 0, 0, 0.25, 0), (500, 1, 0.25, 0.5, 1), (250, 2, 0.5, 0.75, 1), (0, 3, 0.75, 1, 0)]
    assert sorted(progress) == list(range(9))


def test_half_precision_models_are_sampled_in_float32():
    types = []
    model = lambda x, step: types.append(x.dtype) or wavy(x, step).astype(jnp.bfloat16)  # noqa: E731
    out = samplers.plms(model, jnp.ones((1, 2), jnp.bfloat16), SCHEDULE, steps=5)
    assert out.dtype == types[0] == jnp.float32


def test_zero_terminal_snr_starts_from_pure_noise():
    schedule = Schedule(rescale_betas_zero_snr=True, prediction_type="v_prediction", timestep_spacing="trailing")
    for name in ("ddim", "ddpm", "euler", "dpm", "unipc"):
        sampler = samplers.by_name(name)
        x = sampler.start(samplers.starting_noise(jax.random.key(0), (1, 8)), schedule, steps=5)
        assert jnp.isfinite(sampler(wavy, x, schedule, steps=5, key=jax.random.key(0))).all()
    refused(ValueError, samplers.plms.plan, schedule, 5, match="plms")


def test_predicted_images_are_clipped():
    image = jnp.concatenate([jnp.linspace(-1, 1, 99), jnp.array([30.0])])[None]
    assert jnp.abs(clip_x0(Schedule(clip_sample=True, clip_sample_range=0.5), image)).max() == 0.5
    scaled = clip_x0(Schedule(thresholding=True, dynamic_thresholding_ratio=0.99, sample_max_value=100.0), image)
    bound = np.quantile(np.abs(image), 0.99)
    np.testing.assert_allclose(scaled, np.clip(image, -bound, bound) / bound, atol=1e-4)
    np.testing.assert_array_equal(clip_x0(Schedule(), image), image)


X, KEY = jnp.ones((2, 3)), jax.random.key(0)


@pytest.mark.parametrize("call, message", [
    (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=0), "steps=0"),
    (lambda: samplers.euler(wavy, X, SCHEDULE, steps=1001), "steps=1001"),
    (lambda: samplers.lcm(wavy, X, SCHEDULE, steps=51, key=KEY), "steps=51"),
    (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, eta=2.0), "eta=2.0"),
    (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, landing="here"), "landing='here'"),
    (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, order=2), "order.*eta, landing"),
    (lambda: samplers.ddpm(wavy, X, SCHEDULE, steps=5), "key"),
    (lambda: samplers.ddpm(wavy, X, SCHEDULE, steps=5, key=samplers.keys_of_seeds([1, 2, 3])), "2 images"),
    (lambda: samplers.dpm.plan(SCHEDULE, 5, order=3, sde=True), "order=3"),
    (lambda: samplers.dpm.plan(SCHEDULE, 5, expansion="euler"), "expansion='euler'"),
    (lambda: samplers.unipc.plan(SCHEDULE, 5, order=0), "order=0"),
    (lambda: samplers.lms.plan(SCHEDULE, 5, order=9), "order=9"),
    (lambda: samplers.euler.plan(SCHEDULE, 5, sigma_spacing="beta"), "sigma_spacing='beta'"),
    (lambda: samplers.euler.plan(FLOW, 5), "FlowSchedule"),
    (lambda: samplers.ddim.plan(SCHEDULE, 5, 0.0), "strength=0.0"),
    (lambda: samplers.ddim.plan(SCHEDULE, 5, 0.1), "strength=0.1"),
    (lambda: samplers.by_name("dpm2m"), "'dpm2m'.*dpm_karras"),
])  # fmt: skip
def test_bad_arguments(call, message):
    refused(ValueError, call, match=message)
