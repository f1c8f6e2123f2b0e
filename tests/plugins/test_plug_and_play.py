"""Plug-and-Play: the right layers, the right values in them, and an image that comes back from its own noise."""

import dataclasses
from typing import Any

import families
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from tiny_base import diffusion_base

from common.training.mesh import make_mesh
from plugins.control import plug_and_play
from plugins.control.plug_and_play import PlugAndPlay, inject, reconstruct
from plugins.diffusion import samplers
from plugins.diffusion.compiled import make_layout
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.pipeline import Pipeline, Run, load
from plugins.diffusion.request import make_request
from plugins.diffusion.samplers import Step
from plugins.diffusion.steering import COND, SOURCE, UNCOND, Conditioning, Rows, _joined

STEPS, INVERSION = 4, 8
IMAGE = np.random.default_rng(0).random((16, 16, 3), np.float32)


def run(prompt="a red apple", **options) -> np.ndarray:
    """With a control of these options; a call's own options are `guidance`, `seeds` and `batch`."""
    call = {name: options.pop(name) for name in ("guidance", "seeds", "batch") if name in options}
    control = PlugAndPlay(IMAGE, inversion=INVERSION, **options)
    return diffusion_base()(prompt, steps=STEPS, sampler="ddim", controls=[control], **call)


def plan_of(control: PlugAndPlay, base: Pipeline | None = None, mesh: Mesh | None = None, **options) -> Run:
    """A run of the base with this control."""
    base = base or diffusion_base()
    settings = {"steps": STEPS, "sampler": "ddim", "controls": [control], **options}
    request = make_request(base.base, "a red apple", **settings)
    count, tile = len(request.seeds), options.get("tile")
    layout = make_layout(count, request.height, request.width, 2, None, mesh, tile)
    return Run(base, request, base.compiled.params(None, mesh), layout, None, mesh)


@pytest.fixture(scope="module")
def trajectory() -> jax.Array:
    """Of the image: its latents before each step and after the last."""
    control = PlugAndPlay(IMAGE, inversion=INVERSION)
    return control.prepare(plan_of(control), np.array([0]))[1].trajectory


def test_the_layers_are_the_releases():
    """output_blocks 4 and 4 to 11 of LDM, by diffusers' names: n is up_blocks[n // 3].{resnets, attentions}[n % 3]."""
    layers = PlugAndPlay(np.zeros((8, 8, 3), np.float32)).injection_layers(UNetConfig.sd15())
    assert layers[0] == (("up_blocks.1.resnets.1.conv2",), 0.8)
    blocks = [f"up_blocks.{n // 3}.attentions.{n % 3}.transformer_blocks.0.attn1" for n in range(4, 12)]
    assert layers[1:] == [((f"{block}.to_q", f"{block}.to_k"), 0.5) for block in blocks]


def test_the_first_row_is_injected_into_the_targets():
    value = jnp.arange(12.0).reshape(6, 2)  # two images of three rows
    mixed = inject(value, jnp.float32(1), np.array([False, False, True]))
    np.testing.assert_array_equal(mixed, value[jnp.array([0, 1, 0, 3, 4, 3])])
    both = np.array([False, True, True])
    np.testing.assert_array_equal(inject(value, jnp.float32(0.5), both)[1], (value[0] + value[1]) / 2)
    np.testing.assert_array_equal(inject(value, jnp.float32(0), both), value)


