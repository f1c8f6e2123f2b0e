"""What is known about a country, who there is, and whom training does not ask about.

Facts are those of `data/countries.json` (`fetch.py`), which has 250 countries and territories. How its oddities are
dealt with, with the counts of version 5.1.0 (tests hold them):

| oddity | what is done |
| --- | --- |
| no capital (5), currency (4), language (1), area (1) or land border (85) | nobody tells it, nobody asks |
| several capitals (2), currencies (20), languages (96), neighbours (142) | the first four are told, each is right |
| no subregion (5, all of the Antarctic) | the region stands for it |
| area | rounded to one significant digit, "600,000 square km": 53 answers, each right or wrong to the letter |
| the same flag as another (23 in 8 groups: France and eight more, Chad and Romania, ...) | asked about by name only |

Two flags are the same if no part of the picture, a 192th of it, differs by more than 0.15 of full brightness: what a
change of light would hide. Invented countries (`invented.py`) are counted after the real ones.

Held out are some of the real countries whose flag is their own. Training never asks about them, by picture or by name,
but its memory holds them. Others name them as neighbours, as an encyclopedia would.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from common.io.files import require_file
from common.io.images import read_image, to_uint8
from recipes.countries.fetch import flags_of

DATA = Path(__file__).parent / "data"
RELATIONS = ("name", "region", "languages", "area", "borders", "capital", "currency")
MOST = 4  # answers that are told
SAME = 0.15  # largest difference of two flags that count as one
GRID = (16, 12)  # parts of a picture, across and down
SPLIT, EDITS, ITEMS, INVENTED, EVALUATION = range(5)  # what is drawn from a seed, each independent of the others
AT_ONCE = 256  # rows of distances

Number = int | np.integer


@dataclasses.dataclass(frozen=True)
class Country:
    """What is known about one: for each relation the right answers, the first of which is told first; () if none."""

    told: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.told["name"][0]


@dataclasses.dataclass(frozen=True, eq=False)
class Atlas:
    """Countries, and who is asked about when.

    Attributes:
      seed: of the split, the edits and what is invented.
      countries: the real ones first. flags: theirs, RGB.
      real: how many are real.
      held_out: numbers of those that training does not ask about, in order.
    """

    seed: int
    countries: tuple[Country, ...]
    flags: UInt8[np.ndarray, "n 48 64 3"]
    real: int
    held_out: Int[np.ndarray, " h"]

    @classmethod
    def create(cls, seed: int = 0, held_out: int = 50, folder: str | Path | None = None) -> Atlas:
        """The real world, as `fetch.py` wrote it to `folder` (None: as the package has it).

        Raises OSError for files that are missing, ValueError for more held out than have a flag of their own."""
        countries, flags = load(folder or DATA)
        own = np.flatnonzero(alone(parts_of(flags)))
        if not 0 <= held_out <= len(own) // 2:
            raise ValueError(f"{held_out} held out: keep to 0 to {len(own) // 2}, half of those with their own flag")
        apart = np.random.default_rng([seed, SPLIT]).permutation(own)[:held_out]
        return cls(seed, tuple(countries), flags, len(countries), np.sort(apart))

    def with_others(self, countries: Sequence[Country], flags: UInt8[np.ndarray, "m 48 64 3"]) -> Atlas:
        """These countries too, after all others: invented ones."""
        together = np.concatenate([self.flags, flags])
        return dataclasses.replace(self, countries=(*self.countries, *countries), flags=together)

    def edited(self, seed: int) -> Atlas:
        """With the facts of the held-out countries exchanged among them, but for their names: for the memory alone."""
        rng, told = np.random.default_rng([self.seed, EDITS, seed]), [dict(one.told) for one in self.countries]
        for relation in RELATIONS[1:]:
            known = rng.permutation([number for number in self.held_out if told[number][relation]])
            for number, other in zip(known, np.roll(known, 1), strict=True):
                told[number][relation] = self.countries[other].told[relation]
        return dataclasses.replace(self, countries=tuple(Country(facts) for facts in told))

    @functools.cached_property
    def sets(self) -> dict[str, Int[np.ndarray, " n"]]:
        """Countries by the questions about them: train (real), held_out (real), invented."""
        return {
            "train": np.setdiff1d(np.arange(self.real), self.held_out),
            "held_out": self.held_out,
            "invented": np.arange(self.real, len(self.countries)),
        }

    @functools.cached_property
    def parts(self) -> Float[np.ndarray, "n 192 3"]:
        """Mean colours of the parts of each flag, 0 to 1."""
        return parts_of(self.flags)

    @functools.cached_property
    def alone(self) -> Bool[np.ndarray, " n"]:
        """Whose flag is nobody else's."""
        return alone(self.parts)

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """By name."""
        return {country.name: number for number, country in enumerate(self.countries)}

    def answers(self, number: Number, relation: str) -> tuple[str, ...]:
        """All that are right."""
        return self.countries[number].told[relation]


