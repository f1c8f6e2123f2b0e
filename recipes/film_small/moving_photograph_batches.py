"""Batches of moving photographs (`recipes.film_small.moving_photographs`), alone or mixed with other data.

`SyntheticConfig` gives what `film.data.triplet_batches.TripletConfig` gives (see there), with exact flow in place of a teacher's:

    x0, y, x1       float32 [b c c 3]      RGB in [0, 1]; y is the truth, the frame at `time`
    time            float32 [b 1]          0.5, or any
    id              int64   [b]            number of the scene
    flow0, flow1    float32 [b c/4 c/4 2]  exact flow (dx, dy) from y to x0 and from y to x1, crop pixels
    valid0, valid1  float32 [b c/4 c/4]    1 where that spot is seen in the other frame, else 0

Scenes are drawn as they are needed and never come again: example i is scene i of the run's seed.

`MixedConfig` draws the examples of a batch from several such configs, by weight:

    data:
      _target_: recipes.film_small.moving_photograph_batches.MixedConfig
      batch_size: 8
      weights: [3, 1]
      parts:
        - {_target_: film.data.triplet_batches.TripletConfig, crop: 256, scales: [1.0]}
        - {_target_: recipes.film_small.moving_photograph_batches.SyntheticConfig, crop: 256}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import grain
import numpy as np

from common.training.batches import batches
from film.data.augment import tint
from recipes.film_small.moving_photographs import MovingPhotographs

Example = dict[str, Any]


@runtime_checkable
class Part(Protocol):
    """What can be mixed: a frozen dataclass with a `batch_size`, `film.data.triplet_batches.TripletConfig` for one."""

    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed, not batched."""
        ...

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the records with these ids are."""
        ...


@dataclass(frozen=True)
class SyntheticConfig:
    """Moving photographs, and how they are put into batches.

    Attributes:
      source: the scenes; its `size` and `seed` are replaced by `crop` and the run's seed.
      batch_size, crop: pictures per batch, over all processes; their side in pixels, a multiple of 4.
      colour: one gain and gamma for all three frames, and at times another order of the channels (`augment.tint`).
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    source: MovingPhotographs = field(default_factory=MovingPhotographs)
    batch_size: int = 8
    crop: int = 256
    colour: bool = True
    threads: int = 2
    buffer: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for values that suit no data set."""
        if min(self.batch_size, self.threads, self.buffer) < 1:
            raise ValueError(f"batch_size {self.batch_size}, threads {self.threads}, buffer {self.buffer}: need >= 1")
        replace(self.source, size=self.crop)  # raises for a crop that no scene can have

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (`film.data.triplet_batches`).

        Raises FileNotFoundError, ValueError (no photographs, a batch that cannot be divided).
        """
        return batches(self.dataset(seed), self.batch_size, self.threads, self.buffer, process_index, process_count)

    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed, not batched; raises as `batches`."""
        scenes = replace(self.source, size=self.crop, seed=seed)
        _ = scenes.album  # a folder without photographs is told before the model is compiled
        numbers = grain.MapDataset.range(1).repeat().map_with_index(lambda index, _: index)
        return numbers.seed(seed).map(scenes.example).random_map(self._prepare)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the scenes with these ids are."""
        return [f"{self.source.folder} scene {number}" for number in ids]

    def _prepare(self, example: Example, rng: np.random.Generator) -> Example:
        images = example["images"]
        x0, y, x1 = tint(images, rng) if self.colour else images.astype(np.float32) / np.float32(255)
        flow0, flow1 = example["flows"].astype(np.float32)
        valid0, valid1 = example["valid"].astype(np.float32)
        flow = dict(flow0=flow0, flow1=flow1, valid0=valid0, valid1=valid1)
        return dict(x0=x0, y=y, x1=x1, time=example["time"].reshape(1), id=example["id"], **flow)


@dataclass(frozen=True)
class MixedConfig:
    """Several data sets in one stream; mixing is even, so each batch has nearly its share of each.

    A record's id is its part's id times the number of parts, plus the part's number.

    Attributes:
      parts: configs whose examples have the same names, shapes and types. Their `batch_size`, `threads` and `buffer`
        do not count.
      weights: how many examples come from each, relative to the others; empty: equally many.
      batch_size: examples per batch, over all processes.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    parts: Sequence[Any]
    weights: Sequence[float | int] = ()
    batch_size: int = 8
    threads: int = 2
    buffer: int = 8

    def __post_init__(self) -> None:
        """Makes tuples of the lists that YAML gives; raises ValueError for values that suit no mixture."""
        weights = tuple(float(weight) for weight in self.weights) or (1.0,) * len(self.parts)
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(self, "weights", weights)
        if not self.parts:
            raise ValueError("parts is empty: name at least one data set")
        if len(weights) != len(self.parts) or min(weights) <= 0:
            raise ValueError(f"weights {weights} must be {len(self.parts)} positive numbers, or none at all")
        for part in self.parts:
            if not isinstance(part, Part):
                raise ValueError(f"{type(part).__name__} cannot be mixed: it has no `dataset(seed)`")
        if min(self.batch_size, self.threads, self.buffer) < 1:
            raise ValueError(f"batch_size {self.batch_size}, threads {self.threads}, buffer {self.buffer}: need >= 1")

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (`film.data.triplet_batches`).

        Raises what the parts raise, and ValueError when their examples differ in kind.
        """
        return batches(self.dataset(seed), self.batch_size, self.threads, self.buffer, process_index, process_count)

    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless mixed examples of this seed, not batched; raises as `batches`.

        A part's curriculum by training step is kept: it is told how many of its examples make a step.
        """
        total, datasets = sum(self.weights), []
        for number, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True)):
            part = replace(part, batch_size=max(1, round(self.batch_size * weight / total)))
            own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            datasets.append(part.dataset(own_seed).map(_Renumbered(number, len(self.parts))))
        _check_alike(datasets)
        return grain.MapDataset.mix(datasets, self.weights) if len(datasets) > 1 else datasets[0]

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the records with these ids are."""
        found = [divmod(int(number), len(self.parts)) for number in ids]
        return [self.parts[part].names([number])[0] for number, part in found]


@dataclass(frozen=True)
class _Renumbered:
    """Makes a part's ids the mixture's."""

    part: int
    count: int

    def __call__(self, example: Example) -> Example:
        return {**example, "id": np.int64(example["id"] * self.count + self.part)}


def _check_alike(datasets: Sequence[grain.MapDataset]) -> None:
    firsts: list[Example] = [dataset[0] for dataset in datasets]  # pyright: ignore
    kinds = [{name: f"{np.asarray(v).dtype} {list(np.shape(v))}" for name, v in first.items()} for first in firsts]
    for kind in kinds[1:]:
        if kind != kinds[0]:
            differing = sorted(name for name in kind.keys() | kinds[0].keys() if kind.get(name) != kinds[0].get(name))
            told = "; ".join(f"{name}: {kinds[0].get(name)} and {kind.get(name)}" for name in differing)
            raise ValueError(f"parts cannot share a batch: {told}. Give all of them the same crop and kind of data")
