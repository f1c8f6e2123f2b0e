"""What the trainer and the evaluation of frame interpolation read.

Training. `TripletPatches` opens the folder that `film.triplets.cut_training` wrote; `batches` turns it into
an endless, seeded stream. Stages of one example:

1. Pick a scale. A 1.0 crop shows the film's own motion; at 0.5 the crop covers twice the width and motion
   halves. A curriculum may cap the motion (95th percentile between the outer frames, in pixels of the crop)
   as a function of the training step: the scale is drawn among those under the cap, else it is the smallest.
2. Crop, shrink, turn, mirror, reverse, tint: see `film.augment`.

A batch of b crops of c pixels, all float32:

    x0, y, x1       [b c c 3]          RGB in [0, 1]; y is the middle frame, the truth
    time            [b 1]              0.5
    flow0, flow1    [b c/4 c/4 2]      teacher flow (dx, dy) from y to x0 and from y to x1, crop pixels
    valid0, valid1  [b c/4 c/4]        1 where the teacher is to be believed, else 0

The same seed gives the same batches, each epoch in a new order. The iterator's `get_state()` is small and
plain; after `set_state()` a new iterator goes on with the very next batch.

Evaluation. `FolderTriplets` reads the Vimeo-90K layout: one folder per triplet with im1, im2 (truth), im3.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import grain
import numpy as np
from jaxtyping import Float

from common.images import read_image
from film.augment import CELL, Example, augment


class TripletPatches:
    """Random access to a folder of `film.triplets.cut_training`; arrays stay on disk until a crop is read.

    Item: images uint8 [3 S S 3] (x0, y, x1), flows [2 s s 2] and valid [2 s s] (to x0, to x1), motion (px).
    Raises FileNotFoundError when the folder is not such a folder.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        if not (folder / "index.json").is_file():
            raise FileNotFoundError(f"{folder}: no training triplets here; `python -m film.triplets` writes them")
        index = json.loads((folder / "index.json").read_text())
        self.motions = np.array([triplet["motion"] for triplet in index["triplets"]], np.float32)
        self._images, self._flows, self._valid = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "flows", "valid")
        )
        if not len(self._images) == len(self._flows) == len(self._valid) == len(self.motions):
            raise ValueError(f"{folder}: arrays and index differ in length: cut the triplets again")
        self.size = int(self._images.shape[2])

    def __len__(self) -> int:
        return len(self.motions)

    def __getitem__(self, index: int) -> Example:
        arrays = dict(images=self._images, flows=self._flows, valid=self._valid, motion=self.motions)
        return {name: array[index] for name, array in arrays.items()}


@dataclass(frozen=True)
class TripletConfig:
    """Where training triplets come from and what is done to them.

    Attributes:
      folder: written by `film.triplets`.
      batch_size, crop: crops per batch; their side in pixels, a multiple of 4.
      scales: picture scales to draw from, each in (0, 1], with crop / scale at most the patch size on disk.
      max_motion: (step, px) corners of the curriculum, steps rising; straight between them, level outside.
      turn, mirror, backwards, colour: the augmentations, on or off.
      threads: readers inside this process. buffer: examples they may prepare ahead.
    """

    folder: str = "data/film_triplets"
    batch_size: int = 8
    crop: int = 128
    scales: Sequence[float] = (1.0, 0.5, 0.4)
    max_motion: Sequence[Sequence[int | float]] = ((0, 1000.0),)
    turn: bool = True
    mirror: bool = True
    backwards: bool = True
    colour: bool = True
    threads: int = 1
    buffer: int = 32

    def __post_init__(self) -> None:
        """Makes tuples of the lists that YAML gives; raises ValueError for values that suit no data set."""
        corners = tuple((int(step), float(pixels)) for step, pixels in self.max_motion)
        object.__setattr__(self, "scales", tuple(float(scale) for scale in self.scales))
        object.__setattr__(self, "max_motion", corners)
        if self.crop < CELL or self.crop % CELL:
            raise ValueError(f"crop {self.crop} is not a positive multiple of {CELL}: choose one")
        if self.batch_size < 1 or self.threads < 1 or self.buffer < 1:
            raise ValueError(
                f"batch_size {self.batch_size}, threads {self.threads}, buffer {self.buffer}: all need >= 1"
            )
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(f"scales {self.scales} must be one or more numbers above 0 and at most 1")
        if not corners or any(a >= b for (a, _), (b, _) in pairwise(corners)):
            raise ValueError(f"max_motion {corners} must be (step, px) corners with rising steps")

    def batches(self, seed: int) -> grain.DatasetIterator:
        """The endless stream of this seed; see `batches`."""
        return batches(self, seed)