def load(folder: str | Path) -> tuple[list[Country], UInt8[np.ndarray, "n 48 64 3"]]:
    """What `fetch.py` wrote. Raises OSError, and ValueError for files that hold something else."""
    table = require_file(Path(folder) / "countries.json")
    try:
        entries = json.loads(table.read_text("utf-8"))["countries"]
        countries = [Country(told(entry)) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{table} is no table of countries ({error}): python -m recipes.countries.fetch") from None
    return countries, flags_of(to_uint8(read_image(Path(folder) / "flags.png")), len(countries))


def told(entry: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """An entry of countries.json by relation, as the module's docstring says."""
    return {
        "name": (entry["name"],),
        "region": (entry["subregion"] or entry["region"],),
        "languages": tuple(entry["languages"][:MOST]),
        "area": (rounded(entry["area"]),) if entry["area"] else (),
        "borders": tuple(entry["borders"][:MOST]),
        "capital": tuple(entry["capital"][:MOST]),
        "currency": tuple(entry["currencies"][:MOST]),
    }


def rounded(area: float | int) -> str:
    """To one significant digit, in words: 643801 is "600,000 square km"."""
    value = float(f"{area:.0e}")
    return f"{value:,.0f} square km" if value >= 1 else f"{value:g} square km"


def parts_of(flags: UInt8[np.ndarray, "n 48 64 3"]) -> Float[np.ndarray, "n 192 3"]:
    small = [cv2.resize(flag, GRID, interpolation=cv2.INTER_AREA) for flag in flags]
    return np.array(small, np.float32).reshape(-1, GRID[0] * GRID[1], 3) / 255


def alone(parts: Float[np.ndarray, "n p 3"]) -> Bool[np.ndarray, " n"]:
    """Which flags differ from every other by more than `SAME` somewhere. Only near ones are compared part by part."""
    found = np.ones(len(parts), bool)
    for row, others in enumerate(nearest(parts.reshape(len(parts), -1), min(16, len(parts) - 1))):
        found[row] = not (np.abs(parts[others] - parts[row]).mean(-1).max(-1) <= SAME).any()
    return found


def nearest(flat: Float[np.ndarray, "n d"], count: int) -> Int[np.ndarray, "n count"]:
    """For each the numbers of `count` others at the least Euclidean distance, nearest first."""
    squares, rows = np.square(flat).sum(1), []
    for start in range(0, len(flat), AT_ONCE):
        distance = squares - 2 * flat[start : start + AT_ONCE] @ flat.T
        own = np.arange(len(distance))
        distance[own, start + own] = np.inf
        some = np.argpartition(distance, min(count, len(flat) - 1), axis=1)[:, :count]
        order = np.take_along_axis(distance, some, 1).argsort(axis=1, kind="stable")
        rows.append(np.take_along_axis(some, order, 1))
    return np.concatenate(rows)
