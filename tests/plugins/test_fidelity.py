"""Metrics of control: edges, masks, depth and landmarks, by hand and by estimators; their anchors."""

import math
import sys

import astronaut
import cv2
import numpy as np
import pytest
from onnx_models import MEAN_OF_CHANNELS, save_model
from refusal import refused

from common.io.images import to_uint8
from plugins import metrics
from plugins.metrics import Mean, derangement, flat, score_rows, table
from plugins.metrics.estimated import in_pixels

RNG = np.random.default_rng(0)
NAN = float("nan")
TARGETS = np.array([1.0, 2.0, 4.0, 8.0])
NAMES = ("with control", "no control", "wrong control")
SCORES = {"error": lambda image, target: abs(image - target), "ratio": lambda image, target: image / target}


def line(column: int, side: int = 12) -> np.ndarray:
    """An upright line from edge to edge."""
    found = np.zeros((side, side), bool)
    found[:, column] = True
    return found


def disc(
    side: int = 64, radius: int = 18, shift: int = 0, colour=(0.9, 0.1, 0.1), ground=(1.0, 1.0, 1.0)
) -> np.ndarray:
    """A disc on a plain background."""
    y, x = np.mgrid[:side, :side] - side // 2
    inside = (x - shift) ** 2 + y**2 <= radius**2
    return np.where(inside[..., None], colour, ground).astype(np.float32)


def test_edge_f1_by_hand():
    both = line(2) | line(8)
    assert metrics.edge_f1(both, line(2), 1) == pytest.approx((0.5, 1, 2 / 3))
    assert metrics.edge_f1(line(2), both, 1) == pytest.approx((1, 0.5, 2 / 3))
    # Three lines near one: all three count for precision, the one counts once for recall.
    assert metrics.edge_f1(line(1) | line(2) | line(3), line(2) | line(9), 1) == pytest.approx((1, 0.5, 2 / 3))


def test_edges_by_brute_force():
    a, b = RNG.random((2, 20, 25)) < 0.03
    for tolerance in (0, 1, 3):
        near = [
            np.mean([np.abs(np.argwhere(other) - point).max(axis=1).min() <= tolerance for point in np.argwhere(one)])
            for one, other in ((a, b), (b, a))
        ]
        f1 = 2 * near[0] * near[1] / sum(near) if sum(near) else 0
        assert metrics.edge_f1(a, b, tolerance) == pytest.approx((*near, f1))
    apart = np.linalg.norm(np.argwhere(a)[:, None] - np.argwhere(b), axis=-1)
    assert metrics.chamfer(a, b) == pytest.approx((apart.min(axis=1).mean() + apart.min(axis=0).mean()) / 2, rel=1e-5)
    assert metrics.chamfer(line(3), line(7)) == 4 and metrics.chamfer(line(3), line(3)) == 0
    assert metrics.chamfer(line(3) | line(5), line(3)) == pytest.approx((1 + 0) / 2)


def test_empty_maps():
    empty, some = np.zeros((3, 4), bool), np.ones((3, 4), bool)
    assert metrics.edge_f1(empty, empty) == (1, 1, 1) and metrics.chamfer(empty, empty) == 0
    assert metrics.iou(empty, empty) == 1
    for pair in ((empty, some), (some, empty)):
        assert metrics.edge_f1(*pair) == (0, 0, 0) and metrics.chamfer(*pair) == 5 and metrics.iou(*pair) == 0


def test_the_extractor_is_blur_then_canny_with_fixed_settings():
    image = np.kron(RNG.integers(0, 2, (5, 5, 3)), np.ones((8, 10, 1))).astype(np.float32)  # blocks of pure colours
    grey = image @ np.array([0.299, 0.587, 0.114], np.float32)
    taps = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    padded = np.pad(grey, 5, "reflect")
    rows = np.stack([np.convolve(row, taps / taps.sum(), "valid") for row in padded])
    blurred = np.stack([np.convolve(column, taps / taps.sum(), "valid") for column in rows.T]).T
    found, expected = metrics.edges(image), cv2.Canny(to_uint8(blurred.astype(np.float32)), 120, 240) > 0
    assert 20 < found.sum() < 600 and np.mean(found != expected) < 0.005  # a value may round to the other side


def test_iou():
    left, wide = np.zeros((2, 4, 6), bool)
    left[:, :2], wide[:, :3] = True, True
    assert metrics.iou(left, wide) == metrics.iou(wide, left) == pytest.approx(2 / 3)
    assert metrics.iou(left, left) == 1 and metrics.iou(left, ~left) == 0


