"""Reader of Qt resource files (.rcc), in which Qt programs keep their pictures.

All numbers are big-endian. The header is "qres", the version, and the offsets of the tree, the contents and the names
(version 3 adds flags). Nodes of the tree have 14 bytes, from version 2 on 22 (with a time):

    folder   u32 name, u16 flags with 2,    u32 number of children, u32 first child (children are adjacent)
    file     u32 name, u16 flags, u16 country, u16 language, u32 content

    name     u16 length, u32 hash, then UTF-16 letters
    content  u32 bytes that follow; flag 1: a u32 length and a zlib stream, flag 4: Zstandard
"""

import struct
import zlib
from collections.abc import Callable, Iterator

HEADER = struct.Struct(">4s4I")
ZLIB, FOLDER, ZSTANDARD = 1, 2, 4
MAX_CONTENT = 100_000_000  # bytes of one file, unpacked


def resources(data: bytes, label: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the files whose path is `wanted`, in the tree's order; `label` names `data` in errors. Raises
    ValueError for data that are no such archive, are damaged, or are compressed with Zstandard."""
    try:
        magic, version, *places = HEADER.unpack_from(data)
        if magic != b"qres" or version not in (1, 2, 3):
            raise ValueError(f"{label} is no Qt resource file of version 1, 2 or 3")
        for path, flags, place in _files(data, 14 if version == 1 else 22, *places):
            if wanted(path):
                yield path, _content(data, places[1] + place, flags, f"{label}: {path}")
    except (struct.error, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{label} is damaged or cut short ({error})") from error


def _files(data: bytes, size: int, tree: int, _: int, names: int) -> Iterator[tuple[str, int, int]]:
    """(path, flags, offset of the content) of each file. A node is visited once, in damaged files too."""
    todo, seen = [(0, "")], set()
    while todo:
        number, folder = todo.pop()
        if number in seen:
            raise struct.error(f"node {number} of the tree comes twice")
        seen.add(number)
        name, flags, first, second = struct.unpack_from(">IHII", data, tree + number * size)
        path = folder + _name(data, names + name) if number else ""
        if flags & FOLDER:  # first: how many children, second: the number of the first
            within = range(second, second + min(first, len(data)))
            todo += [(child, f"{path}/" if path else "") for child in reversed(within)]
        else:
            yield path, flags, second


def _name(data: bytes, place: int) -> str:
    (length,) = struct.unpack_from(">H", data, place)
    return struct.unpack_from(f"{2 * length}s", data, place + 6)[0].decode("utf-16-be")


def _content(data: bytes, place: int, flags: int, label: str) -> bytes:
    (length,) = struct.unpack_from(">I", data, place)
    (content,) = struct.unpack_from(f"{length}s", data, place + 4)
    if flags & ZSTANDARD:
        raise ValueError(f"{label} is compressed with Zstandard, which Python cannot read")
    if not flags & ZLIB:
        return content
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(content[4:], MAX_CONTENT)
    if not unpacker.eof:
        raise zlib.error(f"{label} does not end within {MAX_CONTENT} bytes")
    return content
