"""Items as arrays: the knowledge of a training run, and network inputs.

An item's text is its text fields in their order, joined by the tokenizer's separator. Its image is resized to a square
whatever its aspect, so that nothing is cut off.
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

from common.data.stored import decode_picture
from reveal.memory.items import Item, is_text
from reveal.processing.tokenizers import Tokenizer
from reveal.sources.records import Skips

CROP_SEED = 0x63726F70  # with an item's id, seeds its crop and drop
WHOLE = (1, 1)
MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)  # not the image's fault


@dataclasses.dataclass(frozen=True, eq=False)
class ItemArrays:
    """Items, a row each."""

    tokens: Int[np.ndarray, "n l"]
    image: UInt8[np.ndarray, "n s s 3"]  # black where there is none
    has_image: Bool[np.ndarray, " n"]
    source: UInt8[np.ndarray, " n"]  # index
    id: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.id)


class Row(NamedTuple):
    """One item: padded text, and square image."""

    tokens: Int[np.ndarray, " l"]
    image: UInt8[np.ndarray, "s s 3"] | None


class Later:
    """Proxy of what `read` returns, called at first use: a config may name files that do not exist yet."""

    def __init__(self, read: Callable[[], Any]):
        self._read = read

    @functools.cached_property
    def value(self) -> Any:
        return self._read()

    def __len__(self) -> int:
        return len(self.value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)


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
    """All usable items; one with a damaged image, or with neither text nor image, is skipped.

    `sources` are names, in order of their indices; `crop` is the range of the share of an image that is kept, and
    `drop_image` the share of the images of items with text that are dropped, both drawn once, seeded by the item's id.
    Raises ValueError for an unknown source, a missing or repeated id, and no usable item."""
    skips = skips or Skips()
    rows: dict[int, Row] = {}
    source: list[int] = []
    for item in items:
        number = item.id
        if item.source not in sources:
            raise ValueError(f"item {number} is of source {item.source!r}, sources are {', '.join(sources)}: add it")
        if number is None or number in rows or not 0 <= number < 2**31:
            raise ValueError(f"item {number} of {item.source}: ids are unique, 0 to 2^31 - 1; set first_id")
        rng = np.random.default_rng([CROP_SEED, number])
        row = row_of(item, tokenizer, length, size, skips, rng, crop, drop_image)
        if row is not None:
            rows[number] = row
            source.append(sources.index(item.source))
    if not rows:
        raise ValueError(f"no usable item in the knowledge ({skips}): check its path and its images")
    arrays = _stack(list(rows.values()), length, size)
    return ItemArrays(*arrays, np.array(source, np.uint8), np.array(list(rows), np.int64))


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
    """One item; None, and counted, if it cannot be used. Arguments as in `arrays_of`."""
    name = f"item {item.id} of {item.source}"
    tokens = tokenizer.encode(text_of(item, tokenizer.separator), length)
    dropped = rng is not None and rng.random() < drop_image and bool(tokens.any())
    try:
        image = None if dropped else image_of(item, size, rng, crop)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            raise
        skips.add("whose picture is damaged", f"{name} ({error})")
        return None
    if image is None and not tokens.any():
        skips.add("with neither text nor picture", name)
        return None
    return Row(tokens, image)


def network_input(items: Sequence[Item], tokenizer: Tokenizer, length: int, size: int) -> Mapping[str, np.ndarray]:
    """tokens, image and has_image, as `Reveal.encode_item` takes them. Raises ValueError for a damaged image."""
    separator = tokenizer.separator
    rows = [Row(tokenizer.encode(text_of(item, separator), length), image_of(item, size)) for item in items]
    return stacked_input(rows, length, size)


def stacked_input(rows: Sequence[Row], length: int, size: int) -> Mapping[str, np.ndarray]:
    """`network_input` of rows."""
    tokens, image, has_image = _stack(rows, length, size)
    return {"tokens": tokens, "image": image.astype(np.float32) / np.float32(255), "has_image": has_image}


def _stack(
    rows: Sequence[Row], length: int, size: int
) -> tuple[Int[np.ndarray, "n l"], UInt8[np.ndarray, "n s s 3"], Bool[np.ndarray, " n"]]:
    tokens = np.array([row.tokens for row in rows], np.int32).reshape(-1, length)
    image, has_image = np.zeros((len(rows), size, size, 3), np.uint8), np.zeros(len(rows), bool)
    for n, row in enumerate(rows):
        if row.image is not None:
            image[n], has_image[n] = row.image, True
    return tokens, image, has_image


def text_of(item: Item, separator: str) -> str:
    """The fields that are texts or lists of texts."""
    texts = [value if isinstance(value, str) else ", ".join(value) for value in item.fields.values() if is_text(value)]
    return f" {separator} ".join(text for text in texts if text)


def image_of(
    item: Item, size: int, rng: np.random.Generator | None = None, crop: Sequence[float | int] = WHOLE
) -> UInt8[np.ndarray, "{size} {size} 3"] | None:
    """The image as a square, or None. Raises ValueError for a damaged one."""
    if item.picture is None:
        return None
    stored = item.picture
    image = decode_picture(stored, f"item {item.id} of {item.source}") if isinstance(stored, bytes) else stored
    return resized(image, size, rng, crop)


def resized(
    image: UInt8[np.ndarray, "_h _w 3"],
    size: int,
    rng: np.random.Generator | None = None,
    share: Sequence[float | int] = WHOLE,
) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """A crop of the image's aspect and of a share of its area drawn by `rng`, resized to a square."""
    height, width = image.shape[:2]
    if rng is not None and share[0] < 1:
        side = np.sqrt(rng.uniform(share[0], share[1]))
        crop_height, crop_width = max(1, round(height * side)), max(1, round(width * side))
        top, left = int(rng.integers(height - crop_height + 1)), int(rng.integers(width - crop_width + 1))
        image = image[top : top + crop_height, left : left + crop_width]
    interpolation = cv2.INTER_AREA if min(image.shape[:2]) >= size else cv2.INTER_LINEAR
    return cv2.resize(image, (size, size), interpolation=interpolation)
