"""Triplets cut from a film whose every motion is known: the right frames, the right flow, the right choice."""

import json
from dataclasses import replace

import numpy as np
import pytest
from refusal import refused
from synthetic_film import SIDE, SPEED, START, draw, write_film

from common.io.video_reader import read_video
from film.data.cutting import EvaluationCut, TrainingCut, cut_evaluation, cut_training, windows
from film.data.teacher_flow import FlowTeacher, half_luma

CUT = TrainingCut(first=2, last=21, gaps=(1, 2), size=96, candidates=4, seed=5)


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    return write_film(tmp_path_factory.mktemp("moving") / "moving.mp4", [draw(n) for n in range(24)])


@pytest.fixture(scope="module")
def training(moving):
    folder = moving.parent / "training"
    assert cut_training(moving, folder, CUT) > 8
    return folder


def triplets(folder) -> list[dict]:
    return json.loads((folder / "index.json").read_text())["triplets"]


def arrays(folder):
    return (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "flows", "valid"))


def test_frames_are_the_ones_in_the_index_and_in_the_given_range(training):
    images, _, _ = arrays(training)
    for triplet, three in zip(triplets(training), images, strict=True):
        window = np.s_[triplet["y"] : triplet["y"] + 96, triplet["x"] : triplet["x"] + 96]
        numbers = triplet["frame"] + triplet["gap"] * np.array([-1, 0, 1])
        assert CUT.first <= numbers[0] and numbers[2] <= CUT.last
        for k, number in enumerate(numbers):
            off = [np.abs(three[k].astype(int) - draw(n)[window]).mean() for n in (number - 1, number, number + 1)]
            assert off[1] < 8 and off[1] == min(off)  # 8: chroma at half size, and the codec
    assert {t["gap"] for t in triplets(training)} == {1, 2}


def test_flow_of_the_square_is_its_motion_and_the_ground_is_still(training):
    _, flows, valid = arrays(training)
    valid_inside = []
    for triplet, flow, mask in zip(triplets(training), flows, valid, strict=True):
        centres = 4 * np.arange(24) + 2
        x, y = np.meshgrid(triplet["x"] + centres, triplet["y"] + centres)
        left = START + SPEED * triplet["frame"]
        inside = (x > left + 12) & (x < left + SIDE - 12) & (y > 52) & (y < 108)
        outside = (x < left - 20) | (x > left + SIDE + 20) | (y > 136)
        for side, sign in enumerate((-1, 1)):
            sure = mask[side] == 1
            moved = flow[side].astype(np.float32) - [sign * SPEED * triplet["gap"], 0]
            assert np.abs(moved[inside & sure]).max(initial=0) < 1.0
            assert np.abs(flow[side][outside & sure]).max(initial=0) < 1.0
            valid_inside += list(sure[inside])
        between = np.linalg.norm((flow[1] - flow[0]).astype(np.float32), axis=-1)
        assert triplet["motion"] == pytest.approx(np.percentile(between, 95), abs=1.0)
    assert np.mean(valid_inside) > 0.8


def test_occluded_ground_is_not_valid():
    """Ground that the square will cover has no counterpart in the later frame."""
    valid = FlowTeacher()(*(half_luma(draw(n)) for n in (4, 8, 12))).valid
    right = START + SPEED * 8 + SIDE
    soon_covered = np.s_[24:56, right // 2 + 1 : right // 2 + 6]
    assert valid[1][soon_covered].mean() < 0.5 < valid[0][soon_covered].mean()


def test_moving_patches_are_preferred(moving, tmp_path):
    """A 48 px patch lands on still ground often; with several to choose from, nearly never."""
    one = TrainingCut(first=0, last=23, gaps=(2,), size=48, candidates=1, still_share=1.0)
    still = []
    for name, cut in (("one", one), ("many", replace(one, candidates=16, still_share=0.0))):
        cut_training(moving, tmp_path / name, cut)
        still.append(np.mean([t["motion"] < 1.5 for t in triplets(tmp_path / name)]))
    assert still[0] > 0.1 and still[1] == 0


def test_seeds_and_counts(moving, training, tmp_path):
    for name, changes in (("again", {}), ("other", {"seed": 6}), ("few", {"count": 4})):
        cut_training(moving, tmp_path / name, replace(CUT, **changes))
    assert triplets(tmp_path / "again") == triplets(training) != triplets(tmp_path / "other")
    assert json.loads((tmp_path / "few/index.json").read_text())["considered"] == 4
    assert {t["frame"] for t in triplets(tmp_path / "few")} <= {4, 9, 14, 19}


def test_no_triplet_spans_a_scene_cut(tmp_path):
    frames = [draw(n, seed=0) for n in range(12)] + [255 - draw(n, seed=7) // 2 for n in range(12, 24)]
    two_scenes = write_film(tmp_path / "cut.mp4", frames)
    cut_training(two_scenes, tmp_path / "t", replace(CUT, gaps=(2,), still_share=1.0))
    cut_evaluation(two_scenes, tmp_path / "e", EvaluationCut(first=0, last=23, gap=1, spacing=1, motion=(6.0, 90.0)))
    centres, single = ([t["frame"] for t in triplets(tmp_path / name)] for name in ("t", "e"))
    assert not {*centres} & {10, 11, 12, 13}  # 10 + 2 and 13 - 2 lie beyond the cut between 11 and 12
    assert min(centres) < 10 and max(centres) > 13
    # A gap of one frame shows a cut by the changes around it.
    assert not {11, 12} & {*single} and {8, 15} <= {*single} and (min(single), max(single)) == (3, 20)


def test_what_cannot_be_cut_is_refused_and_leaves_nothing(moving, training, tmp_path):
    still = write_film(tmp_path / "still.mp4", [draw(0)] * 12)
    before = (training / "index.json").read_bytes()
    for video, cut, value in (
        (moving, replace(CUT, last=100), "frame 24"),
        (moving, replace(CUT, last=4), "2 frames"),
        (moving, replace(CUT, size=200), "256x160"),
        (still, TrainingCut(first=0, last=11, gaps=(1,), size=96, still_share=0.0), "10 triplets"),
    ):
        refused(ValueError, cut_training, video, tmp_path / "t", cut, match=value)
    with pytest.raises(ValueError, match="4 triplets"):
        cut_evaluation(moving, tmp_path / "e", EvaluationCut(first=1, last=22, spacing=5, motion=(40.0, 90.0)))
    refused(FileExistsError, cut_training, moving, training, CUT, match="training")
    refused(FileNotFoundError, cut_training, tmp_path / "none.mp4", tmp_path / "t", match=r"none\.mp4")
    assert (training / "index.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["still.mp4"]


def test_colours_are_those_of_the_reader(tmp_path):
    """Of a wide film without a tag, too."""
    video = write_film(tmp_path / "wide.mp4", [np.full((64, 1280, 3), (160, 60, 60), np.uint8)])
    ((_, (frame,)),) = windows(video, [0], 0)
    (shown,) = read_video(video)
    np.testing.assert_allclose(frame.image / 255, shown.image, atol=2 / 255)
