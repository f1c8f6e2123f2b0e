"""A picture becomes a thumbnail on white: edges stay clean, drawings are centred, what is no drawing is left out."""

import cv2
import numpy as np
import pytest

from plugins.data.captioned import caption, is_sided
from recipes.captioned_pictures import thumbnails

RED, GREEN, BLUE = (220, 30, 30), (20, 160, 60), (30, 60, 210)


def encoded(suffix, image) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def square(side) -> bytes:
    """A red square on white, with a margin of a tenth."""
    image = np.full((side, side, 3), 255, np.uint8)
    image[side // 10 : -side // 10, side // 10 : -side // 10] = RED[::-1]
    return encoded(".png", image)


def test_hidden_colours_do_not_bleed_into_edges():
    """Blue and opaque beside red that cannot be seen: the mean of each block is weighted by alpha."""
    image = np.zeros((128, 128, 4), np.uint8)
    image[..., :3] = RED[::-1]
    image[:, :65] = (*BLUE[::-1], 255)
    thumbnail = thumbnails.decode(encoded(".png", image), 64, trim=False)
    assert thumbnail is not None
    np.testing.assert_array_equal(thumbnail[:, :32], np.broadcast_to(BLUE, (64, 32, 3)))
    np.testing.assert_array_equal(thumbnail[:, 33:], 255)
    half = np.broadcast_to((np.array(BLUE) + 255) / 2, (64, 3))
    np.testing.assert_allclose(thumbnail[:, 32], half, atol=0.51)


def test_a_drawing_is_cut_out_centred_and_squared():
    page = np.full((300, 500, 3), 255, np.uint8)
    page[20:60, 30:190] = GREEN[::-1]  # 160 by 40, in a corner
    thumbnail = thumbnails.decode(encoded(".png", page), 64, trim=True)
    assert thumbnail is not None
    ys, xs = np.nonzero(thumbnail.min(axis=-1) < 200)
    assert (xs.min(), xs.max()) == (2, 61)  # a margin of 1/32
    assert (ys.min() + ys.max(), np.ptp(ys) + 1) == (63, 16)  # 15 of 64, not on whole pixels


@pytest.mark.parametrize("content", [square(40), encoded(".png", np.full((90, 90), 255, np.uint8)), b"no picture"])
def test_pictures_without_a_drawing_are_left_out(content):
    assert thumbnails.decode(content, 64, trim=True) is None


def test_huge_pictures_are_left_out(monkeypatch):
    monkeypatch.setattr(thumbnails, "MAX_PIXELS", 80 * 80 - 1)
    assert thumbnails.decode(square(80), 64, trim=True) is None
    assert thumbnails.decode(square(79), 64, trim=True) is not None


def test_captions():
    assert caption("red apple", "3d emoji", "fruit") == "red apple, fruit, 3d emoji"
    assert caption("A zebra.") == "A zebra."
    assert [is_sided(text) for text in ("Left hand", "down-right arrow", "bright leftovers")] == [
        True,
        True,
        False,
    ]
