"""Depth and landmark metrics: by hand, and by estimators: an ONNX file, and a stand-in that finds red rectangles."""

import math
import sys

import astronaut
import numpy as np
import pytest
from onnx_models import MEAN_OF_CHANNELS, save_model
from refusal import refused

from plugins import metrics
from plugins.metrics.estimated import fit, in_pixels

RNG = np.random.default_rng(0)
NAN = float("nan")


def test_depth_errors_are_those_of_lstsq():
    predicted, target = RNG.random((2, 9, 7))
    predicted, mask = predicted + target, RNG.random((9, 7)) < 0.7
    columns = np.stack([predicted[mask], np.ones(mask.sum())], axis=1)
    (scale, shift), *_ = np.linalg.lstsq(columns, target[mask], rcond=None)
    off, far = columns @ [scale, shift] - target[mask], target[mask] >= 0.01
    expected = (np.sqrt(np.mean(off**2)), np.mean(np.abs(off[far]) / target[mask][far]), scale, shift)
    assert metrics.depth_errors(predicted, target, mask) == pytest.approx(expected) and expected[0] > 0.05
    exact = metrics.depth_errors((target - 0.3) / 2.5, target)
    assert exact == pytest.approx((0, 0, 2.5, 0.3), abs=1e-12)
    assert fit(np.array([1.0, 3.0]), np.array([0.0, 4.0])) == (2, -2)


def test_near_for_far_is_no_better_than_no_information():
    target = RNG.random((9, 7))
    for predicted in (1 - target, *(np.full_like(target, value) for value in (0, 0.1, 0.3, 7 / 9))):
        found = metrics.depth_errors(predicted, target)
        assert found.scale == 0 and found.rmse == pytest.approx(target.std()) and found.shift == target.mean()


def test_abs_rel_leaves_out_small_targets():
    found = metrics.depth_errors(np.zeros((1, 3)), np.array([[0.0, 0.5, 1.0]]))
    assert found.abs_rel == pytest.approx((0 / 0.5 + 0.5 / 1) / 2)
    assert np.isnan(metrics.depth_errors(np.zeros((1, 3)), np.zeros((1, 3))).abs_rel)


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
    """Eyes 10 apart, a box of 10 x 24 (diagonal 26); errors 0, 5, 2 and 13 pixels."""
    target = np.array([[0.0, 0], [10, 0], [5, 24], [5, 10]])
    predicted = target + np.array([[0.0, 0], [3, 4], [-2, 0], [5, 12]])
    assert metrics.nme(predicted, target, (0, 1)) == pytest.approx(20 / 4 / 10)
    assert metrics.pck(predicted, target) == 2 / 4  # 2.6 pixels
    assert metrics.pck(predicted, target, 0.2) == 3 / 4
    assert metrics.pck(predicted, target, 0.5) == 1  # 13 pixels are just enough
    face = RNG.random((478, 2)) * 100
    assert metrics.nme(face + [3, 4], face) == pytest.approx(5 / np.linalg.norm(face[33] - face[263]))


def test_points_that_were_not_found():
    target, some = np.array([[0.0, 0], [30, 40], [10, 10]]), np.array([[0.0, 5], [NAN, NAN], [10, 10]])
    assert metrics.nme(some, target, (0, 1)) == pytest.approx(2.5 / 50)
    assert metrics.pck(some, target) == pytest.approx(2 / 3)
    assert np.isnan(metrics.nme(NAN * target, target, (0, 1))) and metrics.pck(NAN * target, target) == 0
    unknown = np.array([[0.0, 0], [30, 40], [NAN, NAN]])
    assert metrics.pck(some, unknown) == 1 / 2 and metrics.nme(target, unknown, (0, 1)) == 0
    assert np.isnan(metrics.pck(some, NAN * target))


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


SQUARE, POINTS = np.zeros((3, 3)), np.array([[0.0, 0], [3, 4]])


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.depth_errors(SQUARE, np.zeros((4, 4))), r"\(3, 3\)"),
        (lambda: metrics.depth_errors(SQUARE, SQUARE, SQUARE > 0), "0 pixels"),
        (lambda: metrics.depth_errors(NAN + SQUARE, SQUARE), "9 pixels"),
        (lambda: metrics.pck(POINTS, POINTS[:1]), r"\(2, 2\) and \(1, 2\)"),
        (lambda: metrics.nme(POINTS, POINTS), r"eyes=\(33, 263\)"),
        (lambda: metrics.nme(POINTS, 0 * POINTS, (0, 1)), "0.0"),
        (lambda: metrics.nme(POINTS, NAN * POINTS, (0, 1)), "nan"),
        (lambda: metrics.pck(POINTS, 0 * POINTS), "0.0"),
    ],
)
def test_invalid_values_are_refused(call, value):
    refused(ValueError, call, match=value)
