"""All items of a training run as arrays; those that cannot be used are skipped and counted."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, UInt8

from reveal.memory.items import Item
from reveal.processing.images import WHOLE
from reveal.processing.processor import Row, row_of, stacked
from reveal.processing.tokenizers import Tokenizer
from reveal.sources.records import Skips

CROP_SEED = 0x63726F70  # with an item's id, seeds its crop and drop


@dataclasses.dataclass(frozen=True, eq=False)
class ItemArrays:
    tokens: Int[np.ndarray, "n l"]
    image: UInt8[np.ndarray, "n s s 3"]  # black where there is none
    has_image: Bool[np.ndarray, " n"]
    source: UInt8[np.ndarray, " n"]  # index
    id: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.id)


def arrays_of(
    items: Iterable[Item],
    sources: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    size: int,
    crop: Sequence[float | int] = WHOLE,
    drop_image: float | int = 0,
    skips: Skips | None = None,
) -> ItemArrays:
    """All usable items; one with a damaged image, or with neither text nor image, is skipped. `sources` are names, in
    order of their indices; `crop` is the range of the share of an image that is kept, and `drop_image` the share of the
    images of items with text that are dropped, both drawn once, seeded by the item's id. Raises ValueError for an
    unknown source, a missing or repeated id, and no usable item."""
    skips = skips or Skips()
    rows: dict[int, Row] = {}
    source: list[int] = []
    for item in items:
        number = item.id
        if item.source not in sources:
            raise ValueError(f"item {number} is of source {item.source!r}, sources are {', '.join(sources)}: add it")
        if number is None or number in rows or not 0 <= number < 2**31:
            rule = "ids are unique, in training 0 to 2^31 - 1: number items and gold anew, or set a reader's first_id"
            raise ValueError(f"item {number} of {item.source}: {rule}")
        rng = np.random.default_rng([CROP_SEED, number])
        row = row_of(item, tokenizer, length, size, skips, rng, crop, drop_image)
        if row is not None:
            rows[number] = row
            source.append(sources.index(item.source))
    if not rows:
        raise ValueError(f"no usable item in the knowledge ({skips}): check its path and its images")
    arrays = stacked(list(rows.values()), length, size)
    return ItemArrays(*arrays, np.array(source, np.uint8), np.array(list(rows), np.int64))
