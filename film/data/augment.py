"""Augmentation of a training triplet: every draw holds for all three frames alike.

`ReferenceAugment` is the reference's (`training/augmentation_lib.py`), for frames without flow, in this order: k x 90
degrees anticlockwise; mirrored; rotated, half of the time; x0 and x1 exchanged, so that time runs backwards; one random
square for all three. Rotation leaves corners without an image, which `corners` fills:

    black     zeros, as in the reference (`tfa.image.rotate`, constant fill), seen in many crops
    reflect   the image mirrored at its border
    inside    no corners: the rotated square is placed inside the image. Where the image is too small for it the square
              shrinks and is enlarged to the crop: by 1.41 at most, for a crop as high as the image

`augment_with_flow` changes teacher flow and its masks along with the frames. Turning an image turns the *vectors* of
its flow, not only their places; playing backwards swaps x0 with x1, and their flows.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.checked import Checked, Rule, real

CELL = 4  # pixels per flow cell
Side = Annotated[int, Rule(lambda side: side > 0 and side % CELL == 0, f"a positive multiple of {CELL}")]
BORDERS = {"black": cv2.BORDER_CONSTANT, "reflect": cv2.BORDER_REFLECT_101, "inside": cv2.BORDER_REPLICATE}
Example = dict[str, np.ndarray]


@dataclass(frozen=True)
class ReferenceAugment(Checked):
    """The switches; the defaults are the reference's."""

    quarter_turns: bool = True
    mirror: bool = True
    angle: Annotated[float | int, real(0, 45)] = 45.0  # degrees, to either side at most
    corners: Literal["black", "reflect", "inside"] = "black"
    swap: bool = True
    colour: bool = False  # `tint`; not in the reference

    def __call__(
        self, images: UInt8[np.ndarray, "3 h w 3"], crop: int, rng: np.random.Generator, time: float = 0.5
    ) -> tuple[Float[np.ndarray, "3 c c 3"], float]:
        """Three crops in [0, 1], and the time of the middle one. `crop` is at most h and w."""
        images = np.rot90(images, int(rng.integers(4)) if self.quarter_turns else 0, axes=(1, 2))
        if self.mirror and rng.random() < 0.5:
            images = images[:, :, ::-1]
        rotated = self.angle > 0 and rng.random() < 0.5
        angle = math.radians(rng.uniform(-self.angle, self.angle)) if rotated else 0.0
        if self.swap and rng.random() < 0.5:
            images, time = images[::-1], 1 - time
        place = rng.random(2)
        if angle:
            images = rotated_crop(images, crop, angle, place, self.corners)
        else:
            y, x = (int(share * (side - crop + 1)) for share, side in zip(place, images.shape[1:3], strict=True))
            images = images[:, y : y + crop, x : x + crop]
        if self.colour:
            return tint(np.rint(images).astype(np.uint8), rng), time
        return np.divide(images, np.float32(255), dtype=np.float32), time


def rotated_crop(
    images: np.ndarray, crop: int, angle: float, place: Float[np.ndarray, " 2"], corners: str = "black"
) -> Float[np.ndarray, "n c c 3"]:
    """A square of the images [n h w 3] rotated by `angle` (radians, anticlockwise), in one bilinear resampling.

    Without "inside" it is the crop of the image rotated about its centre (`tfa.image.rotate`). `place`, (y, x) in [0,
    1), chooses the square's position among the possible ones. Values keep their range.
    """
    height, width = images.shape[1:3]
    cos, sin = math.cos(angle), math.sin(angle)
    rotation = np.array([[cos, -sin], [sin, cos]])  # takes (x, y) of the rotated image to the original's; y points down
    extent = (crop - 1) * (cos + abs(sin))  # sides of the box around the rotated square
    size, zoom = np.array([width, height]), 1.0
    if corners == "inside":
        zoom = min(1.0, (min(height, width) - 1) / extent)
        centre = zoom * extent / 2 + place[::-1] * (size - 1 - zoom * extent)
    else:
        corner = np.floor(place[::-1] * (size - crop + 1))
        centre = (size - 1) / 2 + rotation @ (corner + (crop - 1) / 2 - (size - 1) / 2)
    # Crop pixel u, relative to the crop's centre, is the input at centre + zoom R u.
    shift = centre - zoom * rotation @ np.full(2, (crop - 1) / 2)
    affine = np.concatenate([zoom * rotation, shift[:, None]], axis=1)
    flags, border = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, BORDERS[corners]
    # As float32: OpenCV would round 8-bit results, the reference rotates floats.
    floats = (np.ascontiguousarray(image, np.float32) for image in images)
    return np.stack([cv2.warpAffine(x, affine, (crop, crop), flags=flags, borderMode=border) for x in floats])


