"""Scores of obedience: by hand, by brute force, and what nothing at all scores."""

import cv2
import numpy as np
import pytest
from networks import one_line

from common.io.images import to_uint8
from plugins import metrics
from plugins.conditions.mask import ground_colour
from plugins.metrics.colours import lab, nearest_colours
from plugins.metrics.depth import fit
from plugins.metrics.edge_maps import lines

RNG = np.random.default_rng(0)


def line(column: int, side: int = 12) -> np.ndarray:
    """An upright line from edge to edge."""
    found = np.zeros((side, side), bool)
    found[:, column] = True
    return found


def disc(
    side: int = 64, radius: int = 18, shift: int = 0, colour=(0.9, 0.1, 0.1), ground=(1.0, 1.0, 1.0)
) -> np.ndarray:
    """A picture of a disc on a plain ground."""
    y, x = np.mgrid[:side, :side] - side // 2
    inside = (x - shift) ** 2 + y**2 <= radius**2
    return np.where(inside[..., None], colour, ground).astype(np.float32)


# ---- edges


@pytest.mark.parametrize(("shift", "reached"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_a_shifted_line_is_found_from_its_tolerance_on(shift, reached):
    for tolerance in range(4):
        expected = float(tolerance >= reached)
        assert metrics.edge_f1(line(4 + shift), line(4), tolerance) == (expected,) * 3


def test_precision_counts_what_came_and_recall_what_was_asked_for():
    both = line(2) | line(8)
    assert metrics.edge_f1(both, line(2), 1) == pytest.approx((0.5, 1, 2 / 3))
    assert metrics.edge_f1(line(2), both, 1) == pytest.approx((1, 0.5, 2 / 3))
    # Three lines for one within reach: all three count for precision, the one counts once for recall.
    assert metrics.edge_f1(line(1) | line(2) | line(3), line(2) | line(9), 1) == pytest.approx((1, 0.5, 2 / 3))


def test_edge_f1_by_double_loops():
    a, b = RNG.random((2, 20, 25)) < 0.03
    for tolerance in (0, 1, 3):
        near = [
            np.mean([np.abs(np.argwhere(other) - point).max(axis=1).min() <= tolerance for point in np.argwhere(one)])
            for one, other in ((a, b), (b, a))
        ]
        f1 = 2 * near[0] * near[1] / sum(near) if sum(near) else 0
        assert metrics.edge_f1(a, b, tolerance) == pytest.approx((*near, f1))


def test_chamfer_by_brute_force():
    a, b = RNG.random((2, 30, 41)) < 0.02
    apart = np.linalg.norm(np.argwhere(a)[:, None] - np.argwhere(b), axis=-1)
    assert metrics.chamfer(a, b) == pytest.approx((apart.min(axis=1).mean() + apart.min(axis=0).mean()) / 2, rel=1e-5)
    assert metrics.chamfer(line(3), line(7)) == 4
    assert metrics.chamfer(line(3), line(3)) == 0
    assert metrics.chamfer(line(3) | line(5), line(3)) == pytest.approx((1 + 0) / 2)


def test_empty_maps_score_as_the_module_says():
    empty, some = np.zeros((3, 4), bool), np.ones((3, 4), bool)
    assert metrics.edge_f1(empty, empty) == (1, 1, 1) and metrics.chamfer(empty, empty) == 0
    for pair in ((empty, some), (some, empty)):
        assert metrics.edge_f1(*pair) == (0, 0, 0) and metrics.chamfer(*pair) == 5


def test_the_extractor_is_blur_then_canny_with_fixed_settings():
    image = np.kron(RNG.integers(0, 2, (5, 5, 3)), np.ones((8, 10, 1))).astype(np.float32)  # blocks of pure colours
    grey = image @ np.array([0.299, 0.587, 0.114], np.float32)
    taps = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    padded = np.pad(grey, 5, "reflect")
    rows = np.stack([np.convolve(row, taps / taps.sum(), "valid") for row in padded])
    blurred = np.stack([np.convolve(column, taps / taps.sum(), "valid") for column in rows.T]).T
    found, expected = metrics.edges(image), cv2.Canny(to_uint8(blurred.astype(np.float32)), 120, 240) > 0
    assert 20 < found.sum() < 600 and np.mean(found != expected) < 0.005  # a value may round to the other side
    np.testing.assert_array_equal(metrics.edges(image, 0, 100, 200), cv2.Canny(to_uint8(grey), 100, 200) > 0)
    assert metrics.edges(image, 0, 100, 200).sum() != found.sum()


def test_the_blur_tells_pictures_apart_through_noise():
    """What the settings are for: noise hurts the same picture little, and another picture scores low."""
    image = disc()
    noisy = np.clip(image + np.float32(0.16) * RNG.standard_normal(image.shape, np.float32), 0, 1)
    clean, other = metrics.edges(image), metrics.edges(disc(radius=8, shift=12))
    assert metrics.edge_f1(metrics.edges(noisy), clean).f1 > 0.95
    assert metrics.edge_f1(metrics.edges(noisy, blur=0), clean).f1 < 0.6
    assert metrics.edge_f1(other, clean).f1 < 0.3


def test_a_condition_is_read_as_lines():
    condition = np.zeros((5, 5, 3), np.float32)
    condition[2, :, 1] = 0.8
    condition[3] = 0.3
    assert lines(condition).sum() == 5 and lines(condition)[2].all()


# ---- masks


def test_iou():
    left, wide = np.zeros((2, 4, 6), bool)
    left[:, :2], wide[:, :3] = True, True
    assert metrics.iou(left, wide) == metrics.iou(wide, left) == pytest.approx(2 / 3)
    assert metrics.iou(left, left) == 1 and metrics.iou(left, ~left) == 0
    nothing = np.zeros_like(left)
    assert metrics.iou(nothing, nothing) == 1 and metrics.iou(nothing, left) == metrics.iou(left, nothing) == 0


@pytest.mark.parametrize("ground", [(1.0, 1.0, 1.0), (0.05, 0.0, 0.1), (0.2, 0.4, 0.9)])
def test_foreground_on_any_ground_with_noise(ground):
    image = disc(radius=30, shift=20, ground=ground)  # touches the border, covers less than half of it
    noisy = image + np.float32(0.015) * RNG.standard_normal(image.shape, np.float32)
    truth = np.abs(image - np.float32(ground)).max(axis=-1) > 0
    assert 0.1 < truth[:, -1].mean() < 1
    np.testing.assert_array_equal(metrics.foreground(noisy), truth)
    np.testing.assert_allclose(ground_colour(noisy), ground, atol=0.01)
    np.testing.assert_array_equal(metrics.foreground(noisy, np.array(ground)), truth)


def test_foreground_looks_at_each_channel_and_the_threshold():
    image = np.full((6, 6, 3), 0.5, np.float32)
    image[2, 2, 2], image[3, 3] = 0.61, 0.59
    assert np.argwhere(metrics.foreground(image)).tolist() == [[2, 2]]
    assert metrics.foreground(image, threshold=0.05).sum() == 2
    assert metrics.foreground(image, np.zeros(3)).all()


# ---- depth


def test_depth_is_fitted_by_scale_and_shift():
    target = RNG.random((9, 7)) + 0.1
    found = metrics.depth_errors((target - 0.3) / 2.5, target)
    assert found.scale == pytest.approx(2.5) and found.shift == pytest.approx(0.3)
    assert found.rmse < 1e-12 and found.abs_rel < 1e-12


def test_depth_errors_are_those_of_lstsq():
    predicted, target = RNG.random((2, 9, 7))
    predicted = predicted + target
    mask = RNG.random((9, 7)) < 0.7
    columns = np.stack([predicted[mask], np.ones(mask.sum())], axis=1)
    (scale, shift), *_ = np.linalg.lstsq(columns, target[mask], rcond=None)
    off, far = columns @ [scale, shift] - target[mask], target[mask] >= 0.01
    expected = (np.sqrt(np.mean(off**2)), np.mean(np.abs(off[far]) / target[mask][far]), scale, shift)
    assert metrics.depth_errors(predicted, target, mask) == pytest.approx(expected)
    assert scale > 0 and expected[0] > 0.05


def test_near_for_far_is_no_better_than_nothing():
    target = RNG.random((9, 7))
    for predicted in (1 - target, np.full_like(target, 0.1), np.zeros_like(target)):
        found = metrics.depth_errors(predicted, target)
        assert found.scale == 0 and found.rmse == pytest.approx(target.std()) and found.shift == target.mean()


def test_abs_rel_leaves_out_what_it_cannot_divide_by():
    target = np.array([[0.0, 0.5, 1.0]])
    found = metrics.depth_errors(np.zeros((1, 3)), target)
    assert found.abs_rel == pytest.approx((0 / 0.5 + 0.5 / 1) / 2)
    assert np.isnan(metrics.depth_errors(np.zeros((1, 3)), np.zeros((1, 3))).abs_rel)
    assert fit(np.array([1.0, 3.0]), np.array([0.0, 4.0])) == (2, -2)


# ---- landmarks


def test_nme_and_pck_by_hand():
    """Eyes 10 apart, a box of 10 x 24 (diagonal 26); errors 0, 5, 2 and 13 pixels."""
    target = np.array([[0.0, 0], [10, 0], [5, 24], [5, 10]])
    predicted = target + np.array([[0.0, 0], [3, 4], [-2, 0], [5, 12]])
    assert metrics.nme(predicted, target, eyes=(0, 1)) == pytest.approx(20 / 4 / 10)
    assert metrics.nme(predicted, target, "box") == pytest.approx(20 / 4 / 26)
    assert metrics.pck(predicted, target) == 2 / 4  # 2.6 pixels
    assert metrics.pck(predicted, target, 0.2) == 3 / 4
    assert metrics.pck(predicted, target, 0.5) == 1  # 13 pixels are just enough
    assert metrics.pck(predicted, target, 0.2, "eyes", (0, 1)) == 2 / 4


def test_nme_knows_where_mediapipes_eyes_are():
    target = RNG.random((478, 2)) * 100
    eyes = np.linalg.norm(target[33] - target[263])
    assert metrics.nme(target + [3, 4], target) == pytest.approx(5 / eyes)


def test_points_that_were_not_found():
    nan, target = np.nan, np.array([[0.0, 0], [30, 40], [10, 10]])
    some = np.array([[0.0, 5], [nan, nan], [10, 10]])
    assert metrics.nme(some, target, "box") == pytest.approx(2.5 / 50)
    assert metrics.pck(some, target) == pytest.approx(2 / 3)
    assert np.isnan(metrics.nme(nan * target, target, "box")) and metrics.pck(nan * target, target) == 0
    unknown = np.array([[0.0, 0], [30, 40], [nan, nan]])
    assert metrics.pck(some, unknown) == 1 / 2 and metrics.nme(target, unknown, "box") == 0
    assert np.isnan(metrics.pck(some, nan * target)) and np.isnan(metrics.nme(some, nan * target, "box"))


# ---- colours


def test_lab_of_known_colours():
    """Values of the CIE's formula for sRGB under D65."""
    rgb = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]], np.float32)
    known = [[100, 0, 0], [0, 0, 0], [53.24, 80.09, 67.20], [32.30, 79.19, -107.86]]
    np.testing.assert_allclose(lab(rgb), known, atol=0.1)


