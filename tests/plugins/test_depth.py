"""Depth maps from files and models, and scenes whose depth is checked against geometry."""

import sys

import cv2
import numpy as np
import pytest
from onnx_models import MEAN_OF_CHANNELS, save_model

from common.io.images import write_image
from plugins import conditions
from plugins.conditions.depth import draw_depth, normalise, read_depth
from plugins.conditions.onnx_depth import OnnxDepth
from recipes.captioned_pictures import scenes
from recipes.captioned_pictures.scene_shapes import Ball, Box, meet_ground, unit

RAMP = np.linspace(1, 4, 12, dtype=np.float32).reshape(3, 4)

# ---- maps


def test_near_is_bright():
    """A map of inverse depth, and one of the distances that it is the inverse of, give the same picture."""
    nearness = normalise(RAMP)
    np.testing.assert_allclose(nearness, (RAMP - 1) / 3, atol=1e-6)
    np.testing.assert_allclose(normalise(1 / RAMP, "low"), nearness, atol=1e-6)
    np.testing.assert_allclose(normalise(7 / RAMP, "low"), nearness, atol=1e-6)  # the unit does not matter
    picture = draw_depth(RAMP)
    assert picture.shape == (3, 4, 3) and picture.dtype == np.float32
    np.testing.assert_array_equal(picture, np.repeat(nearness[..., None], 3, -1))


def test_what_was_not_measured_is_black():
    holes = RAMP.copy()
    holes[0, 1], holes[1, 1] = np.nan, np.inf
    seen = normalise(holes)
    assert seen[0, 1] == seen[1, 1] == 0 and seen[0, 0] == 0 and seen[-1, -1] == 1
    distances = 1 / RAMP
    distances[0, 1] = 0  # a depth camera's "nothing came back"
    np.testing.assert_allclose(normalise(distances, "low")[1:], normalise(RAMP)[1:], atol=1e-6)
    assert normalise(distances, "low")[0, 1] == 0


@pytest.mark.parametrize(
    ("depth", "near", "value"),
    [
        (np.full((2, 2), 3.0), "high", "depth is 3"),
        (np.full((2, 2), 3.0), "low", "depth is 3"),
        (np.full((2, 2), np.nan), "high", "no value"),
        (np.zeros((2, 2)), "low", "no value"),
        (np.array([[-1.0, 2.0]]), "low", "-1.* near='high'"),
    ],
)
def test_maps_that_show_nothing_are_refused(depth, near, value):
    with pytest.raises(ValueError, match=value):
        normalise(depth, near)


# ---- files


def test_every_kind_of_file_gives_the_same_picture(tmp_path):
    steps = np.round((RAMP - 1) / 3 * 65535).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "a.png"), steps)
    np.save(tmp_path / "b.npy", RAMP)
    np.save(tmp_path / "c.npy", RAMP.astype(np.float64)[None, :, :, None])
    np.savez(tmp_path / "d.npz", anything=RAMP)
    np.savez(tmp_path / "e.npz", depth=RAMP, mask=RAMP > 2)
    np.save(tmp_path / "f.npy", steps)
    for path in sorted(tmp_path.iterdir()):
        depth = read_depth(path)
        assert depth.shape == (3, 4) and depth.dtype == np.float32
        np.testing.assert_allclose(normalise(depth), (RAMP - 1) / 3, atol=1e-5)


def test_files_that_are_no_maps_are_refused(tmp_path):
    def said(name: str) -> str:
        with pytest.raises((ValueError, OSError)) as error:
            read_depth(tmp_path / name)
        assert "\n" not in str(error.value) and name in str(error.value)
        return str(error.value)

    assert "does not exist" in said("none.npy")
    (tmp_path / "a.exr").write_bytes(b"1")
    assert "suffix '.exr' is not one of .npy .npz .png" in said("a.exr")
    np.save(tmp_path / "colour.npy", np.zeros((3, 4, 3)))
    assert "shape [3, 4, 3] of float64; a depth map is [height, width] numbers" in said("colour.npy")
    np.save(tmp_path / "words.npy", np.array([["near", "far"]]))
    assert "a depth map is [height, width] numbers" in said("words.npy")
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}]))
    assert "is no file of plain arrays" in said("pickled.npy")
    (tmp_path / "text.npz").write_text("no archive")
    assert "is no file of plain arrays" in said("text.npz")
    np.savez(tmp_path / "two.npz", near=RAMP, far=RAMP)
    assert "holds near, far; keep one array, or call the map 'depth'" in said("two.npz")
    write_image(tmp_path / "colours.png", np.random.default_rng(0).random((4, 4, 3), np.float32))
    assert "is a coloured picture; a depth map is grey" in said("colours.png")


