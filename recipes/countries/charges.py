"""What stands on a flag: discs, stars, crescents, shields, suns, and emblems that are no known thing.

    charge(canvas, rng, place, size, colours)

draws onto a canvas, uint8 [h w 3]; `place` is the (x, y) of its middle and `size` its radius, in pixels; the first of
`colours` is the charge's, the others are for its details. What it looks like follows from `rng` alone. Canvases are
drawn several times as large as they are needed, so nothing here smooths an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from jaxtyping import Float, Real, UInt8

Canvas = UInt8[np.ndarray, "h w 3"]
Length = float | int
Place = Sequence[Length] | np.ndarray
Colours = list[tuple[int, int, int]]
Charge = Callable[[Canvas, np.random.Generator, Place, Length, Colours], None]


def fill(canvas: Canvas, points: Real[np.ndarray, "n 2"], colour: tuple[int, int, int]) -> None:
    """A polygon, in pixels."""
    cv2.fillPoly(canvas, [np.rint(points).astype(np.int32)], colour)


def round_(canvas: Canvas, place: Place, radius: Length, colour: tuple[int, int, int]) -> None:
    cv2.circle(canvas, (round(float(place[0])), round(float(place[1]))), max(round(float(radius)), 1), colour, -1)


def star_points(place: Place, radius: Length, tips: int, depth: Length, turn: Length = 0) -> Float[np.ndarray, "n 2"]:
    """A star with its first tip up; `depth`: radius of its notches, as a share."""
    angle = np.pi * np.arange(2 * tips) / tips + turn
    reach = radius * np.where(np.arange(2 * tips) % 2, depth, 1.0)
    return np.stack([place[0] + reach * np.sin(angle), place[1] - reach * np.cos(angle)], axis=1)


def disc(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """Plain, ringed, or in two halves."""
    kind = rng.integers(4)
    round_(canvas, place, size, colours[0])
    if kind == 1:
        round_(canvas, place, size * rng.uniform(0.6, 0.85), colours[1])
    elif kind == 2:
        round_(canvas, place, size * 0.8, colours[1])
        star(canvas, rng, place, size * 0.7, colours)
    elif kind == 3:
        centre = (round(float(place[0])), round(float(place[1])))
        cv2.ellipse(canvas, centre, (round(size), round(size)), float(90 * rng.integers(4)), 0, 180, colours[1], -1)


def star(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    tips = int(rng.choice([5, 5, 5, 6, 7, 8, 12]))
    fill(canvas, star_points(place, size, tips, 0.39 if tips == 5 else rng.uniform(0.45, 0.65)), colours[0])


def stars(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """Several: in a ring, a row, an arc, a block, or as a constellation."""
    count, kind = int(rng.integers(2, 13)), rng.integers(5)
    angle = 2 * np.pi * np.arange(count) / count
    if kind == 0:
        at = 0.85 * np.stack([np.sin(angle), -np.cos(angle)], 1)
    elif kind == 1:
        count = min(count, 5)
        at = np.stack([np.linspace(-1.2, 1.2, count), np.zeros(count)], 1)
        at = at[:, ::-1] if rng.random() < 0.4 else at
    elif kind == 2:
        at = 0.9 * np.stack([np.sin(angle / 2 - np.pi / 2), -np.cos(angle / 2 - np.pi / 2)], 1) + [0, 0.4]
    elif kind == 3:
        across = int(rng.integers(2, 5))
        at = np.stack(np.divmod(np.arange(across * 3), across), 1)[:, ::-1] * 0.6 - [0.3 * (across - 1), 0.6]
    else:
        at = rng.uniform(-1, 1, (min(count, 6), 2)) * [0.8, 1.1]
    small = size * min(0.42, 1.3 / len(at))
    tips, depth = int(rng.choice([5, 5, 6, 7])), rng.uniform(0.38, 0.5)
    for x, y in at * size:
        fill(canvas, star_points((place[0] + x, place[1] + y), max(small, 7), tips, depth), colours[0])


def crescent(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """With a star, many, or none. The ground is what was there."""
    before, thick, turn = canvas.copy(), rng.uniform(0.2, 0.4), rng.choice([0, 0, 0, -np.pi / 2, -np.pi / 4])
    way = np.array([np.cos(turn), np.sin(turn)])
    round_(canvas, place, size, colours[0])
    hole = np.zeros(canvas.shape[:2], np.uint8)
    inner = np.asarray(place) + way * size * thick
    cv2.circle(hole, (round(inner[0]), round(inner[1])), round(size * 0.82), 1, -1)
    canvas[hole > 0] = before[hole > 0]
    where = np.asarray(place) + way * size * 0.75
    if rng.random() < 0.7:
        fill(canvas, star_points(where, size * 0.42, int(rng.choice([5, 5, 8])), 0.4), colours[0])


def sun(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """Rays around a disc."""
    rays = int(rng.integers(8, 25))
    fill(canvas, star_points(place, size, rays, rng.uniform(0.55, 0.75)), colours[0])
    round_(canvas, place, size * 0.55, colours[1] if rng.random() < 0.4 else colours[0])


def cross(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    arm = size * rng.uniform(0.18, 0.35)
    for colour, more in ((colours[1], rng.choice([0, 0.1])), (colours[0], 0.0)):
        for wide, high in ((size, arm), (arm, size)):
            corner = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [wide + more * size, high + more * size]
            fill(canvas, np.asarray(place) + corner, colour)


def lozenge(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    wide = rng.uniform(0.7, 1.5)
    fill(canvas, np.asarray(place) + size * np.array([[0, -1], [wide, 0], [0, 1], [-wide, 0]]), colours[0])
    if rng.random() < 0.6:
        (disc, star, emblem)[rng.integers(3)](canvas, rng, place, size * 0.5, colours[1:])


def shield(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """Parted, with an emblem on it, often between two beasts and under a crown, none of which 64 pixels show well."""
    outline = np.array([[-0.7, -0.9], [0.7, -0.9], [0.7, 0.1], [0.4, 0.65], [0, 0.95], [-0.4, 0.65], [-0.7, 0.1]])
    if rng.random() < 0.6:
        for side in (-1, 1):
            beast = rng.uniform(0.2, 1.0, (6, 2)) * [0.7 * side, 1.2] + [0.5 * side, -0.6]
            fill(canvas, np.asarray(place) + size * beast, colours[2])
    if rng.random() < 0.5:
        crown = np.array([[-0.4, -0.9], [-0.5, -1.3], [-0.2, -1.1], [0, -1.4], [0.2, -1.1], [0.5, -1.3], [0.4, -0.9]])
        fill(canvas, np.asarray(place) + size * crown, colours[1])
    fill(canvas, np.asarray(place) + size * outline * 1.08, colours[1])
    fill(canvas, np.asarray(place) + size * outline * 0.95, colours[0])
    parts, inside = rng.integers(4), np.zeros(canvas.shape[:2], np.uint8)
    cv2.fillPoly(inside, [np.rint(np.asarray(place) + size * outline * 0.95).astype(np.int32)], 1)
    ys, xs = np.mgrid[: canvas.shape[0], : canvas.shape[1]]
    cut = (ys < place[1] - 0.2 * size, xs < place[0], (ys < place[1]) ^ (xs < place[0]), ys < 0)[parts]
    canvas[(inside > 0) & cut] = colours[2]
    if rng.random() < 0.7:
        emblem(canvas, rng, place, size * 0.5, colours[1:])


def emblem(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """Blots that are the same on both sides: a bird, a tree, a temple, to those who know."""
    for layer in range(int(rng.integers(3, 7))):
        colour = colours[int(rng.integers(len(colours)))] if layer else colours[0]
        reach = size * (1 - 0.1 * layer)
        points = rng.uniform(0, 1, (int(rng.integers(3, 8)), 2)) * [1, 2] - [0, 1]
        points = points[np.argsort(np.arctan2(points[:, 1], points[:, 0] + 0.2))]
        both = np.concatenate([points, points[::-1] * [-1, 1]])
        fill(canvas, np.asarray(place) + reach * both, colour)


def wreath(canvas: Canvas, rng: np.random.Generator, place: Place, size: Length, colours: Colours) -> None:
    """Two branches around a charge, as of the arms of many republics."""
    for side in (-1, 1):
        for angle in np.linspace(0.3, 2.6, int(rng.integers(5, 9))):
            middle = np.asarray(place) + 0.85 * size * np.array([side * np.sin(angle), np.cos(angle)])
            cv2.ellipse(
                canvas,
                (round(middle[0]), round(middle[1])),
                (max(round(0.22 * size), 2), max(round(0.1 * size), 1)),
                float(np.degrees(angle) * -side + 35),
                0,
                360,
                colours[0],
                -1,
            )
    (star, emblem, disc, shield)[rng.integers(4)](canvas, rng, place, size * 0.55, colours[1:] + colours[:1])


CHARGES: tuple[Charge, ...] = (disc, star, stars, crescent, sun, cross, lozenge, shield, emblem, wreath)
SHARES = np.array([0.12, 0.14, 0.16, 0.08, 0.08, 0.05, 0.05, 0.14, 0.1, 0.08])
