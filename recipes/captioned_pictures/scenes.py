"""Rendered scenes with exact depth and masks: balls and boxes on a ground, for the training of depth plugins.

A camera at a random height looks down at the middle of the ground, x to the right, y up, z forward. Two to six things
stand there without touching, each of a shape, a size and a named colour, which give the caption. Light is the sun
(Lambert's cosine, a soft highlight, soft shadows by rays to points of its disc) and the sky (from above, less near the
ground). Distant ground fades into the sky's colour.

`depth` is the distance along the camera's axis (not along the ray), in units of about one thing, infinite in the sky:
`draw_depth(scene.depth, near="low")` is its condition. Depth and masks are those of pixel centres; colours average a
grid of rays per pixel. A scene depends on the generator's state alone.

A thing meets rays, start + t * direction with unit directions, at t; without a hit in front of the start at infinity.

    python -m recipes.captioned_pictures.scenes sheet.png        a sheet of scenes, depth and masks
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from jaxtyping import Bool, Float, Int

from common import terminal
from common.io.images import contact_sheet, write_image
from plugins.conditions.depth import draw_depth

Vector = Float[np.ndarray, "3"]
Vectors = Float[np.ndarray, "n 3"]
Lengths = Float[np.ndarray, " n"]
CLOSE = 1e-9  # nearer hits are the surface that the ray starts from
COLOURS = {  # stored values, sRGB
    "red": (0.84, 0.20, 0.18),
    "orange": (0.95, 0.55, 0.16),
    "yellow": (0.96, 0.82, 0.26),
    "green": (0.30, 0.65, 0.32),
    "turquoise": (0.22, 0.68, 0.68),
    "blue": (0.20, 0.40, 0.80),
    "purple": (0.54, 0.34, 0.70),
    "pink": (0.94, 0.56, 0.68),
    "white": (0.93, 0.92, 0.89),
    "grey": (0.50, 0.51, 0.53),
    "brown": (0.52, 0.35, 0.24),
    "black": (0.13, 0.13, 0.15),
}
GROUNDS = {
    "grass": (0.46, 0.62, 0.34),
    "sand": (0.87, 0.78, 0.60),
    "stone": (0.66, 0.66, 0.68),
    "earth": (0.60, 0.46, 0.36),
    "snow": (0.90, 0.93, 0.96),
}
SKIES = {  # at the horizon, above
    "clear": ((0.82, 0.90, 0.97), (0.36, 0.59, 0.88)),
    "evening": ((0.98, 0.80, 0.62), (0.47, 0.50, 0.72)),
    "grey": ((0.86, 0.87, 0.88), (0.64, 0.67, 0.71)),
}
RAYS = 2  # per pixel, along each axis, for colours
SUNS = 4  # sampled points of the sun's disc
SUN_RADIUS = 0.05  # of the sun's disc, larger than ours for soft shadows
FADE = 45.0  # distance at which the ground is two thirds sky
GAMMA = 2.2  # of stored values
SPREAD = 2.1  # largest distance of things from the middle, along x and z
TRIES = 60  # positions tried for a thing before it is left out
NAMED = 0.003  # smallest area in the caption, as a share of the picture


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


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and what is in it."""

    image: Float[np.ndarray, "h w 3"]  # RGB in [0, 1]
    depth: Float[np.ndarray, "h w"]  # distance along the camera's axis; infinite in the sky
    masks: Bool[np.ndarray, "n h w"]  # of the visible parts of the things, in the order of `names`
    names: tuple[str, ...]  # "red ball", "blue box"
    ground: str  # "sand"

    @property
    def caption(self) -> str:
        """The visible things: "a red ball and a blue box on sand"."""
        seen = [name for name, mask in zip(self.names, self.masks, strict=True) if mask.mean() > NAMED]
        things = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in seen] or ["nothing"]
        return " and ".join([", ".join(things[:-1]), things[-1]][len(things) < 2 :]) + f" on {self.ground}"


