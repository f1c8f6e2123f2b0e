"""The facts of the countries, their flags, and the split.

Facts are those of `data/countries.json` (`fetch.py`): 250 countries and territories. Irregular entries, with their
counts in version 5.1.0 (checked by tests):

| entry | treatment |
| --- | --- |
| no capital (5), currency (4), language (1), area (1) or land border (85) | no item, no question |
| several capitals (2), currencies (20), languages (96), neighbours (142) | the first four; each is a right answer |
| no subregion (5, all of the Antarctic) | the region instead |
| area | rounded to one significant digit, "600,000 square km": 53 answers |
| the same flag as another country (23 in 8 groups: France and 8 more, Chad and Romania, ...) | questions by name |

Two flags are the same if no cell of a grid of 16 x 12 differs by more than 0.15 of full brightness: a difference that a
change of light can hide. Held-out countries are real ones with a unique flag: training asks no question about them, but
its memory holds them, and other countries name them as neighbours. Invented ones are numbered after the real ones.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from common.io.files import require_file
from common.io.images import read_image, to_uint8
from recipes.countries.fetch import unstack_flags

DATA = Path(__file__).parent / "data"
RELATIONS = ("name", "region", "languages", "area", "borders", "capital", "currency")
MAX_ANSWERS = 4
SAME = 0.15  # largest difference between flags that count as the same
GRID = (16, 12)  # cells of a flag, across and down
SPLIT, EDITS, ITEMS, INVENTED, EVALUATION = range(5)  # independent streams of the seed
CHUNK = 256  # rows of the distance matrix at a time

Number = int | np.integer
Facts = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Country:
    """`facts`: for each relation the right answers, the preferred one first; () if unknown."""

    facts: Facts

    @property
    def name(self) -> str:
        return self.facts["name"][0]


@dataclasses.dataclass(frozen=True, eq=False)
class Atlas:
    """Countries and splits."""

    seed: int  # of the split, the edits and what is invented
    countries: tuple[Country, ...]  # the real ones first
    flags: UInt8[np.ndarray, "n 48 64 3"]  # theirs, RGB
    real: int  # number of real countries
    held_out: Int[np.ndarray, " h"]  # numbers of the countries that training does not ask about, sorted

    @classmethod
    def create(cls, seed: int = 0, held_out: int = 50, folder: str | Path | None = None) -> "Atlas":
        """The real countries, from the files that `fetch.py` wrote to `folder` (None: those of the repository). Raises
        OSError for missing files, ValueError if fewer countries have a unique flag than are to be held out."""
        countries, flags = load(folder or DATA)
        unique = np.flatnonzero(unique_flags(grid_colours(flags)))
        if not 0 <= held_out <= len(unique) // 2:
            raise ValueError(f"{held_out} held out: keep to 0 to {len(unique) // 2}, half of those with a unique flag")
        chosen = np.random.default_rng([seed, SPLIT]).permutation(unique)[:held_out]
        return cls(seed, tuple(countries), flags, len(countries), np.sort(chosen))

    def edited(self, seed: int) -> "Atlas":
        """The held-out countries exchange all their facts but names: for edits of the memory."""
        rng, facts = np.random.default_rng([self.seed, EDITS, seed]), [dict(one.facts) for one in self.countries]
        for relation in RELATIONS[1:]:
            known = rng.permutation([number for number in self.held_out if facts[number][relation]])
            for number, other in zip(known, np.roll(known, 1), strict=True):
                facts[number][relation] = self.answers(other, relation)
        return dataclasses.replace(self, countries=tuple(map(Country, facts)))

    @functools.cached_property
    def splits(self) -> dict[str, Int[np.ndarray, " n"]]:
        """Countries of train (real), held_out (real) and invented."""
        return {
            "train": np.setdiff1d(np.arange(self.real), self.held_out),
            "held_out": self.held_out,
            "invented": np.arange(self.real, len(self.countries)),
        }

    @functools.cached_property
    def grid_colours(self) -> Float[np.ndarray, "n 192 3"]:
        return grid_colours(self.flags)

    @functools.cached_property
    def unique_flag(self) -> Bool[np.ndarray, " n"]:
        return unique_flags(self.grid_colours)

    def answers(self, number: Number, relation: str) -> tuple[str, ...]:
        """All right answers."""
        return self.countries[number].facts[relation]


def load(folder: str | Path) -> tuple[list[Country], UInt8[np.ndarray, "n 48 64 3"]]:
    """The files that `fetch.py` wrote. Raises OSError."""
    entries = json.loads(require_file(Path(folder) / "countries.json").read_text("utf-8"))["countries"]
    countries = [Country(facts_of(entry)) for entry in entries]
    return countries, unstack_flags(to_uint8(read_image(Path(folder) / "flags.webp")), len(countries))


def facts_of(entry: Mapping[str, Any]) -> Facts:
    """An entry of countries.json by relation (module docstring)."""
    return {
        "name": (entry["name"],),
        "region": (entry["subregion"] or entry["region"],),
        "languages": tuple(entry["languages"][:MAX_ANSWERS]),
        "area": (area_text(entry["area"]),) if entry["area"] else (),
        "borders": tuple(entry["borders"][:MAX_ANSWERS]),
        "capital": tuple(entry["capital"][:MAX_ANSWERS]),
        "currency": tuple(entry["currencies"][:MAX_ANSWERS]),
    }


def area_text(area: float | int) -> str:
    """Rounded to one significant digit: 643801 is "600,000 square km"."""
    value = float(f"{area:.0e}")
    return f"{value:,.0f} square km" if value >= 1 else f"{value:g} square km"


def grid_colours(flags: UInt8[np.ndarray, "n 48 64 3"]) -> Float[np.ndarray, "n 192 3"]:
    """Mean colours of the cells of each flag, 0 to 1."""
    small = [cv2.resize(flag, GRID, interpolation=cv2.INTER_AREA) for flag in flags]
    return np.array(small, np.float32).reshape(-1, GRID[0] * GRID[1], 3) / 255


def unique_flags(colours: Float[np.ndarray, "n p 3"]) -> Bool[np.ndarray, " n"]:
    """Which flags differ from every other by more than `SAME` in some cell; compares nearest neighbours only."""
    unique = np.ones(len(colours), bool)
    for row, others in enumerate(nearest(colours.reshape(len(colours), -1), min(16, len(colours) - 1))):
        unique[row] = not (np.abs(colours[others] - colours[row]).mean(-1).max(-1) <= SAME).any()
    return unique


def nearest(vectors: Float[np.ndarray, "n d"], count: int) -> Int[np.ndarray, "n count"]:
    """The `count` nearest neighbours of each row by Euclidean distance, nearest first."""
    squares, rows = np.square(vectors).sum(1), []
    for start in range(0, len(vectors), CHUNK):
        distance = squares - 2 * vectors[start : start + CHUNK] @ vectors.T
        own = np.arange(len(distance))
        distance[own, start + own] = np.inf
        some = np.argpartition(distance, min(count, len(vectors) - 1), axis=1)[:, :count]
        order = np.take_along_axis(distance, some, 1).argsort(axis=1, kind="stable")
        rows.append(np.take_along_axis(some, order, 1))
    return np.concatenate(rows)
