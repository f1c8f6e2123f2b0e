"""Moving photographs: scenes that the code composes, whose frames at any time and whose flow are exactly known.

A film shows one frame between two; its flow has to be estimated, and the estimate is wrong where it would teach most.
Here a background and a few foreground layers, cut out of photographs along random outlines (`recipes.film_small.outlines`), move as
`recipes.film_small.motions` says, and `recipes.film_small.scenes` draws them at 0, t and 1 and tells the flow from t to both ends. The idea is that
of FlyingChairs (Dosovitskiy et al., FlowNet, ICCV 2015) and of AutoFlow (Sun et al., CVPR 2021), which showed that
layers, if well chosen, teach flow as well as rendered films do; the frame in between, and any t, are what we add.

One scene:

1. How far things move, between t = 0 and t = 1, is drawn log-uniformly: pans of less than a pixel are as common as
   those of `motion[1]`. It bounds every point of the picture to first order; most move less.
2. A camera takes a share of it (a fifth of the scenes has a still camera, a fifth nothing but the camera) and moves
   layers by their nearness, which gives parallax. Its share may tilt the background; layers have motions of their own,
   and one in three bends.
3. Each layer's texture is a random piece of a photograph at one to three of its pixels per picture pixel,
   sampled at twice the picture's density for the time at which the layer is smallest (averaged down, or enlarged where
   the photograph has fewer than two), softened by 0.35 px against aliasing. Some layers repeat a piece of it.

    python -m recipes.film_small.moving_photographs --folder data/photographs -o sheet.png

writes a sheet with one scene per row: x0, y, x1, the flow from y to x0 (grey where not valid), and how far x0 and x1,
warped by the flows, are from y where valid (five times enlarged).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import tyro
from jaxtyping import Float, UInt8

from common import terminal
from common.io.images import contact_sheet, write_image
from film.data.cutting import STRIDE
from film.data.triplet import Encoded, Frames, Source, encode
from film.visualization import flow_picture
from recipes.film_small.motions import Motion, Vector, draw_pose, draw_waves
from recipes.film_small.outlines import outline
from recipes.film_small.patterns import repeated
from recipes.film_small.photograph_cache import Album
from recipes.film_small.scenes import Layer, Scene, View, grid

Example = dict[str, Any]
TIMES = ("half", "any")
STEPS = 16  # times "any" are multiples of 1 / 16
STILL_CAMERA, ONLY_CAMERA, BENDS = 0.2, 0.2, 1 / 3  # shares of scenes, scenes and layers
DENSITY = 2.0  # texture pixels per picture pixel
PSF = 0.7  # standard deviation of the softening, texture pixels
FINEST, COARSEST = 1.0, 3.0  # photograph pixels per picture pixel
LONGEST_BLUR = 12.0  # px of motion while the shutter is open


@dataclass(frozen=True)
class MovingPhotographs(Source):
    """`count` scenes; scene i depends on the seed and i alone, and scenes beyond `count` can be asked for too.

    Attributes:
      folder, split: of the photographs (`recipes.film_small.photograph_cache`).
      count: how many scenes there are said to be.
      size: side of the pictures, px, a multiple of 4.
      layers: fewest and most foreground layers.
      motion: smallest and largest extent of a scene's motion between t = 0 and t = 1, px.
      time: of y; "half": 0.5, "any": 1/16 to 15/16.
      accelerated: share of scenes whose layers do not move linearly in time (`recipes.film_small.motions`).
      bend: how much at most, each layer differently, the background a quarter of it: at t = 0.5 a layer is off by up to
        a quarter of this part of its motion.
      blurred: share of scenes with motion blur in all frames.
      light: share of scenes whose brightness and gamma change, by up to a tenth between t = 0 and t = 1.
      noise: share of scenes with noise of 0.5 to 4 levels of 255, another in each frame (y included).
      repeated: share of layers that show a repeated pattern (`recipes.film_small.patterns`).
      seed: of all scenes.
    """

    folder: str = "data/photographs"
    split: str = "train"
    count: int = 100_000
    size: int = 256
    layers: Sequence[int] = (1, 5)
    motion: Sequence[int | float] = (0.25, 120.0)
    time: str = "half"
    accelerated: float = 0.1
    bend: float = 0.2
    blurred: float = 0.05
    light: float = 0.0
    noise: float = 0.0
    repeated: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Makes tuples of the lists that YAML gives; raises ValueError for values that suit no scene."""
        object.__setattr__(self, "layers", tuple(int(number) for number in self.layers))
        object.__setattr__(self, "motion", tuple(float(pixels) for pixels in self.motion))
        if self.size < 32 or self.size % STRIDE or self.count < 1:
            raise ValueError(f"size {self.size} must be a multiple of {STRIDE} from 32 on, count {self.count} >= 1")
        if len(self.layers) != 2 or not 0 <= self.layers[0] <= self.layers[1] <= 20:
            raise ValueError(f"layers {self.layers} must be the fewest and the most, from 0 to 20")
        if len(self.motion) != 2 or not 0 < self.motion[0] <= self.motion[1] <= self.size:
            raise ValueError(f"motion {self.motion} must be the least and the most px, above 0, at most {self.size}")
        if self.time not in TIMES:
            raise ValueError(f"time {self.time!r} is unknown: choose {' or '.join(TIMES)}")
        for name in ("accelerated", "bend", "blurred", "light", "noise", "repeated"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is no share: choose a number from 0 to 1")

    @cached_property
    def album(self) -> Album:
        """Raises OSError or ValueError when there are no photographs."""
        return Album(self.folder, self.split)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"{self.folder} scene {index} of seed {self.seed}"

    def frames(self, index: int) -> Frames:
        scene, time = self.scene(index), self.moment(index)
        return Frames(self.name(index), self._pictures(index, self._views(scene, time)), time)

    def encoded(self, index: int) -> Encoded:
        first, middle, last = (encode(image) for image in self.frames(index).images)
        return Encoded(self.name(index), (first, middle, last), self.moment(index))

    def scene(self, index: int) -> Scene:
        """Scene `index`, to be drawn at any time."""
        return draw_scene(self, np.random.default_rng([self.seed, index]), self.album.shelf(self.seed, index))

    def moment(self, index: int) -> float:
        """The time of y in scene `index`; the scene itself does not depend on it."""
        if self.time == "half":
            return 0.5
        return int(np.random.default_rng([self.seed, index, 1]).integers(1, STEPS)) / STEPS

    def example(self, index: int) -> Example:
        """As `film.data.record_sources.CutTriplets` gives: images uint8 [3 S S 3] (x0, y, x1), flows float16 [2 s s 2] and valid
        uint8 [2 s s] (from y to x0, to x1; s = S / 4, pictures' pixels), motion (px, 95th percentile between the outer
        frames), id; and the time of y."""
        scene, time = self.scene(index), self.moment(index)
        views = self._views(scene, time)
        there = [scene.flow(time, end, views[1], view) for end, view in ((0.0, views[0]), (1.0, views[2]))]
        flows, valid = (np.stack(parts) for parts in zip(*there, strict=True))
        motion = np.percentile(np.linalg.norm(flows[1] - flows[0], axis=-1), 95)
        numbers = dict(time=np.float32(time), motion=np.float32(motion), id=np.int64(index))
        flow = dict(flows=flows.astype(np.float16), valid=valid.astype(np.uint8))
        return dict(images=self._pictures(index, views), **flow, **numbers)

    def _views(self, scene: Scene, time: float) -> list[View]:
        return [scene.view(moment) for moment in (0.0, time, 1.0)]

    def _pictures(self, index: int, views: list[View]) -> UInt8[np.ndarray, "3 s s 3"]:
        images = np.stack([view.image for view in views])
        rng = np.random.default_rng([self.seed, index, 2])
        if rng.random() < self.noise:
            images += rng.uniform(0.5, 4) * rng.standard_normal(images.shape, np.float32)
        return (np.clip(images, 0, 255) + np.float32(0.5)).astype(np.uint8)


def draw_scene(config: MovingPhotographs, rng: np.random.Generator, shelf: list[int]) -> Scene:
    """A random scene of photographs whose numbers are in `shelf`."""
    size, count = config.size, int(rng.integers(config.layers[0], config.layers[1] + 1))
    extent = float(np.exp(rng.uniform(*np.log(config.motion))))
    kind = rng.random()
    share = 0.0 if kind < STILL_CAMERA else 1.0 if kind < STILL_CAMERA + ONLY_CAMERA else rng.uniform(0.2, 0.8)
    bends = np.zeros(count + 1)
    if rng.random() < config.accelerated:
        bends = config.bend * rng.uniform(-1, 1, count + 1)
    middle, radius = (size - 1) / 2, size / np.sqrt(2)
    camera = draw_pose(rng, (middle, middle), radius, share * extent)
    nearness = np.sort(rng.uniform(0.4, 1, count + 1))
    nearness[-1] = 1.0  # the front-most layer: all of the camera's motion; with no other, the background's

    left = (1 - nearness[0]) * share * extent  # what the background may move besides; nothing with a still camera
    poses = (camera.times(nearness[0]), draw_pose(rng, (middle, middle), radius, 0.6 * left, tilts=True))
    waves = draw_waves(rng, radius, 0.4 * left) if rng.random() < BENDS else None
    layers = [_background(config, rng, shelf, Motion(poses, waves, float(bends[0]) / 4))]
    for near, bend in zip(nearness[1:], bends[1:], strict=True):
        side = size * float(np.exp(rng.uniform(np.log(0.2), np.log(1.1))))
        x, y = rng.uniform(-0.05 * size, 1.05 * size, 2)
        own = (1 - share) * extent * rng.uniform(0.4, 1)
        bending = 0.4 * own if rng.random() < BENDS else 0.0
        waves = draw_waves(rng, side / 2, bending) if bending else None
        pose = draw_pose(rng, (float(x), float(y)), side / 2, own - bending)
        motion = Motion((camera.times(near), pose), waves, float(bend))
        layers.append(_foreground(config, rng, shelf, motion, (float(x), float(y)), side))

    exposure = min(rng.uniform(0.05, 0.3), LONGEST_BLUR / extent) if rng.random() < config.blurred else 0.0
    light = rng.uniform(-0.1, 0.1, 2) if rng.random() < config.light else (0.0, 0.0)
    moments = 1 + int(np.ceil(exposure * extent))
    return Scene(size, tuple(layers), exposure, moments, (float(light[0]), float(light[1])))


def _background(config: MovingPhotographs, rng: np.random.Generator, shelf: list[int], motion: Motion) -> Layer:
    steps = np.linspace(-1, config.size, 9)
    border = np.stack(np.meshgrid(steps, steps), axis=-1)
    seen = np.concatenate([motion.trace(border, time).reshape(-1, 2) for time in (0.0, 0.5, 1.0)])
    low, high = seen.min(axis=0) - 4, seen.max(axis=0) + 4
    detail = DENSITY * min(1.0, motion.smallest(np.full(2, config.size / 2)))
    texture, density = _texture(config, rng, shelf, high - low, detail)
    return Layer(texture, (float(low[0]), float(low[1])), density, motion)


def _foreground(
    config: MovingPhotographs,
    rng: np.random.Generator,
    shelf: list[int],
    motion: Motion,
    centre: tuple[float, float],
    side: float,
) -> Layer:
    detail = DENSITY * min(1.0, motion.smallest(np.array(centre)))
    texture, density = _texture(config, rng, shelf, np.full(2, side), detail)
    mask = cv2.resize(outline(rng, max(texture.shape[:2])), texture.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    softness = PSF if rng.random() < 0.7 else float(rng.uniform(PSF, 2.5))
    mask = cv2.GaussianBlur(mask, (0, 0), softness)
    corner = (centre[0] - side / 2, centre[1] - side / 2)
    return Layer(np.dstack([texture, mask]), corner, density, motion)


def _texture(
    config: MovingPhotographs, rng: np.random.Generator, shelf: list[int], extent: Vector, detail: float
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[float, float]]:
    """A random piece for `extent` = (width, height) in u at about `detail` pixels per px of u, and exactly how many."""
    photograph = config.album[int(rng.choice(shelf))]
    limits = np.array(photograph.shape[1::-1])
    shrink = np.exp(rng.uniform(np.log(FINEST), np.log(np.clip((limits / extent).min(), FINEST, COARSEST))))
    need = np.ceil(shrink * extent).astype(int)
    short = np.maximum(need - limits, 0)
    if short.any():  # a small photograph: mirrored as often as it takes
        photograph = np.pad(photograph, ((0, short[1]), (0, short[0]), (0, 0)), mode="symmetric")
    x, y = rng.integers(0, np.array(photograph.shape[1::-1]) - need + 1)
    piece = photograph[y : y + need[1], x : x + need[0]]
    columns, rows = np.maximum(np.rint(detail * extent), 2).astype(int)
    how = cv2.INTER_AREA if columns < need[0] else cv2.INTER_CUBIC
    texture = cv2.resize(piece, (int(columns), int(rows)), interpolation=how)
    if config.repeated:
        chance, pattern = rng.random(), np.random.default_rng(rng.integers(2**63))
        texture = repeated(pattern, np.asarray(texture), detail) if chance < config.repeated else texture
    texture = cv2.GaussianBlur(texture, (5, 5), PSF)
    if rng.random() < 0.5:
        texture = cv2.flip(texture, 1)
    return np.asarray(texture), (float(columns / extent[0]), float(rows / extent[1]))


def sheet(source: MovingPhotographs, indices: Sequence[int]) -> Float[np.ndarray, "h w 3"]:
    """The contact sheet of these scenes (module docstring), RGB in [0, 1]."""
    pictures = []
    for index in indices:
        scene, time = source.scene(index), source.moment(index)
        views = [scene.view(moment) for moment in (0.0, time, 1.0)]
        images = [np.asarray(image, np.float32) / 255 for image in source._pictures(index, views)]
        shown, errors = [], []
        for end in (0, 1):
            flow, valid = scene.flow(time, float(end), views[1], views[2 * end], stride=1)
            places = (grid((source.size, source.size)) + flow).astype(np.float32)
            warped = cv2.remap(images[2 * end], places, None, cv2.INTER_CUBIC)  # pyright: ignore
            errors.append(np.where(valid[..., None], np.abs(warped - images[1]), 0))
            shown.append(np.where(valid[..., None], flow_picture(flow), 0.5).astype(np.float32))
        pictures += [*images, *shown, np.clip(5 * np.maximum(*errors), 0, 1).astype(np.float32)]
    return contact_sheet(pictures, columns=6)


def main(
    source: Annotated[MovingPhotographs, tyro.conf.arg(name="")] = MovingPhotographs(),
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("sheet.png"),
    rows: int = 12,
    first: int = 0,
    overwrite: bool = False,
) -> None:
    """Write a contact sheet of `rows` scenes, from number `first` on."""
    write_image(output, sheet(source, range(first, first + rows)), overwrite)


if __name__ == "__main__":
    terminal.program(main)
