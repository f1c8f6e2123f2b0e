"""Scores that need an estimator: a made ONNX file for depth; for faces a stand-in that finds red rectangles, which
says nothing about faces and all about what is done with them."""

import math
import sys

import astronaut
import numpy as np
import pytest
from onnx_models import MEAN_OF_CHANNELS, save_model

from plugins import metrics
from plugins.conditions import detection
from plugins.metrics.estimated import in_pixels

RAMP = np.repeat(np.tile(np.linspace(0, 1, 28, dtype=np.float32), (28, 1))[..., None], 3, -1)


def test_depth_is_compared_after_the_best_scale_and_shift(tmp_path):
    pytest.importorskip("onnxruntime")
    save_model(tmp_path / "mean.onnx", [1, 3, 28, 28], MEAN_OF_CHANNELS)
    score = metrics.DepthRmse(str(tmp_path / "mean.onnx"))
    score.prepare()
    assert score(0.2 + 0.5 * RAMP, RAMP) < 1e-3
    knows_nothing = float(RAMP[..., 0].std())
    for wrong in (RAMP[:, ::-1], np.full_like(RAMP, 0.5)):
        assert score(wrong, RAMP) == pytest.approx(knows_nothing, rel=1e-3)
    assert math.isnan(score(np.full_like(RAMP, np.nan), RAMP))
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        metrics.DepthRmse("none.onnx").prepare()


def with_face(left: float) -> np.ndarray:
    image = np.full((200, 200, 3), 0.5, np.float32)
    start = round(left * 200)
    image[60:120, start : start + 60] = [1, 0, 0]
    return image


NO_FACE = np.full((200, 200, 3), 0.5, np.float32)


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
    person = astronaut.person()
    points = in_pixels(person.pose, NO_FACE)
    assert points.shape == (33, 2) and np.allclose(points, 200 * person.pose[:, :2])
    answers = {"target": person, "nobody": None}

    def find(image):
        name = "target" if image[0, 0, 0] == 1 else "nobody"
        if answers[name] is None:
            raise ValueError("no person was found; give a picture that shows one larger, or their landmarks")
        return answers[name]

    monkeypatch.setattr(detection, "find_holistic", find)
    body, nobody, score = np.ones_like(NO_FACE), np.zeros_like(NO_FACE), metrics.PosePck()
    assert score(body, body) == 1 and score(nobody, body) == 0 and math.isnan(score(body, nobody))


def test_without_mediapipe_it_is_said_before_the_work(monkeypatch):
    astronaut.forget()
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    for score in (metrics.FaceNme(), metrics.FaceFound(), metrics.PosePck()):
        with pytest.raises(ImportError, match="install the extra 'landmarks'"):
            score.prepare()
