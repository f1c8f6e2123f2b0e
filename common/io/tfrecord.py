"""TFRecord files and the `tf.train.Example`s in them, read without TensorFlow.

A file is records one after the other, each framed so that damage shows:

    length  8 bytes    little-endian
    check   4 bytes    masked CRC-32C of the 8 length bytes
    data    `length` bytes
    check   4 bytes    masked CRC-32C of the data

where mask(c) = rotate(c, 15 bits right) + 0xa282ead8 (tensorflow/core/lib/io/record_writer.h). The data is a protobuf
message, of an Example a map from feature names to lists of bytes, floats or integers.

Stages: one pass over the framing gives each record's place (`scan`) -> a record is read and checked (`read_record`) ->
parsed (`parse_example`). A file that breaks off or whose framing is damaged keeps the records before the damage, and
has one more that cannot be read: so whoever skips bad records hears of it once, and whoever is strict stops.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

HEAD, TAIL = 12, 4  # bytes of framing before and after the data
BROKEN = -1  # length of a record that stands for the unreadable rest of a file
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf wire types


class Span(NamedTuple):
    """Where a record's data lies."""

    path: Path
    start: int
    length: int


def scan(path: Path) -> Iterator[Span]:
    """The records of a file, from its framing; a last one of length BROKEN where the framing is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        position = 0
        while position < size:
            file.seek(position)
            head = file.read(HEAD)
            end = size + 1
            if len(head) == HEAD and masked_crc(head[:8]) == struct.unpack("<I", head[8:])[0]:
                end = position + HEAD + struct.unpack("<Q", head[:8])[0] + TAIL
            if end > size:
                yield Span(path, position, BROKEN)
                return
            yield Span(path, position + HEAD, end - TAIL - position - HEAD)
            position = end


def read_record(span: Span, check: bool = True) -> bytes:
    """A record's data. Raises ValueError when its check sum is wrong or the framing broke off here."""
    where = f"{span.path} at byte {span.start}"
    if span.length == BROKEN:
        raise ValueError(f"{where}: the file is damaged or cut short here, the rest cannot be read; copy it again")
    with span.path.open("rb") as file:  # opened each time: no handle per shard, no lock between threads
        file.seek(span.start)
        data = file.read(span.length + TAIL)
    if len(data) != span.length + TAIL:
        raise ValueError(f"{where}: the file became shorter while it was in use; copy it again")
    if check and masked_crc(data[:-TAIL]) != struct.unpack("<I", data[-TAIL:])[0]:
        raise ValueError(f"{where}: check sum differs, the record is damaged; copy the file again")
    return data[:-TAIL]


def masked_crc(data: bytes) -> int:
    """TensorFlow's masked CRC-32C (module docstring)."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def parse_example(data: bytes, wanted: Collection[str] | None = None, name: str = "record") -> dict[str, bytes]:
    """Of a serialised `tf.train.Example` the features that are bytes, the first of each: the wanted ones, or all.

    Raises ValueError, with `name`, when the bytes are no such message.
    """
    found = {}
    try:
        for _, features in _fields(memoryview(data)):
            for _, entry in _fields(features):
                parts = dict(_fields(entry))  # of an entry in a map: 1 is the key, 2 the value
                key = str(parts[1], "utf-8")
                if wanted is not None and key not in wanted:
                    continue
                lists = dict(_fields(parts[2])) if 2 in parts else {}  # 1 is BytesList, 2 floats, 3 integers
                if values := [value for _, value in _fields(lists[1])] if 1 in lists else []:
                    found[key] = bytes(values[0])
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: not a tf.train.Example ({error}); is it another kind of TFRecord?") from error
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of the fields of a message that are bytes, text or messages; numbers are passed over."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == VARINT:
            _, position = _varint(data, position)
            continue
        if kind not in (FIXED64, BYTES, FIXED32):
            raise IndexError(f"wire type {kind}")
        length, position = _varint(data, position) if kind == BYTES else ({FIXED64: 8, FIXED32: 4}[kind], position)
        if position + length > len(data):
            raise IndexError("it ends too early")
        if kind == BYTES:
            yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """An integer of seven bits a byte, least first, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    raise IndexError("an integer of more than ten bytes")
