"""Exact scenes: frames are copies, regions are exact; their evaluation's scores, flicker and files."""

import csv
import json

import cv2
import numpy as np
import pytest
from refusal import refused
from toy import toy

import film
from common.io.images import read_image
from recipes.film_small.exact import EIGHTHS, KINDS, RADIUS, ExactScenes
from recipes.film_small.exact_evaluation import ExactEvaluation, flicker

SIZE = (320, 288)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two photographs held out, coarse noise, and one for training."""
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (40, 56, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.resize(noise, (560, 400), interpolation=cv2.INTER_CUBIC))
    splits = [{"file": f"{number}.png", "split": "train" if number == 1 else "held_out"} for number in range(3)]
    (folder / "index.json").write_text(json.dumps(splits))
    return folder


def scenes(folder, kind, distance=32, **changes) -> ExactScenes:
    return ExactScenes(kind, SIZE, distance, folder=str(folder), **changes)


def shifted(image: np.ndarray, x: int, y: int) -> np.ndarray:
    """image(p - (x, y)), NaN where that is outside."""
    (height, width), moved = image.shape[:2], np.full_like(image, np.nan)
    inside = image[max(0, -y) : height - max(0, y), max(0, -x) : width - max(0, x)]
    moved[max(0, y) : height + min(0, y), max(0, x) : width + min(0, x)] = inside
    return moved


@pytest.mark.parametrize("distance", [8, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_what_both_frames_show_is_equal_in_them(folder, kind, distance):
    """Ground that is not occluded is, to the bit, at its place in x0 and x1; some that is occluded is not."""
    for number in range(2):
        scene = scenes(folder, kind, distance).scene(number)
        _, x0, y, x1, time, regions = scenes(folder, kind, distance)[number]
        assert time == 0.5 and y.shape == (*SIZE[::-1], 3) and abs(np.hypot(*scene.mover_way) - distance) <= 6
        here, hidden = scene._covered(scene.mover_way, 0.5), regions["occluded"]
        if kind != "pan":  # the soft edge is no ground
            here = cv2.dilate(here.astype(np.uint8), np.ones((9, 9))) == 1
        x, y_ = scene.ground_way
        ends = [shifted(x0, x // 2, y_ // 2), shifted(x1, -x // 2, -y_ // 2)]
        clear = ~here & ~(cv2.dilate(hidden.astype(np.uint8), np.ones((9, 9))) == 1 if kind != "pan" else hidden)
        assert clear.mean() > 0.3 and 0 < hidden.mean() < 0.4
        for end in ends:
            np.testing.assert_array_equal(end[clear], y[clear])
        wrong = [(end != y).any(axis=-1) for end in ends]
        assert (wrong[0] | wrong[1])[hidden].mean() > 0.95
        if kind == "pan":
            assert (regions["ring"] == ~hidden).all()
        else:
            assert (regions["ring"] <= regions["path"]).all() and scene.mover is not None
            assert regions["path"].sum() > regions["ring"].sum() and not hidden[here].all()


def test_a_scene_is_its_seed_kind_size_and_number(folder):
    one, same, other = (scenes(folder, "disc", seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.y, same.y)
    assert (one.y != other.y).any() and len(scenes(folder, "disc", count=3)) == 3
    far = scenes(folder, "disc", 40).scene(1)
    np.testing.assert_array_equal(scenes(folder, "disc").scene(1).mover, far.mover)
    disc = far.mover[..., 3]
    assert abs(disc.sum() / (np.pi * RADIUS**2) - 1) < 0.03
    for k in range(9):  # copies at all eighths: the disc keeps its pixels
        x, y = (c + w * k // 8 - w // 2 for c, w in zip(far.corner, far.mover_way, strict=True))
        solid = disc == 1
        frame = far.frame(k / 8)[y : y + len(disc), x : x + len(disc)]
        np.testing.assert_allclose(frame[solid], far.mover[solid][:, :3], atol=1e-6)


def test_settings_that_are_refused():
    for name, value in (("kind", "nosuch"), ("distance", 1), ("distance", 49), ("count", 0)):
        refused(ValueError, ExactScenes, **dict(kind="pan", size=SIZE) | {name: value}, match=f"{name}.*{value}")
    for name, value in (("scenes", {"640x480": 0}), ("scenes", {"big": 1}), ("distances", []), ("steady_distance", 8)):
        refused(ValueError, ExactEvaluation, **dict(scenes={"640x480": 1}, distances=[8]) | {name: value}, match=name)


def test_flicker_is_the_change_of_the_error():
    rng = np.random.default_rng(0)
    truth, region = list(rng.uniform(0.3, 0.7, (4, 8, 8, 3)).astype(np.float32)), np.ones((8, 8), bool)
    assert flicker(truth, truth, region) == 0
    steady = [frame + np.float32(0.1) for frame in truth]
    assert flicker(steady, truth, region) < 1e-4
    restless = [frame + np.float32(0.1 * (k % 2)) for k, frame in enumerate(truth)]
    assert flicker(restless, truth, region) == pytest.approx(25.5, rel=1e-4)
    region[:, 4:] = False
    outside = [np.where(region[..., None], a, b) for a, b in zip(truth, restless, strict=True)]
    assert flicker(outside, truth, region) == 0


@pytest.mark.long
def test_an_evaluation_scores_distances_and_flicker(folder, tmp_path):
    film.save_model(tmp_path / "toy.safetensors", toy(film.FilmConfig(2, 2, 1, 1, (1, 1), (4, 4), 4)))
    settings = dict(kinds=["pan", "disc"], steady_distance=EIGHTHS, shown=8, folder=str(folder), progress=False)
    own = ExactEvaluation({"320x288": 1}, [8, 32], **settings)
    printed = own.run(str(tmp_path / "toy.safetensors"), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(own.files())
    with (tmp_path / "out/results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    methods = ["film", "film warps", "film best warp", "dis-flow", "average"]
    assert [row["method"] for row in rows] == methods * 4 and len(rows) == 20
    ring = {(row["kind"], row["distance"], row["method"]): float(row["ring"]) for row in rows}
    assert ring["pan", "8", "dis-flow"] > ring["pan", "8", "average"] + 10
    assert f"{ring['disc', '32', 'average']:.1f}" in printed and "flicker" in printed
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert len(summary["scores"]) == 20 and len(summary["flicker"]) == 2 * 3 * 2
    values = {(row["kind"], row["method"], row["way"]): row["flicker"] for row in summary["flicker"]}
    scene = scenes(folder, "pan").scene(0)
    truth, region = [scene.frame(k / 8) for k in range(9)], scene.regions()["path"]
    faded = [(1 - k / 8) * truth[0] + k / 8 * truth[8] for k in range(9)]
    for way in ("direct", "midpoints"):  # a mean of means is a mean
        assert values["pan", "average", way] == pytest.approx(flicker(faded, truth, region), rel=1e-3)
    assert read_image(tmp_path / "out/distances.png").std() > 0.01
