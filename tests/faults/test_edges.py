"""Frames and times that a network would take in silence are refused by name."""

import jax
import numpy as np
import pytest
from refusal import refused
from toy import toy

from film.interpolator import interpolate
from film.model import Film, check_frame

FRAME = np.linspace(0, 1, 16 * 16 * 3, dtype=np.float32).reshape(16, 16, 3)


@pytest.fixture(scope="module")
def model() -> Film:
    return toy()


@pytest.mark.parametrize(
    ("frame", "value"),
    [
        ((FRAME * 255).astype(np.uint8), "255"),
        ((FRAME * 65535).astype(np.uint16), "65535"),
        (np.dstack([FRAME, FRAME[..., :1]]), "[..., :3]"),
        (FRAME[..., :1], "repeat"),
        (FRAME[..., 0], "(16, 16)"),
        (FRAME * 255, "255"),
        (np.where(FRAME > 0.5, np.nan, FRAME).astype(np.float32), "nan"),
        (np.where(FRAME > 0.5, np.inf, FRAME).astype(np.float32), "inf"),
    ],
)
def test_frames(frame, value):
    assert value in refused(ValueError, check_frame, "x0", frame)


def test_frames_that_a_network_made_pass():
    check_frame("x0", FRAME * 1.5 - 0.2)
    jax.jit(lambda frame: check_frame("x0", frame))(FRAME)


@pytest.mark.parametrize("time", [-0.1, 1.01, float("nan"), np.array([[0.5], [2.0]], np.float32)])
def test_times(model, time):
    batch = np.stack([FRAME] * 2)
    assert "time" in refused(ValueError, model, batch, batch, time)


def test_the_model_and_the_interpolator_check(model):
    assert "x1" in refused(ValueError, model, FRAME[None], FRAME[None] * 255)
    assert "second" in refused(ValueError, list, interpolate(model, [FRAME, FRAME * np.float32(255)]))
