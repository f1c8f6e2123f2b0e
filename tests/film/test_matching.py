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
from film.config import KEYS, LEVELS, LOOKS
from film.io.weights import load, save_model
from film.matching import Matcher, Scorer, distance_to_alike, match, neighbours, unit
from film.model import FilmConfig

CONFIG = FilmConfig(5, 5, 1, 2, (1, 1), (8, 8), 8, bilateral=True, blend=True, matching=True)
SCALE = jnp.array([20.0])


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    """So that programs are small."""
    monkeypatch.setattr(matching, "ROUNDS", ((1,), (1,)))


@pytest.fixture(scope="module")
def network():
    return toy(CONFIG, seed=2)


def moved_keys(x: int, y: int, size: tuple[int, int] = (10, 12)) -> tuple[jax.Array, jax.Array]:
    """Random keys of a frame, and of one in which all of it is so many cells further."""
    width, height = abs(x), abs(y)
    keys = unit(jax.random.normal(jax.random.key(0), (1, size[0] + 2 * height, size[1] + 2 * width, KEYS[0] + LOOKS)))

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
    keys = unit(jax.random.normal(jax.random.key(1), (1, 6, 8, KEYS[0])))
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
    monkeypatch.setattr(Scorer, "__call__", lambda scorer, evidence: evidence[..., 6])
    found = matcher.search(0, *moved_keys(4, 2), jnp.zeros((1, 10, 12, 2)), jnp.array([[time]])).found()
    np.testing.assert_allclose(found.between[0, 2:-2, 4:-4], np.broadcast_to([4, 2], (6, 4, 2)), atol=0.1)
    np.testing.assert_allclose(found.own[0, :-2, :-4], np.broadcast_to([4, 2], (8, 8, 2)), atol=0.1)
    np.testing.assert_allclose(found.own[1, 2:, 4:], np.broadcast_to([-4, -2], (8, 8, 2)), atol=0.1)


def test_the_flow_of_the_coarser_level_is_a_candidate_of_the_finer_one(monkeypatch):
    monkeypatch.setattr(
        Scorer, "__call__", lambda scorer, evidence: -abs(evidence[..., 0])
    )  # agrees with the first one
    matcher, keys = Matcher(rngs=nnx.Rngs(0)), unit(jax.random.normal(jax.random.key(0), (2, 9, 12, KEYS[1] + LOOKS)))
    one = jnp.broadcast_to(jnp.array([1.5, 0.0]), (1, 4, 6, 2))
    coarser = matching.Found(jnp.concatenate([one, -one]), jnp.zeros((2, 4, 6, 1)), one)
    found = matcher.search(1, keys[:1], keys[1:], jnp.full((1, 9, 12, 2), 7.0), jnp.array([[0.5]]), coarser).found()
    assert found.between.shape == (1, 9, 12, 2) and found.own.shape == (2, 9, 12, 2)
    np.testing.assert_allclose(found.between[0], np.broadcast_to([3.0, 0.0], (9, 12, 2)), atol=1e-5)


def test_cells_go_with_those_that_look_like_them():
    """Left half of one look and one flow, right half of another: at the seam, each side's flow is the nearer one."""
    looks = jnp.where(jnp.arange(8)[None, None, :, None] < 4, jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))
    looks = jnp.broadcast_to(looks, (1, 6, 8, 2))
    flow = jnp.where(looks[..., :1] > 0, jnp.array([2.0, 0.0]), jnp.array([-2.0, 0.0]))
    candidates = jnp.broadcast_to(jnp.array([[2.0, 0.0], [-2.0, 0.0]])[None, :, None, None], (1, 2, 6, 8, 2))
    far = distance_to_alike(looks, jnp.array(20.0), jnp.zeros((1, 6, 8)), flow, candidates, 1)[..., 0]
    np.testing.assert_allclose(far[0, 0, :, :4], 0, atol=1e-5)
    np.testing.assert_allclose(far[0, 1, :, 4:], 0, atol=1e-5)
    np.testing.assert_allclose(far[0, 0, :, 4:], np.log(5), rtol=1e-5)
    none = distance_to_alike(looks, jnp.array(20.0), jnp.full((1, 6, 8), -99.0), flow, candidates, 1)
    np.testing.assert_allclose(none, 0, atol=1e-5)


def test_the_chosen_flow_is_that_of_its_level(network):
    """Finer levels go on from it, and the coarser ones are as they were estimated."""
    x0, x1 = (jax.random.uniform(jax.random.key(key), (1, 64, 96, 3)) for key in (0, 1))
    time = jnp.array([[0.5]])

    @jax.jit
    def run(x0, x1):
        encoded = network.encode(jnp.concatenate([x0, x1]))[1]
        e0, e1 = jax.tree.map(lambda x: x[:1], encoded), jax.tree.map(lambda x: x[1:], encoded)
        estimated, found, known = [], None, None
        for number, level in enumerate(LEVELS):
            finest = level - 1, len(e0.packs) if known is None else level
            flows = network.flow.bilateral(e0.packs[slice(*finest)], e1.packs[slice(*finest)], time, level, known)
            estimated.append(flows[0][..., 2:])
            keys = e0.keys[number], e1.keys[number]
            found = network.matcher.search(number, *keys, estimated[-1], time, found).found()
            known = jnp.concatenate([-found.between, found.between], axis=-1)
        return (
            found.between,
            network.coarse(e0, e1, time, known),
            network.coarse(e0, e1, time),
            network.forward(x0, x1, time),
        )

    chosen, known, coarse, output = run(x0, x1)
    assert chosen.shape == (1, 8, 12, 2) and output.image.shape == (1, 64, 96, 3)
    np.testing.assert_allclose(coarse.forward_flow[2], chosen, atol=1e-6)
    for one, other in zip(coarse.forward_flow[:3], known.forward_flow, strict=False):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_gradient_of_kept_flow_is_that_of_the_estimated_one(network):
    """No gradient passes the choice, but where it keeps what was estimated: the coarsest predictor still learns."""
    images = jax.random.uniform(jax.random.key(0), (2, 1, 64, 96, 3))
    graphdef, params = nnx.split(network)

    def flows(params):
        model = nnx.merge(graphdef, params)
        (_, e0), (_, e1) = (model.encode(frame) for frame in images)
        return sum(jnp.sum(flow) for flow in model.matched(e0, e1, jnp.array([[0.5]]))[1])

    gradient = nnx.to_pure_dict(jax.jit(jax.grad(flows))(params))
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradient["matcher"])) == 0
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradient["flow"])) > 0


def test_weights_with_matching_are_read_as_they_were_written(network, tmp_path):
    save_model(tmp_path / "weights.safetensors", network)
    again = load(tmp_path / "weights.safetensors")
    assert again.config == CONFIG
    np.testing.assert_array_equal(again.matcher.joint.kernel[...], network.matcher.joint.kernel[...])


def test_matching_needs_a_flow_between_the_frames_and_its_level():
    assert "matching" in refused(ValueError, FilmConfig, matching=True)
    assert "matching" in refused(ValueError, dataclasses.replace, DIRECT, matching=True)
