"""Drawn scenes: always the same, moving as they say, with an exact middle."""

import numpy as np
import pytest

from film.data.procedural import MovingShapes


def test_a_record_is_always_the_same_and_each_is_another():
    one, again = MovingShapes(seed=3), MovingShapes(seed=3)
    np.testing.assert_array_equal(one.frames(5).images, again.frames(5).images)
    assert not np.array_equal(one.frames(5).images, one.frames(6).images)
    assert not np.array_equal(one.frames(5).images, MovingShapes(seed=4).frames(5).images)
    assert one.frames(5).images.shape == (3, 128, 128, 3)


def test_without_motion_nothing_moves():
    x0, y, x1 = MovingShapes(motion=0.0).frames(0).images
    np.testing.assert_array_equal(x0, y)
    np.testing.assert_array_equal(y, x1)


def test_the_middle_lies_between():
    """The background alone moves straight: the frames' shifts are twice the middle's."""
    scenes = MovingShapes(shapes=0, motion=10.0, size=64)
    for i in range(4):
        x0, y, x1 = (image.mean(axis=-1) for image in scenes.frames(i).images)
        whole, half = shift(x0, x1), shift(x0, y)
        np.testing.assert_allclose(half, whole / 2, atol=0.3)


def shift(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    import cv2

    window = cv2.createHanningWindow(a.shape[::-1], cv2.CV_64F)
    return np.array(cv2.phaseCorrelate(a.astype(np.float64), b.astype(np.float64), window)[0])


def test_encoded_pictures_are_the_frames():
    scenes = MovingShapes(size=32)
    from film.data.triplet import decode

    for picture, image in zip(scenes.encoded(1).pictures, scenes.frames(1).images, strict=True):
        np.testing.assert_array_equal(decode(picture, "x"), image)


@pytest.mark.parametrize("fields", [{"count": 0}, {"size": 8}, {"motion": -1.0}])
def test_scenes_that_cannot_be(fields):
    with pytest.raises(ValueError, match="at least"):
        MovingShapes(**fields)
