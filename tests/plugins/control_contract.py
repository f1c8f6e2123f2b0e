"""What every kind of control promises (`plugins/control/contract.py`), as tests that a kind's test class inherits.

A class gives `config`, the architecture for the tiny base of `tiny_base.py` (one level, 2 pixels per latent pixel).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import one_line
from tiny_base import diffusion_base, random, unet_config

from common.training.mesh import make_mesh
from plugins.control import ControlNetwork, contract, load, save
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.samplers import Step
from plugins.diffusion.steering import WITH, WITHOUT, Rows, _joined

BASE, UNIT = unet_config(4, 8), 2
APPLE = "a red apple"
QUICK: dict[str, Any] = {"steps": 4, "batch": 2, "seeds": [5, 6]}
PICTURES = np.random.default_rng(3).random((2, 16, 16, 3), np.float32)
ROUNDING = 1e-4


@functools.cache
def made(cls: type, config: Any) -> ControlNetwork:
    """With random parameters, those that start as zeros included."""
    return random(cls, config)


@functools.cache
def plain(guidance: float = 7.5) -> np.ndarray:
    """Two pictures without any control."""
    return diffusion_base()(APPLE, guidance=guidance, **QUICK)


@functools.cache
def known(cls: type, config: Any) -> np.ndarray:
    """The same with a control that sees the first picture."""
    return run(made(cls, config).on(PICTURES[0]))


def run(*controls: Any, **settings: Any) -> np.ndarray:
    return diffusion_base()(APPLE, controls=controls, **{**QUICK, **settings})


def difference(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def rows() -> Rows:
    """One call for two pictures, with guidance."""
    rng = np.random.default_rng(4)
    x, context = rng.standard_normal((2, 2, 8, 8, 4), np.float32), rng.standard_normal((2, 2, 16, 16), np.float32)
    step = Step(jnp.float32(500), jnp.int32(0), jnp.float32(0), jnp.float32(0.25))
    return Rows(jnp.asarray(x), jnp.asarray(context), (WITHOUT, WITH), step)


class ControlContract:
    cls: type[ControlNetwork]
    config: Any

    @pytest.fixture
    def network(self) -> ControlNetwork:
        return made(self.cls, self.config)

    @pytest.fixture
    def full(self) -> np.ndarray:
        """Two pictures with the control at full strength."""
        return known(self.cls, self.config)

    def added(self, network: ControlNetwork, call: Rows, calls: int = 1, **settings: Any) -> list[dict[str, Any]]:
        """What the UNet is given in each of `calls` calls of a run, by the control with these settings."""
        prompt_only, (start, end) = settings.pop("prompt_only", False), settings.pop("steps", (0.0, 1.0))
        control = network.on(PICTURES[0], **settings)
        graph, state = nnx.split(network)
        params = nnx.to_pure_dict(state)
        acts = contract.NetworkActs(graph, (WITH,) if prompt_only else (WITHOUT, WITH), (start, end) == (0.0, 1.0))
        gains = jnp.asarray([control.strength * level for level in control.levels], jnp.float32)

        @jax.jit
        def joined(params, x, context, step):
            call = Rows(x, context, (WITHOUT, WITH), step)
            encoded = nnx.merge(graph, params).encode(jnp.asarray(PICTURES[:1]))
            arrays = contract.Arrays(params, encoded, gains, jnp.float32(start), jnp.float32(end))
            return _joined([acts.effect(arrays, call)], call)

        steps = [
            Step(call.step.t, jnp.int32(i), jnp.float32(i / calls), jnp.float32((i + 1) / calls)) for i in range(calls)
        ]
        return [joined(params, call.x, call.context, step) for step in steps]

    def test_strength_0_is_as_if_it_were_not_there(self, network, full):
        """Bit for bit; levels of 0 as well. Half the strength is something else than all of it."""
        without, before = plain(), diffusion_base().compiled.denoise._cache_size()
        np.testing.assert_array_equal(run(network.on(PICTURES[0], strength=0.0)), without)
        np.testing.assert_array_equal(run(network.on(PICTURES[0], levels=[0.0] * network.places)), without)
        half = run(network.on(PICTURES[0], strength=0.5))
        assert diffusion_base().compiled.denoise._cache_size() == before, "strengths are no part of the program"
        assert difference(full, without) > 0.01 and difference(half, full) > 0.003 < difference(half, without)

    def test_it_acts_in_its_part_of_the_run_alone(self, network, full):
        inside = [
            max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(given)) > 0
            for given in self.added(network, rows(), calls=4, steps=(0.25, 0.75))
        ]
        assert inside == [False, True, True, False]
        np.testing.assert_array_equal(run(network.on(PICTURES[0], steps=(0.3, 0.4))), plain())  # less than a call
        whole = run(network.on(PICTURES[0], steps=(0.0, 1 - 1e-7)))
        assert difference(whole, full) < ROUNDING
        assert difference(run(network.on(PICTURES[0], steps=(0.0, 0.5))), full) > 0.001

    def test_on_the_prompt_alone_the_other_half_is_left_alone(self, network):
        (given,) = self.added(network, rows(), prompt_only=True)
        for tensor in jax.tree.leaves(given):
            by_row = tensor.reshape(2, 2, *tensor.shape[1:])
            assert not by_row[:, 0].any() and by_row[:, 1].any()
        # with guidance 0 the picture is that of the half without the prompt
        unguided = run(network.on(PICTURES[0], prompt_only=True), guidance=0.0)
        assert difference(unguided, plain(guidance=0.0)) < ROUNDING
        assert difference(run(network.on(PICTURES[0], prompt_only=True)), plain()) > 0.003

    def test_two_of_them_are_added(self, network):
        call, graph_params = rows(), nnx.split(network)
        graph, params = graph_params[0], nnx.to_pure_dict(graph_params[1])
        acts = contract.NetworkActs(graph, (WITHOUT, WITH), True), contract.NetworkActs(graph, (WITH,), True)
        gains = jnp.arange(1.0, network.places + 1)

        @jax.jit
        def given(params, x, context, step):
            call = Rows(x, context, (WITHOUT, WITH), step)
            encoded = [nnx.merge(graph, params).encode(jnp.asarray(PICTURES[i : i + 1])) for i in range(2)]
            effects = [
                act.effect(contract.Arrays(params, e, gains, jnp.float32(0), jnp.float32(1)), call)
                for act, e in zip(acts, encoded, strict=True)
            ]
            return [_joined(which, call) for which in (effects, effects[:1], effects[1:])]

        both, one, other = (jax.tree.leaves(tensors) for tensors in given(params, call.x, call.context, call.step))
        assert len(both) == network.places
        for total, a, b in zip(both, one, other, strict=True):
            np.testing.assert_allclose(total, a + b, atol=1e-5)
            assert difference(total, jnp.broadcast_to(a, total.shape)) > 1e-3

    def test_the_picture_is_looked_at_once(self, network, full, monkeypatch):
        """For all prompts, seeds, steps and both halves of guidance."""
        looked, control = [], network.on(PICTURES[0])
        encode = contract.encode
        monkeypatch.setattr(contract, "encode", lambda *given: looked.append(1) or encode(*given))
        np.testing.assert_array_equal(run(control), full)
        other = diffusion_base()("a blue car", controls=[control], steps=4, batch=2, seeds=[7, 8, 9])
        assert len(looked) == 1 and difference(other[:2], full) > 0.01

    def test_saved_and_read_again_it_makes_the_same(self, network, full, tmp_path):
        save(network, tmp_path)
        again = load(tmp_path)
        assert type(again) is type(network) and again.config == network.config
        np.testing.assert_array_equal(run(again.on(PICTURES[0])), full)

    def test_one_picture_each_is_as_one_at_a_time(self, network, full):
        each = run(network.on(PICTURES))
        other = run(network.on(PICTURES[1]))
        assert difference(each[0], full[0]) < ROUNDING and difference(each[1], other[1]) < ROUNDING
        assert difference(full[1], other[1]) > 0.003
        split = run(network.on(PICTURES), mesh=make_mesh())
        assert difference(split, each) < ROUNDING

    def test_mistakes_are_one_line(self, network):
        wide = UNetConfig(**{**vars(BASE), "block_out_channels": (16,)})
        count = network.places
        for make, message in (
            (lambda: network.on(PICTURES[0], strength=float("nan")), "strength=nan"),
            (lambda: network.on(PICTURES[0], levels=[1.0] * (count + 1)), f"levels has {count + 1} factors; this"),
            (lambda: network.on(PICTURES[0], steps=(0.5, 0.5)), r"steps=\(0.5, 0.5\) has to be a part of the run"),
            (lambda: network.on(PICTURES[0] * 255), "divide bytes by 255"),
            (lambda: run(network.on(PICTURES[:, :8]), height=16, width=16), "condition is 16x8, the image 16x16; res"),
            (lambda: run(network.on(PICTURES), seeds=[1, 2, 3]), "2 conditions for 3 images; give one for all, or"),
            (lambda: network.check(wide, UNIT), "the base"),
            (lambda: network.check(BASE, 8), "the base"),
        ):
            with pytest.raises(ValueError, match=message) as error:
                make()
            one_line(error)
