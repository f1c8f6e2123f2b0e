"""The contract of all control networks (`plugins/control/contract.py`), in runs of a tiny base of one level."""

import gc
import re
import weakref
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from tiny_base import diffusion_base, random, unet_config

from common.training.mesh import make_mesh
from plugins.control import ControlNet, ControlNetwork, MediaPipePlugin, T2IAdapter, contract
from plugins.diffusion.compiled import denoise
from plugins.diffusion.networks.unet_config import UNetConfig

BASE, REDUCTION = unet_config(4, 8), 2  # pixels per latent pixel
IMAGES = np.random.default_rng(3).random((2, 16, 16, 3), np.float32)
ROUNDING = 1e-4


def run(*controls: Any, prompt: str = "a red apple", **settings: Any) -> np.ndarray:
    return diffusion_base()(prompt, controls=controls, **{"steps": 4, "batch": 2, "seeds": [5, 6], **settings})


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return run()


@pytest.fixture(scope="module", params=[MediaPipePlugin, T2IAdapter, ControlNet], ids=lambda cls: cls.__name__)
def network(request) -> ControlNetwork:
    """With random parameters, those that start at zero included."""
    return random(request.param, request.param.config_class.for_unet(BASE, REDUCTION))


@pytest.fixture(scope="module")
def full(network) -> np.ndarray:
    """The same two images with the control at full strength."""
    return run(network.on(IMAGES[0]))


@pytest.mark.long
def test_strength_0_changes_nothing_and_no_strength_compiles(network, full, plain):
    before = denoise._cache_size()
    np.testing.assert_array_equal(run(network.on(IMAGES[0], strength=0.0)), plain)
    np.testing.assert_array_equal(run(network.on(IMAGES[0], levels=[0.0] * network.num_outputs)), plain)
    half = run(network.on(IMAGES[0], strength=0.5))
    assert denoise._cache_size() == before
    assert difference(full, plain) > 0.01 and difference(half, full) > 0.003 < difference(half, plain)


@pytest.mark.slow
def test_outside_of_its_steps_every_bit_is_the_same(network, plain):
    """As a user's programs are compiled; those of the quick tests round in another order."""
    np.testing.assert_array_equal(run(network.on(IMAGES[0], steps=(0.3, 0.4))), plain)


@pytest.mark.long
def test_it_is_applied_in_its_steps_only(network, full, plain):
    """A call that begins inside of the interval is controlled: of four calls (0.3, 0.4) holds none."""
    assert difference(run(network.on(IMAGES[0], steps=(0.3, 0.4))), plain) < 1e-5
    assert difference(run(network.on(IMAGES[0], steps=(0.0, 1 - 1e-7))), full) < ROUNDING
    halves = [run(network.on(IMAGES[0], steps=steps)) for steps in ((0.0, 0.5), (0.5, 1.0))]
    assert min(difference(half, other) for half in halves for other in (full, plain)) > 0.001


@pytest.mark.long
def test_guess_mode_leaves_the_unconditional_half_alone(network, plain):
    """With guidance 0 the output is the unconditional half's."""
    control = network.on(IMAGES[0], prompt_only=True)
    assert difference(run(control, guidance=0.0), run(guidance=0.0)) < ROUNDING
    assert difference(run(control), plain) > 0.003


@pytest.mark.long
def test_outputs_of_two_controls_are_added(network, full):
    halves = [network.on(IMAGES[0], strength=0.5) for _ in range(2)]
    assert difference(run(*halves), full) < ROUNDING
    assert difference(run(halves[0], network.on(IMAGES[1], strength=0.5)), full) > 0.001


def test_the_condition_is_encoded_once(network, full, monkeypatch):
    """For all prompts, seeds, steps and both halves of guidance."""
    calls, control, encode = [], network.on(IMAGES[0]), contract.encode
    monkeypatch.setattr(contract, "encode", lambda *args: calls.append(1) or encode(*args))
    np.testing.assert_array_equal(run(control), full)
    assert difference(run(control, prompt="a blue car", seeds=[7, 8, 9])[:2], full) > 0.01
    assert len(calls) == 1


def test_the_pipeline_keeps_parameters_while_their_network_lives():
    """A training makes a new network for each of its sheets and scores."""
    placed, compiled = [], diffusion_base().compiled
    for dtype in (None, "bfloat16"):
        network = random(MediaPipePlugin, MediaPipePlugin.config_class.for_unet(BASE, REDUCTION))
        parameters = jax.tree.leaves(nnx.state(network)) + jax.tree.leaves(compiled.control(network, dtype, None)[1])
        assert compiled.control(network, dtype, None)[1] is compiled.control(network, dtype, None)[1]
        placed += [weakref.ref(leaf) for leaf in parameters]
        del network, parameters
    gc.collect()
    assert len(placed) > 10 and not any(ref() is not None for ref in placed)


@pytest.mark.long
def test_conditions_of_each_image_on_any_number_of_devices(network, full):
    each, other = run(network.on(IMAGES)), run(network.on(IMAGES[1]))
    assert difference(each[0], full[0]) < ROUNDING and difference(each[1], other[1]) < ROUNDING
    assert difference(full[1], other[1]) > 0.003
    assert difference(run(network.on(IMAGES), mesh=make_mesh()), each) < ROUNDING


def test_errors_name_the_value(network):
    wide, count = UNetConfig(**{**vars(BASE), "block_out_channels": (16,)}), network.num_outputs
    image = IMAGES[0]
    for call, value in (
        (lambda: network.on(image, strength=float("nan")), "strength=nan"),
        (lambda: network.on(image, levels=[1.0] * (count + 1)), f"{count + 1} .*{count}"),
        (lambda: network.on(image, steps=(0.5, 0.5)), "steps="),
        (lambda: network.on(image, steps=(0.0, 0.3, 1.0)), "steps="),
        (lambda: network.on(image * 255), r"\[0, 1\]"),
        (lambda: run(network.on(IMAGES[:, :8]), height=16, width=16), "16x8.*16x16"),
        (lambda: run(network.on(IMAGES), seeds=[1, 2, 3]), "2 .*3"),
        (lambda: network.check(wide, REDUCTION), "16"),
        (lambda: network.check(BASE, 8), "8"),
    ):
        refused(ValueError, call, match=value)


REFUSED = {
    ControlNet: (
        {"conditioning_embedding_out_channels": ()},
        {"controlnet_conditioning_channel_order": "gbr"},
        {"down_block_types": ("X",) * 4},
        {"_class_name": "UNet2DConditionModel"},
        {"conditioning_channels": 1},
        {"addition_embed_type": "text_time"},
    ),
    T2IAdapter: (
        {"in_channels": 4},
        {"channels": ()},
        {"adapter_type": "style"},
        {"channels": (6, 6), "adapter_type": "light_adapter"},
        {"channels": (8, 8, 8, 4), "adapter_type": "full_adapter_xl"},
        {"_class_name": "ControlNetModel"},
    ),
    MediaPipePlugin: ({"reduction": 6}, {"approach": ()}, {"depths": (1, 1)}, {"groups": 5}, {"expansion": 0}),
}


@pytest.mark.parametrize(("cls", "fields"), [(cls, fields) for cls in REFUSED for fields in REFUSED[cls]])
def test_architectures_that_are_refused(cls, fields):
    config, (key, value) = cls.config_class, next(iter(fields.items()))
    with pytest.raises(ValueError, match=re.escape(key) + ".*" + re.escape(repr(value))):
        config.from_json(fields)
