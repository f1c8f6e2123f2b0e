"""TFRecord files and the `tf.train.Example`s in them, read without TensorFlow.

A file is a sequence of records, framed to detect damage:

    length  8 bytes    little-endian
    check   4 bytes    masked CRC-32C of the 8 length bytes
    data    `length` bytes
    check   4 bytes    masked CRC-32C of the data

where mask(c) = rotate(c, 15 bits right) + 0xa282ead8 (tensorflow/core/lib/io/record_writer.h). Of a file that breaks
off or has damaged framing, `scan` gives the records before the damage and one more that cannot be read, so that a
reader that skips bad records meets it once, and a strict one stops.
"""

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

HEAD, TAIL = 12, 4  # bytes of framing before and after the data
BROKEN = -1  # length of a record that stands for the unreadable rest of a file


class Span(NamedTuple):
    """The position of a record's data."""

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
    """The data of a record. Raises ValueError when its checksum is wrong or the framing is damaged here."""
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
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def parse_example(data: bytes, wanted: Collection[str] | None = None, name: str = "record") -> dict[str, bytes]:
    """The first value of each feature of bytes in a serialised `tf.train.Example`: of the wanted ones, or of all."""
    from google.protobuf.message import DecodeError  # slow to import, and needed only here
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        features = tf_example_pb2.Example.FromString(data).features.feature  # type: ignore[attr-defined]
    except DecodeError as error:
        raise ValueError(f"{name}: not a tf.train.Example; is it another kind of TFRecord?") from error
    values = {key: feature.bytes_list.value for key, feature in features.items() if wanted is None or key in wanted}
    return {key: value[0] for key, value in values.items() if value}
