"""An item of knowledge, and its payload: the bytes that it is stored as.

An item comes from one source and has text fields, an image, or both:

    Item("wit", {"title": "Gull", "text": "A seabird ..."}, picture=Path("gull.jpg").read_bytes())

The network encodes it as a key (to find it by) and a value (tokens to read it with); those are arrays, stored apart.
The payload is what a person is shown, and what is encoded again after further training. Fields are anything that JSON
holds. An image is the bytes of its file, or uint8 RGB; floats would take thirty times the space of a JPEG. As bytes:

    length of the header (uint32, little-endian) | header: JSON in UTF-8 | image

with the header {"fields": {...}, "picture": null, "file" or [height, width]}.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from common.io.json_text import parse_json

LENGTH = struct.Struct("<I")
MOST_IDS = 2**62


@dataclass(frozen=True, eq=False)
class Item:
    source: str  # name, one of the memory's
    fields: Mapping[str, Any] = field(default_factory=dict)  # texts by name; JSON
    picture: bytes | UInt8[np.ndarray, "h w 3"] | None = None  # bytes of an image file, or RGB
    id: int | None = None  # for life; None: the memory gives it the next one

    def texts(self) -> list[str]:
        """The fields that the network reads, in their order; a list of texts as one text, with commas."""
        values = [value for value in self.fields.values() if is_text(value)]
        return [value if isinstance(value, str) else ", ".join(value) for value in values]

    def with_text(self, text: str) -> "Item":
        """The item with this text in the place of all its texts; other fields stay."""
        kept = {name: value for name, value in self.fields.items() if not is_text(value)}
        return replace(self, fields=kept | {"text": text})

    def pixels(self) -> UInt8[np.ndarray, "h w 3"] | None:
        """The image, decoded; None: there is none. Raises ValueError for a damaged one."""
        if not isinstance(self.picture, bytes):
            return self.picture
        from common.data.stored import decode_picture  # needs OpenCV, which nothing else about a memory does

        return decode_picture(self.picture, f"item {self.id} of {self.source}")


def ids_of(ids: Sequence[int] | Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """Ids as an array. Raises ValueError for a number too large for an id; callers refuse those below 0."""
    if not isinstance(ids, np.ndarray) and (wrong := [number for number in ids if not -MOST_IDS < number < MOST_IDS]):
        raise ValueError(f"id {wrong[0]} is no item's: ids are 0 to 2^62 - 1")
    return np.asarray(ids, np.int64)


def is_text(value: Any) -> bool:
    """Whether a field is one that the network reads: a text, or a list of texts."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def pack(item: Item) -> bytes:
    """The payload. Raises ValueError for an item with nothing in it, fields that are no JSON, and an image that is
    neither bytes nor uint8 RGB."""
    picture = item.picture
    if not item.fields and picture is None:
        raise ValueError(f"an item of source {item.source!r} has neither fields nor a picture; leave it out")
    kind, image = None, b""
    if isinstance(picture, bytes):
        kind, image = "file", picture
    elif picture is not None:
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            found = f"{picture.dtype}{list(picture.shape)}"
            raise ValueError(f"a picture is {found}; give bytes of a file or uint8 [h w 3]")
        kind, image = list(picture.shape[:2]), picture.tobytes()
    try:
        header = json.dumps({"fields": dict(item.fields), "picture": kind}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"fields of an item of source {item.source!r} are no JSON ({error})") from error
    encoded = header.encode("utf-8", "surrogatepass")
    return LENGTH.pack(len(encoded)) + encoded + image


def unpack(payload: bytes, source: str, number: int) -> Item:
    """The item of a payload. Raises ValueError if the bytes are damaged."""
    try:
        (length,) = LENGTH.unpack_from(payload)
        header = parse_json(payload[LENGTH.size : LENGTH.size + length].decode("utf-8", "surrogatepass"))
        kind, image = header["picture"], payload[LENGTH.size + length :]
        if isinstance(kind, list):
            return Item(source, header["fields"], np.frombuffer(image, np.uint8).reshape(*kind, 3), number)
        return Item(source, header["fields"], image if kind == "file" else None, number)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the payload of item {number} is damaged ({error}); copy the memory again") from error
