"""The content of a file, on its own or in a tar, read and decoded on demand. No handle stays open between reads, so
threads share these objects without a lock and a list of a million is small.
"""

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL.JpegImagePlugin import JpegImageFile

from common.io.files import require_file
from common.io.images import decoding, most_pixels, read_image, to_uint8


class Stored(ABC):
    @property
    @abstractmethod
    def name(self) -> str:
        """The name in messages."""

    @abstractmethod
    def read(self) -> bytes:
        """Raises FileNotFoundError, ValueError."""

    def decode(self) -> UInt8[np.ndarray, "h w 3"]:
        """The image: RGB, upright after EXIF, alpha over white. Raises FileNotFoundError; ValueError if damaged."""
        return to_uint8(read_image(self.read(), self.name))

    def text(self) -> str:
        """The text, in UTF-8. Raises ValueError."""
        try:
            return self.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.name} is no UTF-8 text ({error.reason}); save it as UTF-8") from error


@dataclass(frozen=True)
class File(Stored):
    """A file of its own."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self) -> bytes:
        return require_file(self.path).read_bytes()


@dataclass(frozen=True)
class Member(Stored):
    """A file inside a tar that is not compressed: `length` bytes from `start`."""

    path: Path
    member: str
    start: int
    length: int

    @property
    def name(self) -> str:
        return f"{self.path} member {self.member}"

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            data = file.read(self.length)
        if len(data) != self.length:
            raise ValueError(f"{self.name}: the tar became shorter while it was in use; copy it again")
        return data


Picture = Path | bytes | Member  # a file, its bytes, or its place in a tar


def picture_bytes(picture: Picture) -> bytes:
    """The bytes of the file. Raises OSError, and ValueError for an empty one or a tar that became shorter."""
    if isinstance(picture, bytes):
        return picture
    return require_file(picture).read_bytes() if isinstance(picture, Path) else picture.read()


def decode_picture(picture: Picture, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """The decoded image, which messages call `name`. Raises OSError, ValueError."""
    if isinstance(picture, Path):
        return to_uint8(read_image(picture))
    data = picture_bytes(picture)
    if (plain := _plain_jpeg(data)) is not None:
        return plain
    return to_uint8(read_image(data, f"the picture of {name}"))


def _plain_jpeg(data: bytes) -> UInt8[np.ndarray, "h w 3"] | None:
    """The result of `read_image` for upright grey and RGB JPEGs, in a quarter of its time. None: another kind, or
    damaged, so that `read_image` has to tell."""
    try:
        with JpegImageFile(io.BytesIO(data)) as picture:  # not `Image.open`, whose limits and warnings are global
            width, height = picture.size
            turned = "exif" in picture.info or "xmp" in picture.info
            if picture.mode not in ("RGB", "L") or turned or width * height > most_pixels(len(data)):
                return None
            with decoding(width * height):
                return np.array(picture.convert("RGB"))
    except Exception:  # decoders fail in many classes
        return None
