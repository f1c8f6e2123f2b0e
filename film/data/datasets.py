"""The folders in which the data sets of frame interpolation come, each as a sequence of triplets.

| class            | what is on disk                                                        | triplets in all         |
| ---------------- | ---------------------------------------------------------------------- | ----------------------- |
| `FolderTriplets` | any/depth/im1.png im2.png im3.png                                      |                         |
| `KnownTriplets`  | the same and known.png, where the truth is known                       |                         |
| `Quarters`       | any/depth/frame_0.png frame_1.png frame_3.png frame_4.png              | two of each folder      |
| `Vimeo90K`       | sequences/00001/0001/im1.png ..., tri_trainlist.txt, tri_testlist.txt  | 51,312 and 3,782        |
| `UCF101`         | 1/frame_00.png frame_01_gt.png frame_02.png                            | 379                     |
| `Middlebury`     | other-data/X/frame10.png frame11.png, other-gt-interp/X/frame10i11.png | 12                      |
| `SnuFilm`        | test-easy.txt ... of three paths a line, test/...                      | 310 of each difficulty  |
| `Xiph`           | 8 clips of 100 frames, in one folder or one folder each                | 392                     |
| `XTest`          | Type1/TEST01.../0000.png ... 0032.png                                  | 105                     |

    for name, x0, y, x1, time in Vimeo90K("data/vimeo_triplet", split="test"): ...     # evaluation: float32 in [0, 1]
    Vimeo90K("data/vimeo_triplet").frames(17).images                                   # training: uint8 [3 h w 3]

A data set opens its folder at first use. Order is natural (9 before 10) or that of the list file; a missing picture is
one FileNotFoundError that names it, when it is read. Where a protocol changes the pictures , it is
done there, in 8 bits, as those who published numbers did before they stored the frames.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Float, UInt8
from natsort import natsorted

from common.io.files import require_file
from common.io.images import READABLE, find_images, from_uint8, read_image
from film.data.triplet import Encoded, Frames, Source, Triplet, decode, encode, stack

GAMMA = 2.2


class Place(NamedTuple):
    """Where the pictures of one triplet are."""

    name: str
    x0: Path
    y: Path
    x1: Path
    time: float = 0.5


@dataclass(frozen=True)
class FolderDataset(Source):
    """A data set in a folder; a new one says where its triplets are (`find`)."""

    folder: str | Path

    @abstractmethod
    def find(self) -> Sequence[Place]:
        """The triplets in their order. Raises FileNotFoundError or ValueError when the folder is of another kind."""

    @cached_property
    def places(self) -> tuple[Place, ...]:
        places = tuple(self.find())
        if not places:
            words = (self.__doc__ or "").splitlines()[0]
            raise FileNotFoundError(f"{self.folder}: no triplets of this data set in it ({words})")
        return places

    @property
    def root(self) -> Path:
        return Path(self.folder)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Triplet:
        name, x0, y, x1, time = self.places[index]
        return Triplet(name, self.read(x0), self.read(y), self.read(x1), time)

    def __iter__(self) -> Iterator[Triplet]:
        return (self[index] for index in range(len(self)))

    def name(self, index: int) -> str:
        return self.places[index].name

    def encoded(self, index: int) -> Encoded:
        name, x0, y, x1, time = self.places[index]
        return Encoded(name, (self.file(x0), self.file(y), self.file(x1)), time)

    def read(self, path: Path) -> Float[np.ndarray, "h w 3"]:
        """One picture for evaluation; 16-bit files keep their precision."""
        return read_image(path)

    def file(self, path: Path) -> bytes:
        """One picture as it is to be stored."""
        return require_file(path).read_bytes()


@dataclass(frozen=True)
class FolderTriplets(FolderDataset):
    """im1.png, im2.png (the truth), im3.png in folders of any depth; other picture formats too."""

    def find(self) -> Sequence[Place]:
        firsts = (path for path in self.root.rglob("im1.*") if path.suffix.lower() in READABLE)
        return [_numbered(self.root, path.parent, path.suffix) for path in natsorted(firsts, key=str)]


@dataclass(frozen=True)
class KnownTriplets(FolderTriplets):
    """As FolderTriplets, with a known.png: where it is black the truth `y` is not known, which NaN says.

    Only for evaluation: as training files (`encoded`, `frames`) they are plain pictures."""

    def __getitem__(self, index: int) -> Triplet:
        triplet = super().__getitem__(index)
        known = self.read(self.places[index].y.with_name("known.png")) > 0.5
        return triplet._replace(y=np.where(known, triplet.y, np.float32(np.nan)))


@dataclass(frozen=True)
class Quarters(FolderDataset):
    """frame_0.png, frame_1.png, frame_3.png, frame_4.png, evenly spaced: two triplets, truths at 1/4 and 3/4."""

    def find(self) -> Sequence[Place]:
        folders = [path.parent for path in natsorted(self.root.rglob("frame_0.png"), key=str)]
        return [self._place(folder, number) for folder in folders for number in (1, 3)]

    def _place(self, folder: Path, number: int) -> Place:
        x0, y, x1 = (folder / f"frame_{k}.png" for k in (0, number, 4))
        return Place(f"{relative_name(self.root, folder)}/{number}", x0, y, x1, number / 4)


@dataclass(frozen=True)
class Vimeo90K(FolderDataset):
    """sequences/00001/0001/im1..3.png and tri_<split>list.txt, one `00001/0001` a line (toflow.csail.mit.edu)."""

    split: str = "train"

    def find(self) -> Sequence[Place]:
        _choose("split", self.split, ("train", "test"))
        sequences = self.root / "sequences"
        return [_numbered(sequences, sequences / line) for line in _lines(self.root / f"tri_{self.split}list.txt")]


@dataclass(frozen=True)
class UCF101(FolderDataset):
    """Folders of frame_00.png, frame_01_gt.png (the truth), frame_02.png: the 379 of Deep Voxel Flow (ICCV 2017)."""

    def find(self) -> Sequence[Place]:
        folders = natsorted((path.parent for path in self.root.rglob("frame_01_gt.png")), key=str)
        return [
            Place(relative_name(self.root, f), f / "frame_00.png", f / "frame_01_gt.png", f / "frame_02.png")
            for f in folders
        ]


@dataclass(frozen=True)
class Middlebury(FolderDataset):
    """other-data/X/frame10.png, frame11.png and other-gt-interp/X/frame10i11.png (vision.middlebury.edu/flow/data)."""

    def find(self) -> Sequence[Place]:
        truths = natsorted((self.root / "other-gt-interp").glob("*/frame10i11.png"), key=str)
        scenes = [(truth.parent.name, truth, self.root / "other-data" / truth.parent.name) for truth in truths]
        return [Place(name, data / "frame10.png", truth, data / "frame11.png") for name, truth, data in scenes]


@dataclass(frozen=True)
class SnuFilm(FolderDataset):
    """test-<difficulty>.txt with three paths a line, x0 truth x1 (SNU-FILM, published with CAIN, AAAI 2020).

    The lists circulate with different beginnings (`data/SNU-FILM/test/...`, `test/...`) and in the folder itself or in
    `eval_modes/`; both are found. Of the leading folders in a line as many are dropped as it takes to find the file.
    """

    difficulty: str = "hard"

    def find(self) -> Sequence[Place]:
        _choose("difficulty", self.difficulty, ("easy", "medium", "hard", "extreme"))
        lists = [self.root / part / f"test-{self.difficulty}.txt" for part in (".", "eval_modes")]
        lines = [line.split() for line in _lines(next((path for path in lists if path.is_file()), lists[0]))]
        wrong = [line for line in lines if len(line) != 3]
        if wrong:
            raise ValueError(f"{self.folder}: a line of its list has {len(wrong[0])} words; it needs three paths")
        drop = self._leading(lines[0][0]) if lines else 0
        paths = [[self.root.joinpath(*PurePosixPath(word).parts[drop:]) for word in line] for line in lines]
        return [Place(relative_name(self.root, y.with_suffix("")), x0, y, x1) for x0, y, x1 in paths]

    def _leading(self, word: str) -> int:
        parts = PurePosixPath(word).parts
        return next((drop for drop in range(len(parts)) if self.root.joinpath(*parts[drop:]).is_file()), 0)


@dataclass(frozen=True)
class Transformed(FolderDataset):
    """A data set whose protocol shrinks or crops the images, in 8 bits."""

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
class Xiph(Transformed):
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
class XTest(Transformed):
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


def _numbered(root: Path, folder: Path, suffix: str = ".png") -> Place:
    x0, y, x1 = (folder / f"im{number}{suffix}" for number in (1, 2, 3))
    return Place(relative_name(root, folder), x0, y, x1)


def relative_name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in require_file(path).read_text().splitlines() if line.strip()]


def _choose(field: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"{field} {value!r} is unknown; choose one of {', '.join(values)}")
