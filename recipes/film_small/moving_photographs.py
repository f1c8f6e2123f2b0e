"""Moving photographs: composed scenes with exactly known frames and flow at any time.

A background and some foreground layers, cut out of photographs along random outlines (`outlines.py`), move as in
`motions.py`; `scenes.py` draws them at times 0, t and 1 and gives the flow from t to both ends. Layers teach flow as
well as rendered films do (FlyingChairs: Dosovitskiy et al., FlowNet, ICCV 2015; AutoFlow: Sun et al., CVPR 2021).

1. The extent of a scene's motion between t = 0 and t = 1 is log-uniform. It bounds the motion of every point to first
   order; most move less.
2. A camera takes a share of it (in a share `still` of the scenes none, in a fifth all) and moves layers by their
   nearness (parallax). Its share may tilt the background; layers have motions of their own, and one in three bends.
3. A layer's texture is a random piece of a photograph at one to three of its pixels per picture pixel (`textures.py`),
   sampled at twice the picture's density for the time at which the layer is smallest.

    python -m recipes.film_small.moving_photographs --folder data/photographs -o sheet.png

writes a sheet with one scene per row: x0, y, x1, the flow from y to x0 (grey where invalid), and the difference of y to
x0 and x1 warped by the flows, where valid (times five).
"""

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
from common.checked import Above0, Positive, Rule, Share, one_of, whole
from common.io.images import contact_sheet, write_image
from film.data.augment import Side
from film.data.triplet import Frames, Source
from film.visualization import flow_picture
from recipes.film_small.motions import Motion, draw_pose, draw_waves
from recipes.film_small.outlines import outline
from recipes.film_small.photograph_cache import Album
from recipes.film_small.scenes import Layer, Scene, View, grid
from recipes.film_small.textures import PSF, random_texture

Example = dict[str, Any]
TIMES = ("half", "any")
STEPS = 16  # times "any" are multiples of 1 / 16
ONLY_CAMERA, BENDS = 0.2, 1 / 3  # shares of scenes and of layers
DENSITY = 2.0  # texture pixels per picture pixel
MAX_BLUR = 12.0  # px of motion during the exposure


LAYERS = Rule(lambda pair: len(pair) == 2 and 0 <= pair[0] <= pair[1] <= 20, "the fewest and the most, from 0 to 20")


@dataclass(frozen=True)
class MovingPhotographs(Source):
    """Scene i depends on the seed and i alone. A share is of scenes, that of `repeated` of layers."""

    folder: str = "data/photographs"  # and split: of `photograph_cache.py`
    split: str = "train"
    count: Positive = 100_000  # nominal number of scenes; later ones exist too
    size: Annotated[Side, whole(32)] = 256  # side of the pictures, px, a multiple of 4
    layers: Annotated[Sequence[int], LAYERS] = (1, 5)  # fewest and most in the foreground
    motion: Sequence[Above0] = (0.25, 120.0)  # px, smallest and largest extent of a scene's motion between t = 0 and 1
    time: Annotated[str, one_of(TIMES)] = "half"  # of y: 0.5; "any": 1/16 to 15/16
    still: Share = 0.2  # a still camera, and so a still background
    accelerated: Share = 0.1  # layers do not move linearly in time (`motions.py`)
    bend: Share = 0.2  # largest acceleration: at t = 0.5 a layer is off by up to a quarter of this part of its motion
    blurred: Share = 0.05  # motion blur in all frames
    light: Share = 0.0  # brightness and gamma change, by up to a tenth between t = 0 and t = 1
    noise: Share = 0.0  # of 0.5 to 4 levels of 255, independent in each frame (y included)
    repeated: Share = 0.0  # a repeated pattern (`textures.py`)
    seed: int = 0  # of all scenes

    def rules(self):
        extent = len(self.motion) == 2 and self.motion[0] <= self.motion[1] <= self.size
        yield extent, "motion is the least and the most px, at most size"

    @cached_property
    def album(self) -> Album:
        return Album(self.folder, self.split)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"{self.folder} scene {index} of seed {self.seed}"

    def frames(self, index: int) -> Frames:
        scene, time = self.scene(index), self.moment(index)
        return Frames(self.name(index), self._pictures(index, self._views(scene, time)), time)

    def scene(self, index: int) -> Scene:
        return draw_scene(self, np.random.default_rng([self.seed, index]), self.album.subset(self.seed, index))

    def moment(self, index: int) -> float:
        """The time of y in scene `index`; the scene itself does not depend on it."""
        if self.time == "half":
            return 0.5
        return int(np.random.default_rng([self.seed, index, 1]).integers(1, STEPS)) / STEPS

    def example(self, index: int) -> Example:
        """As an item of `film.data.record_sources.CutTriplets`, with the time of y: images uint8 [3 S S 3] (x0, y, x1),
        flows float16 [2 s s 2], valid uint8 [2 s s] (from y to x0, to x1; s = S / 4, in pixels of the pictures), motion
        (px, 95th percentile between the outer frames), id."""
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