@pytest.mark.long
def test_a_call_with_a_source_row_is_two_runs_of_the_network(trajectory):
    """The same by hand: run the source, keep its values, put them into a run of the sample."""
    base, control = diffusion_base(), PlugAndPlay(IMAGE, inversion=INVERSION)
    run = plan_of(control)
    static, arrays = control.prepare(run, np.array([0]))
    x = jax.random.normal(jax.random.key(1), (1, 8, 8, 4))
    source, context = trajectory[1], run.conditioning(["", "a cat", "a red apple"]).context
    step = Step(jnp.float32(500), jnp.int32(1), jnp.float32(0.25), jnp.float32(0.5))
    rows = Rows(jnp.stack([source, x, x], 1), Conditioning(context[None]), (SOURCE, UNCOND, COND), step)

    def call(x, context, tap=lambda name, value: value):
        """The output, and all values that a tap sees."""

        @jax.jit
        def traced(x, context):
            seen = {}
            return base.unet(x, step.t, context, tap=lambda name, value: seen.setdefault(name, tap(name, value))), seen

        return traced(x, context)

    together, _ = call(rows.x[0], context, **_joined([static.effect(arrays, rows)], rows))
    free, seen = call(rows.x[0], context)
    names = {name for layer in control.injection_layers(base.unet.config) for name in layer.names}
    assert len(names) == 5 and names <= set(seen)
    replace = lambda name, value: jnp.broadcast_to(seen[name][:1], value.shape) if name in names else value  # noqa: E731
    replaced, injected = call(rows.x[0, 1:], context[1:], replace)
    np.testing.assert_allclose(together, jnp.concatenate([free[:1], replaced]), atol=2e-5)
    assert np.abs(replaced - free[1:]).max() > 0.05
    block = control.injection_layers(base.unet.config)[0].names[0].removesuffix(".conv2")  # its input is the row's own
    shortcut = injected[block] - injected[f"{block}.conv2"]
    np.testing.assert_allclose(shortcut, (seen[block] - seen[f"{block}.conv2"])[1:], atol=2e-5)
    assert np.abs(shortcut - (seen[block] - seen[f"{block}.conv2"])[:1]).max() > 0.05


@pytest.mark.long
def test_with_its_own_prompt_the_image_comes_back(trajectory):
    """The same noise, the same prompt, no guidance: the run is the reconstruction, with injection or without."""
    base = diffusion_base()
    end = base.compiled.decode(base.compiled.params()["vae"], trajectory[-1])
    for strength in (0.0, 1.0):
        np.testing.assert_allclose(run("", guidance=1, strength=strength, seeds=3), end, atol=1e-4)
    assert np.abs(run(guidance=1) - end).max() > 0.005


def test_every_setting_counts():
    nothing = run(strength=0.0)
    np.testing.assert_array_equal(run(features=0.0, attention=0.0), nothing)
    np.testing.assert_array_equal(run(levels=(0.0, 0.0, 0.0)), nothing)
    images = [nothing, run(), run(features=0.0), run(attention=0.0), run(prompt_only=True), run(steps=(0, 0.5))]
    for i, image in enumerate(images):
        assert all(np.abs(image - other).max() > 1e-3 for other in images[:i])


def test_one_inversion_serves_all_prompts(monkeypatch):
    control, calls = PlugAndPlay(IMAGE, inversion=INVERSION), []
    counted = lambda *args, **settings: calls.append(1) or reconstruct(*args, **settings)  # noqa: E731
    monkeypatch.setattr(plug_and_play, "reconstruct", counted)
    settings = {"steps": STEPS, "sampler": "ddim", "controls": [control], "batch": 2}
    prompts = ["a cat", "a red apple"]
    apart = [diffusion_base()(prompt, **settings)[0] for prompt in prompts]
    np.testing.assert_allclose(diffusion_base()(prompts, **settings), apart, atol=1e-5)  # rounding of sums
    assert len(calls) == 1


@pytest.mark.long
def test_progress_counts_the_inversion():
    """Once for all batches, and not again when it is cached."""
    control, base = PlugAndPlay(IMAGE, inversion=INVERSION), diffusion_base()
    for before in (INVERSION + STEPS, 0):
        seen: list[tuple[int, int]] = []
        report = lambda *done, seen=seen: seen.append(done)  # noqa: E731
        settings = {"steps": STEPS, "sampler": "ddim", "controls": [control], "seeds": [1, 2], "batch": 1}
        base("a red apple", progress=report, **settings)
        total = before + 2 * STEPS
        assert seen[-1] == (total, total) and seen == sorted(seen) and {all_of for _, all_of in seen} == {total}
        assert any(0 < done < INVERSION for done, _ in seen)


