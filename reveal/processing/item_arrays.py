"""Items as arrays: what training holds of its knowledge, and what the network reads of an item.

An item's text is its fields in their order, with the tokenizer's separator between them; fields that are no text count
for nothing. Its picture is resized to a square, whatever its aspect, so that nothing of it is lost.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Int, UInt8

from reveal.memory.items import Item, is_text
from reveal.processing.tokenizers import Tokenizer
from reveal.sources.records import Skips, decode_picture

CROP = 0x63726F70  # in front of an item's id, seeds what is drawn for it
WHOLE = (1, 1)
NO_FAULT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)  # of the machine, not of a picture


@dataclasses.dataclass(frozen=True, eq=False)
class ItemArrays:
    """Items, a row each, as `bank.contents_of` takes them.

    Attributes:
      tokens: the text, filled up.
      image: the picture; black where there is none.
      has_image: whether there is one.
      source: number of the source.
      id: of the item, each another.
    """

    tokens: Int[np.ndarray, "n l"]
    image: UInt8[np.ndarray, "n s s 3"]
    has_image: Bool[np.ndarray, " n"]
    source: UInt8[np.ndarray, " n"]
    id: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.id)


class Row(NamedTuple):
    """An item as the network reads it: its text, filled up, and its picture as a square."""

    tokens: Int[np.ndarray, " l"]
    image: UInt8[np.ndarray, "s s 3"] | None


class Later:
    """Items that are read when one of their arrays is first asked for: a config may name files that are not there."""

    def __init__(self, read: Callable[[], ItemArrays]):
        self._read = read

    @functools.cached_property
    def arrays(self) -> ItemArrays:
        return self._read()

    def __len__(self) -> int:
        return len(self.arrays)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.arrays, name)


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
    """All items. One whose picture is damaged, or with neither text nor picture, is left out and counted.

    Args:
      items: numbered.
      sources: names; their places are the numbers.
      tokenizer, length: of the texts.
      size: side of the pictures.
      crop: least and largest share of a picture that is kept. drop_image: share of those with text that lose theirs.
        Both are drawn by the item's id, once for ever.
      skips: where it is counted.

    Raises:
      ValueError: an unknown source, an id that is missing or there twice, no item at all.
    """
    skips, rows, ids = skips or Skips(), [], set()
    for item in items:
        number = item.id
        if item.source not in sources:
            raise ValueError(f"item {number} is of source {item.source!r}, sources are {', '.join(sources)}: add it")
        if number is None or number in ids or not 0 <= number < 2**31:
            raise ValueError(f"item {number} of {item.source}: an id is 0 to 2^31 - 1 and there once; set first_id")
        rng = np.random.default_rng([CROP, number])
        row = row_of(item, tokenizer, length, size, skips, rng, crop, drop_image)
        if row is not None:
            ids.add(number)
            rows.append((*row, sources.index(item.source), number))
    if not rows:
        raise ValueError(f"no item that can be used in the knowledge ({skips}): check its path and its pictures")
    return _stacked(rows, size)


def row_of(
    item: Item,
    tokenizer: Tokenizer,
    length: int,
    size: int,
    skips: Skips,
    rng: np.random.Generator | None = None,
    crop: Sequence[float | int] = WHOLE,
    drop_image: float | int = 0,
) -> Row | None:
    """What the network reads of an item; None, and counted, where it cannot be used. Arguments as in `arrays_of`."""
    name = f"item {item.id} of {item.source}"
    tokens = tokenizer.encode(text_of(item, tokenizer.separator), length)
    dropped = rng is not None and rng.random() < drop_image and bool(tokens.any())
    try:
        image = None if dropped else picture_of(item, size, rng, crop)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_FAULT:
            raise
        skips.add("whose picture is damaged", f"{name} ({error})")
        return None
    if image is None and not tokens.any():
        skips.add("with neither text nor picture", name)
        return None
    return Row(tokens, image)


def network_input(items: Sequence[Item], tokenizer: Tokenizer, length: int, size: int) -> Mapping[str, np.ndarray]:
    """Tokens, image and has_image, as `Reveal.encode_item` takes them. Raises ValueError for a damaged picture."""
    texts = [tokenizer.encode(text_of(item, tokenizer.separator), length) for item in items]
    rows = [Row(tokens, picture_of(item, size)) for item, tokens in zip(items, texts, strict=True)]
    return stacked_input(rows, length, size)


def stacked_input(rows: Sequence[Row], length: int, size: int) -> Mapping[str, np.ndarray]:
    """As `network_input`, of rows that were read already."""
    shown = [np.zeros((size, size, 3), np.uint8) if row.image is None else row.image for row in rows]
    return {
        "tokens": np.array([row.tokens for row in rows], np.int32).reshape(-1, length),
        "image": np.array(shown, np.float32).reshape(-1, size, size, 3) / np.float32(255),
        "has_image": np.array([row.image is not None for row in rows], bool),
    }


def text_of(item: Item, separator: str) -> str:
    """The fields that are texts, or lists of texts."""
    texts = [value if isinstance(value, str) else ", ".join(value) for value in item.fields.values() if is_text(value)]
    return f" {separator} ".join(text for text in texts if text)


def picture_of(
    item: Item, size: int, rng: np.random.Generator | None = None, crop: Sequence[float | int] = WHOLE
) -> UInt8[np.ndarray, "{size} {size} 3"] | None:
    """The picture as a square, or None. Raises ValueError for a damaged one."""
    if item.picture is None:
        return None
    name = f"item {item.id} of {item.source}"
    image = decode_picture(item.picture, name) if isinstance(item.picture, bytes) else item.picture
    return resized(image, size, rng, crop)


def resized(
    image: UInt8[np.ndarray, "_h _w 3"],
    size: int,
    rng: np.random.Generator | None = None,
    share: Sequence[float | int] = WHOLE,
) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """A part of the picture with its aspect, of a share of its area drawn by `rng`, made a square."""
    height, width = image.shape[:2]
    if rng is not None and share[0] < 1:
        side = np.sqrt(rng.uniform(share[0], share[1]))
        tall, wide = max(1, round(height * side)), max(1, round(width * side))
        top, left = (int(rng.integers(whole - part + 1)) for whole, part in ((height, tall), (width, wide)))
        image = image[top : top + tall, left : left + wide]
    way = cv2.INTER_AREA if min(image.shape[:2]) >= size else cv2.INTER_LINEAR
    return cv2.resize(image, (size, size), interpolation=way)


def _stacked(rows: Sequence[tuple], size: int) -> ItemArrays:
    """Rows of tokens, picture or None, source and id."""
    has_image = np.array([image is not None for _, image, _, _ in rows])
    image = np.zeros((len(rows), size, size, 3), np.uint8)
    for place, (_, shown, _, _) in enumerate(rows):
        if shown is not None:
            image[place] = shown
    source, ids = (np.array([row[column] for row in rows]) for column in (2, 3))
    tokens = np.stack([row[0] for row in rows])
    return ItemArrays(tokens, image, has_image, source.astype(np.uint8), ids.astype(np.int64))
