"""How samplers are called: determinism per image, one compilation, starting in the middle, progress, plain errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.diffusion import samplers
from plugins.diffusion.samplers.predictions import add_noise
from plugins.diffusion.samplers.sampler import image_keys, limit
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

SCHEDULE = Schedule(set_alpha_to_one=True, steps_offset=0)
FLOW = FlowSchedule()


def schedule_of(sampler: samplers.Sampler) -> Schedule | FlowSchedule:
    return FLOW if sampler.runs_on is FlowSchedule else SCHEDULE


def wavy(x, step):
    return 0.6 * jnp.tanh(x) + 0.3 * jnp.sin(2 * x) * (step.t / 1000)


@pytest.mark.parametrize("name", ["ddpm", "euler_ancestral", "dpm_sde", "lcm"])
def test_an_image_depends_on_its_own_key_alone(name):
    sampler = samplers.by_name(name)

    def make(keys):
        x = sampler.start(samplers.starting_noise(keys, (len(keys), 4, 4, 2)), SCHEDULE, steps=4)
        return sampler(wavy, x, SCHEDULE, steps=4, key=keys)

    three = make(samplers.keys_of_seeds([7, 8, 9]))
    alone = make(samplers.keys_of_seeds([8]))
    np.testing.assert_allclose(alone[0], three[1], atol=1e-5)
    assert jnp.abs(three[0] - three[1]).max() > 0.1


def test_one_key_gives_the_same_images_whatever_the_batch():
    key = jax.random.key(3)
    np.testing.assert_array_equal(samplers.starting_noise(key, (2, 5)), samplers.starting_noise(key, (4, 5))[:2])
    assert jnp.unique(jax.random.key_data(image_keys(key, 64)), axis=0).shape[0] == 64


def test_the_number_of_devices_changes_nothing():
    keys = samplers.keys_of_seeds([1, 2, 3, 4])
    x = samplers.starting_noise(keys, (4, 4, 4, 2))
    run = jax.jit(lambda x, keys: samplers.ddpm(wavy, x, SCHEDULE, steps=5, key=keys))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    two = run(jax.device_put(x, split), jax.device_put(keys, split))
    assert len(two.sharding.device_set) == 2
    np.testing.assert_allclose(two, run(x, keys), atol=1e-5)


def test_one_compilation_for_all_calls_of_a_shape():
    traced = []

    def model(x, step):
        traced.append(x.shape)
        return wavy(x, step)

    run = jax.jit(lambda x, key: samplers.dpm(model, x, SCHEDULE, steps=20, sde=True, key=key))
    for seed in range(3):
        run(jax.random.normal(jax.random.key(seed), (1, 2, 2, 1)), jax.random.key(seed))
    assert run._cache_size() == 1
    assert len(traced) == 1


@pytest.mark.parametrize("name", sorted(samplers.SAMPLERS))
def test_more_steps_make_no_larger_program(name):
    sampler = samplers.by_name(name)
    x = jnp.zeros((1, 2, 2, 1))

    def operations(steps):
        run = jax.make_jaxpr(lambda x, key: sampler(wavy, x, schedule_of(sampler), steps=steps, key=key))
        return str(run(x, jax.random.key(0))).count(" = ")

    assert operations(7) == operations(49)


@pytest.mark.parametrize("name", ["ddim", "euler", "heun", "flow_euler"])
def test_starting_in_the_middle_is_the_second_half_of_a_run(name):
    sampler = samplers.by_name(name)
    schedule = schedule_of(sampler)
    x = sampler.start(samplers.starting_noise(jax.random.key(0), (2, 3)), schedule, steps=10)
    final, samples = sampler(wavy, x, schedule, steps=10, trajectory=True)
    calls = len(sampler.plan(schedule, 10, 0.5).timesteps)
    rest = sampler(wavy, samples[-1 - calls], schedule, steps=10, strength=0.5)
    np.testing.assert_allclose(rest, final, atol=1e-5)


def test_a_start_from_an_image_is_that_image_with_noise():
    image, noise = jnp.full((1, 4), 0.7), samplers.starting_noise(jax.random.key(0), (1, 4))
    plan = samplers.ddim.plan(SCHEDULE, 10, 0.5)
    expected = add_noise(SCHEDULE, image, noise, jnp.array([int(plan.timesteps[0])]))
    found = samplers.ddim.start(noise, SCHEDULE, steps=10, image=image, strength=0.5)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    scaled = samplers.euler.start(noise, SCHEDULE, steps=10, image=image, strength=0.5)
    level = samplers.euler.plan(SCHEDULE, 10, 0.5).sigmas
    assert level is not None
    np.testing.assert_allclose(scaled, image + level[0] * noise, rtol=1e-5)


def test_the_model_is_told_where_in_the_run_it_is():
    told = []

    def model(x, step):
        active = step.within(0.25, 0.75)
        jax.debug.callback(lambda *values: told.append(tuple(float(v) for v in values)), *step, active, ordered=True)
        return wavy(x, step)

    samplers.ddim(model, jnp.ones((1, 2)), SCHEDULE, steps=4)
    jax.effects_barrier()
    assert told == [(750, 0, 0, 0.25, 0), (500, 1, 0.25, 0.5, 1), (250, 2, 0.5, 0.75, 1), (0, 3, 0.75, 1, 0)]


def test_progress_is_reported_from_inside_jit():
    seen = []
    run = jax.jit(lambda x: samplers.heun(wavy, x, SCHEDULE, steps=5, progress=lambda i: seen.append(int(i))))
    run(jnp.ones((1, 2)))
    jax.effects_barrier()
    assert sorted(seen) == list(range(9))


def test_half_precision_models_are_sampled_in_float32():
    types = []

    def model(x, step):
        types.append(x.dtype)
        return wavy(x, step).astype(jnp.bfloat16)

    out = samplers.plms(model, jnp.ones((1, 2), jnp.bfloat16), SCHEDULE, steps=5)
    assert out.dtype == types[0] == jnp.float32


def test_zero_terminal_snr_starts_from_pure_noise():
    schedule = Schedule(rescale_betas_zero_snr=True, prediction_type="v_prediction", timestep_spacing="trailing")
    for name in ("ddim", "ddpm", "euler", "dpm", "unipc"):
        sampler = samplers.by_name(name)
        x = sampler.start(samplers.starting_noise(jax.random.key(0), (1, 8)), schedule, steps=5)
        assert jnp.isfinite(sampler(wavy, x, schedule, steps=5, key=jax.random.key(0))).all()
    with pytest.raises(ValueError, match="plms"):
        samplers.plms.plan(schedule, 5)


def test_predicted_pictures_are_kept_in_range():
    picture = jnp.concatenate([jnp.linspace(-1, 1, 99), jnp.array([30.0])])[None]
    clipped = limit(Schedule(clip_sample=True, clip_sample_range=0.5), picture)
    assert jnp.abs(clipped).max() == 0.5
    scaled = limit(Schedule(thresholding=True, dynamic_thresholding_ratio=0.99, sample_max_value=100.0), picture)
    bound = np.quantile(np.abs(picture), 0.99)
    np.testing.assert_allclose(scaled, np.clip(picture, -bound, bound) / bound, atol=1e-4)
    np.testing.assert_array_equal(limit(Schedule(), picture), picture)


X, KEY = jnp.ones((2, 3)), jax.random.key(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=0), "steps=0"),
        (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=True), "steps=True"),
        (lambda: samplers.euler(wavy, X, SCHEDULE, steps=1001), "steps=1001"),
        (lambda: samplers.lcm(wavy, X, SCHEDULE, steps=51, key=KEY), "steps=51"),
        (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, eta=2.0), "eta=2.0"),
        (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, landing="here"), "landing='here'"),
        (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, order=2), "no option 'order'; it has eta, landing"),
        (lambda: samplers.ddpm(wavy, X, SCHEDULE, steps=5), "give key"),
        (lambda: samplers.ddpm(wavy, X, SCHEDULE, steps=5, key=jnp.zeros(2, jnp.uint32)), "uint32"),
        (lambda: samplers.ddpm(wavy, X, SCHEDULE, steps=5, key=samplers.keys_of_seeds([1, 2, 3])), "2 images"),
        (lambda: samplers.ddpm(wavy, X, SCHEDULE, steps=5, noise=jnp.zeros((4, 2, 3))), "5 calls"),
        (lambda: samplers.ddim(wavy, X, SCHEDULE, steps=5, noise=jnp.zeros((5, 2, 3))), "runs that draw"),
        (lambda: samplers.ddpm.plan(SCHEDULE, 5, variance="learned"), "variance='learned'"),
        (lambda: samplers.dpm.plan(SCHEDULE, 5, order=4), "order=4"),
        (lambda: samplers.dpm.plan(SCHEDULE, 5, order=3, sde=True), "order=3"),
        (lambda: samplers.dpm.plan(SCHEDULE, 5, expansion="euler"), "expansion='euler'"),
        (lambda: samplers.unipc.plan(SCHEDULE, 5, order=0), "order=0"),
        (lambda: samplers.unipc.plan(SCHEDULE, 5, variant="bh3"), "variant='bh3'"),
        (lambda: samplers.lms.plan(SCHEDULE, 5, order=9), "order=9"),
        (lambda: samplers.euler.plan(SCHEDULE, 5, sigma_spacing="beta"), "sigma_spacing='beta'"),
        (lambda: samplers.euler.plan(FLOW, 5), "euler runs on a Schedule"),
        (lambda: samplers.flow_euler.plan(SCHEDULE, 5), "flow_euler runs on a FlowSchedule"),
        (lambda: samplers.ddim.plan(SCHEDULE, 5, 0.0), "strength=0.0"),
        (lambda: samplers.ddim.plan(SCHEDULE, 5, 0.1), "less than one step"),
        (lambda: samplers.ddim.start(X, SCHEDULE, steps=5, strength=0.5), "image="),
        (lambda: samplers.ddim(lambda x, step: x[:1], X, SCHEDULE, steps=5), "keep the sample's shape"),
        (lambda: samplers.keys_of_seeds([-1]), "-1"),
        (lambda: samplers.keys_of_seeds([]), "seeds"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
