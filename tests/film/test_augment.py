"""Augmentation: the reference's values, all three frames alike, and flow that still leads to the neighbours."""

import cv2
import numpy as np
import pytest
from recipe import DATA, sampled, scene

from film.data.augment import ReferenceAugment, augment_with_flow, rotated_crop, tint
from film.data.teacher_flow import warp

OFF = dict(quarter_turns=False, mirror=False, angle=0.0, swap=False)
H, W, CROP = 40, 56, 24
SIZE, SMALL = 96, 32  # of the patches with flow, and their crops
FLOW0, FLOW1 = (6.0, -3.0), (-4.0, 5.0)  # unequal on purpose: no wrong turn, flip or swap gives the same


def ramps() -> np.ndarray:
    """uint8 [3 H W 3]: red is 4 x, green 6 y, blue the frame: each pixel has its position as its value."""
    y, x = np.mgrid[:H, :W]
    return np.stack([np.stack([4 * x, 6 * y, np.full((H, W), 100 * k)], -1) for k in range(3)]).astype(np.uint8)


def origin(crops: np.ndarray) -> np.ndarray:
    """(x, y) in the original of each pixel of the crops, [n c c 2]."""
    return crops[..., :2] * 255 / [4, 6]


def run(seed: int, images: np.ndarray | None = None, crop: int = CROP, **switches) -> np.ndarray:
    images = ramps() if images is None else images
    return ReferenceAugment(**switches)(images, crop, np.random.default_rng(seed))[0]


