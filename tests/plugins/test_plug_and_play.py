"""Plug-and-Play: the right places, the right values in them, and a picture that comes back from its own noise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import one_line
from tiny_base import diffusion_base

from plugins.control.plug_and_play import PlugAndPlay, follow, inject
from plugins.diffusion import samplers
from plugins.diffusion.compiled import make_layout
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.pipeline import Run
from plugins.diffusion.request import make_request
from plugins.diffusion.samplers import Step
from plugins.diffusion.steering import SOURCE, WITH, WITHOUT, Rows, _joined

STEPS, INVERSION = 4, 8


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return np.random.default_rng(0).random((16, 16, 3), np.float32)


def states(*texts: str) -> jax.Array:
    base = diffusion_base()
    return jnp.concatenate(
        [
            base.compiled.encode_text(base.compiled.params()["text_encoder"], base.tokenizer(t, 16), skip=0)
            for t in texts
        ]
    )


def trajectory(picture: np.ndarray) -> np.ndarray:
    base = diffusion_base()
    params = base.compiled.params()
    latents = base.compiled.encode_image(params["vae"], jnp.asarray(picture[None]))
    settings = {"schedule": base.schedule, "inversion": INVERSION, "steps": STEPS}
    return np.asarray(follow(base.compiled.graphs["unet"], params["unet"], latents, states(""), **settings))


def test_the_places_are_the_releases():
    """output_blocks 4 and 4 to 11 of LDM, by diffusers' names: n is up_blocks[n // 3].{resnets, attentions}[n % 3]."""
    places = PlugAndPlay(np.zeros((8, 8, 3), np.float32)).places(UNetConfig.sd15())
    assert places[0].names == ("up_blocks.1.resnets.1",) and places[0].until == 0.8
    blocks = [f"up_blocks.{n // 3}.attentions.{n % 3}.transformer_blocks.0.attn1" for n in range(4, 12)]
    assert [place.names for place in places[1:]] == [(f"{block}.to_q", f"{block}.to_k") for block in blocks]
    assert {place.until for place in places[1:]} == {0.5}


def test_values_of_the_first_row_go_into_those_that_receive():
    value = jnp.arange(12.0).reshape(6, 2)  # two pictures of three rows
    mixed = inject(value, jnp.float32(1), np.array([False, False, True]))
    np.testing.assert_array_equal(mixed, value[jnp.array([0, 1, 0, 3, 4, 3])])
    half = inject(value, jnp.float32(0.5), np.array([False, True, True]))
    np.testing.assert_array_equal(half[1], (value[0] + value[1]) / 2)
    np.testing.assert_array_equal(inject(value, jnp.float32(0), np.array([False, True, True])), value)


def test_a_call_with_a_source_row_is_two_runs_of_the_network(picture):
    """Held against the plain way: run the source, keep its values, put them into a run of the sample."""
    base = diffusion_base()
    control = PlugAndPlay(picture, inversion=INVERSION)
    request = make_request(base.base, "a red apple", steps=STEPS, sampler="ddim", controls=[control])
    acts, arrays = control.prepare(
        Run(base, request, base.compiled.params(), make_layout(1, 16, 16, 2, None, None), None, None), np.array([0])
    )
    x = jax.random.normal(jax.random.key(1), (1, 8, 8, 4))
    source, context = jnp.asarray(trajectory(picture)[1]), states("", "a cat", "a red apple")
    step = Step(jnp.float32(500), jnp.int32(1), jnp.float32(0.25), jnp.float32(0.5))
    rows = Rows(jnp.stack([source, x, x], 1), context[None], (SOURCE, WITHOUT, WITH), step)
    together = base.unet(rows.x[0], step.t, context, **_joined([acts.effect(arrays, rows)], rows))

    seen = {}
    alone = base.unet(source, step.t, context[:1], tap=lambda name, value: seen.setdefault(name, value))
    names = {name for place in control.places(base.unet.config) for name in place.names}
    assert len(names) == 5 and names <= set(seen)

    def replaced(name, value):
        return jnp.broadcast_to(seen[name], value.shape) if name in names else value

    steered = base.unet(jnp.concatenate([x, x]), step.t, context[1:], tap=replaced)
    free = base.unet(jnp.concatenate([x, x]), step.t, context[1:])
    np.testing.assert_allclose(together, jnp.concatenate([alone, steered]), atol=2e-5)
    assert np.abs(steered - free).max() > 0.05


