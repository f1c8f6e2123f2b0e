"""Random outlines of foreground layers.

`outline(rng, side)` draws one of `KINDS` on a square, 255 inside, with an antialiased edge and a margin to the border:

    blob       a circle with random waves            polygon   3 to 8 corners
    spline     the same corners, joined by curves    bars      1 to 5 thin parallel bars, at any angle
    leaves     1 to 5 leaves on a stem               letters   1 to 4 letters or digits

The first three may have holes.
"""

from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import Float, UInt8

SHIFT = 4  # OpenCV draws at sixteenths of a pixel
HOLES = 0.25  # share of blobs, splines and polygons with holes
MARGIN = 0.92  # largest extent of shapes, in halves of the side
LETTERS = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghkmnpqrstuy0123456789&?#@"))
Corners = Float[np.ndarray, "n 2"]


def outline(rng: np.random.Generator, side: int, kind: str | None = None) -> UInt8[np.ndarray, "s s"]:
    """A shape of this or a random kind, 0 to 255. Raises KeyError for an unknown kind."""
    kind = kind or str(rng.choice(list(KINDS), p=SHARES))
    mask = np.zeros((side, side), np.uint8)
    KINDS[kind](rng, mask)
    if kind in ("blob", "spline", "polygon") and rng.random() < HOLES:
        for _ in range(rng.integers(1, 4)):
            _fill(mask, 0.15 * _ring(rng, 40, 0.5) * rng.uniform(0.4, 1.6) + rng.uniform(-0.45, 0.45, 2), 0)
    return mask


def _bars(rng: np.random.Generator, mask: np.ndarray) -> None:
    count, angle = int(rng.integers(1, 6)), rng.uniform(0, np.pi)
    width = rng.uniform(0.02, 0.12)
    for place in np.linspace(-0.5, 0.5, count) if count > 1 else (0.0,):
        half = np.sqrt(MARGIN**2 - (abs(place) + width) ** 2)
        corners = np.array([[-half, -width], [half, -width], [half, width], [-half, width]])
        _fill(mask, _turned(corners + [0, place], angle))


def _leaves(rng: np.random.Generator, mask: np.ndarray) -> None:
    along = np.linspace(0, 1, 24)
    stem, width = rng.uniform(0, 2 * np.pi), rng.uniform(0.15, 0.45)
    for _ in range(rng.integers(1, 6)):
        half = width * np.sin(np.pi * along**0.8)
        leaf = np.concatenate([np.stack([along, half], -1), np.stack([along, -half], -1)[::-1]])
        size = rng.uniform(0.5, 1) * MARGIN
        _fill(mask, _turned(size * leaf, stem + rng.uniform(-2.2, 2.2)))
    _fill(mask, _turned(np.array([[0, 0.02], [-MARGIN, 0.015], [-MARGIN, -0.015], [0, -0.02]]), stem))


def _letters(rng: np.random.Generator, mask: np.ndarray) -> None:
    text = "".join(rng.choice(LETTERS, rng.integers(1, 5)))
    font = int(rng.choice([cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_TRIPLEX]))
    (width, height), base = cv2.getTextSize(text, font, 1.0, 1)
    scale = 0.8 * len(mask) / max(width, height + base)
    thick = max(1, round(scale * rng.uniform(1.5, 5)))
    (width, height), base = cv2.getTextSize(text, font, scale, thick)
    left, bottom = (len(mask) - width) // 2, (len(mask) + height) // 2
    cv2.putText(mask, text, (left, bottom), font, scale, 255, thick, cv2.LINE_AA)


def _ring(rng: np.random.Generator, count: int, roughness: float) -> Corners:
    """A closed curve about the origin, within the unit circle."""
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    radius = np.ones(count)
    for wave in range(2, 7):
        radius += roughness / wave * rng.standard_normal() * np.cos(wave * angles + rng.uniform(0, 2 * np.pi))
    radius = np.maximum(radius, 0.15) / np.max(radius)
    return radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)


def _corners(rng: np.random.Generator) -> Corners:
    count = int(rng.integers(3, 9))
    angles = (np.arange(count) + rng.uniform(-0.35, 0.35, count)) * 2 * np.pi / count + rng.uniform(0, 2 * np.pi)
    return rng.uniform(0.35, 1, count)[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)


def _rounded(corners: Corners) -> Float[np.ndarray, "m 2"]:
    """The closed uniform cubic B-spline of these corners: smooth, and inside their hull."""
    t = np.linspace(0, 1, 12, endpoint=False)[:, None, None]
    weights = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
    curve = sum(w * np.roll(corners, 1 - k, axis=0) for k, w in enumerate(weights)) / 6
    return np.swapaxes(curve, 0, 1).reshape(-1, 2) / np.linalg.norm(curve, axis=-1).max()


def _stretched(rng: np.random.Generator, corners: Corners) -> Corners:
    return _turned(corners * [MARGIN, MARGIN * rng.uniform(0.35, 1)], rng.uniform(0, np.pi))


def _turned(corners: Corners, angle: float) -> Corners:
    cos, sin = np.cos(angle), np.sin(angle)
    return corners @ np.array([[cos, sin], [-sin, cos]])


def _fill(mask: UInt8[np.ndarray, "s s"], corners: Corners, value: int = 255) -> None:
    """`corners` are in [-1, 1], across the whole square."""
    pixels = (0.5 * (corners + 1) * len(mask) - 0.5) * 2**SHIFT
    cv2.fillPoly(mask, [np.round(pixels).astype(np.int32)], value, cv2.LINE_AA, SHIFT)


KINDS: dict[str, Callable[[np.random.Generator, np.ndarray], None]] = {
    "blob": lambda rng, mask: _fill(mask, _stretched(rng, _ring(rng, 96, rng.uniform(0.1, 0.8)))),
    "spline": lambda rng, mask: _fill(mask, _stretched(rng, _rounded(_corners(rng)))),
    "polygon": lambda rng, mask: _fill(mask, _stretched(rng, _corners(rng))),
    "bars": _bars,
    "leaves": _leaves,
    "letters": _letters,
}
SHARES = (0.3, 0.2, 0.15, 0.12, 0.13, 0.1)