def test_a_map_has_the_size_of_its_picture():
    image = np.zeros((6, 8, 3), np.float32)
    with pytest.raises(ValueError, match=r"4x3.* 8x6"):
        conditions.make("depth", image, depth=RAMP)
    with pytest.raises(ValueError, match="4x3"):
        conditions.make("depth", image, model=lambda picture: RAMP)
    for options in ({}, {"depth": RAMP, "model": lambda picture: RAMP}):
        with pytest.raises(ValueError, match=r"map.* model"):
            conditions.make("depth", image, **options)


# ---- ONNX


@pytest.mark.parametrize("shape", [[1, 3, "h", "w"], [1, 3, 28, 42], [1, "h", "w", 3], ["n", 3, None, None]])
def test_an_onnx_model_gives_a_map_of_the_pictures_size(tmp_path, shape):
    """The model is the mean of the channels: what comes back is the picture's own grey, normalised."""
    pytest.importorskip("onnxruntime")
    save_model(tmp_path / "mean.onnx", shape, MEAN_OF_CHANNELS)
    image = np.repeat(np.tile(np.linspace(0, 1, 60, dtype=np.float32), (40, 1))[..., None], 3, -1)
    model = OnnxDepth(tmp_path / "mean.onnx", side=42)
    assert isinstance(model, conditions.DepthModel)
    depth = model(image)
    assert depth.shape == (40, 60) and depth.dtype == np.float32
    np.testing.assert_allclose(normalise(depth), image[..., 0], atol=0.03)
    np.testing.assert_allclose(depth[:, 30], np.mean((image[0, 30] - model.mean) / model.deviation), atol=0.05)
    np.testing.assert_allclose(conditions.make("depth", image, model=model), image, atol=0.03)


def test_sides_are_multiples(tmp_path):
    pytest.importorskip("onnxruntime")
    save_model(tmp_path / "mean.onnx", [1, 3, "h", "w"], MEAN_OF_CHANNELS)
    model = OnnxDepth(tmp_path / "mean.onnx", side=384, multiple=32)
    assert model._working_size(480, 640) == (384, 512) and model._working_size(1000, 100) == (3840, 384)


def test_files_that_are_no_depth_model_are_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(FileNotFoundError):
        OnnxDepth(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match=r"text\.onnx"):
        OnnxDepth(tmp_path / "text.onnx")
    save_model(tmp_path / "flat.onnx", [1, 10], [("Identity", ["x"], {})])
    with pytest.raises(ValueError, match=r"1 3 h w"):
        OnnxDepth(tmp_path / "flat.onnx")
    save_model(tmp_path / "same.onnx", [1, 3, 14, 14], [("Identity", ["x"], {})])
    with pytest.raises(ValueError, match=r"same\.onnx.* \[1, 3, 14, 14\]"):
        OnnxDepth(tmp_path / "same.onnx")(np.zeros((5, 5, 3), np.float32))


def test_a_missing_onnxruntime_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "a.onnx").write_bytes(b"1")
    with pytest.raises(ImportError, match=r"\[onnx\].* --depth"):
        OnnxDepth(tmp_path / "a.onnx")


# ---- scenes


def scene(number: int, size=(48, 64)) -> scenes.Scene:
    return scenes.scene(np.random.default_rng([7, number]), size)


def rays_of(number: int, size=(48, 64)) -> tuple[scenes.World, np.ndarray]:
    world = scenes.draw_world(np.random.default_rng([7, number]))
    return world, scenes.rays(world, *size, (0.5, 0.5))


@pytest.mark.parametrize("number", range(6))
def test_depth_lies_on_the_surfaces(number):
    """Along each ray by its depth: within 1e-4 of the surface of the ball, box or ground that the mask says."""
    made, (world, direction) = scene(number), rays_of(number)
    along = direction @ world.axes[2]
    with np.errstate(invalid="ignore"):
        place = world.eye + (made.depth.reshape(-1) / along)[:, None] * direction
    hit = np.isfinite(made.depth.reshape(-1))
    rest = hit & ~made.masks.any(0).reshape(-1)
    assert rest.any() and np.abs(place[rest, 1]).max() < 1e-4 * made.depth.reshape(-1)[rest].max()
    for thing, mask in zip(world.things, made.masks.reshape(len(world.things), -1), strict=True):
        if isinstance(thing, Ball):
            off = np.linalg.norm(place[mask] - thing.centre, axis=-1) - thing.radius
        else:
            off = (np.abs((place[mask] - thing.centre) @ thing.axes.T) - thing.half).max(-1)
        assert np.abs(off).max(initial=0) < 1e-4


