"""What training of frame interpolation reads: one stream of batches, from either of two kinds of data
(`recipes.film_small.moving_photograph_batches` has a third, and mixes them).

| config          | data                                           | augmentation             | in the batch           |
| --------------- | ---------------------------------------------- | ------------------------ | ---------------------- |
| `MixtureConfig` | triplets of one or more sources, by weight     | `film.data.reference_augment` | frames, time, id       |
| `TripletConfig` | patches that `film.data.cutting` cut from one film | `film.data.augment`           | the same, teacher flow |

A batch of b crops of c pixels:

    x0, y, x1       float32 [b c c 3]          RGB in [0, 1]; y is the truth, the frame at `time`
    time            float32 [b 1]              0.5 but for sources with other times
    id              int64   [b]                number of the record, over all sources: `names` tells what it is
    flow0, flow1    float32 [b c/4 c/4 2]      teacher flow (dx, dy) from y to x0 and from y to x1, crop pixels
    valid0, valid1  float32 [b c/4 c/4]        1 where the teacher is to be believed, else 0

The same seed gives the same batches, each epoch in a new order. The iterator's `get_state()` is small and plain; after
`set_state()` a new iterator goes on with the very next batch. See `film.data.stream`.

The curriculum of `TripletConfig`: a 1.0 crop shows the film's own motion; at 0.5 the crop covers twice the width and
motion halves. The motion (95th percentile between the outer frames, in pixels of the crop) may be capped as a function
of the training step: the scale is drawn among those under the cap, else it is the smallest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import grain
import numpy as np

from common.training.batches import batches
from film.data.augment import CELL, Example, augment
from film.data.record_sources import TripletPatches
from film.data.reference_augment import ReferenceAugment
from film.data.stream import Readable, endless, stream
from film.data.triplet import Source


@dataclass(frozen=True)
class MixtureConfig:
    """Triplets of one or more sources, cropped and varied as in the reference; the defaults are the paper's.

    Attributes:
      sources: `film.data.datasets`, `film.data.record_sources` and `film.data.record_sources` have them.
      weights: how many examples come from each, relative to the others; empty: by their numbers of records.
      batch_size, crop: crops per batch, over all processes; their side in pixels.
      augment: what is drawn for each example.
      strict: stop at a record that cannot be read; else it is skipped, and the log tells.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    sources: Sequence[Source]
    weights: Sequence[float | int] = ()
    batch_size: int = 8
    crop: int = 256
    augment: ReferenceAugment = field(default_factory=ReferenceAugment)
    strict: bool = False
    threads: int = 2
    buffer: int = 8

    def __post_init__(self) -> None:
        """Makes tuples of the lists that YAML gives; raises ValueError for values that suit no data set."""
        object.__setattr__(self, "sources", tuple(self.sources))
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        if not self.sources:
            raise ValueError("sources is empty: name at least one data set")
        if self.weights and (len(self.weights) != len(self.sources) or min(self.weights) <= 0):
            raise ValueError(f"weights {self.weights} must be {len(self.sources)} positive numbers, or none at all")
        _at_least_one(crop=self.crop, batch_size=self.batch_size, threads=self.threads, buffer=self.buffer)

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (module docstring).

        Raises FileNotFoundError, ImportError (no data, no reader for it), ValueError (no record that can be used).
        """
        readers = [
            Readable(source, first, self.crop, self.strict)
            for source, first in zip(self.sources, self._first_ids(), strict=True)
        ]
        for reader in readers:
            reader[0]  # an unreadable set, or a crop that does not fit, is told before the model is compiled
        weights = self.weights or tuple(float(len(source)) for source in self.sources)
        loading = (self.batch_size, seed, self.threads, self.buffer, process_index, process_count)
        return stream(readers, weights, self._prepare, *loading)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the records with these ids are."""
        firsts = self._first_ids()
        found = [(int(np.searchsorted(firsts, number, "right")) - 1, int(number)) for number in ids]
        return [self.sources[source].name(number - firsts[source]) for source, number in found]

    def _first_ids(self) -> list[int]:
        return [0, *accumulate(len(source) for source in self.sources[:-1])]

    def _prepare(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        (x0, y, x1), time = self.augment(example["images"], self.crop, rng, float(example["time"]))
        return dict(x0=x0, y=y, x1=x1, time=np.full(1, time, np.float32), id=example["id"])


@dataclass(frozen=True)
class TripletConfig:
    """Patches that `film.data.cutting` cut from a film, with the teacher's flow, and what is done to them.

    Attributes:
      folder: written by `film.data.cutting`.
      batch_size, crop: crops per batch; their side in pixels, a multiple of 4.
      scales: picture scales to draw from, each in (0, 1], with crop / scale at most the patch size on disk.
      max_motion: (step, px) corners of the curriculum, steps rising; straight between them, level outside.
      turn, mirror, backwards, colour: the augmentations, on or off.
      threads: readers inside this process. buffer: batches they may prepare ahead.
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
        _at_least_one(batch_size=self.batch_size, threads=self.threads, buffer=self.buffer)
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(f"scales {self.scales} must be one or more numbers above 0 and at most 1")
        if not corners or any(a >= b for (a, _), (b, _) in pairwise(corners)):
            raise ValueError(f"max_motion {corners} must be (step, px) corners with rising steps")

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (module docstring).

        Raises FileNotFoundError (no triplets), ValueError (crop, scales or batch size that cannot be).
        """
        loading = (self.threads, self.buffer, process_index, process_count)
        return batches(self.dataset(seed), self.batch_size, *loading)

    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed, not batched, for `recipes.film_small.moving_photograph_batches.MixedConfig`; raises as `batches`.

        The curriculum takes `batch_size` of them for a step.
        """
        patches = TripletPatches(self.folder)
        _check_fit(self, patches)
        return endless(patches, seed, self._prepare)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the records with these ids are."""
        return [f"{self.folder} patch {number}" for number in ids]

    def _prepare(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        limit = motion_limit(self.max_motion, int(example["index"]) // self.batch_size)
        scale = choose_scale(self.scales, float(example["motion"]), limit, rng)
        flags = dict(turn=self.turn, mirror=self.mirror, backwards=self.backwards, colour=self.colour)
        out = augment(example, rng, self.crop, scale, **flags)
        (x0, y, x1), (flow0, flow1), (valid0, valid1) = (out[key] for key in ("images", "flows", "valid"))
        flow = dict(flow0=flow0, flow1=flow1, valid0=valid0, valid1=valid1)
        return dict(x0=x0, y=y, x1=x1, time=np.full(1, 0.5, np.float32), id=example["id"], **flow)


def motion_limit(corners: Sequence[Sequence[int | float]], step: int) -> float:
    """The curriculum's cap, px, at a training step."""
    steps, pixels = zip(*corners, strict=True)
    return float(np.interp(step, steps, pixels))


def choose_scale(scales: Sequence[float], motion: float, limit: float, rng: np.random.Generator) -> float:
    """One of the scales that bring `motion` (px) down to `limit`, at random; the smallest if none does."""
    gentle = [scale for scale in scales if motion * scale <= limit]
    return float(rng.choice(gentle)) if gentle else min(scales)


def _check_fit(config: TripletConfig, source: TripletPatches) -> None:
    for scale in config.scales:
        if CELL * round(config.crop / scale / CELL) > source.size:
            least = config.crop / source.size
            raise ValueError(f"scale {scale} is below {least:.3g}, the least for {source.size} px patches: raise it")
    if config.batch_size > len(source):
        raise ValueError(f"batch_size {config.batch_size} exceeds the {len(source)} triplets there are: lower it")


def _at_least_one(**fields: int) -> None:
    if min(fields.values()) < 1:
        raise ValueError(f"{', '.join(f'{name} {value}' for name, value in fields.items())}: all need >= 1")