@dataclass(frozen=True, eq=False)
class World:
    """The scene before rendering; colours are linear."""

    things: tuple[Shape, ...]
    names: tuple[str, ...]
    colours: Float[np.ndarray, "n 3"]
    ground: str
    ground_colours: Float[np.ndarray, "2 3"]  # that alternate in squares of `tile`
    tile: float
    eye: Vector  # position of the camera
    axes: Float[np.ndarray, "3 3"]  # its right, up and forward
    focal: float  # in picture heights
    sun: Vector  # direction towards it
    horizon: Vector  # colours of the sky, as is the next
    zenith: Vector


def scene(rng: np.random.Generator, size: tuple[int, int] | int) -> Scene:
    """A random scene of `size` = (height, width), or the side of a square."""
    height, width = (size, size) if isinstance(size, int) else size
    world = draw_world(rng)
    middle = rays(world, height, width, (0.5, 0.5))
    along = middle @ world.axes[2]  # cosine of the angle to the camera's axis
    distance, index = meet(world.things, world.eye, middle)
    offsets = (np.arange(RAYS) + 0.5) / RAYS
    light = np.zeros((height * width, 3))
    for inside in itertools.product(offsets, offsets):
        light += colour(world, rays(world, height, width, inside)) / RAYS**2
    masks = index[None] == np.arange(len(world.things))[:, None]
    return Scene(
        image=(np.clip(light, 0, 1) ** (1 / GAMMA)).reshape(height, width, 3).astype(np.float32),
        depth=(distance * along).reshape(height, width).astype(np.float32),
        masks=masks.reshape(-1, height, width),
        names=world.names,
        ground=world.ground,
    )


def draw_world(rng: np.random.Generator) -> World:
    things, names, colours = _things(rng)
    ground = str(rng.choice(list(GROUNDS)))
    shade = rng.choice([1.0, 1.0, 0.86])  # two in three grounds are plain
    horizon, zenith = SKIES[str(rng.choice(list(SKIES)))]
    turn, height = rng.uniform(-np.pi, np.pi), rng.uniform(1.2, 4.0)
    away = rng.uniform(6.5, 9.5)
    eye = np.array([away * np.sin(turn), height, -away * np.cos(turn)])
    forward = unit(np.array([0, rng.uniform(0.4, 0.9), 0]) - eye)
    right = unit(np.cross(np.array([0.0, 1, 0]), forward))
    side = turn + rng.choice([-1, 1]) * rng.uniform(0.5, 1.9)  # of the sun: from a side
    tall = rng.uniform(0.45, 1.0)
    return World(
        things=tuple(things),
        names=tuple(names),
        colours=_linear(colours),
        ground=ground,
        ground_colours=_linear([GROUNDS[ground], tuple(shade * c for c in GROUNDS[ground])]),
        tile=float(rng.uniform(0.7, 1.6)),
        eye=eye,
        axes=np.stack([right, np.cross(forward, right), forward]),
        focal=float(rng.uniform(1.2, 1.7)),
        sun=unit(np.array([np.sin(side), tall, -np.cos(side)])),
        horizon=_linear(horizon),
        zenith=_linear(zenith),
    )


def _things(rng: np.random.Generator) -> tuple[list[Shape], list[str], list[tuple[float, float, float]]]:
    things: list[Shape] = []
    names: list[str] = []
    count = int(rng.integers(2, 7))
    for name in rng.permutation(list(COLOURS))[:count]:
        radius = float(rng.uniform(0.4, 0.95))
        for _ in range(TRIES):
            x, z = rng.uniform(-SPREAD, SPREAD, 2)
            if all(np.hypot(x - other.x, z - other.z) > 1.08 * (radius + other.radius) for other in things):
                ball = rng.random() < 0.5
                upright, flat = rng.uniform(0.5, 1.8), rng.uniform(0.5, 1.0)
                turn = rng.uniform(0, np.pi)
                things.append(Ball(x, z, radius) if ball else Box(x, z, radius, radius * upright, flat, turn))
                names.append(f"{name} {'ball' if ball else 'box'}")
                break
    return things, names, [COLOURS[name.split()[0]] for name in names]


