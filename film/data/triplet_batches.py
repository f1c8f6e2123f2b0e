"""Batches of triplets for training: endless, shuffled, mixed, sharded, resumable.

    source --> shuffled anew each epoch --> repeated --> augmented --+
    source --> shuffled anew each epoch --> repeated --> augmented --+--> mixed by weight --> batches --> this process's

`MixtureConfig` has triplets of one or more sources, `TripletConfig` patches with teacher flow (`film.data.cutting`). A
batch of b crops of c pixels:

    x0, y, x1       float32 [b c c 3]          RGB in [0, 1]; y is the truth, the frame at `time`
    time            float32 [b 1]              0.5 except for sources with other times
    id              int64   [b]                number of the record, over all sources; `names` gives its name
    flow0, flow1    float32 [b c/4 c/4 2]      teacher flow (dx, dy) from y to x0 and from y to x1, crop pixels
    valid0, valid1  float32 [b c/4 c/4]        1 where the teacher flow is valid, else 0

Every example is a function of the seed and a position (`common.training.batches`). Mixing is even: with weights 3 and 1
each run of four examples has three and one (shares are rounded to a hundredth of the smallest weight).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import grain
import numpy as np

from common.checked import Above0, Number, OneOrMore, Positive, PositiveShare
from common.training.batches import Batched, Readable
from film.data.augment import CELL, ReferenceAugment, Side, augment_with_flow
from film.data.record_sources import CutTriplets
from film.data.triplet import Source

Example = dict[str, Any]


@dataclass(frozen=True)
class MixtureConfig(Batched):
    """Triplets of one or more sources, augmented as in the reference; the defaults are the paper's."""

    sources: OneOrMore[Source]  # of `film.data.datasets`, `film.data.record_sources`, `film.data.procedural`
    weights: Sequence[Above0] = ()  # relative shares of the examples; empty: by numbers of records
    crop: Positive = 256  # side of the crops, pixels
    augment: ReferenceAugment = field(default_factory=ReferenceAugment)
    strict: bool = False  # stop at a record that cannot be read; else it is skipped, and logged

    def rules(self):
        yield len(self.weights) in (0, len(self.sources)), "weights holds a number for each of the sources, or none"

    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed; raises if no record of a source can be read."""
        datasets = []
        for number, (source, first_id) in enumerate(zip(self.sources, self._first_ids(), strict=True)):
            reader = self._readable(source, first_id)
            reader[0]  # now, before anything is compiled
            # The first source has the run's seed itself; the others must not be shuffled alike.
            own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if number else seed
            datasets.append(endless(reader, own_seed, self._prepare))
        weights = self.weights or tuple(float(len(source)) for source in self.sources)
        return grain.MapDataset.mix(datasets, weights) if len(datasets) > 1 else datasets[0]

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        firsts = self._first_ids()
        found = [(int(np.searchsorted(firsts, number, "right")) - 1, int(number)) for number in ids]
        return [self.sources[source].name(number - firsts[source]) for source, number in found]

    def _readable(self, source: Source, first_id: int) -> Readable:
        def read(number: int) -> Example:
            frames = source.frames(number)
            height, width = frames.images.shape[1:3]
            if min(height, width) < self.crop:
                raise ValueError(f"{frames.name}: a crop of {self.crop} does not fit into {width}x{height} pixels")
            return dict(images=frames.images, time=frames.time, id=np.int64(first_id + number))

        return Readable(len(source), read, lambda number: f"record {first_id + number}", self.strict)

    def _first_ids(self) -> list[int]:
        return [0, *accumulate(len(source) for source in self.sources[:-1])]

    def _prepare(self, example: Example, rng: np.random.Generator) -> Example:
        (x0, y, x1), time = self.augment(example["images"], self.crop, rng, float(example["time"]))
        return dict(x0=x0, y=y, x1=x1, time=np.full(1, time, np.float32), id=example["id"])


@dataclass(frozen=True)
class TripletConfig(Batched):
    """Patches cut from a film, with teacher flow, and a curriculum of motion.

    At scale 1.0 a crop has the film's own motion; at 0.5 it covers twice the width and motion halves. The scale is
    drawn among those that bring the motion (95th percentile between the outer frames, in crop pixels) under a cap, else
    it is the smallest. The cap, `max_motion`, is linear between its corners and constant outside; a step is
    `batch_size` examples.
    """

    folder: str = "data/film_triplets"  # written by `film.data.cutting`
    crop: Side = 128  # side of the crops, pixels
    scales: OneOrMore[PositiveShare] = (1.0, 0.5, 0.4)  # crop / scale is at most the patches' size
    max_motion: OneOrMore[Sequence[Number]] = ((0, 1000.0),)  # (step, px), steps rising
    turn: bool = True  # these four: augmentations
    mirror: bool = True
    backwards: bool = True
    colour: bool = True
    threads: Positive = field(default=1, kw_only=True)
    buffer: Positive = field(default=32, kw_only=True)

    def rules(self):
        steps = [corner[0] for corner in self.max_motion if len(corner) == 2]
        rising = len(steps) == len(self.max_motion) and all(a < b for a, b in pairwise(steps))
        yield rising, "max_motion is [step, px] corners with rising steps"

    def dataset(self, seed: int) -> grain.MapDataset:
        patches = CutTriplets(self.folder)
        scale, least = min(self.scales), self.crop / patches.size
        if CELL * round(self.crop / scale / CELL) > patches.size:
            raise ValueError(f"scale {scale} is below {least:.3g}, the least for {patches.size} px patches: raise it")
        if self.batch_size > len(patches):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(patches)} triplets there are: lower it")
        return endless(patches, seed, self._prepare)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        return [f"{self.folder} patch {number}" for number in ids]

    def _prepare(self, example: Example, rng: np.random.Generator) -> Example:
        steps, pixels = zip(*self.max_motion, strict=True)
        limit = np.interp(int(example["index"]) // self.batch_size, steps, pixels)
        below = [scale for scale in self.scales if float(example["motion"]) * scale <= limit]
        scale = float(rng.choice(below)) if below else min(self.scales)
        switches = dict(turn=self.turn, mirror=self.mirror, backwards=self.backwards, colour=self.colour)
        augmented = augment_with_flow(example, rng, self.crop, scale, **switches)
        return with_flow(**augmented, time=0.5, id=example["id"])


def endless(source: Any, seed: int, transform: Callable[[Example, np.random.Generator], Example]) -> grain.MapDataset:
    """The examples of one source without end, each epoch in a new order. `source` has a length and gives dicts;
    `transform` gets such a dict, with its position in the stream as "index", and a generator of its own."""
    dataset = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
    dataset = dataset.map_with_index(lambda index, example: {**example, "index": np.int64(index)})
    return dataset.random_map(transform)


def with_flow(images: np.ndarray, flows: np.ndarray, valid: np.ndarray, time: float, id: Any) -> Example:
    """An example of the module's table, from images [3 c c 3], flows [2 c/4 c/4 2] and valid [2 c/4 c/4]."""
    (x0, y, x1), (flow0, flow1), (valid0, valid1) = images, flows, valid
    flow = dict(flow0=flow0, flow1=flow1, valid0=valid0, valid1=valid1)
    return dict(x0=x0, y=y, x1=x1, time=np.full(1, time, np.float32), id=id, **flow)
