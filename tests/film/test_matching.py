"""Global matching: matches, candidates and the choice, and its place in the network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from toy import DIRECT, toy

from film import matching
from film.io.weights import load, save_model
from film.matching import KEY, Matcher, match, neighbours, unit
from film.model import FilmConfig

CONFIG = FilmConfig(5, 5, 1, 2, (1, 1), (8, 8), 8, bilateral=True, blend=True, matching=True)
SCALE = jnp.array([20.0])


@pytest.fixture(scope="module")
def network():
    return toy(CONFIG, seed=2)


def moved_keys(x: int, y: int, size: tuple[int, int] = (10, 12)) -> tuple[jax.Array, jax.Array]:
    """Random keys of a frame, and of one in which all of it is so many cells further."""
    width, height = abs(x), abs(y)
    keys = unit(jax.random.normal(jax.random.key(0), (1, size[0] + 2 * height, size[1] + 2 * width, KEY)))

    def window(x: int, y: int) -> jax.Array:
        return keys[:, height + y : height + y + size[0], width + x : width + x + size[1]]

    return window(0, 0), window(-x, -y)


def test_matches_are_the_way_to_the_same_key_and_certain():
    first, second = moved_keys(3, -2)
    flow, certainty = match(first, second, SCALE)
    np.testing.assert_allclose(flow[0, 2:, :-3], np.broadcast_to([3, -2], (8, 9, 2)), atol=1e-3)
    np.testing.assert_allclose(certainty[0, 2:, :-3], 0, atol=1e-3)
    assert certainty[0, :2].max() < certainty[0, 2:, :-3].min()  # of what has left the picture


def test_a_match_between_two_cells_is_a_fraction():
    keys = unit(jax.random.normal(jax.random.key(1), (1, 6, 8, KEY)))
    between = unit(keys + jnp.roll(keys, -1, axis=2))
    flow, _ = match(between, keys, SCALE)
    np.testing.assert_allclose(flow[0, :, :-1], np.broadcast_to([0.5, 0], (6, 7, 2)), atol=0.05)


def test_rows_that_are_compared_some_at_a_time_match_as_all_together(monkeypatch):
    first, second = moved_keys(2, 1)
    whole = match(first, second, SCALE)
    monkeypatch.setattr(matching, "PAIRS", 3 * 12 * 120)  # 3 rows would do; the largest divisor of 10 is 2
    for some, all_of_it in zip(match(first, second, SCALE), whole, strict=True):
        np.testing.assert_allclose(some, all_of_it, atol=1e-5)


def test_neighbours_repeat_the_edge():
    flow = jnp.stack(jnp.meshgrid(jnp.arange(4.0), jnp.arange(3.0)), axis=-1)[None]
    left, right, above, below = neighbours(flow, 2)
    np.testing.assert_array_equal(left[0, 0, :, 0], [0, 0, 0, 1])
    np.testing.assert_array_equal(right[0, 0, :, 0], [2, 3, 3, 3])
    np.testing.assert_array_equal(above[0, :, 0, 1], [0, 0, 0])
    np.testing.assert_array_equal(below[0, :, 0, 1], [2, 2, 2])


@pytest.mark.parametrize("time", [0.25, 0.5, 1.0])
def test_the_true_flow_is_among_the_candidates_and_the_best_score_decides(time, monkeypatch):
    """Scored by the similarity of keys alone; the estimated flow is wrong everywhere."""
    matcher = Matcher(rngs=nnx.Rngs(0))
    matcher.scale[...] = jnp.log(SCALE)
    monkeypatch.setattr(Matcher, "score", lambda matcher, candidates, ends, *rest: ends[..., -1])
    flow = matcher(*moved_keys(4, 2), jnp.zeros((1, 10, 12, 2)), jnp.array([[time]]))
    np.testing.assert_allclose(flow[0, 2:-2, 4:-4], np.broadcast_to([4, 2], (6, 4, 2)), atol=0.1)


def test_the_chosen_flow_is_that_of_its_level(network):
    """Finer levels go on from it, and the coarser one is as it was estimated."""
    x0, x1 = (jax.random.uniform(jax.random.key(key), (1, 64, 96, 3)) for key in (0, 1))
    time = jnp.array([[0.5]])

    @jax.jit
    def run(x0, x1):
        encoded = network.encode(jnp.concatenate([x0, x1]))[1]
        e0, e1 = jax.tree.map(lambda x: x[:1], encoded), jax.tree.map(lambda x: x[1:], encoded)
        estimated = network.flow.bilateral(e0.packs[3:], e1.packs[3:], time, 4)[0][..., 2:]
        chosen = network.matcher(e0.keys, e1.keys, estimated, time)
        flow = jnp.concatenate([-chosen, chosen], axis=-1)
        known = network.coarse(e0, e1, time, flow)
        return chosen, known, network.coarse(e0, e1, time), network.forward(x0, x1, time)

    chosen, known, coarse, output = run(x0, x1)
    assert chosen.shape == (1, 4, 6, 2) and output.image.shape == (1, 64, 96, 3)
    np.testing.assert_allclose(coarse.forward_flow[3], chosen, atol=1e-6)
    for one, other in zip(jax.tree.leaves(known), jax.tree.leaves(coarse), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_weights_with_matching_are_read_as_they_were_written(network, tmp_path):
    save_model(tmp_path / "weights.safetensors", network)
    again = load(tmp_path / "weights.safetensors")
    assert again.config == CONFIG
    np.testing.assert_array_equal(again.matcher.key.kernel[...], network.matcher.key.kernel[...])


def test_matching_needs_a_flow_between_the_frames_and_its_level():
    assert "matching" in refused(ValueError, FilmConfig, matching=True)
    assert "matching" in refused(ValueError, dataclasses.replace, DIRECT, matching=True)