def _linear(stored: Sequence | Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    return np.asarray(stored, np.float64) ** GAMMA


def rays(world: World, height: int, width: int, inside: tuple[float, float]) -> Vectors:
    """Unit directions through the point (dy, dx) of each pixel, row by row."""
    scale = max(height, width)  # a wide picture shows more at the sides
    y = (height / 2 - (np.arange(height) + inside[0])) / scale / world.focal
    x = ((np.arange(width) + inside[1]) - width / 2) / scale / world.focal
    grid = np.stack(np.broadcast_arrays(x[None], y[:, None], np.ones((1, 1))), axis=-1).reshape(-1, 3)
    return unit(grid @ world.axes)


def colour(world: World, direction: Vectors) -> Vectors:
    distance, index = meet(world.things, world.eye, direction)
    up = np.clip(direction[:, 1:2] * 2.2, 0, 1) ** 0.7
    sky = world.horizon * (1 - up) + world.zenith * up
    hit = np.isfinite(distance)
    far, of, ray = distance[hit], index[hit], direction[hit]
    place = world.eye + far[:, None] * ray
    normal = normal_at(world.things, place, of)
    cells = np.floor(place[:, [0, 2]] / world.tile).sum(axis=-1).astype(int) % 2
    base = np.where((of >= 0)[:, None], world.colours[np.maximum(of, 0)], world.ground_colours[cells])
    sunlight = np.maximum(normal @ world.sun, 0) * _unshaded(world, place, normal)
    ambient = 0.22 + 0.2 * normal[:, 1] + 0.12 * np.minimum(place[:, 1], 1)
    shine = np.maximum(unit(world.sun - ray) * normal, 0).sum(-1) ** 40 * (of >= 0) * (sunlight > 0)
    lit = base * (ambient[:, None] * (0.5 + 0.5 * world.zenith / world.zenith.max()) + 0.85 * sunlight[:, None])
    lit = lit + 0.18 * shine[:, None]
    fade = (1 - np.exp(-((far / FADE) ** 1.5)))[:, None]
    sky[hit] = lit * (1 - fade) + world.horizon * fade
    return sky


def _unshaded(world: World, place: Vectors, normal: Vectors) -> Lengths:
    """The share of the sun's disc that is visible from a place, of `SUNS` sampled points."""
    start = place + 1e-4 * normal
    across = unit(np.cross(world.sun, np.array([0.0, 1, 0])))
    tangents = np.stack([across, np.cross(world.sun, across)])
    seen = np.zeros(len(place))
    for turn in np.arange(SUNS) * 2 * np.pi / SUNS + 0.4:
        point = unit(world.sun + SUN_RADIUS * (np.cos(turn) * tangents[0] + np.sin(turn) * tangents[1]))
        ray = np.broadcast_to(point, place.shape)
        seen += np.logical_and.reduce([~np.isfinite(thing.meet(start, ray)) for thing in world.things]) / SUNS
    return seen


def sheet(seed: int, count: int, side: int) -> Float[np.ndarray, "h w 3"]:
    pictures, labels = [], []
    for number in range(count):
        made = scene(np.random.default_rng([seed, number]), side)
        shades = np.linspace(1, 0.35, len(made.masks))[:, None, None]
        masks = np.repeat((made.masks * shades).sum(0)[..., None], 3, axis=-1).astype(np.float32)
        pictures += [made.image, draw_depth(made.depth, near="low"), masks]
        labels += [made.caption, "depth", "masks"]
    return contact_sheet(pictures, columns=6, labels=labels)


def main(
    output: tyro.conf.Positional[Path], seed: int = 0, count: int = 12, side: int = 256, overwrite: bool = False
) -> None:
    """Write a sheet of COUNT scenes."""
    write_image(output, sheet(seed, count, side), overwrite)


if __name__ == "__main__":
    terminal.program(main)