def test_nothing_lies_before_what_is_seen():
    """Points on the way to the surface are inside no thing."""
    made, (world, direction) = scene(3), rays_of(3)
    length = made.depth.reshape(-1) / (direction @ world.axes[2])
    length = np.where(np.isfinite(length), length, 50)
    for share in np.linspace(0.02, 0.99, 60):
        place = world.eye + (share * length)[:, None] * direction
        for thing in world.things:
            if isinstance(thing, Ball):
                assert (np.linalg.norm(place - thing.centre, axis=-1) > thing.radius - 1e-6).all()
            else:
                assert ((np.abs((place - thing.centre) @ thing.axes.T) - thing.half).max(-1) > -1e-6).all()


def test_shapes_are_met_where_they_are():
    forward = np.array([[0.0, 0.0, 1.0]])
    ball, box = Ball(0.0, 0.0, 1.0), Box(0.0, 0.0, 2**0.5, 2.0, 1.0, 0.0)
    start = np.array([0.0, 1, -5])
    np.testing.assert_allclose(ball.meet(start, forward), 4)
    np.testing.assert_allclose(box.meet(start, forward), 4)
    np.testing.assert_allclose(Box(0.0, 0.0, 2**0.5, 2.0, 1.0, np.pi / 4).meet(start, forward), 5 - np.sqrt(2))
    assert np.isinf(ball.meet(start, -forward)).all() and np.isinf(box.meet(start, -forward)).all()  # behind
    beside = start + [1.01, 0, 0]
    assert np.isinf(ball.meet(beside, forward)).all() and np.isinf(box.meet(beside, forward)).all()
    np.testing.assert_allclose(ball.meet(np.array([0.0, 1, 0]), forward), 1)  # from inside
    np.testing.assert_allclose(meet_ground(start, unit(np.array([[0, -1.0, 1]]))), np.sqrt(2))
    assert np.isinf(meet_ground(start, forward)).all()


def test_scenes_depend_on_the_seed_alone():
    first, again, other = scene(0), scene(0), scene(1)
    for name in ("image", "depth", "masks"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert first.caption == again.caption and not np.array_equal(first.image, other.image)


@pytest.mark.parametrize("size", [(48, 64), (64, 40), (1, 1)])
def test_scenes_have_values_in_range(size):
    for number in range(4):
        made = scene(number, size)
        assert made.image.shape == (*size, 3) and made.image.dtype == np.float32
        assert made.image.min() >= 0 and made.image.max() <= 1
        assert made.depth.shape == size and (made.depth > 0).all() and not np.isnan(made.depth).any()
        assert made.masks.shape == (len(made.names), *size) and made.masks.sum(0).max() <= 1
        assert np.isfinite(made.depth[made.masks.any(0)]).all()
    assert scenes.scene(np.random.default_rng(0), 16).image.shape == (16, 16, 3)
    with pytest.raises(ValueError, match="0x4"):
        scenes.scene(np.random.default_rng(0), (4, 0))


def test_captions_name_what_is_seen():
    made = scene(0)
    assert made.caption.endswith(f" on {made.ground}") and made.caption.count("ball") + made.caption.count("box") >= 1
    blank = scenes.Scene(made.image, made.depth, np.zeros_like(made.masks), made.names, "sand")
    assert blank.caption == "nothing on sand"
    full = np.zeros((3, 48, 64), bool)
    full[:, :9] = True
    three = scenes.Scene(made.image, made.depth, full, ("red ball", "orange box", "blue box"), "snow")
    assert three.caption == "a red ball, an orange box and a blue box on snow"


def test_scenes_show_things_and_their_depth_is_a_condition():
    seen = [scene(number) for number in range(8)]
    assert np.mean([made.masks.any((1, 2)).mean() for made in seen]) > 0.8  # of the things, most are in view
    for made in seen:
        picture = conditions.draw_depth(made.depth, near="low")
        assert picture.max() == 1 and (picture[~np.isfinite(made.depth)] == 0).all()
        assert made.image.std() > 0.05


def test_the_sheet_is_written(tmp_path):
    scenes.main(tmp_path / "sheet.png", count=1, side=24)
    assert (tmp_path / "sheet.png").stat().st_size > 0


def test_edges_of_a_scene_lie_where_its_masks_end():
    made = scene(2, (128, 128))
    edges = conditions.make("canny", made.image, low=40, high=80)[..., 0] > 0
    outline = np.zeros((128, 128), bool)
    for mask in made.masks:
        outline |= cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)).astype(bool)
    near = cv2.dilate(edges.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(bool)
    assert near[outline].mean() > 0.7