@pytest.mark.parametrize("ground", [(1.0, 1.0, 1.0), (0.05, 0.0, 0.1), (0.2, 0.4, 0.9)])
def test_foreground_on_any_background_with_noise(ground):
    image = disc(radius=30, shift=20, ground=ground)  # touches the border, covers less than half of it
    noisy = image + np.float32(0.015) * RNG.standard_normal(image.shape, np.float32)
    truth = np.abs(image - np.float32(ground)).max(axis=-1) > 0
    assert 0.1 < truth[:, -1].mean() < 1
    for background in (None, np.array(ground)):
        np.testing.assert_array_equal(metrics.foreground(noisy, background), truth)


def test_foreground_takes_each_channel_and_the_threshold():
    image = np.full((6, 6, 3), 0.5, np.float32)
    image[2, 2, 2], image[3, 3] = 0.61, 0.59
    assert np.argwhere(metrics.foreground(image)).tolist() == [[2, 2]]
    assert metrics.foreground(image, threshold=0.05).sum() == 2 and metrics.foreground(image, np.zeros(3)).all()


def test_objects_are_the_functions():
    a, b = disc(), disc(shift=3)
    maps = metrics.edges(a), metrics.edges(b)
    assert metrics.EdgeF1()(a, b) == metrics.edge_f1(*maps).f1 < 0.9
    assert metrics.EdgeF1(tolerance=3)(a, b) == metrics.edge_f1(*maps, 3).f1 > 0.95
    assert metrics.EdgeDistance()(a, b) == metrics.chamfer(*maps) > 1
    assert metrics.MaskIou()(a, b) == metrics.iou(metrics.foreground(a), metrics.foreground(b)) < 0.95
    condition = np.full_like(b, 0.3)  # a line is what exceeds 0.5 in any channel
    condition[maps[1], 1] = 0.8
    assert metrics.EdgeF1("condition")(b, condition) == 1 == metrics.EdgeF1()(b, b)
    assert metrics.EdgeDistance("condition")(b, condition) == 0
    for metric in (metrics.EdgeF1(), metrics.EdgeDistance(), metrics.MaskIou()):
        assert np.isnan(metric(np.where(a > 0.5, np.float32("nan"), a), b))
        assert metric.higher_is_better == (not isinstance(metric, metrics.EdgeDistance))


def test_the_depth_error_is_that_of_lstsq():
    predicted, target = RNG.random((2, 9, 7))
    columns = np.stack([(predicted + target).ravel(), np.ones(target.size)], axis=1)
    _, (squares,), *_ = np.linalg.lstsq(columns, target.ravel(), rcond=None)
    expected = np.sqrt(squares / target.size)
    assert metrics.depth_rmse(predicted + target, target) == pytest.approx(expected) and expected > 0.05
    assert metrics.depth_rmse((target - 0.3) / 2.5, target) == pytest.approx(0, abs=1e-12)
    for useless in (1 - target, *(np.full_like(target, value) for value in (0, 0.1, 0.3, 7 / 9))):
        assert metrics.depth_rmse(useless, target) == pytest.approx(target.std())


def test_depth_by_a_model(tmp_path):
    pytest.importorskip("onnxruntime")
    save_model(tmp_path / "mean.onnx", [1, 3, 28, 28], MEAN_OF_CHANNELS)
    ramp = np.repeat(np.tile(np.linspace(0, 1, 28, dtype=np.float32), (28, 1))[..., None], 3, -1)
    score = metrics.DepthRmse(str(tmp_path / "mean.onnx"))
    score.prepare()
    assert score(0.2 + 0.5 * ramp, ramp) < 1e-3
    for wrong in (ramp[:, ::-1], np.full_like(ramp, 0.5)):
        assert score(wrong, ramp) == pytest.approx(float(ramp[..., 0].std()), rel=1e-3)
    assert math.isnan(score(np.full_like(ramp, np.nan), ramp))
    refused(FileNotFoundError, lambda: metrics.DepthRmse("none.onnx").prepare(), match=r"none\.onnx")


def test_nme_and_pck_by_hand():
    """A box of 10 x 24 (diagonal 26); errors 0, 5, 2 and 13 pixels."""
    target = np.array([[0.0, 0], [10, 0], [5, 24], [5, 10]])
    predicted = target + np.array([[0.0, 0], [3, 4], [-2, 0], [5, 12]])
    assert metrics.pck(predicted, target) == 2 / 4  # 2.6 pixels
    assert metrics.pck(predicted, target, 0.2) == 3 / 4
    assert metrics.pck(predicted, target, 0.5) == 1  # 13 pixels are just enough
    face = RNG.random((478, 2)) * 100
    assert metrics.nme(face + [3, 4], face) == pytest.approx(5 / np.linalg.norm(face[33] - face[263]))


