"""Optimisers against PyTorch, Keras and the papers' formulas; which parameters they move; learning rates.

The golden numbers come from `problem` below: parameters cos(i), the gradient of step t is sin(i t) / 1000 + 1e-4, three
steps. `torch.optim.AdamW(lr=0.1, weight_decay=0.5)` of PyTorch 2.15, `keras.optimizers.Adam(0.1)` of Keras 3.15 with
the gradient a thousand times smaller.
"""

import dataclasses
import math
import re
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusal import refused

from common.training.optimizer import OptimConfig, Optimizer, make_optimizer, make_schedule, parameter_paths

BIG = (128, 130)  # optax factors from 128 on


def problem(shape, steps=3, scale=1.0):
    """(parameters, gradients by step)."""
    i = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    grads = [np.float32(scale * (1e-3 * np.sin(i * t) + 1e-4)) for t in range(1, steps + 1)]
    return np.float32(np.cos(i)), grads


def move(config: OptimConfig, params, grads, steps=100):
    """Parameters and optimiser state after a step for each of `grads`."""
    tx = make_optimizer(config, steps)
    state, update = tx.init(params), jax.jit(tx.update)
    for grad in grads:
        updates, state = update(grad, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize(("config", "scale", "expected"), [
    (OptimConfig(lr=0.1), 1e-3, [
        [0.9874647259712219, 0.46017223596572876, -0.4453144669532776],
        [-1.0071704387664795, -0.644974946975708, 0.3319830894470215],
    ]),
    (OptimConfig("adamw", lr=0.1, weight_decay=0.5), 1.0, [
        [0.5721535086631775, 0.19064143300056458, -0.46428412199020386],
        [-1.0066306591033936, -0.4984242916107178, 0.44049036502838135],
    ]),
])  # fmt: skip
def test_adam_is_keras_and_adamw_is_pytorchs(config, scale, expected):
    params, grads = problem((2, 3), scale=scale)
    np.testing.assert_allclose(move(config, params, grads)[0], expected, rtol=1e-5, atol=5e-6)


def algorithm_4(x, grads, rho, d, relative):
    """Adafactor for a matrix, line by line as in the paper, in float64."""
    x, r, c = np.float64(x), np.zeros(x.shape[0]), np.zeros(x.shape[1])
    for t, g in enumerate(np.float64(grads), 1):
        alpha = (max(1e-3, np.sqrt(np.mean(x**2))) if relative else 1.0) * rho
        beta = 1 - t**-0.8
        r = beta * r + (1 - beta) * (g**2 + 1e-30).sum(axis=1)
        c = beta * c + (1 - beta) * (g**2 + 1e-30).sum(axis=0)
        u = g / np.sqrt(np.outer(r, c) / r.sum())
        x = x - alpha * u / max(1.0, np.sqrt(np.mean(u**2)) / d)
    return x


@pytest.mark.parametrize(("fields", "d", "relative"), [
    ({}, 1.0, True),
    ({"update_clip": 0.5}, 0.5, True),
    ({"update_clip": 0.0, "parameter_scale": False}, 1e9, False),
])  # fmt: skip
def test_adafactor_is_the_papers(fields, d, relative):
    params, grads = problem(BIG, steps=5)
    grads[2] *= 30  # an update that is clipped
    moved, state = move(OptimConfig("adafactor", lr=0.01, **fields), params, grads)
    expected = algorithm_4(params, grads, 0.01, d, relative)
    np.testing.assert_allclose(moved - params, expected - params, rtol=1e-3, atol=1e-5)
    assert sum(x.size for x in jax.tree.leaves(state)) < 2 * sum(BIG)  # rows and columns, no matrix


def test_adafactors_momentum_averages_its_updates():
    params, grads = problem(BIG, steps=1)
    plain, heavy = (move(OptimConfig("adafactor", lr=0.01, momentum=m), params, grads)[0] for m in (None, 0.9))
    np.testing.assert_allclose(heavy - params, 0.1 * (plain - params), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_first_moments_may_be_bfloat16(name):
    params, grads = {"kernel": problem((4, 6))[0]}, [{"kernel": g} for g in problem((4, 6))[1]]
    config = OptimConfig(name, lr=0.01, momentum=0.9)
    full, _ = move(config, params, grads)
    half, state = move(dataclasses.replace(config, momentum_dtype="bfloat16"), params, grads)
    assert [x.shape for x in jax.tree.leaves(state) if x.dtype == jnp.bfloat16] == [(4, 6)]
    step = np.asarray(full["kernel"] - params["kernel"])
    np.testing.assert_allclose(half["kernel"] - params["kernel"], step, atol=0.05 * np.abs(step).max())
    assert not np.array_equal(half["kernel"], full["kernel"])


def network():
    """Parameters and gradients by step of a small network with int keys, stacked biases and a norm."""
    shapes = {
        "encoder": {"convs": {0: {"kernel": (3, 3, 4, 6), "bias": (6,)}, 1: {"kernel": (6, 5), "bias": (5,)}}},
        "head": {"kernel": (5, 8), "bias": (8,), "biases": (2, 8)},
        "norm": {"scale": (8,)},
    }
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    problems = [problem(shape, steps=2) for shape in leaves]
    params = jax.tree.unflatten(tree, [x for x, _ in problems])
    return params, [jax.tree.unflatten(tree, [g[t] for _, g in problems]) for t in range(2)]


def flat(tree):
    return dict(zip(jax.tree.leaves(parameter_paths(tree)), map(np.asarray, jax.tree.leaves(tree)), strict=True))


def test_a_multiplier_scales_the_update_exactly():
    """Weight decay too, and the first expression found decides. Powers of two: no rounding hides an error."""
    params, grads = network()
    plain = OptimConfig("adamw", lr=0.1, clip=1e-3, weight_decay=0.5)
    factors = dataclasses.replace(plain, multipliers=[["^encoder/.*bias", 2], ["^encoder", 0.5], ["scale$", 0.25]])
    updates = []
    for config in (plain, factors):
        tx = make_optimizer(config, 100)
        updates.append(flat(jax.jit(tx.update)(grads[0], tx.init(params), params)[0]))
    for path, update in updates[0].items():
        bias, encoder = path.endswith("bias"), path.startswith("encoder")
        factor = (2 if bias else 0.5) if encoder else 0.25 if path == "norm/scale" else 1
        np.testing.assert_array_equal(updates[1][path], update * np.float32(factor), err_msg=path)
        assert np.abs(update).max() > 0


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_frozen_parameters_keep_every_bit_and_the_rest_trains_as_if_alone(name):
    """The clipped norm does not count their gradients, and there is no state of them."""
    params, grads = network()
    grads[0]["encoder"]["convs"][0]["kernel"] *= 1e6
    grads[1]["encoder"]["convs"][0]["kernel"][0, 0, 0, 0] = np.nan
    decay = 0.0 if name == "adam" else 0.1
    config = OptimConfig(name, lr=0.1, clip=1e-3, weight_decay=decay, momentum=0.9, multipliers=[["^encoder/", 0]])
    moved, state = move(config, params, grads)
    rest = [{part: x for part, x in tree.items() if part != "encoder"} for tree in (params, *grads)]
    alone, without = move(dataclasses.replace(config, multipliers=[]), rest[0], rest[1:])
    expected = flat({"encoder": params["encoder"]}) | flat(alone)
    assert {path: x.tobytes() for path, x in flat(moved).items()} == {k: x.tobytes() for k, x in expected.items()}
    assert sorted(x.shape for x in jax.tree.leaves(state)) == sorted(x.shape for x in jax.tree.leaves(without))


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_decay_takes_lr_times_its_part_of_kernels_only(name):
    params, grads = network()
    nothing = [jax.tree.map(np.zeros_like, grads[0])]
    moved, _ = move(OptimConfig(name, lr=0.1, weight_decay=0.5, no_decay=["biases$"]), params, nothing)
    for path, x in flat(params).items():
        expected = 0.95 * x if path.endswith("kernel") else x
        np.testing.assert_allclose(flat(moved)[path], expected, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize(("fields", "value"), [
    ({"multipliers": [["nosuch/", 0.5]]}, r"'nosuch/'.* encoder/convs/0/bias"),
    ({"no_decay": ["gamma"]}, "no_decay: 'gamma'"),
    ({"multipliers": [[".*", 0.5], ["^head", 0.1]]}, r"'\^head'"),
    ({"multipliers": [[".*", 0]]}, r"optim\.multipliers"),
])  # fmt: skip
def test_expressions_that_decide_nothing_are_refused(fields, value):
    tx = make_optimizer(OptimConfig("adamw", **fields), 10)
    assert re.search(value, refused(ValueError, tx.init, network()[0]))


def test_clipping_bounds_the_gradients_norm():
    small, large = (np.array([s, 1e-8], np.float32) for s in (0.5, 500.0))
    steps = [abs(move(OptimConfig(lr=0.1, clip=1.0), np.zeros(2, np.float32), [g])[0][1]) for g in (small, large)]
    assert steps[1] < 0.1 * steps[0]  # 1e-8 was shrunk with the rest, towards Adam's epsilon


def test_muon_moves_all_directions_alike_and_leaves_biases_to_adam():
    kernel = jax.random.normal(jax.random.key(0), (3, 3, 4, 6)) + 5.0  # one direction outweighs all others
    grads = {"kernel": kernel, "bias": jnp.array([3.0, -0.001])}
    updates, _ = move(OptimConfig("muon", lr=0.1), jax.tree.map(jnp.zeros_like, grads), [grads])
    before, after = (np.linalg.svd(np.asarray(x["kernel"]).reshape(36, 6), compute_uv=False) for x in (grads, updates))
    assert before.min() < 0.1 * before.max() and after.min() > 0.4 * after.max()
    step = np.asarray(updates["bias"]) / -np.sign(grads["bias"])  # Adam's, by optax with Nesterov's look ahead
    assert step.min() == pytest.approx(step.max(), rel=0.01) and 0.5 < step.max() / (0.05 * 0.1) < 2


@pytest.mark.parametrize(("fields", "values"), [
    ({}, {0: 0.1, 50: 0.1, 10**7: 0.1}),
    ({"warmup": 10}, {0: 0.0, 5: 0.05, 10: 0.1, 60: 0.1}),
    ({"schedule": "staircase"}, {0: 0.1, 749_999: 0.1, 750_000: 0.0464158, 2_250_000: 0.01}),  # FILM's
    ({"schedule": "staircase", "decay_every": 10, "decay_rate": 0.5}, {0: 0.1, 9: 0.1, 10: 0.05, 20: 0.025}),
    ({"schedule": "cosine", "final_lr": 0.1}, {0: 0.1, 50: 0.055, 100: 0.01, 200: 0.01}),
    ({"schedule": "cosine", "warmup": 20}, {10: 0.05, 20: 0.1, 60: 0.05, 100: 0.0}),
    ({"schedule": "linear", "final_lr": 0.5}, {0: 0.1, 50: 0.075, 100: 0.05, 200: 0.05}),
    ({"schedule": "rsqrt", "timescale": 30, "warmup": 10}, {0: 0.0, 5: 0.05, 10: 0.1, 100: 0.05}),
    ({"schedule": "rsqrt", "timescale": 25, "warmup": 25}, {25: 0.1, 64: 0.0625, 100: 0.05}),  # T5: sqrt(25 / step)
    ({"schedule": "rsqrt", "timescale": 20, "cooldown": 50}, {0: 0.1, 50: 0.1 / 3.5**0.5, 60: 0.04, 100: 0.0}),
    ({"warmup": 50, "cooldown": 50}, {25: 0.05, 50: 0.1, 75: 0.05, 100: 0.0, 150: 0.0}),
])  # fmt: skip
def test_learning_rates(fields, values):
    schedule = make_schedule(OptimConfig(lr=0.1, **fields), 100)
    for step, value in values.items():
        assert float(schedule(step)) == pytest.approx(value, abs=1e-7)
        assert float(jax.jit(schedule)(jnp.int32(step))) == pytest.approx(value, abs=1e-7)


def test_a_run_too_short_for_its_schedule_is_refused():
    for fields in ({"schedule": "cosine", "warmup": 10}, {"schedule": "linear", "warmup": 11}, {"cooldown": 11}):
        assert "10 steps" in refused(ValueError, make_optimizer, OptimConfig(**fields), 10)
        make_optimizer(OptimConfig(**fields), 12)
