"""The contract of all readers: questions, stored images, and the count of what was left out.

A reader is a generator. It reads its file from the beginning to the end and holds one record, so a source may be larger
than the RAM; and it opens no picture that nobody asks for.

**What cannot be read** (a line that is no JSON, a picture that is not there) is left out and counted in a `Skips`, or
with `Skips(strict=True)` raised. A file that is missing, or no file of that kind at all, is raised always.
"""

from __future__ import annotations

import collections
import errno
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL.JpegImagePlugin import JpegImageFile

from common.data.stored import Member
from common.io.files import require_file
from common.io.images import MAX_PIXELS, read_image, to_uint8

HELD_OUT = "whose picture is in an evaluation set"
UNREADABLE = "whose picture cannot be read"
NO_HANDLES = (errno.EMFILE, errno.ENFILE)  # too many open files: no fault of the one that is to be opened
PLAIN = ("RGB", "L")  # kinds of JPEG that need no more than to be decoded


Picture = Path | bytes | Member  # a file, its bytes, or where they lie


class Question(NamedTuple):
    """Something to answer: a question, or a picture to describe.

    Attributes:
      id: its number in its source.
      image: the picture.
      text: the question; "" for a picture to describe.
      answers: of all annotators, equal ones as often as they were given; or all captions.
      group: a part that scores are told for: a split, NoCaps' domain, "difficult" of A-OKVQA; "" if there is none.
      gold: the number of the item that has the answer, where somebody knows it.
      negatives: numbers of items that have not, and are easily taken for it.
    """

    id: int
    image: Picture
    text: str = ""
    answers: tuple[str, ...] = ()
    group: str = ""
    gold: int | None = None
    negatives: tuple[int, ...] = ()


class Skips:
    """Counts records that are left out, by reason; `strict` raises ValueError for the first one instead."""

    def __init__(self, strict: bool = False):
        self.strict, self.counts = strict, collections.Counter[str]()

    def add(self, reason: str, where: str) -> None:
        if self.strict:
            raise ValueError(f"{where}: {reason}; mend it, or set strict=false to leave it out")
        self.counts[reason] += 1

    def held_out(self) -> None:
        """Counts a record whose picture must not be there; that is no fault, and `strict` does not mind."""
        self.counts[HELD_OUT] += 1

    def merge(self, others: Mapping[str, int]) -> None:
        """Adds what somebody else has counted."""
        self.counts.update(others)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.most_common())
        return f"{self.counts.total()} records left out" + (f" ({reasons})" if reasons else "")


def picture_bytes(picture: Picture) -> bytes:
    """The bytes of the file. Raises OSError, and ValueError for an empty one or a tar that became shorter."""
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, Path):
        return require_file(picture).read_bytes()
    return picture.read()


def file_bytes(picture: Picture, skips: Skips, where: str, reason: str = UNREADABLE) -> bytes | None:
    """As `picture_bytes`; None, and counted, for a file that is empty, or cannot be read."""
    try:
        return picture_bytes(picture)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_HANDLES:
            raise
        skips.add(reason, f"{where} ({error})")
        return None


def file_text(path: Path, skips: Skips, where: str) -> str | None:
    """The text of a file of UTF-8, without blanks around it; None, and counted, if it cannot be read."""
    try:
        return path.read_text("utf-8-sig", "replace").strip()
    except OSError as error:
        if error.errno in NO_HANDLES:
            raise
        skips.add("whose text cannot be read", f"{where} ({error})")
        return None


def decode_picture(picture: Picture, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """The picture, which messages call `name`. Raises OSError, ValueError."""
    if isinstance(picture, Path):
        return to_uint8(read_image(picture))
    data = picture_bytes(picture)
    if (plain := _plain_jpeg(data)) is not None:
        return plain
    return to_uint8(read_image(data, f"the picture of {name}"))


def _plain_jpeg(data: bytes) -> UInt8[np.ndarray, "h w 3"] | None:
    """What `read_image` makes of the commonest pictures, in a quarter of its time: JPEGs that nobody turned. None:
    another kind, or damaged, so that `read_image` has to say what it is."""
    try:
        with JpegImageFile(io.BytesIO(data)) as picture:  # not `Image.open`, whose limits and warnings are global
            width, height = picture.size
            turned = "exif" in picture.info or "xmp" in picture.info
            if picture.mode not in PLAIN or turned or width * height > MAX_PIXELS:
                return None
            return np.array(picture.convert("RGB"))
    except Exception:  # decoders fail in many classes
        return None