@pytest.mark.long
def test_each_device_inverts_its_own_images():
    pictures = np.stack([IMAGE, IMAGE[::-1]])
    found = []
    for mesh in (None, make_mesh()):
        control = PlugAndPlay(pictures, inversion=INVERSION)
        found.append(control.prepare(plan_of(control, mesh=mesh, seeds=[1, 2]), np.arange(2))[1].trajectory)
    np.testing.assert_allclose(*found, atol=1e-4)
    assert {shard.data.shape[1] for shard in found[1].addressable_shards} == {1}


def test_a_large_image_is_inverted_from_tiles(monkeypatch):
    control, sides = PlugAndPlay(np.tile(IMAGE, (6, 6, 1)), inversion=INVERSION), []
    compiled, encode = diffusion_base().compiled, diffusion_base().compiled.encode_image
    monkeypatch.setattr(compiled, "encode_image", lambda params, x: sides.append(x.shape) or encode(params, x))
    monkeypatch.setattr(plug_and_play, "reconstruct", lambda graph, params, latents, empty, **_: latents[None])
    (latents,) = control.prepare(plan_of(control, tile=72), np.array([0]))[1].trajectory
    assert latents.shape == (1, 48, 48, 4) and set(sides) == {(1, 72, 72, 3)} and len(sides) == 4


@pytest.mark.long
@pytest.mark.parametrize("family", ["sdxl", "sdxl_refiner"])
def test_an_inversion_is_cached_for_what_sdxl_reads(family, monkeypatch):
    """Its sizes enter the inversion; the refiner has no first text encoder."""
    control, base, seen = PlugAndPlay(IMAGE, inversion=INVERSION), load(families.folder(family)), []
    invert = lambda graph, params, latents, empty, **_: seen.append(empty.sizes) or latents[None]  # noqa: E731
    monkeypatch.setattr(plug_and_play, "reconstruct", invert)
    calls: list[dict[str, Any]] = [{}, {"crop": (8, 0)}, {"original": (32, 32)}, {}]
    for options in calls:
        control.prepare(plan_of(control, base, **options), np.array([0]))
    assert [tuple(sizes[0, :4].tolist()) for sizes in seen] == [(16, 16, 0, 0), (16, 16, 8, 0), (32, 32, 0, 0)]


def test_the_source_runs_with_the_sampler_of_the_request(monkeypatch):
    control, seen = PlugAndPlay(IMAGE, inversion=INVERSION), []
    invert = lambda graph, params, latents, empty, *, sampler, **_: seen.append(sampler) or latents[None]  # noqa: E731
    monkeypatch.setattr(plug_and_play, "reconstruct", invert)
    next_one = samplers.ddim.with_options(landing="next")
    for sampler in (samplers.ddim, next_one, samplers.ddim):
        control.prepare(plan_of(control, sampler=sampler), np.array([0]))
    assert seen == [samplers.ddim, next_one]


@pytest.mark.parametrize(("options", "call", "value"), [
    ({"features": 1.5}, {}, "features is 1.5"),
    ({"inversion": 0}, {}, "inversion is 0"),
    ({"strength": float("nan")}, {}, "strength is nan"),
    ({"levels": (1.0,)}, {}, "1 .*3"),
    ({}, {"sampler": "euler"}, "euler"),
    ({}, {"sampler": dataclasses.replace(samplers.ddim, options=(("eta", 1.0),))}, "eta"),
    ({}, {"image": IMAGE}, "initial image"),
    ({}, {"controls": [PlugAndPlay(IMAGE)] * 2}, "two controls"),
    ({}, {"width": 8, "height": 8}, "16x16.*8x8"),
])  # fmt: skip
def test_errors_name_the_value(options, call, value):
    with pytest.raises(ValueError, match=value):
        call = {"steps": 2, "sampler": "ddim", "controls": [PlugAndPlay(IMAGE, **options)], **call}
        make_request(diffusion_base().base, "a cat", **call)