def augment_with_flow(
    example: Example,
    rng: np.random.Generator,
    crop: int,
    scale: float = 1.0,
    turn: bool = True,
    mirror: bool = True,
    backwards: bool = True,
    colour: bool = True,
) -> Example:
    """A record of `film.data.record_sources.CutTriplets`, cropped, shrunken and augmented: images float32 [3 c c 3] in
    [0, 1], flows float32 [2 c/4 c/4 2] (dx, dy) in crop pixels and valid float32 [2 c/4 c/4] of zeros and ones."""
    images, flows, valid = crop_and_shrink(example, rng, crop, scale)
    turns = int(rng.integers(4)) if turn else 0
    images, flows, valid = (np.rot90(x, turns, axes=(1, 2)) for x in (images, flows, valid))
    for _ in range(turns):  # a quarter turn anticlockwise takes right to up, and up is -y
        flows = np.stack([flows[..., 1], -flows[..., 0]], axis=-1)
    if mirror and rng.random() < 0.5:
        images, flows, valid = (x[:, :, ::-1] for x in (images, flows, valid))
        flows = flows * np.array([-1, 1], np.float32)
    if backwards and rng.random() < 0.5:
        images, flows, valid = images[::-1], flows[::-1], valid[::-1]
    images = tint(images, rng) if colour else images.astype(np.float32) / np.float32(255)
    return dict(images=images, flows=np.ascontiguousarray(flows), valid=np.ascontiguousarray(valid))


def crop_and_shrink(
    example: Example, rng: np.random.Generator, crop: int, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random region of about crop / scale pixels, a whole number of flow cells, resized to `crop`: images uint8,
    flows and valid float32. A shrunken cell is valid only if all cells under it are."""
    cells = round(crop / scale / CELL)
    region = CELL * cells
    y, x = rng.integers(0, (example["images"].shape[1] - region) // CELL + 1, 2)
    images = example["images"][:, CELL * y : CELL * y + region, CELL * x : CELL * x + region]
    flows = example["flows"][:, y : y + cells, x : x + cells].astype(np.float32) * np.float32(crop / region)
    valid = example["valid"][:, y : y + cells, x : x + cells].astype(np.float32)
    if region != crop:
        images, flows, valid = (
            np.stack([cv2.resize(item, (side, side), interpolation=cv2.INTER_AREA) for item in items])
            for items, side in ((images, crop), (flows, crop // CELL), (valid, crop // CELL))
        )
    return images, flows, (valid > 0.999).astype(np.float32)


def tint(images: np.ndarray, rng: np.random.Generator) -> Float[np.ndarray, "n h w 3"]:
    """uint8 [n h w 3] -> [0, 1]: one gain, one gamma (both about 1 +- 0.1); one in ten swaps channels."""
    gain, gamma = rng.uniform(0.9, 1.1), np.exp(rng.uniform(-0.14, 0.14))
    table = np.clip(gain * np.linspace(0, 1, 256) ** gamma, 0, 1).astype(np.float32)
    if rng.random() < 0.1:
        images = images[..., rng.permutation(3)]
    return table[images]