def test_rotation_equals_the_reference():
    """Crops of 40 rows of the rotated image, sampled where the fixture is."""
    with np.load(DATA / "augment.npz") as fixture:
        for number, angle in enumerate(fixture["angles_rad"].tolist()):
            for row in (0, 5):
                crop = rotated_crop(scene(48, 40, 0)[None], 40, angle, np.array([row / 9 + 0.01, 0]))[0]
                expected = fixture[f"rotate_{number}"][row // 5 : row // 5 + 8]
                np.testing.assert_allclose(sampled(crop), expected, atol=1e-5)


def test_turns_and_mirror_are_the_references():
    """Of a whole square image: each draw is one of the fixture's four turns, mirrored or not, and all eight occur."""
    whole = scene(48, 40, 0)
    image = np.rint(whole[:40] * 255).astype(np.uint8)
    with np.load(DATA / "augment.npz") as fixture:
        for k in range(4):  # numpy turns as tf.image.rot90 does
            np.testing.assert_allclose(sampled(np.rot90(whole, k)), fixture[f"rot90_{k}"], atol=1e-7)
        np.testing.assert_allclose(sampled(whole[:, ::-1]), fixture["flip_lr"], atol=1e-7)
    expected = [np.rot90(image, k)[:, ::step].tobytes() for k in range(4) for step in (1, -1)]
    drawn = [np.rint(run(s, np.stack([image] * 3), 40, angle=0.0)[0] * 255).astype(np.uint8) for s in range(80)]
    assert {crop.tobytes() for crop in drawn} == set(expected)


@pytest.mark.parametrize("corners", ["black", "reflect", "inside"])
def test_frames_are_treated_alike_and_corners_filled(corners):
    white, darkest = np.full((3, H, W, 3), 255, np.uint8), 1.0
    for seed in range(30):
        crops = run(seed, corners=corners, swap=False)
        assert crops.shape == (3, CROP, CROP, 3) and crops.dtype == np.float32
        np.testing.assert_array_equal(crops[:2, ..., :2], crops[1:, ..., :2])
        assert crops[0, ..., 2].max() == 0 and crops[2, ..., 2].max() == pytest.approx(200 / 255)
        darkest = min(darkest, run(seed, white, corners=corners).min())
    assert darkest == 0 if corners == "black" else darkest > 0.999


def test_without_switches_a_crop_is_a_piece_of_the_image():
    places = set()
    for seed in range(200):
        crops = np.rint(run(seed, **OFF) * 255).astype(int)
        x, y = crops[0, 0, 0, 0] // 4, crops[0, 0, 0, 1] // 6
        np.testing.assert_array_equal(crops, ramps()[:, y : y + CROP, x : x + CROP])
        places.add((x, y))
    xs, ys = zip(*places, strict=True)
    assert (min(xs), max(xs), min(ys), max(ys)) == (0, W - CROP, 0, H - CROP)


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


def test_half_are_rotated_by_up_to_the_angle():
    angles = []
    for seed in range(200):
        where = origin(run(seed, quarter_turns=False, mirror=False, swap=False, corners="inside"))[0]
        step = where[0, 1] - where[0, 0]
        angles.append(np.degrees(np.arctan2(step[1], step[0])))
    rotated = np.abs([angle for angle in angles if abs(angle) > 0.1])
    assert 70 < len(rotated) < 130 and 40 < rotated.max() < 45.5 and np.median(rotated) == pytest.approx(22, abs=6)


def test_swapping_reverses_time():
    seen = set()
    for seed in range(40):
        crops, time = ReferenceAugment(**(OFF | dict(swap=True)))(ramps(), CROP, np.random.default_rng(seed), 0.25)
        seen.add((round(float(crops[0, 0, 0, 2]) * 255), time))
    assert seen == {(0, 0.25), (200, 0.75)}


def test_tint_is_one_for_all_frames_and_stays_in_range():
    same = np.stack([pattern(0, 0)] * 3)
    results = [tint(same, np.random.default_rng(seed)) for seed in range(60)]
    assert all(r.dtype == np.float32 and r.min() >= 0 and r.max() <= 1 for r in results)
    assert all((r[0] == r[1]).all() and (r[0] == r[2]).all() for r in results)
    assert 0.01 < max(abs(r.mean() - same.mean() / 255) for r in results) < 0.15
    order = [np.corrcoef(r[0, ..., 0].ravel(), same[0, ..., 0].ravel())[0, 1] > 0.99 for r in results]
    assert 1 <= order.count(False) <= 15  # the channels change places now and then
    assert not np.allclose(run(4, same, colour=True, angle=0.0), run(4, same, angle=0.0), atol=0.01)


def pattern(dx: float, dy: float) -> np.ndarray:
    """A smooth pattern moved by (dx, dy): uint8 [SIZE SIZE 3]."""
    x, y = np.meshgrid(np.arange(SIZE) - dx, np.arange(SIZE) - dy)
    waves = [np.sin(x / 5 + c) + np.cos(y / 7 - 2 * c) + np.sin((x + 2 * y) / 11) for c in range(3)]
    return (np.stack(waves, axis=-1) * 35 + 128).astype(np.uint8)


def example() -> dict[str, np.ndarray]:
    """Constant flows, and masks that can be read off the middle image (its red channel, by cell)."""
    images = np.stack([pattern(*FLOW0), pattern(0, 0), pattern(*FLOW1)])
    flows = np.broadcast_to(np.array([FLOW0, FLOW1], np.float16)[:, None, None], (2, SIZE // 4, SIZE // 4, 2))
    red = red_cells(images[1]) > 128
    return dict(images=images, flows=flows, valid=np.stack([red, ~red]).astype(np.uint8))


def red_cells(image: np.ndarray) -> np.ndarray:
    side = len(image) // 4
    return image[..., 0].reshape(side, 4, side, 4).mean(axis=(1, 3))


@pytest.mark.parametrize(("scale", "ratio"), [(1.0, 1.0), (0.5, 0.5), (0.34, 1 / 3)])  # 32 / 0.34 is rounded to cells
def test_flow_still_leads_to_the_neighbours_after_any_augmentation(scale, ratio):
    """Warping x0 and x1 by their flows gives y, masks follow the image, and neighbours are swapped with time."""
    quadrants, swapped = set(), 0
    for seed in range(40):
        out = augment_with_flow(example(), np.random.default_rng(seed), SMALL, scale, colour=False)
        quadrants.add(tuple(np.sign(out["flows"][0, 0, 0])))
        for side in (0, 1):
            flow = cv2.resize(out["flows"][side], (SMALL, SMALL), interpolation=cv2.INTER_NEAREST)
            error, wrong = (
                np.abs(warp(out["images"][2 * side], f) - out["images"][1])[8:-8, 8:-8].mean() for f in (flow, -flow)
            )
            assert error < 0.02 and wrong > 3 * error + 0.02
        length = np.linalg.norm(out["flows"][0, 0, 0])
        backwards = bool(np.isclose(length, ratio * np.hypot(*FLOW1), rtol=1e-3))
        assert backwards or np.isclose(length, ratio * np.hypot(*FLOW0), rtol=1e-3)
        swapped += backwards
        if scale == 1:
            red = (red_cells(out["images"][1] * 255) > 128).astype(np.float32)
            np.testing.assert_array_equal(out["valid"], np.stack([1 - red, red] if backwards else [red, 1 - red]))
    assert len(quadrants) == 4 and 10 < swapped < 30


def test_a_shrunken_cell_is_valid_only_if_all_under_it_are():
    item = example()
    item["valid"] = np.ones_like(item["valid"])
    item["valid"][:, 5, 6] = 0
    plain = dict(turn=False, mirror=False, backwards=False, colour=False)
    valid = augment_with_flow(item, np.random.default_rng(0), SMALL, 1 / 3, **plain)["valid"]
    assert (valid == 0).sum() == 2 and not valid[:, 5 // 3, 6 // 3].any()
