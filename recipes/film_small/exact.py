"""Exact scenes: held-out photographs that move by whole pixels, with masks of what one of the frames does not see.

Camera footage has no true flow, changes its speed, and hides behind its still parts what happens at edges. Here a
ground and a mover, drawn from held-out photographs, go along straight lines at constant speed, at whole pixels: frames
are copies, and a perfect method scores as high as `Psnr` goes.

| kind | what moves |
| --- | --- |
| `pan` | the ground, all of it |
| `disc` | a disc of `RADIUS` px, cut out of another photograph, before a still ground |
| `cutout` | a random outline (`outlines.py`) before a still ground |
| `thin` | thin bars or leaves before a still ground |
| `parallax` | a random outline, and the ground by a quarter of its way in the other direction |

Regions of the true frame half-way (`film.data.triplet.Triplet.regions`):

* "ring": within `RING` px of the mover's edge, inside and outside; of a pan all that both frames see;
* "occluded": ground that is seen there and hidden in x0 or in x1, behind the mover or outside the picture;
* "path": the mover's way from x0 to x1, and `RING` px around it; of a pan all that both frames see.

A scene depends on its seed, kind, size and number; the distance changes the way, and the place as far as needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float

from common.checked import Checked, Positive, one_of
from common.io.images import from_uint8, read_image
from film.data.triplet import Triplet
from film.photos import place
from recipes.film_small.outlines import outline
from recipes.film_small.photograph_cache import Album

KINDS = ("pan", "disc", "cutout", "thin", "parallax")
OUTLINES = {
    "cutout": ("blob", "spline", "polygon", "letters"),
    "parallax": ("blob", "spline"),
    "thin": ("bars", "leaves"),
}
RADIUS = 60  # px
RING = 16  # px
EDGE = 0.7  # px, standard deviation of the blur of a mover's edge
EIGHTHS = 32  # px; from this distance on, things are at whole pixels at each eighth of the way

Image = Float[np.ndarray, "h w 3"]
Mask = Bool[np.ndarray, "h w"]
Way = tuple[int, int]  # (dx, dy) from x0 to x1, px


class Scene(NamedTuple):
    """`ground` reaches beyond the picture by half of its way; `mover`, RGB and opacity, has its upper left corner at
    `corner` (x, y) half-way."""

    size: tuple[int, int]  # width, height
    ground: Image
    ground_way: Way
    mover: Float[np.ndarray, "s s 4"] | None
    corner: tuple[int, int]
    mover_way: Way

    def frame(self, time: float) -> Image:
        (width, height), (x, y) = self.size, self._place(self.ground_way, time)
        left, top = (abs(way) // 2 for way in self.ground_way)
        image = self.ground[top - y : top - y + height, left - x : left - x + width].copy()
        if self.mover is not None:
            opacity = self._placed(self.mover[..., 3:], self.mover_way, time)
            image += opacity * (self._placed(self.mover[..., :3], self.mover_way, time) - image)
        return image

    def regions(self) -> dict[str, Mask]:
        hidden, seen = [], []
        for time in (0.0, 1.0):
            x, y = self._place(self.ground_way, time)
            rows, columns = np.arange(self.size[1]) + y, np.arange(self.size[0]) + x
            seen.append(((rows >= 0) & (rows < self.size[1]))[:, None] & (columns >= 0) & (columns < self.size[0]))
            relative = (self.mover_way[0] - self.ground_way[0], self.mover_way[1] - self.ground_way[1])
            hidden.append(~seen[-1] | self._covered(relative, time))
        here = self._covered(self.mover_way, 0.5)
        if self.mover is None:
            both = seen[0] & seen[1]
            return {"ring": both, "occluded": ~both, "path": both}
        brush = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * RING + 1, 2 * RING + 1))
        wide, narrow = (change(here.astype(np.uint8), brush) == 1 for change in (cv2.dilate, cv2.erode))
        way = np.any([self._covered(self.mover_way, k / 8) for k in range(9)], axis=0)
        path = cv2.dilate(way.astype(np.uint8), brush) == 1
        return {"ring": wide & ~narrow, "occluded": (hidden[0] | hidden[1]) & ~here, "path": path}

    def _place(self, way: Way, time: float) -> tuple[int, int]:
        """The offset from half-way, rounded where it is only needed for masks."""
        return round(way[0] * (time - 0.5)), round(way[1] * (time - 0.5))

    def _covered(self, way: Way, time: float) -> Mask:
        if self.mover is None:
            return np.zeros(self.size[::-1], bool)
        return self._placed(self.mover[..., 3:], way, time)[..., 0] > 0.5

    def _placed(self, patch: Float[np.ndarray, "s s c"], way: Way, time: float) -> Float[np.ndarray, "h w c"]:
        """The patch in the picture, 0 around it."""
        left, top = np.add(self.corner, self._place(way, time))
        shift = np.array([[1, 0, left], [0, 1, top]], np.float32)
        return cv2.warpAffine(patch, shift, self.size, flags=cv2.INTER_NEAREST).reshape(*self.size[::-1], -1)


@dataclass(frozen=True)
class ExactScenes(Checked, Sequence[Triplet]):
    kind: Annotated[str, one_of(KINDS)]
    size: tuple[int, int] = (640, 480)  # width and height, px
    distance: int = 32  # of the way, px; in each direction even, from `EIGHTHS` on a multiple of 8
    count: Positive = 2
    folder: str = "data/photographs"  # and split: of `photograph_cache.py`
    split: str = "held_out"
    seed: int = 0

    def rules(self):
        most = min(self.size) - 4 * RADIUS
        yield 2 <= self.distance <= most, f"distance is from 2 to {most} px in pictures of this size"

    @cached_property
    def album(self) -> Album:
        return Album(self.folder, self.split)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Triplet:  # type: ignore[override]
        if not 0 <= number < self.count:
            raise IndexError(number)
        scene = self.scene(number)
        x0, y, x1 = (scene.frame(time) for time in (0.0, 0.5, 1.0))
        return Triplet(f"{self.distance} px/{number}", x0, y, x1, 0.5, scene.regions())

    def scene(self, number: int) -> Scene:
        rng = np.random.default_rng([self.seed, KINDS.index(self.kind), *self.size, number])
        angle, step = rng.uniform(0, 2 * np.pi), 8 if self.distance >= EIGHTHS else 2
        towards = np.array([np.cos(angle), np.sin(angle)])
        way = step * np.rint(self.distance * towards / step)
        ground_way = {"pan": way, "parallax": -step * np.rint(way / (4 * step))}.get(self.kind, np.zeros(2))
        first = (number + KINDS.index(self.kind)) % len(self.album)
        second = (first + int(rng.integers(1, max(2, len(self.album))))) % len(self.album)
        reach = np.abs(ground_way) + self.size
        ground = place(read_image(self.album.paths[first]), (int(reach[0]), int(reach[1])), "crop")
        mover, corner, side = None, (0, 0), 2 * RADIUS + 8
        if self.kind != "pan":
            texture = place(read_image(self.album.paths[second]), (3 * side, 2 * side), "crop")
            mover = self._mover(rng, texture, side)
            free = np.array(self.size) - side - np.abs(way)
            corner = np.abs(way) // 2 + rng.uniform(0.1, 0.9, 2) * np.maximum(free, 0)
        (gx, gy), (x, y), (left, top) = (map(int, pair) for pair in (ground_way, way, corner))
        return Scene(self.size, ground, (gx, gy), mover, (left, top), (x, y))

    def _mover(self, rng: np.random.Generator, texture: Image, side: int) -> Float[np.ndarray, "s s 4"]:
        y, x = (int(rng.integers(0, length - side + 1)) for length in texture.shape[:2])
        if self.kind == "disc":
            opacity = np.zeros((side, side), np.uint8)
            cv2.circle(opacity, (side // 2, side // 2), RADIUS, 255, -1, cv2.LINE_AA)
        else:
            opacity = outline(rng, side, str(rng.choice(OUTLINES[self.kind])))
        opacity = from_uint8(cv2.GaussianBlur(opacity, (0, 0), EDGE))
        return np.dstack([texture[y : y + side, x : x + side], opacity])
