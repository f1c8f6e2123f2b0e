"""Cuts are told from motion and from a change of light; stills and duplicates are found."""

from fractions import Fraction

import numpy as np
import pytest
from synthetic_film import draw, texture

from common.io.video_reader import TimedFrame
from film.shots import is_cut, is_still, thumbnail, without_duplicates

STEP = Fraction(1, 24)


def shot(seed: int, number: int = 0, speed: int = 4) -> np.ndarray:
    return draw(number, speed, seed).astype(np.float32) / 255


def scene(seed: int) -> np.ndarray:
    """Coarser, and in colours of its own: as two shots of a film are."""
    image = texture(seed, 24, 32).repeat(8, axis=0).repeat(8, axis=1)
    return (image * np.random.default_rng(seed).uniform(0.3, 1, 3)).astype(np.float32) / 255


PICTURE, FLAT = scene(0), np.full((96, 128, 3), 0.4)
FLAT[30:60, 40:80] = 0.1


@pytest.mark.parametrize(("what", "pairs"), [
    ("a cut to another shot", [(scene(2 * seed), scene(2 * seed + 1)) for seed in range(4)]),
    ("a cut of plain frames", [(0, 1), (0, PICTURE), (0, 0.5 * PICTURE), (1, PICTURE)]),
    ("motion", [(shot(0, 0, speed), shot(0, 1, speed)) for speed in (0, 4, 32)]),
    ("light", [(FLAT, FLAT + light) for light in (0.05, 0.3, 0.5)]),  # all its pixels may change their bin at once
    ("fading", [(0.5, 0.5), (0.5, 0.4), (0, 0.1 * PICTURE), (1, 0.9 + 0.1 * PICTURE)]),
])  # fmt: skip
def test_cuts_are_told_from_motion_light_and_fading(what, pairs):
    for pair in pairs:
        a, b = (thumbnail(np.asarray(x if np.ndim(x) else np.full((192, 256, 3), x), np.float32)) for x in pair)
        assert is_cut(a, b) == is_cut(b, a) == what.startswith("a cut")


@pytest.mark.parametrize("size", [(2, 2), (1, 600), (5, 3), (48, 256)])
def test_tiny_and_wide_frames_have_thumbnails(size):
    small = thumbnail(np.random.default_rng(0).random((*size, 3)).astype(np.float32))
    assert not is_cut(small, small) or min(size) < 3


def test_noise_is_still_and_a_small_motion_is_not():
    image = shot(0)
    noise = np.random.default_rng(0).normal(0, 0.002, image.shape).astype(np.float32)
    assert is_still(image, image) and is_still(image, image + noise)
    assert is_still(image.astype(np.float16), (image + noise).astype(np.float16))
    moved = image.copy()
    moved[60:70, 60:70] = 1 - moved[60:70, 60:70]
    assert not is_still(image, moved)


def timed(pattern: str) -> list[TimedFrame]:
    """One frame per letter; equal letters are equal frames."""
    images = {letter: np.full((32, 32, 3), (ord(letter) - 96) / 30, np.float32) for letter in set(pattern)}
    return [TimedFrame(number * STEP, images[letter], STEP) for number, letter in enumerate(pattern)]


@pytest.mark.parametrize(("pattern", "kept"), [
    ("abcdef", [0, 1, 2, 3, 4, 5]),
    ("aabbcc", [0, 2, 4, 5]),  # the very last one ends the clip when it did
    ("aaabcd", [0, 3, 4, 5]),
    ("a" + "b" * 20 + "c", [0, 1, 20, 21]),  # a hold: motion does not creep through it
    ("aaaa", [0, 3]),
    ("a", [0]),
    ("", []),
])  # fmt: skip
def test_duplicates_are_dropped_and_holds_are_kept(pattern, kept):
    assert [round(frame.time / STEP) for frame in without_duplicates(timed(pattern))] == kept