def test_colours_are_nearest_to_themselves_and_to_what_people_call_so():
    names = list(metrics.COLOURS)
    rgb = np.array(list(metrics.COLOURS.values()), np.float32) / 255
    assert nearest_colours(rgb).tolist() == list(range(len(names)))
    called = {"red": (1, 0, 0), "green": (0, 0.5, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "purple": (0.5, 0, 0.5)}
    called |= {"orange": (1, 0.55, 0), "pink": (1, 0.75, 0.8), "brown": (0.55, 0.27, 0.07), "grey": (0.6, 0.6, 0.6)}
    found = nearest_colours(np.array(list(called.values()), np.float32))
    assert [names[i] for i in found] == list(called)


def test_the_dominant_colour_is_that_of_most_of_the_foreground():
    image = disc(colour=(0.1, 0.2, 0.8))
    image[28:36, 28:36] = (0.9, 0.1, 0.1)
    assert metrics.dominant_colour(image) == "blue"
    mask = np.zeros(image.shape[:2], bool)
    mask[28:36, 28:36] = True
    assert metrics.dominant_colour(image, mask) == "red"
    assert metrics.dominant_colour(np.ones((8, 8, 3), np.float32)) is None


# ---- objects for configs


def test_objects_are_the_functions():
    a, b = disc(), disc(shift=3)
    maps = metrics.edges(a), metrics.edges(b)
    assert metrics.EdgeF1()(a, b) == metrics.edge_f1(*maps).f1 < 0.9
    assert metrics.EdgeF1(tolerance=3)(a, b) == metrics.edge_f1(*maps, 3).f1 > 0.95
    assert metrics.EdgeDistance()(a, b) == metrics.chamfer(*maps) > 1
    assert metrics.MaskIou()(a, b) == metrics.iou(metrics.foreground(a), metrics.foreground(b)) < 0.95
    condition = np.repeat(maps[1][..., None], 3, axis=-1).astype(np.float32)
    assert metrics.EdgeF1("condition")(b, condition) == 1 == metrics.EdgeF1()(b, b)
    assert metrics.EdgeDistance("condition")(b, condition) == 0
    for metric in (metrics.EdgeF1(), metrics.EdgeDistance(), metrics.MaskIou()):
        assert np.isnan(metric(np.where(a > 0.5, np.float32("nan"), a), b))
    assert metrics.EdgeF1.higher_is_better and metrics.MaskIou.higher_is_better
    assert not metrics.EdgeDistance.higher_is_better


SMALL, LARGE = np.zeros((3, 3), bool), np.zeros((4, 4), bool)
POINTS = np.array([[0.0, 0], [3, 4]])


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.edge_f1(SMALL, LARGE), r"\(3, 3\) and \(4, 4\)"),
        (lambda: metrics.chamfer(SMALL, LARGE), r"\(3, 3\) and \(4, 4\)"),
        (lambda: metrics.edge_f1(SMALL, SMALL, -1), "tolerance=-1"),
        (lambda: metrics.edges(disc(), blur=-1.0), "blur=-1.0"),
        (lambda: metrics.edges(disc(), low=300), "low=300"),
        (lambda: metrics.iou(SMALL, LARGE), r"\(3, 3\) and \(4, 4\)"),
        (lambda: metrics.depth_errors(np.zeros((3, 3)), np.zeros((4, 4))), r"\(3, 3\)"),
        (lambda: metrics.depth_errors(np.zeros((3, 3)), np.zeros((3, 3)), SMALL), "0 pixels"),
        (lambda: metrics.depth_errors(np.full((3, 3), np.nan), np.zeros((3, 3))), "nan|finite"),
        (lambda: metrics.nme(POINTS, POINTS[:1]), r"\(2, 2\) and \(1, 2\)"),
        (lambda: metrics.nme(POINTS, POINTS), r"eyes=\(33, 263\)"),
        (lambda: metrics.nme(POINTS, 0 * POINTS, "box"), "0.0"),
        (lambda: metrics.EdgeF1("mask"), "'mask'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(call, value):
    with pytest.raises(ValueError, match=value) as error:
        call()
    one_line(error)


def test_every_name_of_the_room_is_there():
    assert all(hasattr(metrics, name) for name in metrics.__all__) and set(metrics.__all__) <= set(dir(metrics))
    with pytest.raises(AttributeError, match="nothing"):
        _ = metrics.nothing
