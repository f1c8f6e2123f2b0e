"""The view between two cameras, against a scene that is drawn from any place: a near square before a far wall."""

import numpy as np
import pytest
from synthetic_film import texture

from recipes.film_small.stereo import middle_view, splat

HEIGHT, WIDTH, SIDE, LEFT, TOP = 48, 96, 24, 40, 12
FAR, NEAR = 4, 12  # disparity, px


def view(share: float) -> np.ndarray:
    """RGB in [0, 1] from the place that is `share` of the way from the left eye to the right one."""
    wall = texture(0, HEIGHT, WIDTH + 2 * FAR)[:, int(share * FAR) :][:, :WIDTH].copy()
    x = LEFT - int(share * NEAR)
    wall[TOP : TOP + SIDE, x : x + SIDE] = texture(1, SIDE, SIDE)
    return wall.astype(np.float32) / 255


def disparity() -> np.ndarray:
    """Of the left view."""
    found = np.full((HEIGHT, WIDTH), FAR, np.float32)
    found[TOP : TOP + SIDE, LEFT : LEFT + SIDE] = NEAR
    return found


def test_the_middle_view_is_what_an_eye_there_would_see():
    middle = middle_view(view(0), view(1), disparity())
    known = middle.known
    assert known.mean() > 0.7
    np.testing.assert_allclose(middle.image[known], view(0.5)[known], atol=1e-6)
    assert np.isnan(middle.image[~known]).all() and np.isfinite(middle.motion).sum() == known.sum()
    x = LEFT - NEAR // 2
    np.testing.assert_array_equal(middle.motion[TOP + 2 : TOP + SIDE - 2, x + 2 : x + SIDE - 2], NEAR)
    assert middle.motion[2, WIDTH // 2] == FAR


def test_what_one_eye_alone_sees_is_not_known():
    """The wall beside the square: hidden from the right eye on its left side, from the left eye on its right side."""
    known, x, row = middle_view(view(0), view(1), disparity()).known, LEFT - NEAR // 2, TOP + SIDE // 2
    hidden = (NEAR - FAR) // 2
    assert not known[row, x - hidden : x].any() and not known[row, x + SIDE : x + SIDE + hidden].any()
    assert known[row, x - hidden - 4] and known[row, x + SIDE + hidden + 4] and known[row, x + SIDE // 2]


def test_nothing_is_known_where_disparity_is_missing_or_colours_differ():
    blind, shine = disparity(), view(1)
    blind[:, 60:70] = np.inf
    shine[:6] = 1 - shine[:6]
    middle = middle_view(view(0), shine, blind)
    assert not middle.known[:4].any() and not middle.known[40:, 59:67].any() and middle.known[40:, 72:80].all()


def test_of_what_arrives_at_one_place_the_nearest_is_seen():
    row = np.array([[2, 2, 2, 6, 6, 2, 2, 2, 2, 2, 2, 2]], np.float32)
    np.testing.assert_array_equal(splat(row, 0.5)[0], [6, 6, np.nan, np.nan, 2, 2, 2, 2, 2, 2, 2, np.nan])
    np.testing.assert_array_equal(splat(row + 1, 0.5)[0, :4], [7, 7, np.nan, 3])  # half a pixel: both neighbours


def test_views_of_different_sizes_are_no_pair():
    with pytest.raises(ValueError, match="96x48, 95x48, 96x48 pixels"):
        middle_view(view(0), view(1)[:, :-1], disparity())
