import hashlib
import io
import json
import tarfile
import zipfile

import cv2
import numpy as np
import pytest
from synthetic_film import SIDE, SPEED, START, draw, write_film

import recipes.film_small.fetch_film as fetch
from film.data.cutting import EvaluationCut, TrainingCut, cut_evaluation, cut_training
from film.data.teacher_flow import FlowTeacher, half_luma, warp

CUT = TrainingCut(first=2, last=21, gaps=(1, 2), size=96, candidates=4, seed=5)


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving")
    return write_film(folder / "moving.mp4", [draw(n) for n in range(24)])


@pytest.fixture(scope="module")
def training(moving):
    folder = moving.parent / "training"
    assert cut_training(moving, folder, CUT) > 8
    return folder


def load(folder):
    index = json.loads((folder / "index.json").read_text())
    return index, *(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "flows", "valid"))


def test_frames_are_the_ones_the_index_names(training):
    index, images, _, _ = load(training)
    for triplet, three in zip(index["triplets"], images, strict=True):
        window = np.s_[triplet["y"] : triplet["y"] + 96, triplet["x"] : triplet["x"] + 96]
        for k, number in enumerate(triplet["frame"] + triplet["gap"] * np.array([-1, 0, 1])):
            off = [np.abs(three[k].astype(int) - draw(n)[window]).mean() for n in (number - 1, number, number + 1)]
            assert off[1] < 8 and off[1] == min(off)  # 8: chroma at half size, and the codec


def test_frames_stay_inside_the_given_range(training):
    triplets = load(training)[0]["triplets"]
    assert min(t["frame"] - t["gap"] for t in triplets) >= CUT.first
    assert max(t["frame"] + t["gap"] for t in triplets) <= CUT.last
    assert {t["gap"] for t in triplets} == {1, 2}


def test_flow_of_the_square_is_its_motion_and_the_ground_is_still(training):
    index, _, flows, valid = load(training)
    believed = []
    for triplet, flow, mask in zip(index["triplets"], flows, valid, strict=True):
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
            believed += list(sure[inside])
        between = np.linalg.norm((flow[1] - flow[0]).astype(np.float32), axis=-1)
        assert triplet["motion"] == pytest.approx(np.percentile(between, 95), abs=1.0)
    assert np.mean(believed) > 0.8


def test_warping_by_the_saved_flow_gives_the_middle_where_valid(training):
    _, images, flows, valid = load(training)
    warped, plain = [], []
    for three, flow, mask in zip(images.astype(np.float32), flows.astype(np.float32), valid, strict=True):
        for side in (0, 1):
            sure = cv2.resize(mask[side], (96, 96), interpolation=cv2.INTER_NEAREST) == 1
            result = warp(three[2 * side], cv2.resize(flow[side], (96, 96)))
            warped.append(np.square(result - three[1])[sure].mean())
            plain.append(np.square(three[2 * side] - three[1])[sure].mean())
    assert np.mean(warped) < 0.25 * np.mean(plain)


