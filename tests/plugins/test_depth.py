"""Depth maps from files and models."""

import sys

import cv2
import numpy as np
import pytest
from onnx_models import MEAN_OF_CHANNELS, save_model
from refusal import refused

from common.io.images import write_image
from plugins import conditions
from plugins.conditions.depth import draw_depth, normalise, read_depth
from plugins.conditions.onnx_depth import OnnxDepth

RAMP, IMAGE = np.linspace(1, 4, 12, dtype=np.float32).reshape(3, 4), np.zeros((5, 5, 3), np.float32)


def test_near_is_bright():
    """A map of inverse depth, and one of distances in any unit, give the same image."""
    nearness = normalise(RAMP)
    np.testing.assert_allclose(nearness, (RAMP - 1) / 3, atol=1e-6)
    for unit in (1, 7):
        np.testing.assert_allclose(normalise(unit / RAMP, "low"), nearness, atol=1e-6)
    image = draw_depth(RAMP)
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, np.repeat(nearness[..., None], 3, -1))


def test_what_was_not_measured_is_black():
    holes = RAMP.copy()
    holes[0, 1], holes[1, 1] = np.nan, np.inf
    found = normalise(holes)
    assert found[0, 1] == found[1, 1] == 0 and found[0, 0] == 0 and found[-1, -1] == 1
    distances = 1 / RAMP
    distances[0, 1] = 0  # as depth cameras write it
    np.testing.assert_allclose(normalise(distances, "low")[1:], normalise(RAMP)[1:], atol=1e-6)
    assert normalise(distances, "low")[0, 1] == 0


@pytest.mark.parametrize(("depth", "near", "value"), [
    (np.full((2, 2), 3.0), "high", "depth is 3"),
    (np.full((2, 2), np.nan), "high", "NaN"),
    (np.zeros((2, 2)), "low", "0"),
    (np.array([[-1.0, 2.0]]), "low", "-1.* near='high'"),
])  # fmt: skip
def test_maps_without_information_are_refused(depth, near, value):
    refused(ValueError, lambda: normalise(depth, near), match=value)


def test_every_kind_of_file_gives_the_same_map(tmp_path):
    steps = np.round((RAMP - 1) / 3 * 65535).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "a.png"), steps)
    np.save(tmp_path / "b.npy", RAMP)
    np.save(tmp_path / "c.npy", RAMP.astype(np.float64)[None, :, :, None])
    np.savez(tmp_path / "d.npz", anything=RAMP)
    np.savez(tmp_path / "e.npz", depth=RAMP, mask=RAMP > 2, pickled=np.array([{}], object))
    np.save(tmp_path / "f.npy", steps)
    for path in sorted(tmp_path.iterdir()):
        depth = read_depth(path)
        assert depth.shape == (3, 4) and depth.dtype == np.float32
        np.testing.assert_allclose(normalise(depth), (RAMP - 1) / 3, atol=1e-5)


@pytest.mark.parametrize(("name", "write", "value"), [
    ("none.npy", lambda path: None, ""),
    ("a.exr", lambda path: path.write_bytes(b"1"), r"'\.exr'"),
    ("colour.npy", lambda path: np.save(path, np.zeros((3, 4, 3))), r"\[3, 4, 3\] of float64"),
    ("words.npy", lambda path: np.save(path, np.array([["near", "far"]])), r"\[1, 2\]"),
    ("pickled.npy", lambda path: np.save(path, np.array([{"a": 1}])), "pickle"),
    ("text.npz", lambda path: path.write_text("no archive"), ""),
    ("two.npz", lambda path: np.savez(path, near=RAMP, far=RAMP), "near, far.* 'depth'"),
    ("colours.png", lambda path: write_image(path, np.random.default_rng(0).random((4, 4, 3), np.float32)), "grey"),
])  # fmt: skip
def test_files_that_are_no_maps_are_refused(tmp_path, name, write, value):
    write(tmp_path / name)
    refused((ValueError, OSError), read_depth, tmp_path / name, match=f"{name}.*{value}")


@pytest.mark.parametrize("shape", [[1, 3, "h", "w"], [1, 3, 28, 42], [1, "h", "w", 3], ["n", 3, None, None]])
def test_an_onnx_model_gives_a_map_of_the_images_size(tmp_path, shape):
    """The model is the mean of the channels: the map is the image's own grey, normalised."""
    pytest.importorskip("onnxruntime")
    save_model(tmp_path / "mean.onnx", shape, MEAN_OF_CHANNELS)
    image = np.repeat(np.tile(np.linspace(0, 1, 60, dtype=np.float32), (40, 1))[..., None], 3, -1)
    model = OnnxDepth(tmp_path / "mean.onnx", side=42)
    assert isinstance(model, conditions.DepthModel)
    assert model.input_size(40, 60) == ((28, 42) if 28 in shape else (42, 56))  # multiples of 14
    depth = model(image)
    assert depth.shape == (40, 60) and depth.dtype == np.float32
    np.testing.assert_allclose(depth[:, 30], np.mean((image[0, 30] - model.mean) / model.std), atol=0.05)
    np.testing.assert_allclose(conditions.make("depth", image, model=model), image, atol=0.03)


def test_files_that_are_no_depth_model_are_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "text.onnx").write_text("no model")
    save_model(tmp_path / "flat.onnx", [1, 10], [("Identity", ["x"], {})])
    save_model(tmp_path / "same.onnx", [1, 3, 14, 14], [("Identity", ["x"], {})])
    for name, value in (("none", ""), ("text", ""), ("flat", r"\[1, 10\]"), ("same", r"\[1, 3, 14, 14\]")):
        path = tmp_path / f"{name}.onnx"
        refused((ValueError, OSError), lambda path: OnnxDepth(path)(IMAGE), path, match=f"{path}.*{value}")


def test_a_missing_onnxruntime_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "a.onnx").write_bytes(b"1")
    refused(ImportError, OnnxDepth, tmp_path / "a.onnx", match=r"a\.onnx.*\[onnx\]")
