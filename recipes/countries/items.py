"""Countries as items of a memory, and which of them are easily taken for another's.

An item's phrasing follows from the atlas's seed and its id alone, so that after a fact is edited all else about the
item is what it was. Its picture is the flag as it is stored, uint8 [48 64 3].
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int

from recipes.countries.facts import ITEMS, RELATIONS, Atlas, nearest
from recipes.countries.phrases import SEEN, SLOT_OF, SLOTS, SOURCE_OF_SLOT, SOURCES, item_id, written
from reveal.memory.items import Item

NEAR = 16  # countries that are remembered as easily taken for one
BINS = 2048  # that letters of names are counted in


def items_about(atlas: Atlas, about: Iterable[int | np.integer]) -> list[Item]:
    """All sources' items about some countries, in the order of their ids."""
    found = []
    for country in about:
        for slot in range(len(SLOTS)):
            number = int(item_id(country, slot))
            rng = np.random.default_rng([atlas.seed, ITEMS, number])
            text = written(atlas.countries[country].told, slot, rng)
            picture = atlas.flags[country] if SLOTS[slot] in ("passage", "caption", "vqa") else None
            if text:
                found.append(Item(SOURCES[SOURCE_OF_SLOT[slot]], {"text": text}, picture, number))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Confusion:
    """What is likely to be found instead of the right item. Held-out countries are never among it: never being right,
    their keys would be kept away from all questions."""

    atlas: Atlas

    def negatives(
        self, country: int, relation: str, own: int, near: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " h"]:
        """Ids of `own` + `near` items: of the country's other ones, then of the same kind about countries whose flag,
        or whose name where one asks by name, is like its. Where there are too few, any of the kind."""
        slot = SLOT_OF[relation]
        others = [other for other in range(len(SLOTS)) if other != slot and self.there[country, other]]
        first = item_id(country, rng.permutation(others)[:own].astype(np.int64))
        table = self.by_flag if relation in SEEN else self.by_name
        like = rng.permutation(table[country])
        any_ = rng.choice(self.asked, own + near, replace=False)
        candidates = np.concatenate([like[self.there[like, slot]], any_[self.there[any_, slot]]])
        candidates = list(dict.fromkeys(candidates[candidates != country].tolist()))
        return np.concatenate([first, item_id(np.array(candidates, np.int64), slot)])[: own + near].astype(np.int32)

    @functools.cached_property
    def there(self) -> Bool[np.ndarray, "n slots"]:
        """Which items exist: those of which a relation is known."""
        told = [country.told for country in self.atlas.countries]
        kinds = [[relation for relation in RELATIONS if SLOT_OF[relation] == slot] for slot in range(len(SLOTS))]
        return np.array([[any(facts[relation] for relation in kind) for kind in kinds] for facts in told])

    @functools.cached_property
    def asked(self) -> Int[np.ndarray, " m"]:
        return np.concatenate([self.atlas.sets["train"], self.atlas.sets["invented"]])

    @functools.cached_property
    def by_flag(self) -> Int[np.ndarray, "n near"]:
        """For each country others with a flag of nearly the same colours at the same places."""
        return self._nearest(self.atlas.parts.reshape(len(self.there), -1))

    @functools.cached_property
    def by_name(self) -> Int[np.ndarray, "n near"]:
        """For each country others whose name has the same letters in the same order, in threes."""
        return self._nearest(spellings([country.name for country in self.atlas.countries]))

    def _nearest(self, vectors: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "n near"]:
        """Of the countries that training asks about; the held-out ones have no row of their own to be used."""
        table = np.zeros((len(vectors), min(NEAR, len(self.asked) - 1)), np.int64)
        table[self.asked] = self.asked[nearest(vectors[self.asked], table.shape[1])]
        return table


def spellings(names: Iterable[str]) -> Float[np.ndarray, "n bins"]:
    """Which three letters follow each other in each name, as vectors of length 1."""
    rows = []
    for name in names:
        row, padded = np.zeros(BINS, np.float32), f"  {name.lower()} "
        for start in range(len(padded) - 2):
            row[zlib.crc32(padded[start : start + 3].encode()) % BINS] += 1
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)
