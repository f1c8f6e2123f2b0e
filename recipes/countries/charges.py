"""Charges of flags: discs, stars, crescents, shields, suns, and abstract emblems.

    charge(canvas, rng, centre, radius, colours)

draws on a canvas, uint8 [h w 3], around (x, y) = `centre`; lengths in pixels. The first of `colours` is the
charge's, the others are for details; `rng` decides the rest. Canvases are oversampled, so edges are not antialiased.
"""

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from jaxtyping import Float, Real, UInt8

Canvas = UInt8[np.ndarray, "h w 3"]
Length = float | int
Point = Sequence[Length] | np.ndarray
Colours = list[tuple[int, int, int]]
Charge = Callable[[Canvas, np.random.Generator, Point, Length, Colours], None]


def fill(canvas: Canvas, points: Real[np.ndarray, "n 2"], colour: tuple[int, int, int]) -> None:
    """A polygon; points (x, y) in pixels."""
    cv2.fillPoly(canvas, [np.rint(points).astype(np.int32)], colour)


def circle(canvas: Canvas, centre: Point, radius: Length, colour: tuple[int, int, int]) -> None:
    cv2.circle(canvas, (round(float(centre[0])), round(float(centre[1]))), max(round(float(radius)), 1), colour, -1)


def star_points(centre: Point, radius: Length, tips: int, depth: Length) -> Float[np.ndarray, "n 2"]:
    """Corners of a star with a tip up; `depth`: radius of the notches, as a share of `radius`."""
    angle = np.pi * np.arange(2 * tips) / tips
    reach = radius * np.where(np.arange(2 * tips) % 2, depth, 1.0)
    return np.stack([centre[0] + reach * np.sin(angle), centre[1] - reach * np.cos(angle)], axis=1)


