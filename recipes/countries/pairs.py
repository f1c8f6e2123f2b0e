"""The data of the picture tower: photographs of flags, each with the drawing that the memory shows.

A batch of b rows for `reveal.training.picture_pairs`:

    query   float32 [b s s 3]   a flag as one of nine icon sets draws it, photographed; or no flag at all
    key     float32 [b s s 3]   the flag as the memory shows it
    flag    int32   [b]         which flag; -1: none
    id      int64   [b]

Rows come in groups of four: a flag and three that look like it, so that most of a batch is told apart by more than its
colours. Half of the groups begin with a real flag of a training country, the others with an invented one. The fourth
row shows no flag, as most windows of a photograph do: half of the time none at all, else one that is mostly outside the
picture, or a rectangle cut out of one. Held-out countries, icon sets and photographs of tests are in neither column.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import grain
import numpy as np
from jaxtyping import Float, Int, UInt8

from common.io.files import require_file
from common.io.images import read_image, shrink, to_uint8
from common.training.batches import Batched
from recipes.countries import drawings, scenery
from recipes.countries.augmentation import photograph, without_flag
from recipes.countries.data import CountriesConfig
from reveal.processing.images import resized

GROUP = 4  # rows that look alike; the last shows no flag, or a piece of one
BESIDE = (0.5, 1.3)  # width of flags that are partly outside the picture, by the picture's
PIECE = (0.3, 0.65)  # share of the sides of a flag that a piece has
LARGEST = 200  # longer side of a stored background, in pixels
ASPECT = 4 / 3  # of invented flags
SETS = tuple(one.name for one in drawings.SETS if not one.held_out)


@dataclass(frozen=True, kw_only=True)
class FlagPairs(Batched):
    """Photographs of flags and drawings of the same flags."""

    world: CountriesConfig  # whose flags
    drawings: str = "data/flag_drawings"  # folder of `drawings.py`
    photographs: str = "data/photographs"  # of `recipes.film_small.photographs`; the part `train` are backgrounds
    scenery: str = "data/flag_scenery"  # of `scenery.py`, the same
    real: float = 0.5  # share of the groups that begin with a real flag

    def dataset(self, seed: int) -> grain.MapDataset:
        cv2.setNumThreads(1)  # threads of its own cost more than pictures of 48 pixels take
        return grain.MapDataset.range(2**40).map(functools.partial(self.example, seed))

    def names(self, ids: Sequence[int]) -> Sequence[str]:
        return [f"pair {number}" for number in ids]

    def example(self, seed: int, number: int) -> dict[str, Any]:
        """Row `number` of the stream of this seed."""
        size = self.world.size
        group, rng = (np.random.default_rng([seed, n]) for n in (number // GROUP, 2**41 + number))
        choices = self.real_flags if group.random() < self.real else self.invented_flags
        anchor = int(choices[group.integers(len(choices))])
        similar = group.permutation(self.world.hard_negatives.similar_flags[anchor])
        flag = [anchor, *similar[: GROUP - 1].tolist()][number % GROUP]
        ground = self.grounds[rng.integers(len(self.grounds))] if rng.random() < 0.6 else None
        row = {"id": np.int64(number), "key": self.key(flag, rng)}
        drawing, aspect = self.drawing(flag, rng)
        if number % GROUP == GROUP - 1:
            kind = rng.random()
            if kind < 0.5:
                query = without_flag(ground, size, rng)
            elif kind < 0.8:
                query = photograph(drawing, aspect, ground, size, rng, BESIDE, cut=True)
            else:
                query = photograph(*piece(drawing, aspect, rng), ground, size, rng, full=0.8)
            return row | {"query": query, "flag": np.int32(-1)}
        return row | {"query": photograph(drawing, aspect, ground, size, rng), "flag": np.int32(flag)}

    def key(self, flag: int, rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
        """The stored picture, a little lighter or darker, with its sides cut a little."""
        picture = self.world.atlas.flags[flag]
        height, width = picture.shape[:2]
        top, left, bottom, right = rng.integers(0, 3, 4)
        cut = resized(picture[top : height - bottom, left : width - right], self.world.size)
        return np.clip(cut.astype(np.float32) / 255 * np.float32(rng.uniform(0.85, 1.1)), 0, 1)

    def drawing(self, flag: int, rng: np.random.Generator) -> tuple[UInt8[np.ndarray, "h w 4"], float]:
        """A drawing of the flag, and its aspect; of an invented flag there is one, in colours that vary."""
        if flag < self.world.atlas.real:
            pictures, aspects = self.real_drawings
            there = np.flatnonzero(aspects[:, flag])
            choice = there[rng.integers(len(there))]
            return pictures[choice, flag], float(aspects[choice, flag])
        colours = self.world.atlas.flags[flag].astype(np.float32)
        mixed = colours @ (np.eye(3) + rng.normal(0, 0.05, (3, 3))).astype(np.float32) + rng.normal(0, 8, 3)
        picture = np.clip(mixed, 0, 255).astype(np.uint8)
        return np.dstack([picture, np.full(picture.shape[:2], 255, np.uint8)]), ASPECT

    @functools.cached_property
    def real_drawings(self) -> tuple[UInt8[np.ndarray, "sets n 72 96 4"], Float[np.ndarray, "sets n"]]:
        found = [drawings.load(self.drawings, name) for name in SETS]
        return np.stack([one.pictures for one in found]), np.stack([one.aspects for one in found])

    @functools.cached_property
    def real_flags(self) -> Int[np.ndarray, " n"]:
        train = self.world.splits["train"]
        return train[self.world.atlas.unique_flag[train]]

    @functools.cached_property
    def invented_flags(self) -> Int[np.ndarray, " n"]:
        others = self.world.splits["invented"]
        return others[self.world.atlas.unique_flag[others]]

    @functools.cached_property
    def grounds(self) -> list[UInt8[np.ndarray, "h w 3"]]:
        """The pictures of the part `train`, at most `LARGEST` pixels a side."""
        index = json.loads(require_file(Path(self.photographs) / "index.json").read_text("utf-8"))["photographs"]
        files = [Path(self.photographs) / entry["file"] for entry in index if entry["split"] == "train"]
        photographs = [to_uint8(shrink(read_image(file), LARGEST)) for file in files]
        return photographs + scenery.load(self.scenery, "train", LARGEST)


def piece(
    drawing: UInt8[np.ndarray, "h w 4"], aspect: float, rng: np.random.Generator
) -> tuple[UInt8[np.ndarray, "_h _w 4"], float]:
    height, width = drawing.shape[:2]
    tall, wide = (np.array([height, width]) * rng.uniform(*PIECE, 2)).astype(int)
    top, left = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1))
    return drawing[top : top + tall, left : left + wide], aspect * (wide / width) / (tall / height)
