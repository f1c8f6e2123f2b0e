"""Scenes drawn by the accelerator: their flow and visibility are exact, and their batches are those of a position."""

from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused

from common.training.task import IDS
from film.data.augment import CELL
from recipes.film_small import drawn_layers, drawn_scenes
from recipes.film_small.drawn_scenes import DrawnScenes

CROP = 64
PLAIN: Any = dict(batch_size=6, crop=CROP, motion=(8.0, 24.0), light=0.0, noise=0.0, repeated=0.0, any_time=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two smooth photographs."""
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(2):
        noise = np.random.default_rng(number).integers(0, 256, (30, 40, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.resize(noise, (320, 240), interpolation=cv2.INTER_CUBIC))
    return str(folder)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    path = tmp_path_factory.mktemp("film") / "film.avi"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 24, (96, 80))
    for number in range(12):  # of two shots, dark and bright
        video.write(np.full((80, 96, 3), 10 + 5 * number + (120 if number >= 6 else 0), np.uint8))
    video.release()
    return str(path)


@pytest.fixture(scope="module")
def drawn(folder):
    batches = DrawnScenes(folder, **PLAIN).batches(3)
    return [jax.device_get(next(batches)) for _ in range(3)]


def looked_up(image, places):
    return cv2.remap(image, places.astype(np.float32), None, cv2.INTER_LINEAR)  # pyright: ignore


@pytest.mark.long
def test_valid_flow_leads_to_the_same_colour(drawn):
    centre, seen = (CELL - 1) / 2 + CELL * np.arange(CROP // CELL), 0
    grid = np.stack(np.meshgrid(centre, centre), axis=-1)
    for batch in drawn:
        for i in range(PLAIN["batch_size"]):
            y = looked_up(batch["y"][i], grid)
            for end in "01":
                error = np.abs(looked_up(batch["x" + end][i], grid + batch["flow" + end][i]) - y).max(axis=-1)
                valid = batch["valid" + end][i] > 0
                seen += valid.sum()
                assert not valid.any() or np.quantile(error[valid], 0.98) < 0.06
    assert seen > 0.5 * 2 * 3 * PLAIN["batch_size"] * (CROP // CELL) ** 2


def test_pixels_are_traced_as_exactly_as_the_centres_of_cells(folder):
    """The points of a layer with waves, between the cells: off by less than a tenth of a pixel."""
    config = DrawnScenes(folder, **PLAIN)
    layers = drawn_scenes.draw_layers(config, jax.random.key(2), (2, 320, 480, 3))

    def points(layer):
        start = jnp.zeros(())
        exact = drawn_layers.trace(layer, drawn_layers.grid(CROP, 1), start)
        return drawn_layers.trace_pixels(layer, CROP, start), exact

    fast, exact = jax.jit(lambda layers: jax.lax.map(points, layers))(layers)
    assert fast.shape == (config.layers + 1, CROP, CROP, 2)
    assert float(np.abs(layers.heights).max()) > 0.5
    np.testing.assert_allclose(fast, exact, atol=0.1)


@pytest.mark.long
def test_flows_are_shares_of_a_motion_and_some_pixels_are_seen_by_one_frame_alone(drawn):
    for batch in drawn:
        t, both = batch["time"][:, :, None, None], (batch["valid0"] * batch["valid1"])[..., None]
        assert ((t * 16) % 1 == 0).all()
        linear = np.abs((1 - t) * batch["flow0"] + t * batch["flow1"]) * both  # 0 without acceleration
        assert np.median(linear.max(axis=(1, 2, 3))) < 2.0
    assert sum(np.abs(batch["valid0"] - batch["valid1"]).sum() for batch in drawn) > 20


@pytest.mark.long
def test_a_batch_is_a_function_of_seed_and_position(folder, drawn):
    batches = DrawnScenes(folder, **PLAIN).batches(3)
    batches.set_state({"position": 1})
    again = jax.device_get(next(batches))
    assert batches.get_state() == {"position": 2}
    for name, value in drawn[1].items():
        np.testing.assert_array_equal(again[name], value)
    assert list(again[IDS]) == [6, 7, 8, 9, 10, 11]


def told(kind, config, textures, key):
    return {"key": jax.random.key_data(key), "film": kind}


def test_processes_draw_the_parts_of_one_batch(folder, film, monkeypatch):
    for kind, name in enumerate(("draw_scene", "draw_film")):  # examples that tell what was to be drawn
        monkeypatch.setattr(drawn_scenes, name, partial(told, kind))
    config = DrawnScenes(folder, film=film, film_share=0.5, gaps=(1, 2), **PLAIN)
    (whole,), parts = shares(config, 1, monkeypatch), shares(config, 3, monkeypatch)
    assert whole["film"].tolist() == [0, 0, 0, 1, 1, 1] and len(np.unique(whole["key"])) == 12
    for name, value in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value)
    refused(ValueError, shares, config, 4, monkeypatch, match="4 processes")


def shares(config, count, monkeypatch):
    """The second batch of each of `count` processes."""
    monkeypatch.setattr(jax, "process_count", lambda: count)
    found = []
    for index in range(count):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        batches = config.batches(0)
        batches.set_state({"position": 1})
        found.append(jax.device_get(next(batches)))
    return found


def test_film_is_mixed_in_and_no_triplet_crosses_a_cut(folder, film):
    config = DrawnScenes(folder, film=film, film_share=1.0, gaps=(1, 2), batch_size=16, crop=CROP)
    batch = jax.device_get(next(config.batches(0)))
    levels = np.stack([batch[name].mean(axis=(1, 2, 3)) for name in ("x0", "y", "x1")])
    assert not batch["valid0"].any() and (batch["time"] == 0.5).all()
    steps = np.abs(np.diff(levels, axis=0))
    assert (steps < 0.1).all() and (steps > 0.01).any()
