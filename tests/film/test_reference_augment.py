from pathlib import Path

import numpy as np
import pytest
from recipe import sampled, scene

from film.data.reference_augment import ReferenceAugment, rotate, rotated_crop

DATA = Path(__file__).parents[1] / "data" / "film"
OFF = dict(quarter_turns=False, mirror=False, angle=0.0, swap=False)
H, W, CROP = 40, 56, 24


def ramps() -> np.ndarray:
    """uint8 [3 H W 3]: red is 4 x, green 6 y, blue tells the frame: each pixel says where it comes from."""
    y, x = np.mgrid[:H, :W]
    return np.stack([np.stack([4 * x, 6 * y, np.full((H, W), 100 * k)], -1) for k in range(3)]).astype(np.uint8)


def origin(crops: np.ndarray) -> np.ndarray:
    """(x, y) in the original of each pixel of the crops, [n c c 2]."""
    return crops[..., :2] * 255 / [4, 6]


def run(seed: int, images: np.ndarray | None = None, crop: int = CROP, **switches) -> np.ndarray:
    images = ramps() if images is None else images
    return ReferenceAugment(**switches)(images, crop, np.random.default_rng(seed))[0]


@pytest.mark.parametrize("number", range(5))
def test_rotation_equals_the_reference(number):
    with np.load(DATA / "augment.npz") as fixture:
        angle = float(fixture["angles_rad"][number])
        np.testing.assert_allclose(sampled(rotate(scene(48, 40, 0), angle)), fixture[f"rotate_{number}"], atol=1e-5)


def test_rotation_of_a_square_equals_the_reference():
    with np.load(DATA / "augment.npz") as fixture:
        square = np.ascontiguousarray(scene(48, 40, 0)[:32, :32])
        np.testing.assert_allclose(sampled(rotate(square, 0.5)), fixture["rotate_square_0_5"], atol=1e-5)


def test_turns_and_mirror_are_the_references():
    """Of a whole square picture: each draw is one of the fixture's four turns, mirrored or not, and all eight occur."""
    whole = scene(48, 40, 0)
    image = np.rint(whole[:40] * 255).astype(np.uint8)
    with np.load(DATA / "augment.npz") as fixture:
        for k in range(4):  # numpy turns as tf.image.rot90 does
            np.testing.assert_allclose(sampled(np.rot90(whole, k)), fixture[f"rot90_{k}"], atol=1e-7)
        np.testing.assert_allclose(sampled(whole[:, ::-1]), fixture["flip_lr"], atol=1e-7)
    ways = [np.rot90(image, k)[:, ::step] for k in range(4) for step in (1, -1)]
    seen = set()
    for seed in range(80):
        out = np.rint(run(seed, np.stack([image] * 3), 40, angle=0.0)[0] * 255)
        matches = [number for number, way in enumerate(ways) if np.array_equal(out, way)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert seen == set(range(8))


@pytest.mark.parametrize("corners", ["black", "reflect", "inside"])
def test_the_three_frames_are_treated_alike(corners):
    for seed in range(30):
        crops = run(seed, corners=corners, swap=False)
        assert crops.shape == (3, CROP, CROP, 3) and crops.dtype == np.float32
        np.testing.assert_array_equal(crops[0, ..., :2], crops[1, ..., :2])
        np.testing.assert_array_equal(crops[0, ..., :2], crops[2, ..., :2])
        assert crops[0, ..., 2].max() == 0 and crops[2, ..., 2].max() == pytest.approx(200 / 255)


def test_without_switches_a_crop_is_a_piece_of_the_picture():
    places = set()
    for seed in range(200):
        crops = np.rint(run(seed, **OFF) * 255).astype(int)
        x, y = crops[0, 0, 0, 0] // 4, crops[0, 0, 0, 1] // 6
        np.testing.assert_array_equal(crops, ramps()[:, y : y + CROP, x : x + CROP])
        places.add((x, y))
    xs, ys = zip(*places, strict=True)
    assert (min(xs), max(xs), min(ys), max(ys)) == (0, W - CROP, 0, H - CROP)


def test_a_rotated_crop_is_a_crop_of_the_rotated_picture():
    images = ramps().astype(np.float32)
    for angle, place in ((0.3, (0.0, 0.0)), (-0.6, (0.5, 0.9)), (0.7, (0.99, 0.2))):
        y, x = int(place[0] * (H - CROP + 1)), int(place[1] * (W - CROP + 1))
        whole = rotate(images[1], angle)[y : y + CROP, x : x + CROP]
        np.testing.assert_allclose(rotated_crop(images, CROP, angle, np.array(place))[1], whole, atol=2e-3)


def test_corners_are_black_only_where_asked_for():
    white = np.full((3, H, W, 3), 255, np.uint8)
    darkest = {
        name: min(run(s, white, corners=name).min() for s in range(60)) for name in ("black", "reflect", "inside")
    }
    assert darkest["black"] == 0 and darkest["reflect"] > 0.999 and darkest["inside"] > 0.999


@pytest.mark.parametrize("crop", [CROP, H])
def test_inside_shows_real_pixels_only_and_enlarges_only_what_does_not_fit(crop):
    zooms = set()
    for seed in range(40):
        place, angle = np.random.default_rng(seed).random(2), np.random.default_rng(seed + 100).uniform(-0.78, 0.78)
        where = origin(rotated_crop(ramps() / np.float32(255), crop, angle, place, "inside"))[0]
        assert where.min() > -0.01 and where[..., 0].max() < W - 0.99 and where[..., 1].max() < H - 0.99
        step = where[0, 1] - where[0, 0]
        zooms.add(round(float(np.linalg.norm(step)), 2))
        assert np.arctan2(step[1], step[0]) == pytest.approx(angle, abs=0.01)
    assert zooms == {1.0} if crop == CROP else min(zooms) > 0.7 and max(zooms) < 1.01


def test_about_half_are_rotated_by_up_to_the_angle():
    angles = []
    for seed in range(200):
        where = origin(run(seed, quarter_turns=False, mirror=False, swap=False, corners="inside"))[0]
        step = where[0, 1] - where[0, 0]
        angles.append(np.degrees(np.arctan2(step[1], step[0])))
    turned = np.abs([angle for angle in angles if abs(angle) > 0.1])
    assert 70 < len(turned) < 130 and 40 < turned.max() < 45.5 and np.median(turned) == pytest.approx(22, abs=6)


def test_swapping_turns_time_around():
    seen = set()
    for seed in range(40):
        crops, time = ReferenceAugment(**(OFF | dict(swap=True)))(ramps(), CROP, np.random.default_rng(seed), 0.25)
        seen.add((round(float(crops[0, 0, 0, 2]) * 255), time))
    assert seen == {(0, 0.25), (200, 0.75)}


def test_colour_changes_all_frames_by_one_curve():
    same = np.repeat(ramps()[1:2], 3, axis=0)
    plain, tinted = (run(4, same, colour=colour, angle=0.0) for colour in (False, True))
    assert not np.allclose(plain, tinted, atol=0.01)
    np.testing.assert_array_equal(tinted[0], tinted[2])
    assert tinted.min() >= 0 and tinted.max() <= 1


@pytest.mark.parametrize(("switches", "words"), [({"angle": 60.0}, "0 to 45"), ({"corners": "grey"}, "black, reflect")])
def test_impossible_switches_name_the_way_out(switches, words):
    with pytest.raises(ValueError, match=words):
        ReferenceAugment(**switches)
