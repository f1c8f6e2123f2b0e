"""A flag as somebody might photograph it: what every question draws anew.

    look(flag, size, rng)      uint8 [48 64 3] -> float32 [s s 3], RGB in [0, 1]

A look may turn the flag by up to 15 degrees, tilt it (perspective), wave it, stretch it (flags are 4:3 here, and from
square to twice as wide as high in the world), show it so large that a part of it is out of the picture, change light
and colours, blur it and add noise. The ground is a grey with a gradient. One look in five fills the whole picture, as
a flag in a file does.

It goes from the picture's pixels to the flag's: each pixel's place, seen from the flag, is a homography of its place
in the picture plus waves, and is where the flag is read. So all geometry is one `cv2.remap`.

Memory shows all of a flag, resized to a square, as any picture of an item is (`reveal.processing.item_arrays`).
"""

from __future__ import annotations

import functools

import cv2
import numpy as np
from jaxtyping import Float, UInt8

TURN = 15  # degrees, either way
TILT = 0.12  # of half the side, each corner
SCALE = (0.7, 1.08)  # of the width of the flag in that of the picture
ASPECT = (1.0, 2.0)  # width by height
FULL = 0.2  # share of looks that fill the picture
WAVE = 0.045  # of the flag's width at most
CROP = 0.1  # of the picture, out of which the middle may move
GREY = (0.25, 0.75)
BLANK = 0.5  # stands for no image
BLUR, NOISE = 0.9, 0.05  # pixels, standard deviation at most
GRAINS = 2**18  # places in the noise


def look(flag: UInt8[np.ndarray, "fh fw 3"], size: int, rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
    """Another look at a flag, all of it decided by `rng`."""
    height, width = flag.shape[:2]
    full = rng.random() < FULL
    u, v = _places(size, _corners(rng, full))
    u, v, shade = _waved(u, v, rng)
    at = (u + 1) * np.float32(width / 2) - np.float32(0.5), (v + 1) * np.float32(height / 2) - np.float32(0.5)
    shown = cv2.remap(flag, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    shown = _lit(shown.astype(np.float32) if shade is None else shown * shade[..., None], rng)
    pixels = np.float32(size / 2 * (1.0 if full else 0.85))
    edge = np.maximum(np.abs(u), 1 + (np.abs(v) - 1) * np.float32(height / width))
    inside = np.clip((1 - edge) * pixels + np.float32(0.5), 0, 1)[..., None]
    ground = _ground(size, rng)
    picture = ground + inside * (shown - ground)
    blur = rng.uniform(0, BLUR)
    if blur > 0.3:
        picture = cv2.GaussianBlur(picture, (0, 0), blur)
    start = int(rng.integers(GRAINS))
    grain = _grain(size)[start : start + picture.size].reshape(picture.shape)
    return np.clip(picture + np.float32(rng.uniform(0, NOISE)) * grain, 0, 1)


def nothing(size: int) -> Float[np.ndarray, "{size} {size} 3"]:
    """The image of a question about no image: a middle grey."""
    return np.full((size, size, 3), BLANK, np.float32)


def _corners(rng: np.random.Generator, full: bool) -> Float[np.ndarray, "4 2"]:
    """Where the flag's corners are, in halves of the picture's side."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float32)
    if full:
        return (square * rng.uniform(1.0, 1.1, 2) + rng.uniform(-0.03, 0.03, (4, 2))).astype(np.float32)
    wide = rng.uniform(*SCALE)
    high = min(wide / rng.uniform(*ASPECT), 1.05)
    corners = square * [wide, high] + rng.uniform(-TILT, TILT, (4, 2)) * wide
    angle = np.radians(rng.uniform(-TURN, TURN))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    room = np.maximum(1 - np.array([wide, high]), 0) + CROP
    return (corners @ turn + rng.uniform(-room, room)).astype(np.float32)


def _places(size: int, corners: Float[np.ndarray, "4 2"]) -> tuple[np.ndarray, np.ndarray]:
    """Where each pixel is on the flag, which goes from -1 to 1 along both axes."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float32)
    back = cv2.getPerspectiveTransform(corners, square).astype(np.float32)
    x, y, w = (back @ _grid(size)).reshape(3, size, size)
    return x / w, y / w


@functools.lru_cache(maxsize=4)
def _grid(size: int) -> Float[np.ndarray, "3 n"]:
    line = (2 * np.arange(size, dtype=np.float32) + 1) / size - 1
    across, down = np.meshgrid(line, line)
    return np.stack([across.ravel(), down.ravel(), np.ones(size * size, np.float32)])


@functools.lru_cache(maxsize=4)
def _grain(size: int) -> Float[np.ndarray, " n"]:
    """Noise of deviation 1, of which each look takes a stretch: drawing it anew would take most of the time."""
    return np.random.default_rng(size).standard_normal(GRAINS + size * size * 3, np.float32)


def _waved(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Places on a flag in the wind, and how light its folds are; every other one hangs flat, without."""
    height, pace, phase, slope = rng.random(4, np.float32)
    if height < 0.5:
        return u, v, None
    angle = (np.float32(1.5) + np.float32(2.5) * pace) * u + np.float32(2 * np.pi) * phase + slope * v
    strength, along = np.float32(2 * WAVE) * (2 * height - 1), np.cos(angle)
    return u + strength / 2 * along, v + 2 * strength * np.sin(angle), 1 + np.float32(1.5) * strength * along


def _lit(shown: Float[np.ndarray, "s s 3"], rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
    """From 0 to 255 to 0 to 1, with other brightness and contrast, tinted, and paled towards grey: one linear map."""
    bright, contrast, pale = rng.uniform(0.7, 1.15), rng.uniform(0.75, 1.1), rng.uniform(0, 0.25)
    mixed = (1 - pale) * np.eye(3) + pale / 3
    tint = bright * rng.uniform(0.93, 1.07, (3, 1))
    matrix = tint * np.concatenate([contrast * mixed / 255, np.full((3, 1), 0.5 * (1 - contrast))], axis=1)
    return cv2.transform(shown, matrix)


def _ground(size: int, rng: np.random.Generator) -> np.ndarray:
    left, right = rng.uniform(*GREY) + rng.uniform(-0.1, 0.1, 2)
    line = np.linspace(left, right, size, dtype=np.float32)
    return (line[None] if rng.random() < 0.5 else line[:, None])[..., None]
