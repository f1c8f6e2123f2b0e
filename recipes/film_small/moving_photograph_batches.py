"""Batches of moving photographs (`moving_photographs.py`), alone or mixed with other data.

`SyntheticConfig` gives the arrays of `film.data.triplet_batches.TripletConfig`, with exact flow and `valid` where the
same point is visible in the other frame. Scenes are drawn on demand and never repeat: example i is scene i of the run's
seed. `MixedConfig` draws the examples of a batch from several such configs, by weight:

    data:
      _target_: recipes.film_small.moving_photograph_batches.MixedConfig
      batch_size: 8
      weights: [3, 1]
      parts:
        - {_target_: film.data.triplet_batches.TripletConfig, crop: 256, scales: [1.0]}
        - {_target_: recipes.film_small.moving_photograph_batches.SyntheticConfig, crop: 256}
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grain
import numpy as np

from common.checked import Above0, OneOrMore
from common.training.batches import Batched
from film.data.augment import tint
from film.data.triplet_batches import with_flow
from recipes.film_small.moving_photographs import MovingPhotographs

Example = dict[str, Any]


@dataclass(frozen=True)
class SyntheticConfig(Batched):
    source: MovingPhotographs = field(default_factory=MovingPhotographs)  # `size` and `seed` are replaced
    crop: int = 256  # side of the pictures, px, a multiple of 4
    colour: bool = True  # `augment.tint`

    def __post_init__(self) -> None:
        super().__post_init__()
        replace(self.source, size=self.crop)  # raises for an impossible crop

    def dataset(self, seed: int) -> grain.MapDataset:
        scenes = replace(self.source, size=self.crop, seed=seed)
        _ = scenes.album  # raises before the model is compiled
        numbers = grain.MapDataset.range(1).repeat().map_with_index(lambda index, _: index)
        return numbers.seed(seed).map(scenes.example).random_map(self._prepare)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        return [f"{self.source.folder} scene {number}" for number in ids]

    def _prepare(self, example: Example, rng: np.random.Generator) -> Example:
        images = example["images"]
        images = tint(images, rng) if self.colour else images.astype(np.float32) / np.float32(255)
        flows, valid = (example[name].astype(np.float32) for name in ("flows", "valid"))
        return with_flow(images, flows, valid, float(example["time"]), example["id"])


@dataclass(frozen=True)
class MixedConfig(Batched):
    """Several datasets in one stream, interleaved evenly: each batch has nearly the share of each. A record's id is its
    part's id times the number of parts, plus the part's number."""

    parts: OneOrMore[Any]  # configs of examples with the same arrays; their `threads` and `buffer` are ignored
    weights: Sequence[Above0] = ()  # relative numbers of examples; empty: equal

    def rules(self):
        yield len(self.weights) in (0, len(self.parts)), "weights holds a number for each of the parts, or none"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", tuple(map(float, self.weights)) or (1.0,) * len(self.parts))
        for part in self.parts:
            if not isinstance(part, Batched):
                raise ValueError(f"{type(part).__name__} cannot be mixed: it has no `dataset(seed)`")

    def dataset(self, seed: int) -> grain.MapDataset:
        """ValueError for parts with different examples. A part gets its share as `batch_size`: a curriculum by step
        still holds."""
        total, count, datasets = sum(self.weights), len(self.parts), []
        for number, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True)):
            part = replace(part, batch_size=max(1, round(self.batch_size * weight / total)))
            own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            own = part.dataset(own_seed)
            datasets.append(own.map(lambda one, n=number: {**one, "id": np.int64(one["id"] * count + n)}))
        firsts: list[Example] = [dataset[0] for dataset in datasets]  # pyright: ignore
        kinds = [{f"{name}: {v.dtype} {list(np.shape(v))}" for name, v in first.items()} for first in firsts]
        if differing := set.union(*kinds) - set.intersection(*kinds):
            raise ValueError(f"parts cannot share a batch, give them the same arrays: {'; '.join(sorted(differing))}")
        return grain.MapDataset.mix(datasets, self.weights) if len(datasets) > 1 else datasets[0]

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        found = [divmod(int(number), len(self.parts)) for number in ids]
        return [self.parts[part].names([number])[0] for number, part in found]
