"""The folders in which the datasets of frame interpolation come, each as a sequence of triplets.

    for name, x0, y, x1, time in Vimeo90K("data/vimeo_triplet", split="test"): ...     # evaluation: float32 in [0, 1]
    Vimeo90K("data/vimeo_triplet").frames(17).images                                   # training: uint8 [3 h w 3]

A dataset opens its folder at first use. Order is natural (9 before 10) or that of the list file; a missing image is a
FileNotFoundError when it is read. Crops and sizes of a protocol are made in 8 bits, as in the published evaluations.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import cv2
import numpy as np
from jaxtyping import Float, UInt8
from natsort import natsorted

from common.checked import Positive, one_of, whole
from common.io.files import require_file
from common.io.images import READABLE, find_images, from_uint8, read_image
from film.data.triplet import Encoded, Frames, Source, Triplet, as_png, decode, stack

GAMMA = 2.2
Image8 = UInt8[np.ndarray, "_ _ 3"]


class Place(NamedTuple):
    name: str
    x0: Path
    y: Path
    x1: Path
    time: float = 0.5


@dataclass(frozen=True)
class FolderDataset(Source):
    """A dataset in a folder; subclasses list its triplets (`find`)."""

    folder: str | Path

    @abstractmethod
    def find(self) -> Sequence[Place]:
        """The triplets in their order."""

    @cached_property
    def places(self) -> tuple[Place, ...]:
        places = tuple(self.find())
        if not places:
            layout = (self.__doc__ or "").splitlines()[0]
            raise FileNotFoundError(f"{self.folder}: no triplets with the layout of {type(self).__name__}: {layout}")
        return places

    @property
    def root(self) -> Path:
        return Path(self.folder)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Triplet:
        name, x0, y, x1, time = self.places[index]
        return Triplet(name, self.read(x0), self.read(y), self.read(x1), time)

    def name(self, index: int) -> str:
        return self.places[index].name

    def encoded(self, index: int) -> Encoded:
        name, x0, y, x1, time = self.places[index]
        return Encoded(name, (_bytes(x0), _bytes(y), _bytes(x1)), time)

    def read(self, path: Path) -> Float[np.ndarray, "h w 3"]:
        """One image for evaluation; 16-bit files keep their precision."""
        return read_image(path)

    def folders(self, pattern: str) -> list[Path]:
        """The folders of any depth with a file of this name, in natural order."""
        return [path.parent for path in natsorted(self.root.rglob(pattern), key=str)]

    def place(self, folder: Path, files: Sequence[str], time: float = 0.5, suffix: str = "") -> Place:
        """The files x0, y, x1 of a folder, named by it."""
        x0, y, x1 = (folder / file for file in files)
        return Place(self.relative(folder) + suffix, x0, y, x1, time)

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


class FolderTriplets(FolderDataset):
    """im1.png, im2.png (the truth), im3.png in folders of any depth; other image formats too."""

    def find(self) -> Sequence[Place]:
        firsts = [path for path in natsorted(self.root.rglob("im1.*"), key=str) if path.suffix.lower() in READABLE]
        return [self.place(path.parent, [f"im{k}{path.suffix}" for k in (1, 2, 3)]) for path in firsts]


class KnownTriplets(FolderTriplets):
    """As FolderTriplets; where known.png is black the truth `y` is NaN, but not in `encoded` and `frames`."""

    def __getitem__(self, index: int) -> Triplet:
        triplet = super().__getitem__(index)
        known = self.read(self.places[index].y.with_name("known.png")) > 0.5
        return triplet._replace(y=np.where(known, triplet.y, np.float32(np.nan)))


class Quarters(FolderDataset):
    """frame_0.png, frame_1.png, frame_3.png, frame_4.png, evenly spaced: two triplets, truths at 1/4 and 3/4."""

    def find(self) -> Sequence[Place]:
        return [
            self.place(folder, ["frame_0.png", f"frame_{k}.png", "frame_4.png"], k / 4, f"/{k}")
            for folder in self.folders("frame_0.png")
            for k in (1, 3)
        ]


@dataclass(frozen=True)
class Vimeo90K(FolderDataset):
    """sequences/00001/0001/im1..3.png and tri_<split>list.txt, one `00001/0001` a line (toflow.csail.mit.edu).

    51,312 triplets to train, 3,782 to test.
    """

    split: Annotated[str, one_of(("train", "test"))] = "train"

    def find(self) -> Sequence[Place]:
        sequences = self.root / "sequences"
        folders = [(line, sequences / line) for line in _lines(self.root / f"tri_{self.split}list.txt")]
        return [Place(name, f / "im1.png", f / "im2.png", f / "im3.png") for name, f in folders]


class UCF101(FolderDataset):
    """Folders of frame_00.png, frame_01_gt.png (the truth), frame_02.png: the 379 of Deep Voxel Flow (ICCV 2017)."""

    def find(self) -> Sequence[Place]:
        files = ["frame_00.png", "frame_01_gt.png", "frame_02.png"]
        return [self.place(folder, files) for folder in self.folders("frame_01_gt.png")]


class Middlebury(FolderDataset):
    """other-data/X/frame10.png, frame11.png and other-gt-interp/X/frame10i11.png (vision.middlebury.edu/flow/data).

    The 12 scenes with a truth.
    """

    def find(self) -> Sequence[Place]:
        truths = natsorted((self.root / "other-gt-interp").glob("*/frame10i11.png"), key=str)
        scenes = [(truth.parent.name, truth, self.root / "other-data" / truth.parent.name) for truth in truths]
        return [Place(name, data / "frame10.png", truth, data / "frame11.png") for name, truth, data in scenes]


@dataclass(frozen=True)
class SnuFilm(FolderDataset):
    """test-<difficulty>.txt with three paths a line, x0 truth x1 (SNU-FILM, published with CAIN, AAAI 2020).

    310 triplets of each difficulty. The lists circulate in the folder itself or in `eval_modes/`, and with different
    prefixes: as many leading folders of a path are dropped as it takes to find the file.
    """

    difficulty: Annotated[str, one_of(("easy", "medium", "hard", "extreme"))] = "hard"

    def find(self) -> Sequence[Place]:
        lists = [self.root / folder / f"test-{self.difficulty}.txt" for folder in (".", "eval_modes")]
        lines = [line.split() for line in _lines(next((path for path in lists if path.is_file()), lists[0]))]
        if wrong := [line for line in lines if len(line) != 3]:
            raise ValueError(f"{self.folder}: a line of its list has {len(wrong[0])} paths; it needs three")
        parts = PurePosixPath(lines[0][0]).parts if lines else ()
        drop = next((drop for drop in range(len(parts)) if self.root.joinpath(*parts[drop:]).is_file()), 0)
        paths = [[self.root.joinpath(*PurePosixPath(path).parts[drop:]) for path in line] for line in lines]
        return [Place(self.relative(y.with_suffix("")), x0, y, x1) for x0, y, x1 in paths]


class TransformedDataset(FolderDataset):
    """A dataset whose protocol crops or resizes the images, in 8 bits."""

    @abstractmethod
    def transform(self, image: Image8) -> Image8: ...

    def read(self, path: Path) -> Float[np.ndarray, "h w 3"]:
        return from_uint8(self._pixels(path))

    def encoded(self, index: int) -> Encoded:
        return as_png(self.frames(index))

    def frames(self, index: int) -> Frames:
        name, *paths, time = self.places[index]
        return Frames(name, stack([self._pixels(path) for path in paths], name), time)

    def _pixels(self, path: Path) -> Image8:
        return self.transform(decode(_bytes(path), str(path)))


@dataclass(frozen=True)
class Xiph(TransformedDataset):
    """Clips of `length` frames, sorted, in one folder or one folder each; every even frame is a truth.

    The protocol of SoftSplat (CVPR 2020) and of FILM's `create_xiph_tfrecord.py`: frames 2, 4, ... 98 of the first 100
    of eight 4K clips of media.xiph.org/video/derf, 392 triplets. "Xiph-2K" is scale 2, "Xiph-4K" centre_crop 2 with
    scale 1. Cropping comes first; resampling is done in linear light (`resample_linear`).
    """

    scale: Positive = 2
    centre_crop: Positive = 1
    length: Annotated[int, whole(3)] = 100

    def find(self) -> Sequence[Place]:
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.folder} is no folder; name the one that holds the Xiph clips")
        folders = [path for path in natsorted(self.root.iterdir(), key=str) if path.is_dir()] or [self.root]
        clips = []
        for folder in folders:
            files = find_images(folder)
            if len(files) % self.length:
                raise ValueError(
                    f"{folder} holds {len(files)} frames, no multiple of {self.length}: complete the clips"
                )
            clips += [files[start : start + self.length] for start in range(0, len(files), self.length)]
        places = [clip[i - 1 : i + 2] for clip in clips for i in range(1, self.length - 1, 2)]
        return [Place(self.relative(y.with_suffix("")), x0, y, x1) for x0, y, x1 in places]

    def transform(self, image: Image8) -> Image8:
        height, width = (side // (2 * self.centre_crop) for side in image.shape[:2])
        if self.centre_crop > 1:
            image = image[height:-height, width:-width]
        return resample_linear(image, self.scale) if self.scale > 1 else image


@dataclass(frozen=True)
class XTest(TransformedDataset):
    """Type*/TEST*/0000.png ... 0032.png, 4096x2160: X4K1000FPS's test part (XVFI, ICCV 2021, README of its code).

    x0 is frame 0 and x1 frame 32; truths are the `multiple` - 1 frames at multiples of 1 / `multiple` between them: 105
    triplets. scale 1 is "4K"; scale 2, the mean of 2x2 pixels, is "2K".
    """

    scale: Positive = 1
    multiple: Annotated[int, whole(2)] = 8
    last: Positive = 32

    def rules(self):
        yield self.last % self.multiple == 0, "multiple divides last"

    def find(self) -> Sequence[Place]:
        times = [(self.last * k // self.multiple, k / self.multiple) for k in range(1, self.multiple)]
        return [
            self.place(scene, [f"{k:04d}.png" for k in (0, middle, self.last)], time, f"/{middle:04d}")
            for scene in self.folders("0000.png")
            for middle, time in times
        ]

    def transform(self, image: Image8) -> Image8:
        return image if self.scale == 1 else _mean_of_blocks(image, self.scale)


def resample_linear(image: Image8, scale: int) -> Image8:
    """An image `scale` times smaller: the mean over each block, in linear light, for which stored values are taken to
    the power 2.2 (FILM's `datasets/util.py`; its `resize_local_mean` is the plain mean for whole blocks)."""
    mean = _mean_of_blocks(np.power(from_uint8(image), np.float32(GAMMA)), scale)
    return (np.power(mean, np.float32(1 / GAMMA)) * 255 + 0.5).clip(0, 255).astype(np.uint8)


def _mean_of_blocks(image: np.ndarray, scale: int) -> np.ndarray:
    size = (image.shape[1] // scale, image.shape[0] // scale)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _bytes(path: Path) -> bytes:
    return require_file(path).read_bytes()


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in require_file(path).read_text().splitlines() if line.strip()]
