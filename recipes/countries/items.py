"""The items of the countries, and their hard negatives.

The phrasing of an item depends on the atlas's seed and the item's id alone, so an edit changes only the fact. Its
picture is the stored flag, uint8 [48 64 3].
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int

from recipes.countries.facts import ITEMS, RELATIONS, Atlas, nearest
from recipes.countries.phrases import BY_FLAG, ITEM_KINDS, KIND_OF, SOURCE_OF_KIND, SOURCES, item_id, item_text
from reveal.memory.items import Item

NEIGHBOURS = 16  # similar countries from which hard negatives are drawn
BINS = 2048  # of the hashed trigrams of a name


def items_about(atlas: Atlas, about: Iterable[int | np.integer]) -> list[Item]:
    """The items of all sources about some countries, sorted by id."""
    items = []
    for country in about:
        for kind, name in enumerate(ITEM_KINDS):
            number = int(item_id(country, kind))
            rng = np.random.default_rng([atlas.seed, ITEMS, number])
            text = item_text(atlas.countries[country].facts, kind, rng)
            picture = atlas.flags[country] if name in ("passage", "caption", "vqa") else None
            if text:
                items.append(Item(SOURCES[SOURCE_OF_KIND[kind]], {"text": text}, picture, number))
    return items


@dataclasses.dataclass(frozen=True, eq=False)
class HardNegatives:
    """Items that are likely to be retrieved by mistake. Held-out countries have none of them: they would only ever be
    negatives, and their keys would be pushed away from all questions."""

    atlas: Atlas

    def sample(
        self, country: int, relation: str, own: int, near: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " h"]:
        """Ids of `own` + `near` items: other items of the country, then items of the same kind about countries with a
        similar flag, or a similar name if the question contains the name. Random ones of the kind fill up."""
        kind = KIND_OF[relation]
        others = [other for other in range(len(ITEM_KINDS)) if other != kind and self.exists[country, other]]
        first = item_id(country, rng.permutation(others)[:own].astype(np.int64))
        table = self.similar_flags if relation in BY_FLAG else self.similar_names
        similar = rng.permutation(table[country])
        random = rng.choice(self.candidates, own + near, replace=False)
        countries = np.concatenate([similar[self.exists[similar, kind]], random[self.exists[random, kind]]])
        countries = list(dict.fromkeys(countries[countries != country].tolist()))
        return np.concatenate([first, item_id(np.array(countries, np.int64), kind)])[: own + near].astype(np.int32)

    @functools.cached_property
    def exists(self) -> Bool[np.ndarray, "n kinds"]:
        """Which items exist: those with a known relation."""
        kinds = [[relation for relation in RELATIONS if KIND_OF[relation] == kind] for kind in range(len(ITEM_KINDS))]
        countries = self.atlas.countries
        return np.array([[any(country.facts[r] for r in kind) for kind in kinds] for country in countries])

    @functools.cached_property
    def candidates(self) -> Int[np.ndarray, " m"]:
        return np.concatenate([self.atlas.splits["train"], self.atlas.splits["invented"]])

    @functools.cached_property
    def similar_flags(self) -> Int[np.ndarray, "n near"]:
        return self._neighbours(self.atlas.grid_colours.reshape(len(self.exists), -1))

    @functools.cached_property
    def similar_names(self) -> Int[np.ndarray, "n near"]:
        return self._neighbours(trigrams([country.name for country in self.atlas.countries]))

    def _neighbours(self, vectors: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "n near"]:
        """Among `candidates`; the rows of held-out countries are unused."""
        table = np.zeros((len(vectors), min(NEIGHBOURS, len(self.candidates) - 1)), np.int64)
        table[self.candidates] = self.candidates[nearest(vectors[self.candidates], table.shape[1])]
        return table


def trigrams(names: Iterable[str]) -> Float[np.ndarray, "n bins"]:
    """Hashed counts of letter trigrams, as unit vectors."""
    rows = []
    for name in names:
        row, padded = np.zeros(BINS, np.float32), f"  {name.lower()} "
        for start in range(len(padded) - 2):
            row[zlib.crc32(padded[start : start + 3].encode()) % BINS] += 1
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)