def batches(config: TripletConfig, seed: int = 0) -> grain.DatasetIterator:
    """An endless iterator of batches (module docstring) with `get_state` and `set_state`.

    Raises FileNotFoundError (no triplets), ValueError (crop, scales or batch size that cannot be).
    """
    source = TripletPatches(config.folder)
    _check_fit(config, source)

    def prepare(example: Example, rng: np.random.Generator) -> Example:
        limit = motion_limit(config.max_motion, int(example["index"]) // config.batch_size)
        scale = choose_scale(config.scales, float(example["motion"]), limit, rng)
        flags = dict(turn=config.turn, mirror=config.mirror, backwards=config.backwards, colour=config.colour)
        return _finish(augment(example, rng, config.crop, scale, **flags))

    dataset = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
    dataset = dataset.map_with_index(lambda index, example: {**example, "index": np.int64(index)})
    dataset = dataset.random_map(prepare).batch(config.batch_size, drop_remainder=True)
    options = grain.ReadOptions(num_threads=config.threads, prefetch_buffer_size=config.buffer)
    return iter(dataset.to_iter_dataset(options))


def motion_limit(corners: Sequence[Sequence[int | float]], step: int) -> float:
    """The curriculum's cap, px, at a training step."""
    steps, pixels = zip(*corners, strict=True)
    return float(np.interp(step, steps, pixels))


def choose_scale(scales: Sequence[float], motion: float, limit: float, rng: np.random.Generator) -> float:
    """One of the scales that bring `motion` (px) down to `limit`, at random; the smallest if none does."""
    gentle = [scale for scale in scales if motion * scale <= limit]
    return float(rng.choice(gentle)) if gentle else min(scales)


class Triplet(NamedTuple):
    """One evaluation item, RGB in [0, 1]; `y` is the true middle frame."""

    name: str
    x0: Float[np.ndarray, "h w 3"]
    y: Float[np.ndarray, "h w 3"]
    x1: Float[np.ndarray, "h w 3"]


class FolderTriplets:
    """The triplets of a folder in Vimeo-90K's layout (also 00001/0004/im1.png, any depth), by name.

    Raises FileNotFoundError when there are none or a picture is missing, ValueError when one is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder)
        self.folders = sorted(path.parent for path in self.root.rglob("im1.png"))
        if not self.folders:
            raise FileNotFoundError(f"{folder}: no triplet folders (im1.png, im2.png, im3.png) in it")

    def __len__(self) -> int:
        return len(self.folders)

    def __getitem__(self, i: int) -> Triplet:
        name = self.folders[i].relative_to(self.root).as_posix()
        return Triplet(name, *(read_image(self.folders[i] / f"im{number}.png") for number in (1, 2, 3)))

    def __iter__(self) -> Iterator[Triplet]:
        return (self[i] for i in range(len(self)))


def _finish(example: Example) -> dict[str, Any]:
    (x0, y, x1), (flow0, flow1), (valid0, valid1) = (example[key] for key in ("images", "flows", "valid"))
    half = np.full(1, 0.5, np.float32)
    return dict(x0=x0, y=y, x1=x1, time=half, flow0=flow0, flow1=flow1, valid0=valid0, valid1=valid1)


def _check_fit(config: TripletConfig, source: TripletPatches) -> None:
    for scale in config.scales:
        if CELL * round(config.crop / scale / CELL) > source.size:
            least = config.crop / source.size
            raise ValueError(f"scale {scale} is below {least:.3g}, the least for {source.size} px patches: raise it")
    if config.batch_size > len(source):
        raise ValueError(f"batch_size {config.batch_size} exceeds the {len(source)} triplets there are: lower it")