def test_with_its_own_prompt_the_picture_comes_back(picture):
    """The same noise, the same prompt, no guidance: the run is the one that was followed, replaced or not."""
    base, known = diffusion_base(), trajectory(picture)
    ends = base.compiled.decode(base.compiled.params()["vae"], jnp.asarray(known[-1]))
    for strength in (0.0, 1.0):
        control = PlugAndPlay(picture, inversion=INVERSION, strength=strength)
        same = base("", guidance=1, steps=STEPS, sampler="ddim", controls=[control], seeds=3)
        np.testing.assert_allclose(same, ends, atol=1e-4)
    other = base("a red apple", guidance=1, steps=STEPS, sampler="ddim", controls=[control])
    assert np.abs(other - same).max() > 0.005


def test_more_steps_of_inversion_lose_less():
    """On a network that is smooth in time, as the sampler's tests use it, DDIM's round trip gets better."""
    base = diffusion_base()
    graph, params = nnx.split(base.unet)
    x = 0.5 * jax.random.normal(jax.random.key(0), (1, 8, 8, 4))
    settings = {"schedule": base.schedule, "steps": 50}
    error = [
        float(jnp.abs(follow(graph, nnx.to_pure_dict(params), x, states(""), inversion=n, **settings)[-1] - x).mean())
        for n in (2, 50)
    ]
    assert error[1] < error[0] / 2


def test_thresholds_and_halves(picture):
    """Nothing replaced is strength 0; the half without the prompt can be left alone; each threshold counts."""
    base = diffusion_base()

    def run(**options):
        control = PlugAndPlay(picture, inversion=INVERSION, **options)
        return base("a red apple", steps=STEPS, sampler="ddim", controls=[control])

    nothing = run(strength=0.0)
    np.testing.assert_array_equal(run(features=0.0, attention=0.0), nothing)
    np.testing.assert_array_equal(run(levels=(0.0, 0.0, 0.0)), nothing)
    images = [nothing, run(), run(features=0.0), run(attention=0.0), run(prompt_only=True), run(steps=(0, 0.5))]
    for i, one in enumerate(images):
        assert all(np.abs(one - other).max() > 1e-3 for other in images[:i])


def test_one_inversion_serves_all_prompts(picture, monkeypatch):
    control, calls = PlugAndPlay(picture, inversion=INVERSION), []
    counted = lambda *args, **more: calls.append(1) or follow(*args, **more)  # noqa: E731
    monkeypatch.setattr("plugins.control.plug_and_play.follow", counted)
    base = diffusion_base()
    apart = [base(p, steps=STEPS, sampler="ddim", controls=[control], batch=2)[0] for p in ("a cat", "a red apple")]
    together = base(["a cat", "a red apple"], steps=STEPS, sampler="ddim", controls=[control], batch=2)
    np.testing.assert_allclose(together, apart, atol=1e-5)  # a row's place may decide how its sums are ordered
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 1.5}, "features=1.5 has to be a part of the run"),
        ({"inversion": 0}, "inversion=0 has to be a number of steps"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"levels": (1.0,)}, "levels has 1 factors; Plug-and-Play has 3 places"),
        ({"steps": (0.5, 0.5)}, "steps=(0.5, 0.5) has to be a part of the run"),
    ],
)
def test_settings_that_make_no_sense(picture, options, message):
    with pytest.raises(ValueError, match=r"\w") as error:
        diffusion_base()("a cat", steps=2, sampler="ddim", controls=[PlugAndPlay(picture, **options)])
    assert message in one_line(error)


def test_it_follows_ddim_and_starts_from_its_picture(picture):
    base, control = diffusion_base(), PlugAndPlay(picture)
    for message, more in {
        "follows DDIM, not euler": {"sampler": "euler"},
        "leave out the image": {"sampler": "ddim", "image": picture},
        "two controls": {"sampler": "ddim", "controls": [control, control]},
        "condition is 16x16, the image 8x8": {"sampler": "ddim", "width": 8, "height": 8},
    }.items():
        with pytest.raises(ValueError, match=r"\w") as error:
            base("a cat", steps=2, **({"controls": [control]} | more))
        assert message in one_line(error)
    drawn = dataclasses.replace(samplers.ddim, options=(("eta", 1.0),))
    with pytest.raises(ValueError, match="follows DDIM"):
        base("a cat", steps=2, sampler=drawn, controls=[control])