def test_occluded_ground_is_not_valid():
    """Ground that the square will cover has no counterpart in the later frame."""
    before, middle, after = (half_luma(draw(n)) for n in (4, 8, 12))
    valid = FlowTeacher()(before, middle, after).valid
    right = START + SPEED * 8 + SIDE
    soon_covered = np.s_[24:56, right // 2 + 1 : right // 2 + 6]
    assert valid[1][soon_covered].mean() < 0.5 < valid[0][soon_covered].mean()


def test_moving_patches_are_preferred(moving, tmp_path):
    """A 48 px patch lands on still ground often; with several to choose from, nearly never."""
    cut = TrainingCut(first=0, last=23, gaps=(2,), size=48, candidates=1, still_share=1.0)
    cut_training(moving, tmp_path / "one", cut)
    cut_training(moving, tmp_path / "many", TrainingCut(**(cut.__dict__ | {"candidates": 16, "still_share": 0.0})))
    still = [np.mean([t["motion"] < 1.5 for t in load(tmp_path / name)[0]["triplets"]]) for name in ("one", "many")]
    assert still[0] > 0.1 and still[1] == 0


def test_same_seed_same_cut(moving, training, tmp_path):
    cut_training(moving, tmp_path / "again", CUT)
    assert (tmp_path / "again/index.json").read_text() == (training / "index.json").read_text()
    cut_training(moving, tmp_path / "other", TrainingCut(**(CUT.__dict__ | {"seed": 6})))
    assert (tmp_path / "other/index.json").read_text() != (training / "index.json").read_text()


def test_count_spreads_the_centres(moving, tmp_path):
    cut_training(moving, tmp_path / "few", TrainingCut(**(CUT.__dict__ | {"count": 4})))
    index = load(tmp_path / "few")[0]
    assert index["considered"] == 4
    assert {t["frame"] for t in index["triplets"]} <= {4, 9, 14, 19}


def test_no_triplet_spans_a_scene_cut(tmp_path):
    frames = [draw(n, seed=0) for n in range(12)] + [255 - draw(n, seed=7) // 2 for n in range(12, 24)]
    video = write_film(tmp_path / "cut.mp4", frames)
    cut_training(video, tmp_path / "t", TrainingCut(**(CUT.__dict__ | {"gaps": (2,), "still_share": 1.0})))
    centres = [t["frame"] for t in load(tmp_path / "t")[0]["triplets"]]
    assert not set(centres) & {10, 11, 12, 13}  # 10 + 2 and 13 - 2 lie beyond the cut between 11 and 12
    assert min(centres) < 10 and max(centres) > 13


def test_still_film_is_refused_and_leaves_nothing(tmp_path):
    video = write_film(tmp_path / "still.mp4", [draw(0)] * 12)
    with pytest.raises(ValueError, match="none of"):
        cut_training(video, tmp_path / "t", TrainingCut(first=0, last=11, gaps=(1,), size=96, still_share=0.0))
    assert [p.name for p in tmp_path.iterdir()] == ["still.mp4"]


def test_evaluation_layout_and_rule(moving, tmp_path):
    cut = EvaluationCut(first=1, last=22, gap=3, spacing=5, motion=(6.0, 90.0))
    assert cut_evaluation(moving, tmp_path / "eval", cut) == 4
    index = json.loads((tmp_path / "eval/index.json").read_text())
    assert (index["considered"], index["kept"]) == (4, 4)
    assert [t["frame"] for t in index["triplets"]] == [4, 9, 14, 19]
    for triplet in index["triplets"]:
        assert triplet["motion"] == pytest.approx(6 * SPEED, abs=3)
        for k, number in enumerate((-3, 0, 3), 1):
            picture = cv2.imread(str(tmp_path / "eval" / triplet["name"] / f"im{k}.png"))[..., ::-1]
            assert np.abs(picture.astype(int) - draw(triplet["frame"] + number)).mean() < 8


def test_evaluation_keeps_only_the_motion_asked_for(moving, tmp_path):
    with pytest.raises(ValueError, match="none of 4"):
        cut_evaluation(moving, tmp_path / "e", EvaluationCut(first=1, last=22, spacing=5, motion=(40.0, 90.0)))


def test_a_gap_of_one_frame_sees_a_cut_by_the_changes_around_it(tmp_path):
    frames = [draw(n, seed=0) for n in range(12)] + [255 - draw(n, seed=7) // 2 for n in range(12, 24)]
    video = write_film(tmp_path / "cut.mp4", frames)
    cut = EvaluationCut(first=0, last=23, gap=1, spacing=1, motion=(6.0, 90.0))
    cut_evaluation(video, tmp_path / "e", cut)
    centres = [t["frame"] for t in json.loads((tmp_path / "e/index.json").read_text())["triplets"]]
    assert not {11, 12} & {*centres} and {8, 15} <= {*centres} and (min(centres), max(centres)) == (3, 20)


def test_nothing_is_overwritten(moving, training):
    before = (training / "index.json").read_bytes()
    with pytest.raises(FileExistsError, match="training"):
        cut_training(moving, training, CUT)
    assert (training / "index.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"last": 100}, "ends before frame"),
        ({"last": 4}, "no centre"),
        ({"size": 200}, "does not fit in 256x160"),
    ],
)
def test_bad_cuts_name_the_reason_and_leave_nothing(moving, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        cut_training(moving, tmp_path / "t", TrainingCut(**(CUT.__dict__ | change)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"size": 98}, {"gaps": ()}, {"gaps": (0, 1)}, {"candidates": 0}])
def test_bad_settings_are_refused_at_once(change):
    with pytest.raises(ValueError):
        TrainingCut(**change)


def test_quarters_need_a_frame_at_half_the_gap():
    with pytest.raises(ValueError, match="gap 3 has no frame at its half"):
        EvaluationCut(gap=3, quarters=True)


def test_missing_video(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.mp4"):
        cut_training(tmp_path / "none.mp4", tmp_path / "t")


ARCHIVE, MEMBER = fetch.MEMBER.split(".zip/")


def package(folder, content: bytes, member=MEMBER):
    """An archive built like the real one, with `content` for a film."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as bundle:
        bundle.writestr(member, content)
    with tarfile.open(folder / "package.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo(f"{ARCHIVE}.zip")
        entry.size = len(inner.getvalue())
        tar.addfile(entry, io.BytesIO(inner.getvalue()))
    return folder / "package.tar.gz"


def test_fetch_takes_the_one_film_and_only_once(tmp_path, monkeypatch):
    archive, content = package(tmp_path, b"film" * 1000), b"film" * 1000
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: archive)
    assert fetch.fetch_film(tmp_path / "data").read_bytes() == content
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert fetch.fetch_film(tmp_path / "data") == tmp_path / "data/bbb.mp4"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["bbb.mp4"]


def test_fetch_refuses_another_film(tmp_path, monkeypatch):
    archive = package(tmp_path, b"something else")
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: archive)
    with pytest.raises(ValueError, match=r"bbb\.mp4"):
        fetch.fetch_film(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_fetch_names_what_the_archive_lacks(tmp_path, monkeypatch):
    archive = package(tmp_path, b"", member="readme.txt")
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: archive)
    with pytest.raises(ValueError, match=r"bbb\.mp4"):
        fetch.fetch_film(tmp_path / "data")
