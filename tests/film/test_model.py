"""The network against the reference program, and what must hold for any FILM."""

import dataclasses
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from recipe import DATA, STEP, config, manifest, model, pair, sampled, two_pairs
from toy import CONFIG, assert_same_parameters, parameters, toy

from common.losses import l1
from common.nn.init import blank
from common.training.optimizer import keras_adam
from common.weights.porting import flatten
from film.config import FilmConfig
from film.model import Film
from film.ops.resample import resize_bilinear
from film.porting import key_table
from film.training.initialization import initialize

IMAGE, FLOW = 2e-5, 1e-4  # the reference's own float32 noise is 3e-6 and 5e-6


def test_outputs_equal_the_reference():
    data, out = np.load(DATA / "tiny_128x192.npz"), model("tiny")(*map(jnp.asarray, pair(128, 192)))
    for name in ("image", "x0_warped", "x1_warped"):
        np.testing.assert_allclose(sampled(getattr(out, name)), data[name], atol=IMAGE)
    for direction in ("forward", "backward"):
        for level, flow in enumerate(getattr(out, f"{direction}_flow")):
            np.testing.assert_allclose(sampled(flow), data[f"{direction}_flow_pyramid_{level}"], atol=FLOW)


def test_a_batch_equals_the_reference():
    image = model("tiny")(*map(jnp.asarray, two_pairs())).image
    np.testing.assert_allclose(sampled(image), np.load(DATA / "tiny_batch2.npz")["image"], atol=IMAGE)


def test_flow_residuals_equal_the_reference():
    data, tiny = np.load(DATA / "tiny_128x192.npz"), model("tiny")

    @jax.jit
    def flow(*frames):
        (p0, e0), (p1, e1) = map(tiny.encode, frames)
        return tiny.flow([p0, *e0.packs, *e0.features], [p1, *e1.packs, *e1.features])

    flows = flow(*pair(128, 192))
    assert len(flows) == tiny.config.pyramid_levels
    for level, flow in enumerate(flows):
        residual = flow if level + 1 == len(flows) else flow - resize_bilinear(2 * flows[level + 1], flow.shape[1:3])
        np.testing.assert_allclose(sampled(residual), data[f"forward_residual_flow_pyramid_{level}"], atol=FLOW)


@pytest.mark.long
def test_three_adam_steps_equal_the_reference():
    data, tiny = np.load(DATA / "tiny_train_l1.npz"), model("tiny")
    x0, x1 = map(jnp.asarray, two_pairs())
    y = (x0 + x1) / 2 + 0.02 * np.random.RandomState(7).standard_normal(x0.shape).astype(np.float32)
    graphdef, params = nnx.split(tiny)
    params = nnx.to_pure_dict(params)
    tx = keras_adam(1e-4)

    def loss(params):
        return l1(nnx.merge(graphdef, params).forward(x0, x1, jnp.full((2, 1), 0.5)).image, y)

    @jax.jit
    def step(params, opt_state):
        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return value, grads, optax.apply_updates(params, updates), opt_state

    opt_state, losses, gradients = tx.init(params), [], None
    for _ in range(3):
        value, grads, params, opt_state = step(params, opt_state)
        gradients = gradients or grads
        losses.append(float(value))
    np.testing.assert_allclose(losses, data["losses"], rtol=1e-5)
    gradients, weights = flatten(gradients), flatten(params)
    for path, entry in key_table(tiny.config, "variables").items():
        reference = data[f"grad0/{entry.source}"]
        every = STEP if weights[path].size <= 1250 else STEP**2
        gradient, weight = (np.asarray(tree[path]).ravel()[::every] for tree in (gradients, weights))
        np.testing.assert_allclose(gradient, reference, atol=1e-4 * np.abs(reference).max(), rtol=1e-3)
        # Adam's first steps are lr * sign(gradient): where a gradient is rounding noise, the sign may differ.
        settled = np.abs(reference) > 1e-6
        np.testing.assert_allclose(weight[settled], data[f"after3/{entry.source}"][settled], atol=2e-6)


@pytest.mark.parametrize(("preset", "count"), [(FilmConfig.paper, 34_436_667), (FilmConfig.small, 2_300_346)])
def test_sizes_of_the_presets(preset, count):
    assert sum(leaf.size for leaf in jax.tree.leaves(blank(Film, preset())[1])) == count
    assert config("full") == FilmConfig.paper() and manifest("full")["parameters"] == 34_436_667


@pytest.mark.parametrize(("size", "fused"), [((13, 18), 2), ((3, 7), 2), ((1, 16), 2), ((3, 7), CONFIG.pyramid_levels)])
def test_any_size_runs_and_comes_back(size, fused):
    out = toy(dataclasses.replace(CONFIG, fusion_pyramid_levels=fused))(
        *jax.random.uniform(jax.random.key(0), (2, 1, *size, 3))
    )
    assert out.image.shape == out.x0_warped.shape == (1, *size, 3)
    assert out.forward_flow[0].shape == (1, *size, 2)
    assert jnp.isfinite(out.image).all()


def test_batches_swapped_frames_and_times():
    """A batch is its items; swapping the frames swaps the flows; each item is warped to its own time."""
    model, (x0, x1) = toy(), jax.random.uniform(jax.random.key(3), (2, 2, 16, 20, 3))
    together, swapped = model(x0, x1), model(x1, x0)
    apart = [model(x0[i : i + 1], x1[i : i + 1]).image for i in range(2)]
    np.testing.assert_allclose(together.image, jnp.concatenate(apart), atol=1e-5)
    np.testing.assert_allclose(together.forward_flow[0], swapped.backward_flow[0], atol=1e-4)
    np.testing.assert_allclose(together.x0_warped, swapped.x1_warped, atol=1e-5)
    ends = model(x0, x1, jnp.array([[0.0], [1.0]]))
    np.testing.assert_allclose(ends.x0_warped[0], x0[0], atol=1e-6)
    np.testing.assert_allclose(ends.x1_warped[1], x1[1], atol=1e-6)


@pytest.mark.parametrize("shapes", [((1, 8, 8, 3), (1, 8, 9, 3)), ((8, 8, 3), (8, 8, 3)), ((1, 8, 8, 1), (1, 8, 8, 1))])
def test_bad_shapes_are_refused(shapes):
    frames = [jnp.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=re.escape(str(shapes[0]))):
        inspect.unwrap(Film.__call__)(toy(), *frames)  # without the checked signature, which would raise first


def test_a_time_for_each_pair_is_a_column():
    frames = jnp.zeros((2, 8, 8, 3))
    with pytest.raises(ValueError, match=r"\(2,\).*\(2, 1\)"):
        inspect.unwrap(Film.__call__)(toy(), frames, frames, np.array([0.25, 0.5]))


@pytest.mark.parametrize("filters", [1, 3])
def test_a_narrow_network_has_an_initialisation(filters):
    """The image's three colours cannot pass through fewer channels: then it stays random."""
    narrow = FilmConfig(3, 2, 1, 2, (1, 1), (8, 8), filters)
    if filters < 3:
        assert_same_parameters(initialize(toy(narrow)), toy(narrow))
    else:
        values = parameters(initialize(toy(narrow)))
        assert all(np.isfinite(value).all() for value in values.values())
        np.testing.assert_array_equal(values["extractor.convs.0.kernel"][1, 1], np.eye(3))
