"""Intersections of rays with balls, boxes and the ground, and surface normals.

Rays are start + t * direction with unit directions; y is up, the ground is y = 0 and things stand on it. A ray without
a hit in front of its start has t = infinity.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Vector = Float[np.ndarray, "3"]
Vectors = Float[np.ndarray, "n 3"]
Lengths = Float[np.ndarray, " n"]
CLOSE = 1e-9  # nearer hits are the surface that the ray starts from


def unit(vectors: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Ball:
    """Stands at (x, 0, z)."""

    x: float
    z: float
    radius: float

    @property
    def centre(self) -> Vector:
        return np.array([self.x, self.radius, self.z])

    def meet(self, start: Float[np.ndarray, "*n 3"], direction: Vectors) -> Lengths:
        """Solves |start + t direction - centre| = radius for the smallest t in front."""
        to_start = np.broadcast_to(start - self.centre, direction.shape)
        half = (to_start * direction).sum(-1)
        inside = half**2 - (to_start**2).sum(-1) + self.radius**2
        root = np.sqrt(np.maximum(inside, 0))
        near, far = -half - root, -half + root
        t = np.where(near > CLOSE, near, far)
        return np.where((inside >= 0) & (t > CLOSE), t, np.inf)

    def normal(self, place: Vectors) -> Vectors:
        return unit(place - self.centre)


@dataclass(frozen=True)
class Box:
    """Stands at (x, 0, z), turned about the vertical."""

    x: float
    z: float
    radius: float  # of the circumcircle of its base
    height: float
    flat: float  # its depth as a share of its width
    turn: float  # in radians

    @property
    def half(self) -> Vector:
        width = self.radius / np.hypot(1, self.flat)
        return np.array([width, self.height / 2, width * self.flat])

    @property
    def centre(self) -> Vector:
        return np.array([self.x, self.height / 2, self.z])

    @property
    def axes(self) -> Float[np.ndarray, "3 3"]:
        c, s = np.cos(self.turn), np.sin(self.turn)
        return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])

    def meet(self, start: Float[np.ndarray, "*n 3"], direction: Vectors) -> Lengths:
        """Intersection of three slabs: from the last entry to the first exit."""
        origin, ray = (start - self.centre) @ self.axes.T, direction @ self.axes.T
        ray = np.where(np.abs(ray) < CLOSE, CLOSE, ray)  # parallel to a slab
        one, other = (-self.half - origin) / ray, (self.half - origin) / ray
        enter, leave = np.minimum(one, other).max(-1), np.maximum(one, other).min(-1)
        t = np.where(enter > CLOSE, enter, leave)
        return np.where((enter <= leave) & (t > CLOSE), t, np.inf)

    def normal(self, place: Vectors) -> Vectors:
        """Of the face along whose axis the place is farthest out, in half sides."""
        local = (place - self.centre) @ self.axes.T
        face = np.argmax(np.abs(local) / self.half, axis=-1)
        sign = np.sign(np.take_along_axis(local, face[:, None], axis=-1))
        return sign * self.axes[face]


Shape = Ball | Box


def meet_ground(start: Float[np.ndarray, "*n 3"], direction: Vectors) -> Lengths:
    down = direction[:, 1] < -CLOSE
    return np.where(down, -start[..., 1] / np.where(down, direction[:, 1], -1), np.inf)


def meet(
    things: Sequence[Shape], start: Float[np.ndarray, "*n 3"], direction: Vectors
) -> tuple[Lengths, Int[np.ndarray, " n"]]:
    """Distance of the first surface on each ray, and its thing: -1 the ground, -2 (at infinity) the sky."""
    distance = meet_ground(start, direction)
    index = np.where(np.isfinite(distance), -1, -2)
    for number, thing in enumerate(things):
        found = thing.meet(start, direction)
        nearer = found < distance
        distance, index = np.where(nearer, found, distance), np.where(nearer, number, index)
    return distance, index


def normal_at(things: Sequence[Shape], place: Vectors, of: np.ndarray) -> Vectors:
    """Surface normals at places on the things with numbers `of` (-1: the ground)."""
    normal = np.broadcast_to(np.array([0.0, 1, 0]), place.shape).copy()
    for number, thing in enumerate(things):
        on = of == number
        normal[on] = thing.normal(place[on])
    return normal