def disc(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    """Plain, ringed, or in two halves."""
    kind = rng.integers(4)
    circle(canvas, centre, radius, colours[0])
    if kind == 1:
        circle(canvas, centre, radius * rng.uniform(0.6, 0.85), colours[1])
    elif kind == 2:
        circle(canvas, centre, radius * 0.8, colours[1])
        star(canvas, rng, centre, radius * 0.7, colours)
    elif kind == 3:
        middle = (round(float(centre[0])), round(float(centre[1])))
        cv2.ellipse(canvas, middle, (round(radius), round(radius)), float(90 * rng.integers(4)), 0, 180, colours[1], -1)


def star(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    tips = int(rng.choice([5, 5, 5, 6, 7, 8, 12]))
    fill(canvas, star_points(centre, radius, tips, 0.39 if tips == 5 else rng.uniform(0.45, 0.65)), colours[0])


def stars(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    """Several, in a ring, a row, an arc, a block or at random."""
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
    small = radius * min(0.42, 1.3 / len(at))
    tips, depth = int(rng.choice([5, 5, 6, 7])), rng.uniform(0.38, 0.5)
    for x, y in at * radius:
        fill(canvas, star_points((centre[0] + x, centre[1] + y), max(small, 7), tips, depth), colours[0])


def crescent(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    """With a star or without; cut out of a circle, down to what was there before."""
    before, thick, angle = canvas.copy(), rng.uniform(0.2, 0.4), rng.choice([0, 0, 0, -np.pi / 2, -np.pi / 4])
    axis = np.array([np.cos(angle), np.sin(angle)])
    circle(canvas, centre, radius, colours[0])
    hole = np.zeros(canvas.shape[:2], np.uint8)
    inner = np.asarray(centre) + axis * radius * thick
    cv2.circle(hole, (round(inner[0]), round(inner[1])), round(radius * 0.82), 1, -1)
    canvas[hole > 0] = before[hole > 0]
    star_centre = np.asarray(centre) + axis * radius * 0.75
    if rng.random() < 0.7:
        fill(canvas, star_points(star_centre, radius * 0.42, int(rng.choice([5, 5, 8])), 0.4), colours[0])


def sun(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    rays = int(rng.integers(8, 25))
    fill(canvas, star_points(centre, radius, rays, rng.uniform(0.55, 0.75)), colours[0])
    circle(canvas, centre, radius * 0.55, colours[1] if rng.random() < 0.4 else colours[0])


def cross(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    arm = radius * rng.uniform(0.18, 0.35)
    for colour, more in ((colours[1], rng.choice([0, 0.1])), (colours[0], 0.0)):
        for wide, high in ((radius, arm), (arm, radius)):
            corner = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [wide + more * radius, high + more * radius]
            fill(canvas, np.asarray(centre) + corner, colour)


def lozenge(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    wide = rng.uniform(0.7, 1.5)
    fill(canvas, np.asarray(centre) + radius * np.array([[0, -1], [wide, 0], [0, 1], [-wide, 0]]), colours[0])
    if rng.random() < 0.6:
        (disc, star, emblem)[rng.integers(3)](canvas, rng, centre, radius * 0.5, colours[1:])


def shield(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    """Parted, with an emblem, often between two beasts and under a crown."""
    outline = np.array([[-0.7, -0.9], [0.7, -0.9], [0.7, 0.1], [0.4, 0.65], [0, 0.95], [-0.4, 0.65], [-0.7, 0.1]])
    if rng.random() < 0.6:
        for side in (-1, 1):
            beast = rng.uniform(0.2, 1.0, (6, 2)) * [0.7 * side, 1.2] + [0.5 * side, -0.6]
            fill(canvas, np.asarray(centre) + radius * beast, colours[2])
    if rng.random() < 0.5:
        crown = np.array([[-0.4, -0.9], [-0.5, -1.3], [-0.2, -1.1], [0, -1.4], [0.2, -1.1], [0.5, -1.3], [0.4, -0.9]])
        fill(canvas, np.asarray(centre) + radius * crown, colours[1])
    fill(canvas, np.asarray(centre) + radius * outline * 1.08, colours[1])
    fill(canvas, np.asarray(centre) + radius * outline * 0.95, colours[0])
    parts, inside = rng.integers(4), np.zeros(canvas.shape[:2], np.uint8)
    cv2.fillPoly(inside, [np.rint(np.asarray(centre) + radius * outline * 0.95).astype(np.int32)], 1)
    ys, xs = np.mgrid[: canvas.shape[0], : canvas.shape[1]]
    cut = (ys < centre[1] - 0.2 * radius, xs < centre[0], (ys < centre[1]) ^ (xs < centre[0]), ys < 0)[parts]
    canvas[(inside > 0) & cut] = colours[2]
    if rng.random() < 0.7:
        emblem(canvas, rng, centre, radius * 0.5, colours[1:])


def emblem(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    """Symmetric random blots, like the coarse outline of a bird, a tree or a temple."""
    for layer in range(int(rng.integers(3, 7))):
        colour = colours[int(rng.integers(len(colours)))] if layer else colours[0]
        reach = radius * (1 - 0.1 * layer)
        points = rng.uniform(0, 1, (int(rng.integers(3, 8)), 2)) * [1, 2] - [0, 1]
        points = points[np.argsort(np.arctan2(points[:, 1], points[:, 0] + 0.2))]
        both = np.concatenate([points, points[::-1] * [-1, 1]])
        fill(canvas, np.asarray(centre) + reach * both, colour)


def wreath(canvas: Canvas, rng: np.random.Generator, centre: Point, radius: Length, colours: Colours) -> None:
    """Two branches around a charge."""
    for side in (-1, 1):
        for angle in np.linspace(0.3, 2.6, int(rng.integers(5, 9))):
            x, y = np.asarray(centre) + 0.85 * radius * np.array([side * np.sin(angle), np.cos(angle)])
            axes = max(round(0.22 * radius), 2), max(round(0.1 * radius), 1)
            tilt = float(np.degrees(angle) * -side + 35)
            cv2.ellipse(canvas, (round(x), round(y)), axes, tilt, 0, 360, colours[0], -1)
    (star, emblem, disc, shield)[rng.integers(4)](canvas, rng, centre, radius * 0.55, colours[1:] + colours[:1])


CHARGES: tuple[Charge, ...] = (disc, star, stars, crescent, sun, cross, lozenge, shield, emblem, wreath)
SHARES = np.array([0.12, 0.14, 0.16, 0.08, 0.08, 0.05, 0.05, 0.14, 0.1, 0.08])
