"""The interface of all sources: random access to records of one image with its captions and condition images.

    record = source[3]
    record.key          its name in messages and for the split; the same on every machine
    record.image        uint8 [h w 3], RGB: upright after its EXIF orientation, alpha over white (`common.io.images`)
    record.captions     texts, maybe none
    record.conditions   {kind: stored image}; `.decode()` reads it

Each access reads and decodes anew and keeps nothing, so threads share a source without a lock. A `Source` is a frozen
dataclass that touches the disk at its first use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8

from common.data.stored import File, Stored

UNNAMED = "condition"  # a kind that stands for any, for layouts that name none (Hugging Face, fill50k)
CAPTIONS = ("caption", "captions", "text", "prompt")  # JSON fields; the first that is there counts


@dataclass(frozen=True)
class Record:
    """An image, its captions (or a function that reads them) and its stored condition images by kind."""

    key: str
    stored: Stored
    texts: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    conditions: Mapping[str, Stored] = field(default_factory=dict)

    @property
    def image(self) -> UInt8[np.ndarray, "h w 3"]:
        return self.stored.decode()

    @property
    def captions(self) -> tuple[str, ...]:
        return self.texts() if callable(self.texts) else self.texts

    def condition(self, kind: str) -> Stored | None:
        """The condition image of that kind, or the one without a kind."""
        return self.conditions.get(kind, self.conditions.get(UNNAMED))


class Source:
    """Random access to records: lists `records` at its first use, or overrides both methods. An index keeps its
    meaning: resumed runs and ids rely on it. Raises FileNotFoundError or ValueError when it cannot be opened."""

    records: tuple[Record, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


def lines_of(stored: Stored) -> tuple[str, ...]:
    """The captions in a text file: one a line, without empty lines. An empty file has none."""
    if isinstance(stored, File) and stored.path.is_file() and not stored.path.stat().st_size:
        return ()
    return tuple(line.strip() for line in stored.text().splitlines() if line.strip())


def captions_in(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The captions of a JSON object. Raises ValueError, with `where`, for other than a text or a list of texts."""
    name = next((name for name in CAPTIONS if entry.get(name) is not None), None)
    if name is None:
        return ()
    texts = [entry[name]] if isinstance(entry[name], str) else entry[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}: {name} is {entry[name]!r}; give a text or a list of texts")
    return tuple(text for text in texts if text)
