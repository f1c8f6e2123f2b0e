"""Windows: their weights sum to one, and an image in windows is the image as a whole, without seams."""

import weakref
from functools import partial

import jax
import numpy as np
import pytest
from recipe import scene
from refusal import refused
from toy import CONFIG, DIRECT, toy

from common.nn.tiling import GRID, MARGIN, OVERLAP, Tiling
from film.compiled import CompiledFilm
from film.interpolator import Interpolator
from film.model import Film
from film.moments import even
from film.planning import ComputePlan

IMAGE, WINDOW = (320, 448), (288, 288)
TILED = ComputePlan(IMAGE, WINDOW, 2, 2, 2, 0.0)


@pytest.mark.parametrize("overlap", [OVERLAP, 64, 0])
@pytest.mark.parametrize(("image", "window"), [
    (IMAGE, WINDOW), ((320, 1056), (320, 288)), ((2176, 992), (640, 384)), ((64, 96), (64, 96))
])  # fmt: skip
def test_weights_sum_to_one(image, window, overlap):
    tiling = Tiling(image, window, overlap)
    total, corners = np.zeros((*image, 1), np.float32), []
    for rows, columns, weights in tiling.windows():
        assert weights.shape == (*window, 1) and weights.min() >= 0
        assert rows.start % GRID == columns.start % GRID == 0 and rows.stop <= image[0] and columns.stop <= image[1]
        total[rows, columns] += weights
        corners.append((rows.start, columns.start))
    np.testing.assert_allclose(total, 1, atol=1e-6)
    assert corners == tiling.corners()


def test_the_margin_has_no_weight_but_at_the_images_edge():
    first, *_, last = Tiling(IMAGE, WINDOW).windows()
    for weights, inner in ((first[2], np.s_[-MARGIN:]), (last[2], np.s_[:MARGIN])):
        assert not weights[inner].any() and not weights[:, inner].any()
    assert first[2][0, 0] == last[2][-1, -1] == 1


def test_windows_that_do_not_fit_are_refused():
    for image, window in (((576, 576), (256, 576)), ((570, 576), (288, 288)), ((96, 96), (128, 96))):
        refused(ValueError, Tiling, image, window, match=str(window[0]))


def frames(model: Film, plan: ComputePlan, count: int = 1, devices: int = 1) -> np.ndarray:
    interpolator = Interpolator(model, plan.padded, plan=plan, devices=jax.local_devices()[:devices])
    return np.stack(list(interpolator.between(*(scene(*plan.padded, time) for time in (0, 1)), even(count))))


def worst_seam(difference: np.ndarray, axis: int) -> float:
    """How much more, at most, the difference changes across a row (axis 0) or column (axis 1) than across those around
    it; a change too small to be seen does not count, nor do the image's own edges."""
    steps = np.abs(np.diff(difference, axis=axis)).mean(axis=(1 - axis, 2))
    around = [np.median(steps[max(0, place - 24) : place + 25]) for place in range(len(steps))]
    return float((steps / (np.array(around) + 1e-4))[8:-8].max())


def seams(difference: np.ndarray) -> list[float]:
    return [worst_seam(image, axis) for image in difference for axis in (0, 1)]


@pytest.mark.long
def test_windows_equal_the_whole_without_a_seam(monkeypatch):
    """The same flow from half the size, so all else is equal; the comparison fails without an overlap."""
    tiled, whole = (frames(toy(DIRECT), plan) for plan in (TILED, ComputePlan(IMAGE, IMAGE, 2, 2, 1, 0.0)))
    np.testing.assert_allclose(tiled, whole, atol=1e-3)
    assert max(seams(tiled - whole)) < 1
    monkeypatch.setattr("film.interpolator.Tiling", partial(Tiling, overlap=0))
    apart = frames(toy(DIRECT), TILED)
    assert np.abs(apart - whole).max() > 1e-2
    assert min(seams(apart - whole)) > 10


@pytest.mark.long
@pytest.mark.parametrize("config", [CONFIG, DIRECT], ids=["halving", "direct"])
def test_several_devices_and_frames_share_the_windows(config):
    model, row = toy(config), ((96, 576), (96, 288))
    both = frames(model, ComputePlan(*row, 2, 2, 2, 0.0), count=3, devices=2)
    np.testing.assert_array_equal(both, frames(model, ComputePlan(*row, 2, 2, 1, 0.0), count=3))


@pytest.mark.long
def test_a_frame_that_has_been_given_is_not_kept():
    row, given = (96, 576), []
    plan = ComputePlan(row, (96, 288), 2, 2, 3, 0.0)
    interpolator = Interpolator(toy(DIRECT), row, plan=plan, devices=jax.local_devices()[:1])
    for frame in interpolator.between(*(scene(*row, time) for time in (0, 1)), even(3)):
        given.append(weakref.ref(frame if frame.base is None else frame.base))
        assert given[-1]().shape == (*row, 3) and not any(reference() is not None for reference in given[:-2])


def test_windows_where_nothing_moves_are_not_computed(monkeypatch):
    encoded, encode = [], CompiledFilm._encode
    monkeypatch.setattr(CompiledFilm, "_encode", lambda *words: encoded.append(1) or encode(*words))
    x0 = scene(*IMAGE, 0)
    x1 = x0.copy()
    x1[:30, :40] = 1 - x1[:30, :40]
    interpolator = Interpolator(toy(CONFIG), IMAGE, plan=TILED, devices=jax.local_devices()[:1])
    (frame,) = interpolator.between(x0, x1, even(1))
    assert len(encoded) == 2  # the first window
    np.testing.assert_allclose(frame[300:], x0[300:], atol=1e-6)
