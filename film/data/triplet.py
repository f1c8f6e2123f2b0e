"""Three frames of a video, as they travel from disk to the network.

    Encoded   three picture files in memory: what a record stores, and what `film prepare` copies
    Frames    the same, decoded: uint8 [3 h w 3], in time order x0, y, x1: what training crops and varies
    Triplet   the same for evaluation: three float32 pictures in [0, 1]

`y` is the truth, the frame at `time` between x0 (0) and x1 (1); nearly always 0.5. A `Source` is a data set in one of
the formats of `film.data.datasets`, `film.data.record_sources` or `film.data.record_sources`: a length and random access.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Float, UInt8


class Encoded(NamedTuple):
    """The picture files of x0, y and x1."""

    name: str
    pictures: tuple[bytes, bytes, bytes]
    time: float = 0.5


class Frames(NamedTuple):
    """Three pictures of one size, in the order x0, y, x1."""

    name: str
    images: UInt8[np.ndarray, "3 h w 3"]
    time: float = 0.5


class Triplet(NamedTuple):
    """One evaluation item, RGB in [0, 1]; `y` is the true frame at `time`, NaN where nobody knows it."""

    name: str
    x0: Float[np.ndarray, "h w 3"]
    y: Float[np.ndarray, "h w 3"]
    x1: Float[np.ndarray, "h w 3"]
    time: float = 0.5


class Source(ABC):
    """Random access to triplets. An index has one meaning for ever: resumed runs and record ids rely on it.

    Sources are frozen dataclasses, so that a config can name them, and touch the disk at first use, not before.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call this record in a message; reads no picture."""

    @abstractmethod
    def encoded(self, index: int) -> Encoded:
        """The record's picture files. Raises OSError or ValueError when it cannot be read."""

    def frames(self, index: int) -> Frames:
        """The record decoded. Raises OSError or ValueError when it cannot be read, or its pictures differ in size."""
        name, pictures, time = self.encoded(index)
        return Frames(name, stack([decode(picture, name) for picture in pictures], name), time)


def decode(data: bytes, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """A PNG, JPEG or other picture file in memory as 8-bit RGB; alpha is dropped, as TensorFlow's decoder does.

    Raises ValueError, with `name`, when it is damaged, cut short or no picture.
    """
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    except cv2.error:
        image = None
    if image is None:
        raise ValueError(f"{name}: a picture of {len(data)} bytes is damaged or cut short; copy the record again")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode(image: UInt8[np.ndarray, "h w 3"]) -> bytes:
    """The picture as a PNG file in memory: `decode` gives it back exactly."""
    return cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()


def stack(images: list[np.ndarray], name: str) -> UInt8[np.ndarray, "3 h w 3"]:
    """Three pictures of one size as one array; ValueError when the sizes differ."""
    sizes = [f"{image.shape[1]}x{image.shape[0]}" for image in images]
    if len(set(sizes)) > 1:
        raise ValueError(f"{name}: frames of {', '.join(sizes)} pixels are no triplet; all three must have one size")
    return np.stack(images)