def draw_scene(config: MovingPhotographs, rng: np.random.Generator, photographs: list[int]) -> Scene:
    """A random scene of photographs with these numbers in the album."""
    size, count = config.size, int(rng.integers(config.layers[0], config.layers[1] + 1))
    extent = float(np.exp(rng.uniform(*np.log(config.motion))))
    kind = rng.random()
    share = 0.0 if kind < config.still else 1.0 if kind < config.still + ONLY_CAMERA else rng.uniform(0.2, 0.8)
    bends = np.zeros(count + 1)
    if rng.random() < config.accelerated:
        bends = config.bend * rng.uniform(-1, 1, count + 1)
    middle, radius = (size - 1) / 2, size / np.sqrt(2)
    camera = draw_pose(rng, (middle, middle), radius, share * extent)
    nearness = np.sort(rng.uniform(0.4, 1, count + 1))
    nearness[-1] = 1.0  # the front-most layer: all of the camera's motion; with no other, the background's

    left = (1 - nearness[0]) * share * extent  # the background's own motion; none with a still camera
    poses = (camera.times(nearness[0]), draw_pose(rng, (middle, middle), radius, 0.6 * left, tilts=True))
    waves = draw_waves(rng, radius, 0.4 * left) if rng.random() < BENDS else None
    layers = [_background(config, rng, photographs, Motion(poses, waves, float(bends[0]) / 4))]
    for near, bend in zip(nearness[1:], bends[1:], strict=True):
        side = size * float(np.exp(rng.uniform(np.log(0.2), np.log(1.1))))
        x, y = rng.uniform(-0.05 * size, 1.05 * size, 2)
        own = (1 - share) * extent * rng.uniform(0.4, 1)
        bending = 0.4 * own if rng.random() < BENDS else 0.0
        waves = draw_waves(rng, side / 2, bending) if bending else None
        pose = draw_pose(rng, (float(x), float(y)), side / 2, own - bending)
        motion = Motion((camera.times(near), pose), waves, float(bend))
        layers.append(_foreground(config, rng, photographs, motion, (float(x), float(y)), side))

    exposure = min(rng.uniform(0.05, 0.3), MAX_BLUR / extent) if rng.random() < config.blurred else 0.0
    light = rng.uniform(-0.1, 0.1, 2) if rng.random() < config.light else (0.0, 0.0)
    moments = 1 + int(np.ceil(exposure * extent))
    return Scene(size, tuple(layers), exposure, moments, (float(light[0]), float(light[1])))


def _background(config: MovingPhotographs, rng: np.random.Generator, photographs: list[int], motion: Motion) -> Layer:
    steps = np.linspace(-1, config.size, 9)
    border = np.stack(np.meshgrid(steps, steps), axis=-1)
    seen = np.concatenate([motion.trace(border, time).reshape(-1, 2) for time in (0.0, 0.5, 1.0)])
    low, high = seen.min(axis=0) - 4, seen.max(axis=0) + 4
    detail = DENSITY * min(1.0, motion.smallest(np.full(2, config.size / 2)))
    photograph = config.album[int(rng.choice(photographs))]
    texture, density = random_texture(rng, photograph, high - low, detail, config.repeated)
    return Layer(texture, (float(low[0]), float(low[1])), density, motion)


def _foreground(
    config: MovingPhotographs,
    rng: np.random.Generator,
    photographs: list[int],
    motion: Motion,
    centre: tuple[float, float],
    side: float,
) -> Layer:
    detail = DENSITY * min(1.0, motion.smallest(np.array(centre)))
    photograph = config.album[int(rng.choice(photographs))]
    texture, density = random_texture(rng, photograph, np.full(2, side), detail, config.repeated)
    mask = cv2.resize(outline(rng, max(texture.shape[:2])), texture.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    softness = PSF if rng.random() < 0.7 else float(rng.uniform(PSF, 2.5))
    mask = cv2.GaussianBlur(mask, (0, 0), softness)
    corner = (centre[0] - side / 2, centre[1] - side / 2)
    return Layer(np.dstack([texture, mask]), corner, density, motion)


def sheet(source: MovingPhotographs, indices: Sequence[int]) -> Float[np.ndarray, "h w 3"]:
    pictures = []
    for index in indices:
        scene, time = source.scene(index), source.moment(index)
        views = source._views(scene, time)
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
