"""Motion of a layer: the exact position of each of its points at any time, and the inverse.

A layer is flat. Its coordinates u = (x, y) are the positions of its points in the picture, in pixels, half-way through
the motion. At time t in [0, 1] the point u is at

    p = H(s) (u + s D(u)),    s = t - 1/2 + bend t (t - 1)

`s` is the progress, from -1/2 to 1/2; `bend` accelerates, by up to a quarter of the motion at t = 1/2 for bend = 1.
`H(s)` is a product of `Pose`s (the camera's and the layer's), each of which turns, zooms, shears, shifts and tilts in
proportion to s. `D` is a sum of plane waves (`Waves`), for deformation. Its slope is at most `STEEPEST`, so u -> u + s
D(u) is invertible by the iteration u <- q - s D(u), which gains at least a factor of three each time.

`budget`s are in pixels: the largest motion, to first order, of any point within `radius` of the centre between t = 0
and t = 1. Flow from the frame at t to that at t' is `place(trace(p, t), t') - p`, exact but for rounding.
"""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Float

Points = Float[np.ndarray, "*n 2"]
Vector = Float[np.ndarray, "2"]

STEEPEST = 0.6  # largest slope of the waves: half of it is reached at either end of the motion
SHORTEST = 80.0  # px, the smallest wavelength
INVERSIONS = 9  # leave 0.3 ** 9 = 2e-5 of the waves' height
TURN, ZOOM, SHEAR, TILT = 0.6, 0.4, 0.25, 0.2  # the most of each between t = 0 and 1: rad, log, ratio, share of depth


@dataclass(frozen=True)
class Pose:
    """The change of view between t = 0 and t = 1, linear in the progress, about `centre` (px)."""

    centre: tuple[float, float] = (0.0, 0.0)
    shift: tuple[float, float] = (0.0, 0.0)  # px
    turn: float = 0.0  # radians, clockwise in the picture
    zoom: float = 0.0  # natural logarithm of the size
    shear: float = 0.0  # ratio
    tilt: tuple[float, float] = (0.0, 0.0)  # change of 1 / depth per px, along x and y

    def times(self, factor: float) -> "Pose":
        """The same change, `factor` times as large: that of a layer at 1 / factor of the nearness."""
        (x, y), (gx, gy) = self.shift, self.tilt
        scaled = dict(turn=factor * self.turn, zoom=factor * self.zoom, shear=factor * self.shear)
        return replace(self, shift=(factor * x, factor * y), tilt=(factor * gx, factor * gy), **scaled)


@dataclass(frozen=True)
class Waves:
    """D(u) = sum over k of height_k sin(wave_k . u + phase_k), px."""

    heights: Float[np.ndarray, "k 2"]
    waves: Float[np.ndarray, "k 2"]
    phases: Float[np.ndarray, " k"]

    def __call__(self, points: Points) -> Points:
        angles = points @ self.waves.T + self.phases
        return np.sin(angles.astype(np.float32)) @ self.heights  # in float32 five times faster; wrong by < 1e-4 px


@dataclass(frozen=True)
class Motion:
    """The motion of one layer (module docstring); the last of `poses` is applied first."""

    poses: tuple[Pose, ...] = (Pose(),)
    waves: Waves | None = None
    bend: float = 0.0

    def progress(self, time: float) -> float:
        return time - 0.5 + self.bend * time * (time - 1)

    def place(self, points: Points, time: float) -> Points:
        """Positions of the layer's points u in the picture at `time`; px."""
        s = self.progress(time)
        return project(self._matrix(s), points if self.waves is None else points + s * self.waves(points))

    def trace(self, places: Points, time: float) -> Points:
        """The points u of the layer at these positions of the picture at `time`: the inverse of `place`."""
        s = self.progress(time)
        rigid = project(np.linalg.inv(self._matrix(s)), places)
        points = rigid
        if self.waves is not None:
            for _ in range(INVERSIONS):
                points = rigid - s * self.waves(points)
        return points

    def flow(self, places: Points, start: float, end: float) -> Points:
        """Displacement of the points at these positions from time `start` to `end`; px."""
        return self.place(self.trace(places, start), end) - places

    def smallest(self, point: Vector) -> float:
        """The layer's smallest magnification near u = `point`, at t = 0, 1/2 or 1."""
        corner = point + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        sizes = []
        for time in (0.0, 0.5, 1.0):
            origin, right, down = self.place(corner, time)
            sizes.append(np.sqrt(abs(np.linalg.det(np.stack([right - origin, down - origin])))))
        return float(min(sizes))

    def _matrix(self, progress: float) -> Float[np.ndarray, "3 3"]:
        return reduce(np.matmul, [homography(progress, **vars(pose)) for pose in self.poses])


def homography(
    s: Any, centre: Any, shift: Any, turn: Any, zoom: Any, shear: Any, tilt: Any, xp: Any = np
) -> Float[Any, "3 3"]:
    """Of columns (x, y, 1), for a `Pose` at progress `s`; the identity at 0. `xp`: NumPy or jax.numpy."""
    (x, y), (dx, dy), (gx, gy) = centre, shift, tilt
    size = xp.exp(s * zoom)
    cos, sin, k = size * xp.cos(s * turn), size * xp.sin(s * turn), s * shear
    there = xp.array([[1.0, 0.0, x + s * dx], [0.0, 1.0, y + s * dy], [0.0, 0.0, 1.0]])
    about = xp.array([[cos, k * cos - sin, 0.0], [sin, k * sin + cos, 0.0], [s * gx, s * gy, 1.0]])
    return there @ about @ xp.array([[1.0, 0.0, -x], [0.0, 1.0, -y], [0.0, 0.0, 1.0]])


def project(matrix: Float[Any, "3 3"], points: Float[Any, "*n 2"]) -> Float[Any, "*n 2"]:
    """The homography of points: arrays of NumPy, or of JAX."""
    mapped = points @ matrix[:2, :2].T + matrix[:2, 2]
    return mapped / (points @ matrix[2, :2] + matrix[2, 2])[..., None]


def draw_pose(
    rng: np.random.Generator, centre: tuple[float, float], radius: float, budget: float, tilts: bool = False
) -> Pose:
    """A random pose; its components share the budget unevenly, often one has nearly all, mostly the shift."""
    shares = rng.dirichlet([0.6, 0.15, 0.15, 0.06, 0.15 if tilts else 1e-3]) * budget
    signs, (one, two) = rng.choice([-1.0, 1.0], 3), rng.uniform(0, 2 * np.pi, 2)
    turn, zoom, shear = signs * np.minimum(shares[1:4] / radius, [TURN, ZOOM, SHEAR])
    tilt = min(shares[4] / radius, TILT) / radius if tilts else 0.0
    return Pose(
        centre,
        (float(shares[0] * np.cos(one)), float(shares[0] * np.sin(one))),
        *(float(turn), float(zoom), float(shear)),
        (float(tilt * np.cos(two)), float(tilt * np.sin(two))),
    )


def draw_waves(rng: np.random.Generator, radius: float, budget: float) -> Waves:
    """Three waves of `SHORTEST` px up to four radii that move no point further than `budget` px."""
    count = 3
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(max(4 * radius, 2 * SHORTEST)), count))
    angles, sides = rng.uniform(0, 2 * np.pi, (2, count))
    waves = (2 * np.pi / lengths)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    heights = np.minimum(budget / count, STEEPEST / count * lengths / (2 * np.pi))
    return Waves(heights[:, None] * np.stack([np.cos(sides), np.sin(sides)], axis=-1), waves, 10 * angles)
