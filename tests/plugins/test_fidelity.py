"""Edges and masks: by hand, by brute force, and the scores of empty maps."""

import cv2
import numpy as np
import pytest
from refusal import refused

from common.io.images import to_uint8
from plugins import metrics

RNG = np.random.default_rng(0)


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
    np.testing.assert_array_equal(metrics.edges(image, 0, 100, 200), cv2.Canny(to_uint8(grey), 100, 200) > 0)
    assert metrics.edges(image, 0, 100, 200).sum() != found.sum()


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


SMALL, LARGE = np.zeros((3, 3), bool), np.zeros((4, 4), bool)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: metrics.edge_f1(SMALL, LARGE), r"\(3, 3\) and \(4, 4\)"),
        (lambda: metrics.chamfer(SMALL, LARGE), r"\(3, 3\) and \(4, 4\)"),
        (lambda: metrics.iou(SMALL, LARGE), r"\(3, 3\) and \(4, 4\)"),
        (lambda: metrics.edge_f1(SMALL, SMALL, -1), "tolerance=-1"),
        (lambda: metrics.edges(disc(), blur=-1.0), "blur=-1.0"),
        (lambda: metrics.edges(disc(), low=300), "low=300"),
    ],
)
def test_invalid_values_are_refused(call, value):
    refused(ValueError, call, match=value)
