"""The two test sets that are made from 4K film: `Xiph` and `XTest`, both with a 2K and a 4K protocol.

The frames on disk are the originals; a protocol shrinks or crops them. That is done here when a picture is read, in
8 bits, as those who published numbers did before they stored the frames. A 4K triplet takes 300 MB as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float, UInt8
from natsort import natsorted

from common.io.files import require_file
from common.io.images import find_images, from_uint8
from film.data.datasets import Layout, Place, relative_name
from film.data.triplet import Frames, decode, encode, stack

GAMMA = 2.2


@dataclass(frozen=True)
class Changed(Layout):
    """A layout whose protocol changes the pictures, in 8 bits."""

    def change(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
        raise NotImplementedError

    def read(self, path: Path) -> Float[np.ndarray, "h w 3"]:
        return from_uint8(self._pixels(path))

    def file(self, path: Path) -> bytes:
        return encode(self._pixels(path))

    def frames(self, index: int) -> Frames:
        name, *paths, time = self.places[index]
        return Frames(name, stack([self._pixels(path) for path in paths], name), time)

    def _pixels(self, path: Path) -> UInt8[np.ndarray, "h w 3"]:
        return self.change(decode(require_file(path).read_bytes(), str(path)))


@dataclass(frozen=True)
class Xiph(Changed):
    """Clips of `length` frames, sorted, in one folder or one folder each; every even frame is a truth.

    The protocol of SoftSplat (CVPR 2020) and of FILM's `create_xiph_tfrecord.py`: frames 2, 4, ... 98 of the first 100
    of eight 4K clips of media.xiph.org/video/derf. "Xiph-2K" is scale 2, "Xiph-4K" centre_crop 2 with scale 1. Cropping
    comes first; resampling is done in linear light (`resample_linear`).
    """

    scale: int = 2
    centre_crop: int = 1
    length: int = 100

    def find(self) -> Sequence[Place]:
        _at_least_one(scale=self.scale, centre_crop=self.centre_crop)
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.folder} is no folder; name the one that holds the Xiph clips")
        folders = [path for path in natsorted(self.root.iterdir(), key=str) if path.is_dir()] or [self.root]
        return [place for folder in folders for clip in self._clips(folder) for place in self._places(clip)]

    def change(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
        height, width = (side // (2 * self.centre_crop) for side in image.shape[:2])
        if self.centre_crop > 1:
            image = image[height:-height, width:-width]
        return resample_linear(image, self.scale) if self.scale > 1 else image

    def _clips(self, folder: Path) -> list[list[Path]]:
        files = find_images(folder)
        if len(files) % self.length:
            raise ValueError(f"{folder} holds {len(files)} frames, no multiple of {self.length}: complete the clips")
        return [files[start : start + self.length] for start in range(0, len(files), self.length)]

    def _places(self, clip: list[Path]) -> list[Place]:
        names = [relative_name(self.root, path.with_suffix("")) for path in clip]
        return [Place(names[i], clip[i - 1], clip[i], clip[i + 1]) for i in range(1, len(clip) - 1, 2)]


@dataclass(frozen=True)
class XTest(Changed):
    """Type*/TEST*/0000.png ... 0032.png, 4096x2160: X4K1000FPS's test part (XVFI, ICCV 2021, README of its code).

    x0 is frame 0 and x1 frame 32; truths are the `multiple` - 1 frames at multiples of 1 / `multiple` between them.
    scale 1 is "4K"; scale 2, the mean of 2x2 pixels, is "2K".
    """

    scale: int = 1
    multiple: int = 8
    last: int = 32

    def find(self) -> Sequence[Place]:
        _at_least_one(scale=self.scale)
        if self.multiple < 2 or self.last % self.multiple:
            raise ValueError(f"multiple {self.multiple} must be at least 2 and divide {self.last}")
        scenes = natsorted({path.parent for path in self.root.rglob("0000.png")}, key=str)
        return [self._place(scene, k) for scene in scenes for k in range(1, self.multiple)]

    def change(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
        return (
            image if self.scale == 1 else cv2.resize(image, _smaller(image, self.scale), interpolation=cv2.INTER_AREA)
        )

    def _place(self, scene: Path, k: int) -> Place:
        middle = self.last * k // self.multiple
        x0, y, x1 = (scene / f"{number:04d}.png" for number in (0, middle, self.last))
        return Place(f"{relative_name(self.root, scene)}/{middle:04d}", x0, y, x1, k / self.multiple)


def resample_linear(image: UInt8[np.ndarray, "h w 3"], scale: int) -> UInt8[np.ndarray, "h2 w2 3"]:
    """A picture `scale` times smaller: the mean over each block, of light rather than of stored values.

    Stored values are taken to the power 2.2, averaged, and brought back (FILM's `datasets/util.py`, which averages
    with scikit-image's `resize_local_mean`; for whole blocks that is the plain mean).
    """
    linear = np.power(from_uint8(image), np.float32(GAMMA))
    mean = cv2.resize(linear, _smaller(image, scale), interpolation=cv2.INTER_AREA)
    return (np.power(mean, np.float32(1 / GAMMA)) * 255 + 0.5).clip(0, 255).astype(np.uint8)


def _smaller(image: np.ndarray, scale: int) -> tuple[int, int]:
    return image.shape[1] // scale, image.shape[0] // scale


def _at_least_one(**fields: int) -> None:
    for name, value in fields.items():
        if value < 1:
            raise ValueError(f"{name} {value} must be at least 1")
