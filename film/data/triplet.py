"""Three frames of a video, from disk to the network.

    Encoded      three image files in memory: what a record stores, and what `film prepare` copies
    Frames       the same, decoded: uint8 [3 h w 3], in time order x0, y, x1: what training crops and augments
    Triplet      the same for evaluation: three float32 images in [0, 1]
    Prediction   what a method makes of x0 and x1

`y` is the truth, the frame at `time` between x0 (0) and x1 (1); nearly always 0.5. A `Source` is a dataset with random
access: see `film.data.datasets` (folders), `film.data.record_sources` and `film.data.procedural`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from common.checked import Checked


class Encoded(NamedTuple):
    name: str
    pictures: tuple[bytes, bytes, bytes]
    time: float = 0.5


class Frames(NamedTuple):
    name: str
    images: UInt8[np.ndarray, "3 h w 3"]
    time: float = 0.5


class Triplet(NamedTuple):
    """One evaluation example, RGB in [0, 1]; `y` is NaN where the truth is unknown. `regions`: pixels of `y` by name,
    if the set knows them (`film.evaluation.regions`)."""

    name: str
    x0: Float[np.ndarray, "h w 3"]
    y: Float[np.ndarray, "h w 3"]
    x1: Float[np.ndarray, "h w 3"]
    time: float = 0.5
    regions: Mapping[str, Bool[np.ndarray, "h w"]] | None = None


class Prediction(NamedTuple):
    """A method's frame between x0 and x1, RGB, not clipped; if it has them, the motion from x0 to x1 in pixels, and x0
    and x1 warped to the frame's time."""

    image: Float[np.ndarray, "h w 3"]
    flow: Float[np.ndarray, "h w 2"] | None = None
    warped: tuple[Float[np.ndarray, "h w 3"], Float[np.ndarray, "h w 3"]] | None = None


class Source(Checked, ABC):
    """Random access to triplets; a subclass defines `encoded` or `frames`, and has the other one of it. An index always
    means the same record: resumed runs and record ids rely on it. Sources are frozen dataclasses, which a config names,
    and read the disk at first use. OSError or ValueError for a record that cannot be read."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """The record's name in messages; reads no image."""

    def encoded(self, index: int) -> Encoded:
        return as_png(self.frames(index))

    def frames(self, index: int) -> Frames:
        """The record decoded; ValueError if its images differ in size."""
        name, pictures, time = self.encoded(index)
        return Frames(name, stack([decode(picture, name) for picture in pictures], name), time)


def decode(data: bytes, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """A PNG, JPEG or other image file in memory as 8-bit RGB; alpha is dropped, as TensorFlow's decoder does."""
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    except cv2.error:
        image = None
    if image is None:
        raise ValueError(f"{name}: an image of {len(data)} bytes is damaged or cut short; copy the record again")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode(image: UInt8[np.ndarray, "h w 3"]) -> bytes:
    """A PNG file in memory: `decode` gives the image back exactly."""
    return cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))[1].tobytes()


def as_png(frames: Frames) -> Encoded:
    x0, y, x1 = map(encode, frames.images)
    return Encoded(frames.name, (x0, y, x1), frames.time)


def stack(images: Sequence[np.ndarray], name: str) -> UInt8[np.ndarray, "3 h w 3"]:
    """Three images of one size as one array; ValueError when the sizes differ."""
    sizes = [f"{image.shape[1]}x{image.shape[0]}" for image in images]
    if len(set(sizes)) > 1:
        raise ValueError(f"{name}: frames of {', '.join(sizes)} pixels; all three must have one size")
    return np.stack(images)
