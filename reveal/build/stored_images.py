"""Pictures as a memory keeps them: the bytes of their files, smaller where they are larger than anybody needs.

A network sees 32 to 224 pixels, a person who asks where an answer is from a few hundred. What is kept is also what is
encoded, so that encoding a memory anew with the same network gives the same keys.
"""

from __future__ import annotations

import dataclasses
import io

import cv2
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from common.io.images import from_uint8, shrink, to_uint8
from reveal.memory.items import Item
from reveal.sources.records import decode_picture

QUALITY = 90  # of JPEG
JPEG = b"\xff\xd8"  # what one begins with


def kept(item: Item, longest: int) -> Item:
    """The item with a picture of at most `longest` pixels a side, a JPEG if it had to shrink; 0: as it is.

    A picture that cannot be read stays as it is: whoever encodes it says so."""
    if not isinstance(item.picture, bytes) or not longest or max(_size(item.picture)) <= longest:
        return item
    try:
        image = decode_picture(item.picture, f"item {item.id} of {item.source}")
    except (ValueError, OSError):
        return item
    small = to_uint8(shrink(from_uint8(image), longest))
    data = cv2.imencode(".jpg", small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
    return dataclasses.replace(item, picture=data)


def _size(data: bytes) -> tuple[int, int]:
    """Width and height as the header says; (0, 0) where there is none."""
    try:
        with JpegImageFile(io.BytesIO(data)) if data[:2] == JPEG else Image.open(io.BytesIO(data)) as picture:
            return picture.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return 0, 0
