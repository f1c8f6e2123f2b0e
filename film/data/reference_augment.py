"""Vary three frames as FILM's training does: turn, mirror, rotate, play backwards, crop; the same for all three.

In the reference's order (`training/augmentation_lib.py`; every draw holds for x0, y and x1 alike):

1. `quarter_turns`   k x 90 degrees anticlockwise, k of 0..3
2. `mirror`          left to right, half of the time
3. `angle`           half of the time, by an angle uniform in [-angle, angle] degrees; the reference has 45
4. `swap`            x0 and x1 change places, half of the time: time runs backwards
5. crop              one random square for all three

Rotation leaves corners for which there is no picture. `corners` says what is there:

    black     nothing: zeros, as in the reference (`tfa.image.rotate`, constant fill), seen in many crops
    reflect   the picture mirrored at its border
    inside    never outside: the rotated square is put where it fits into the picture. Where the picture is too small
              for it the square shrinks and is enlarged to the crop: by 1.41 at most, for a crop as high as the picture

Beyond the reference, off by default: `colour`, one gain and gamma for all three frames (`film.data.augment.tint`).
`film.data.augment` is the other augmentation: it carries teacher flow along, which this one has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from film.data.augment import tint

BORDERS = {"black": cv2.BORDER_CONSTANT, "reflect": cv2.BORDER_REFLECT_101, "inside": cv2.BORDER_REPLICATE}


@dataclass(frozen=True)
class ReferenceAugment:
    """The switches (module docstring); the defaults are the reference's."""

    quarter_turns: bool = True
    mirror: bool = True
    angle: float | int = 45.0
    corners: str = "black"
    swap: bool = True
    colour: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.angle <= 45:
            raise ValueError(f"angle {self.angle} must be 0 to 45 degrees; quarter_turns give the others")
        if self.corners not in BORDERS:
            raise ValueError(f"corners {self.corners!r} is unknown; choose one of {', '.join(BORDERS)}")

    def __call__(
        self, images: UInt8[np.ndarray, "3 h w 3"], crop: int, rng: np.random.Generator, time: float = 0.5
    ) -> tuple[Float[np.ndarray, "3 c c 3"], float]:
        """Three crops in [0, 1], and the time of the middle one. `crop` is at most h and w."""
        turns = int(rng.integers(4)) if self.quarter_turns else 0
        images = np.rot90(images, turns, axes=(1, 2))
        if self.mirror and rng.random() < 0.5:
            images = images[:, :, ::-1]
        turned = self.angle > 0 and rng.random() < 0.5
        angle = math.radians(rng.uniform(-self.angle, self.angle)) if turned else 0.0
        if self.swap and rng.random() < 0.5:
            images, time = images[::-1], 1 - time
        place = rng.random(2)
        crops = rotated_crop(images, crop, angle, place, self.corners) if angle else _crop(images, crop, place)
        if self.colour:
            return tint(np.rint(crops).astype(np.uint8), rng), time
        return np.divide(crops, np.float32(255), dtype=np.float32), time


def rotated_crop(
    images: np.ndarray, crop: int, angle: float, place: Float[np.ndarray, " 2"], corners: str = "black"
) -> Float[np.ndarray, "n c c 3"]:
    """A square of the pictures [n h w 3] rotated by `angle` (radians, anticlockwise), in one resampling.

    `place`, (y, x) in [0, 1), chooses the square's position among the possible ones. Values keep their range.
    """
    height, width = images.shape[1:3]
    spread = (crop - 1) * (math.cos(angle) + abs(math.sin(angle)))  # sides of the box around the rotated square
    size, zoom = np.array([width, height]), 1.0
    if corners == "inside":
        zoom = min(1.0, (min(height, width) - 1) / spread)
        centre = zoom * spread / 2 + place[::-1] * (size - 1 - zoom * spread)
    else:
        corner = np.floor(place[::-1] * (size - crop + 1))
        centre = (size - 1) / 2 + _turn(angle) @ (corner + (crop - 1) / 2 - (size - 1) / 2)
    return _sample(images, (crop, crop), centre, angle, zoom, corners)


def rotate(image: Float[np.ndarray, "h w 3"], angle: float, corners: str = "black") -> Float[np.ndarray, "h w 3"]:
    """The whole picture rotated about its centre, anticlockwise, in radians (`tfa.image.rotate`, bilinear)."""
    height, width = image.shape[:2]
    centre = np.array([width - 1, height - 1]) / 2
    return _sample(image[None], (height, width), centre, angle, 1.0, corners)[0]


def _sample(
    images: np.ndarray,
    size: tuple[int, int],
    centre: Float[np.ndarray, " 2"],
    angle: float,
    zoom: float,
    corners: str,
) -> Float[np.ndarray, "n h w 3"]:
    """Output pixel u, counted from the output's centre, is the input at `centre` + zoom R(angle) u; bilinear."""
    height, width = size
    matrix = zoom * _turn(angle)
    shift = centre - matrix @ (np.array([width - 1, height - 1]) / 2)
    affine = np.concatenate([matrix, shift[:, None]], axis=1)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    # As float32: OpenCV would round 8-bit results, the reference rotates floats.
    floats = (np.ascontiguousarray(image, np.float32) for image in images)
    return np.stack(
        [cv2.warpAffine(x, affine, (width, height), flags=flags, borderMode=BORDERS[corners]) for x in floats]
    )


def _turn(angle: float) -> Float[np.ndarray, "2 2"]:
    """Takes (x, y) of the anticlockwise rotated picture to the original's; y points down."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def _crop(images: np.ndarray, crop: int, place: Float[np.ndarray, " 2"]) -> np.ndarray:
    y, x = (int(share * (side - crop + 1)) for share, side in zip(place, images.shape[1:3], strict=True))
    return images[:, y : y + crop, x : x + crop]