def test_points_that_were_not_found():
    target, some = np.array([[0.0, 0], [30, 40], [10, 10]]), np.array([[0.0, 5], [NAN, NAN], [10, 10]])
    assert metrics.pck(some, target) == pytest.approx(2 / 3) and metrics.pck(NAN * target, target) == 0
    assert metrics.pck(some, np.array([[0.0, 0], [30, 40], [NAN, NAN]])) == 1 / 2
    assert np.isnan(metrics.pck(some, NAN * target))
    face = RNG.random((478, 2)) * 100
    partly = np.where(np.arange(478)[:, None] % 2, NAN, face + [3, 4])
    assert metrics.nme(partly, face) == pytest.approx(metrics.nme(face + [3, 4], face))
    assert np.isnan(metrics.nme(NAN * face, face))


NO_FACE = astronaut.marked((200, 200))


def with_face(left: float) -> np.ndarray:
    return astronaut.marked((200, 200), (round(200 * left), 60, 60, 60))


def test_a_face_is_scored_where_there_is_one(monkeypatch):
    astronaut.fake_mediapipe(monkeypatch)
    nme, found = metrics.FaceNme(), metrics.FaceFound()
    nme.prepare()
    assert nme(with_face(0.2), with_face(0.2)) == 0 and found(with_face(0.2), with_face(0.2)) == 1
    near, far = nme(with_face(0.25), with_face(0.2)), nme(with_face(0.6), with_face(0.2))
    assert far == pytest.approx(8 * near, rel=0.05) and near > 0.05
    assert math.isnan(nme(NO_FACE, with_face(0.2))) and found(NO_FACE, with_face(0.2)) == 0
    assert math.isnan(nme(with_face(0.2), NO_FACE)) and math.isnan(found(with_face(0.2), NO_FACE))
    assert found(np.full_like(NO_FACE, np.nan), with_face(0.2)) == 0


def test_a_body_is_scored_by_its_points(monkeypatch):
    astronaut.fake_mediapipe(monkeypatch)
    points = in_pixels(astronaut.person().pose, NO_FACE)
    assert points.shape == (33, 2) and np.allclose(points, 200 * astronaut.person().pose[:, :2])
    body, nobody, score = np.ones_like(NO_FACE), np.zeros_like(NO_FACE), metrics.PosePck()
    assert score(body, body) == 1 and score(nobody, body) == 0 and math.isnan(score(body, nobody))


def test_a_missing_mediapipe_is_an_error_before_the_work(monkeypatch):
    astronaut.forget()
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    for score in (metrics.FaceNme(), metrics.FaceFound(), metrics.PosePck()):
        refused(ImportError, score.prepare, match="'landmarks'")


def sets_of(*images):
    return dict(zip(NAMES, images, strict=True))


@pytest.mark.parametrize("n", [2, 3, 100])
def test_a_derangement_has_no_fixed_point(n):
    found = [derangement(n, seed) for seed in range(20)]
    for seed, each in enumerate(found):
        assert sorted(each) == list(range(n)) and not np.any(each == np.arange(n))
        np.testing.assert_array_equal(each, derangement(n, seed))
    assert len({tuple(each) for each in found}) >= min(n - 1, 10)


def test_three_rows_scored_against_the_same_targets():
    rows = score_rows(SCORES, TARGETS, sets_of(TARGETS, 2 * TARGETS, TARGETS[[1, 0, 3, 2]]))
    assert tuple(rows) == NAMES
    assert [row["error"].value for row in rows.values()] == [0, 15 / 4, (1 + 1 + 4 + 4) / 4]
    assert [row["ratio"].value for row in rows.values()] == [1, 2, (2 + 0.5 + 2 + 0.5) / 4]
    assert rows["no control"]["error"].error == pytest.approx(np.std([1, 2, 4, 8], ddof=1) / 2)
    assert flat(rows)["error/wrong control"] == 2.5 and len(flat(rows)) == 6
    lines = table(rows).splitlines()
    assert lines[0] == "| pictures | error | ratio |"
    assert lines[2] == "| with control | 0.000 ± 0.000 | 1.000 ± 0.000 |"
    assert lines[3].startswith("| no control | 3.750 ± 1.548 | 2.000") and len(lines) == 5


def test_a_score_of_nan_is_left_out_and_counted():
    score = {"face": lambda image, target: image if image > 0 else float("nan")}
    rows = score_rows(score, [0] * 3, sets_of([1.0, 2.0, 3.0], [4.0, -1.0, -1.0], [-1.0] * 3))
    expected = [Mean(2, 1 / np.sqrt(3), 3), Mean(4, float("nan"), 1), Mean(float("nan"), float("nan"), 0)]
    for row, mean in zip(rows.values(), expected, strict=True):
        assert row["face"] == pytest.approx(mean, nan_ok=True)
    assert "4.000 ± nan (1 of 3)" in table(rows) and "(0 of 3)" in table(rows) and "(3 of" not in table(rows)
