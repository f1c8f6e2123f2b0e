"""Global matching: what is found of things that move far, what is hidden, and its place in the network."""

import dataclasses
import json
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from toy import DIRECT, toy

from common.evaluation.metrics import Psnr, psnr
from common.io.images import from_uint8, read_image, to_uint8, write_image
from film import model as film_model
from film.clip import convert
from film.config import LEVEL
from film.data.triplet import Triplet
from film.evaluation.triplet_evaluation import FilmEvaluation
from film.io.weights import load, save_model
from film.matching import refinement, search
from film.matching.planes import field, planes
from film.matching.search import Motion
from film.model import Film, FilmConfig, with_matching
from film.ops.resample import average_pool, resize_bilinear

CONFIG = FilmConfig(5, 5, 1, 2, (1, 1), (8, 8), 8, bilateral=True, blend=True)
HALF = jnp.array([[0.5]])
SIZE, SIDE, WAY = (96, 160), 40, (48, 16)  # px of a picture, of the square that moves in it, and its way
STILL = jnp.zeros((1, SIZE[0] // 4, SIZE[1] // 4, 2))  # flow at level 2
PAN = -24  # px that the ground moves to the right, where it moves


@pytest.fixture(scope="module")
def network():
    return toy(CONFIG, seed=2)


def texture(seed: int, size: tuple[int, int]) -> np.ndarray:
    """Random colours, smooth over some pixels."""
    noise = np.random.default_rng(seed).random((*size, 3), np.float32)
    blurred = cv2.GaussianBlur(noise, (0, 0), 1.5)
    return (blurred - blurred.min()) / (blurred.max() - blurred.min())


def scene(time: float, pan: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A square before a ground, which is still or moves; and where it is."""
    start = round(40 - time * pan)
    image, where = texture(0, (SIZE[0], SIZE[1] + 80))[:, start : start + SIZE[1]].copy(), np.zeros(SIZE, bool)
    left, top = (round(start + time * way) for start, way in zip((20, 20), WAY, strict=True))
    image[top : top + SIDE, left : left + SIDE] = texture(1, (SIDE, SIDE))
    where[top : top + SIDE, left : left + SIDE] = True
    return image, where


def frames(level: int, pan: int = 0) -> jax.Array:
    """x0 and x1 at a level."""
    images = jnp.stack([scene(0, pan)[0], scene(1, pan)[0]])
    for _ in range(level):
        images = average_pool(images)
    return images


def true_flow(time: float, level: int, pan: int = 0) -> np.ndarray:
    """Of the square and of the ground, from the first frame to the second, in pixels of the level."""
    where = scene(time)[1][None, :: 2**level, :: 2**level, None]
    return np.where(where, np.array(WAY, np.float32), np.array([pan, 0], np.float32)) / 2**level


def wrong(flow: jax.Array, truth: np.ndarray, most: float) -> float:
    return float((np.linalg.norm(flow - truth, axis=-1) > most).mean())


@pytest.fixture(scope="module")
def found():
    """By a search from an estimate of no motion, at levels 1 and 2 of a small picture."""
    return jax.jit(search.search)(frames(1), frames(2), STILL, HALF)


def test_a_match_is_the_way_to_the_same_patch():
    image = texture(3, (24, 40))
    moved = np.roll(image, (2, -6), axis=(0, 1))
    flow = field(search.match(jnp.stack([image, moved])))
    inside = np.s_[4:-4, 8:-8]
    assert wrong(flow[0][inside], np.array([-6, 2]), 1.5) < 0.05  # every third cell looks for itself
    assert wrong(flow[1][inside], np.array([6, -2]), 1.5) < 0.05


def test_the_search_finds_what_moves_farther_than_its_size(found):
    """In between, and on both frames' grids, where half of the ground beside the square is hidden in the other one."""
    between, motion = found
    assert np.hypot(*WAY) > SIDE
    assert wrong(between, true_flow(0.5, 2), 0.5) < 0.06
    first, second = motion.first[..., :2], motion.second[..., :2]
    assert wrong(first, true_flow(0, 2), 0.5) < 0.06 and wrong(second, -true_flow(1, 2), 0.5) < 0.06
    revised = np.asarray(motion.revised[0, ..., 0])
    assert set(np.unique(revised)) == {0, 1} and revised[true_flow(0.5, 2)[0].any(axis=-1)].mean() > 0.9


def test_what_passes_between_the_frames_hides_what_both_show(found, monkeypatch):
    """Where the square is half-way and in neither frame, both show the ground, as if nothing had moved."""
    _, motion = found
    square = [scene(time)[1][::4, ::4] for time in (0, 0.5, 1)]
    passed = square[1] & ~square[0] & ~square[2]
    assert passed.sum() > 20
    for known, shown in zip((motion.first, motion.second), square[::2], strict=True):
        front = known[0, ..., 2]
        assert front[shown].mean() > 0.5 and front[~shown].mean() < 0.05
    truth = true_flow(0.5, 2)[:, passed]
    assert wrong(found[0][:, passed], truth, 0.5) < 0.2
    monkeypatch.setattr(search, "FRONT", 0.0)
    flow, _ = jax.jit(lambda *given: search.search(*given))(frames(1), frames(2), STILL, HALF)
    assert wrong(flow[:, passed], truth, 0.5) > 0.5


def test_hidden_ground_moves_as_the_ground_that_is_seen():
    """And so does what comes in at a border; at other times than half-way, too."""
    for time in (0.5, 0.25):
        flow, motion = jax.jit(search.search)(frames(1, PAN), frames(2, PAN), STILL, jnp.array([[time]]))
        assert wrong(flow, true_flow(time, 2, PAN), 0.5) < 0.02
        assert wrong(motion.first[..., :2], true_flow(0, 2, PAN), 0.5) < 0.05
        assert wrong(motion.second[..., :2], -true_flow(1, 2, PAN), 0.5) < 0.05


@pytest.mark.parametrize("time", [0.25, 0.75])
def test_flow_changes_grids(time, monkeypatch):
    """From the frame in between to both frames without matches, and back without rounds: nothing else leads there."""
    monkeypatch.setattr(search, "match", lambda images: jnp.zeros((2, *images.shape[:3])))
    monkeypatch.setattr(search, "ROUNDS", ())
    truth, t = jnp.asarray(true_flow(time, 2, PAN)), jnp.full((1, 1, 1), time)
    known = search.own_flow(frames(1, PAN), frames(2, PAN), planes(truth), t)
    for own, there in zip(field(known[:2]), (true_flow(0, 2, PAN), -true_flow(1, 2, PAN)), strict=True):
        assert wrong(own, there[0], 0.5) < 0.15
    exact = jnp.concatenate([true_flow(0, 2, PAN), -true_flow(1, 2, PAN)])
    known = jnp.pad(planes(exact), ((0, 1), (0, 0), (0, 0), (0, 0)))
    flow = search.between(known, planes(STILL), lambda x: jnp.zeros(x.shape[1:]), t)
    assert wrong(field(flow), truth, 0.5) < 0.1


@pytest.mark.parametrize("change", [lambda x: x + 0.1, lambda x: 0.85 * x])
def test_light_that_changes_is_no_motion(change):
    """Of a gradient with a spot, along which a search finds the same colours in another place."""
    image = np.tile(np.linspace(0.1, 0.8, SIZE[1], dtype=np.float32)[None, :, None], (SIZE[0], 1, 3))
    image += np.random.default_rng(0).normal(0, 0.004, image.shape).astype(np.float32)
    image[44:52, 72:80] = 0.9
    images = average_pool(jnp.stack([image, change(image)]))
    flow, _ = jax.jit(search.search)(images, average_pool(images), STILL, HALF)
    assert wrong(flow, STILL, 0.5) < 0.02


def test_frames_that_show_other_places_keep_their_light():
    given = frames(1, PAN), frames(2, PAN)
    kept = search.equally_bright(*given, planes(STILL), jnp.full((1, 1, 1), 0.5))
    jax.tree.map(np.testing.assert_array_equal, kept, given)


def test_frames_of_half_precision_are_searched():
    flow, _ = jax.jit(search.search)(*(x.astype(jnp.bfloat16) for x in (frames(1), frames(2), STILL)), HALF)
    assert wrong(flow, true_flow(0.5, 2), 0.5) < 0.06


def test_what_is_as_estimated_is_not_revised():
    images = jnp.repeat(frames(1)[:1], 2, axis=0)
    flow, motion = jax.jit(search.search)(images, average_pool(images), STILL, HALF)
    assert float(abs(flow).max()) == 0 and float(motion.revised.max()) == 0


def test_where_nothing_has_the_same_colour_flow_stays_as_estimated():
    """Most of what moves is brighter afterwards, in squares: matches are found, but most of the difference is left."""

    def found(brighter: float) -> np.ndarray:
        image, noise = 0.8 * texture(5, SIZE), np.random.default_rng(0).random((SIZE[0] // 4, SIZE[1] // 4, 1)) > 0.3
        lit = np.float32(brighter) * noise.repeat(4, axis=0).repeat(4, axis=1)
        images = average_pool(jnp.stack([image, np.roll(image, (8, 16), axis=(0, 1)) + lit]))
        return np.asarray(jax.jit(search.search)(images, average_pool(images), STILL, HALF)[0])

    moved, kept = found(0), found(0.2)
    assert wrong(moved[:, 4:-4, 6:-6], np.array([4, 2]), 0.5) < 0.1
    np.testing.assert_array_equal(kept, STILL)


def test_flow_that_is_all_over_the_place_is_not_taken(monkeypatch):
    """Small squares have changed their places: each is found again, and no two neighbours go the same way."""
    square = 16
    tiles = texture(6, SIZE).reshape(SIZE[0] // square, square, SIZE[1] // square, square, 3).swapaxes(1, 2)
    order = np.random.default_rng(0).permutation(tiles.shape[0] * tiles.shape[1])
    mixed = tiles.reshape(-1, square, square, 3)[order].reshape(tiles.shape)
    images = average_pool(jnp.stack([x.swapaxes(1, 2).reshape(*SIZE, 3) for x in (tiles, mixed)]))

    def found() -> np.ndarray:
        return np.asarray(jax.jit(lambda *given: search.search(*given))(images, average_pool(images), STILL, HALF)[0])

    assert wrong(found(), STILL, 0.1) < 0.02
    monkeypatch.setattr(search, "ROUGHEST", 1.0)
    monkeypatch.setattr(search, "LEFT", 1.0)
    assert wrong(found(), STILL, 1) > 0.2


def test_outlines_are_refined_by_choice(found):
    """Each level leaves fewer pixels wrong than interpolation does, and both frames' own flow goes with it."""
    flow, motion = found
    interpolated = flow
    for level in (1, 0):
        images = frames(level)
        flow, motion = jax.jit(refinement.refine)(images, flow, motion, HALF)
        interpolated = resize_bilinear(2 * interpolated, images.shape[1:3])
    truth = true_flow(0.5, 0)
    assert wrong(flow, truth, 1) < 0.6 * wrong(interpolated, truth, 1)
    assert wrong(motion.first[..., :2], true_flow(0, 0), 1) < 0.04 and motion.revised.shape == (1, *SIZE, 1)


def test_tiles_are_refined_as_the_whole(found, monkeypatch):
    """Also by tiles that do not divide the picture, and not by those that see nothing around them."""
    flow, motion = found

    def refined(tile: int, reach: int) -> list[jax.Array]:
        monkeypatch.setattr(refinement, "TILE", tile)
        monkeypatch.setattr(refinement, "REACH", reach)
        return jax.tree.leaves(jax.jit(lambda *given: refinement.refine(*given))(frames(1), flow, motion, HALF))

    whole = refined(10**6, 8)
    for tile in (16, 28):
        for one, other in zip(whole, refined(tile, 8), strict=True):
            assert float(abs(one - other).max()) < 1e-3
    assert float(abs(whole[0] - refined(16, 0)[0]).max()) > 0.5


def test_the_frame_that_hides_a_pixel_counts_less():
    """Flow of 0 in between; in the first frame, something that moves is in front on the right."""
    flow, moving = jnp.zeros((1, 4, 6, 2)), jnp.zeros((1, 4, 6, 2)).at[:, :, 3:].set(8.0)
    still, everywhere = jnp.zeros((1, 4, 6, 2)), jnp.ones((1, 4, 6, 1))

    def gained(first: jax.Array, second: jax.Array, revised: jax.Array = everywhere) -> np.ndarray:
        motion = Motion(*(jnp.pad(x, [(0, 0)] * 3 + [(0, 1)]) for x in (first, second)), revised)
        return np.asarray(refinement.visibility_logit(flow, motion, HALF))[0, ..., 0]

    np.testing.assert_allclose(gained(moving, still)[:, :3], 0, atol=1e-3)
    np.testing.assert_allclose(gained(moving, still)[:, 3:], -refinement.MIXTURE, atol=1e-3)
    np.testing.assert_allclose(gained(still, moving), -gained(moving, still))
    assert not np.any(gained(moving, still, 0 * everywhere))


def test_outlines_of_revised_flow_are_smoothed():
    """Where flow steps from 0 to 4 px, the columns on either side become the mean of three, weighted 1, 2 and 1."""
    flow = jnp.zeros((1, 6, 8, 2)).at[:, :, 4:].set(4.0)
    image = jnp.zeros((1, 6, 8, 3)).at[:, :, 4:].set(1.0)
    none = jnp.zeros((1, 6, 8, 3))
    smoothed = refinement.antialiased(image, flow, Motion(none, none, jnp.ones((1, 6, 8, 1))))
    np.testing.assert_allclose(smoothed[0, :, :, 1], np.tile([0, 0, 0, 0.25, 0.75, 1, 1, 1], (6, 1)))
    np.testing.assert_array_equal(refinement.antialiased(image, flow, Motion(none, none, none[..., :1])), image)
    np.testing.assert_array_equal(refinement.antialiased(image, 0 * flow, Motion(none, none, none[..., :1] + 1)), image)


def test_values_that_interpolation_would_mix():
    x = jnp.arange(6.0).reshape(1, 2, 3)
    four = np.asarray(refinement.of_four(x, (4, 7)))
    assert four.shape == (4, 1, 4, 7)
    assert sorted(four[:, 0, 1, 2]) == [0, 1, 3, 4] and four[0, 0, 1, 2] == 1
    mixed = (9 * four[0] + 3 * four[1] + 3 * four[2] + four[3]) / 16
    np.testing.assert_allclose(mixed[..., :6], resize_bilinear(x[..., None], (4, 6))[..., 0], rtol=1e-6)
    np.testing.assert_array_equal(four[..., 6], four[..., 5])  # odd


def test_a_network_searches_and_keeps_what_is_not_revised(network, monkeypatch):
    x0, x1 = (texture(seed, (64, 96))[None] for seed in (0, 1))
    searching = with_matching(network)
    plain = network(x0, x1)
    assert searching.config == dataclasses.replace(CONFIG, matching=True)
    assert with_matching(searching, None) is searching and with_matching(searching, False).config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, *(nnx.to_pure_dict(nnx.state(x)) for x in (network, searching)))

    def nothing(finer, coarse, estimated, time):
        still = jnp.zeros((*estimated.shape[:3], 3))
        return estimated, Motion(still, still, still[..., :1])

    monkeypatch.setattr(film_model, "search", nothing)
    kept = jax.jit(searching.forward)(x0, x1, HALF)
    np.testing.assert_allclose(kept.image, plain.image, atol=1e-5)
    for one, other in zip(kept.forward_flow, plain.forward_flow, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_found_flow_is_that_of_its_level(network, monkeypatch):
    """And the mixture follows from what is known of both frames."""
    x0, x1 = (texture(seed, (64, 96))[None] for seed in (0, 1))

    def everywhere(finer, coarse, estimated, time):
        flow = jnp.full_like(estimated, 1.5)
        first, second = (jnp.pad(x, [(0, 0)] * 3 + [(0, 1)]) for x in (flow, 8 - flow))
        return flow, Motion(first, second, jnp.ones_like(flow[..., :1]))

    monkeypatch.setattr(film_model, "search", everywhere)
    output = jax.jit(with_matching(network).forward)(x0, x1, HALF)
    np.testing.assert_allclose(output.forward_flow[LEVEL], 1.5)
    np.testing.assert_allclose(output.backward_flow[LEVEL], -1.5)
    assert output.forward_flow[0].shape == (1, 64, 96, 2)
    weight = np.asarray(output.weight)[0, 24:-24, 24:-24]
    assert weight.mean() > 0.8  # the second frame shows another motion


@pytest.mark.long
def test_a_clip_of_the_option_has_the_frames_of_the_network(network, tmp_path):
    """By parts, compiled one by one, as by the network in one."""
    pair = [scene(time)[0] for time in (0, 1)]
    for name, image in zip("ab", pair, strict=True):
        write_image(tmp_path / f"{name}.png", image)
    plan = convert([tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "clip", model=network, matching="on", frames=1)
    assert plan.options.matching == "on"
    _, middle, _ = (read_image(path) for path in sorted((tmp_path / "clip").glob("*.png")))
    x0, x1 = (from_uint8(to_uint8(image))[None] for image in pair)
    expected = np.clip(with_matching(network)(x0, x1).image[0], 0, 1)
    assert np.quantile(abs(middle - expected), 0.99) < 0.01
    assert abs(expected - np.clip(network(x0, x1).image[0], 0, 1)).max() > 0.05


@pytest.mark.long
def test_an_evaluation_searches_with_the_weights_that_are_scored(network, tmp_path):
    """Beside the same weights without a search."""
    x0, y, x1 = (scene(time)[0] for time in (0, 0.5, 1))
    save_model(tmp_path / "plain.safetensors", network)
    path, sets = str(tmp_path / "plain.safetensors"), {"one": [Triplet("one", x0, y, x1)]}
    options: dict[str, Any] = dict(baselines=["average"], worst=0, progress=False, compare_with=[path])
    FilmEvaluation({"psnr": Psnr()}, sets, matching=True, **options).run(path, tmp_path / "out")
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    values = {line["method"]: line["psnr"] for line in summary["scores"]}
    for name, model in {"film": with_matching(network), "plain": network}.items():
        assert values[name] == pytest.approx(psnr(np.asarray(model(x0[None], x1[None]).image[0]), y), abs=0.01)
    assert summary["matching"] and abs(values["film"] - values["plain"]) > 0.1


def test_weights_with_matching_are_read_as_they_were_written(network, tmp_path):
    save_model(tmp_path / "weights.safetensors", with_matching(network))
    again = load(tmp_path / "weights.safetensors")
    assert isinstance(again, Film) and again.config.matching


def test_matching_needs_a_flow_between_the_frames_a_mixture_and_its_level():
    assert "matching" in refused(ValueError, FilmConfig, matching=True)
    assert "matching" in refused(ValueError, with_matching, toy(DIRECT, seed=0))
    for change in ({"fusion_pyramid_levels": 3}, {"blend": False}, {"sided_levels": 1}):
        assert "matching" in refused(ValueError, dataclasses.replace, CONFIG, matching=True, **change)
