"""One picture of a user's own with what belongs to it, and the contract of what holds many of them.

    record = source[3]
    record.key          what it is called, for messages and for the split; the same on every machine
    record.image        uint8 [h w 3], RGB: upright after its EXIF orientation, alpha over white (`common.io.images`)
    record.captions     tuple of texts, maybe empty
    record.conditions   {kind: uint8 [h w 3]}

A record only knows where things lie. Each of the three is read and decoded when it is asked for, and not kept: so a
training that makes its conditions from the pictures never opens those on disk, a list of a million records is small,
and threads share a source without a lock. A `Source` is a frozen dataclass that touches the disk at its first use.

Files that name no kind for their condition pictures (Hugging Face, fill50k) have one called UNNAMED, which answers for
whatever kind is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8

from common.data.stored import File, Stored

UNNAMED = "condition"
CAPTIONS = ("caption", "captions", "text", "prompt")  # what JSON may call them; the first that is there counts


class Decoded(Mapping):  # of str and arrays; written out, a check of types would decode one
    """Condition pictures by kind, each decoded when it is looked up."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    def __getitem__(self, kind: str) -> UInt8[np.ndarray, "h w 3"]:
        return self._stored[kind].decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


@dataclass(frozen=True)
class Record:
    """A picture, its texts (or what reads them) and the conditions that are stored beside it, by kind."""

    key: str
    picture: Stored
    texts: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    stored: Mapping[str, Stored] = field(default_factory=dict)

    @property
    def image(self) -> UInt8[np.ndarray, "h w 3"]:
        return self.picture.decode()

    @property
    def captions(self) -> tuple[str, ...]:
        return self.texts() if callable(self.texts) else self.texts

    @property
    def conditions(self) -> Decoded:
        return Decoded(self.stored)

    def condition(self, kind: str) -> Stored | None:
        """The stored condition of that kind, or the one that has no name."""
        return self.stored.get(kind, self.stored.get(UNNAMED))


class Source(ABC):
    """Random access to records. An index has one meaning for ever: resumed runs and record ids rely on it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Record:
        """Reads no picture. Raises FileNotFoundError or ValueError when the source cannot be opened."""


class Listed(Source):
    """A source that knows all its records once it has been opened."""

    records: tuple[Record, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


def lines_of(stored: Stored) -> tuple[str, ...]:
    """The captions in a text file: one a line, empty lines left out."""
    if isinstance(stored, File) and stored.path.is_file() and not stored.path.stat().st_size:
        return ()  # an empty file says that there is none
    return tuple(line.strip() for line in stored.text().splitlines() if line.strip())


def captions_in(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The captions of a JSON object. Raises ValueError, with `where`, for what is neither text nor a list of texts."""
    name = next((name for name in CAPTIONS if entry.get(name) is not None), None)
    if name is None:
        return ()
    texts = [entry[name]] if isinstance(entry[name], str) else entry[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}: {name} is {entry[name]!r}; give a text or a list of texts")
    return tuple(text for text in texts if text)
