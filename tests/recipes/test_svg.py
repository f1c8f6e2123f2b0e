"""A drawing becomes a PNG of the width that is asked for."""

import sys

import cv2
import numpy as np
import pytest

from recipes.downloads import svg

DRAWING = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3">
<path fill="#00f" d="M0 0h4v3H0z"/><path fill="#f00" d="M0 0h2v3H0z"/></svg>"""


def test_the_width_is_what_was_asked_for_and_colours_stay():
    pixels = cv2.imdecode(np.frombuffer(svg.render(DRAWING, 80), np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None and pixels.shape == (60, 80, 3)
    assert (pixels[:, :40] == (0, 0, 255)).all() and (pixels[:, 40:] == (255, 0, 0)).all()


def test_without_a_renderer(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ValueError, match="extra `pictures`") as error:
        svg.render(b"<svg/>", 64)
    assert "\n" not in str(error.value)
