import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from common.io.tfrecord import BROKEN, Span, masked_crc, parse_example, read_record, scan
from film.data.record_sources import TFRecordTriplets

DATA = Path(__file__).parents[1] / "data" / "film"
SHARDS = [DATA / f"tiny_triplets.tfrecord-{shard:05d}-of-00002" for shard in range(2)]


@pytest.fixture
def copies(tmp_path) -> list[Path]:
    return [Path(shutil.copy(shard, tmp_path)) for shard in SHARDS]


def frame(data: bytes) -> bytes:
    """A record as the module docstring describes it."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


@pytest.mark.parametrize("files", ["tiny_triplets.tfrecord@2", "tiny_triplets.tfrecord-*"])
def test_decoded_triplets_equal_the_reference_reader(files):
    """The fixture holds the integers: what the reference's reader returns, times 255."""
    source = TFRecordTriplets(str(DATA / files))
    assert len(source) == 4
    with np.load(DATA / "tiny_triplets_decoded.npz") as decoded:
        for i in range(4):
            expected = np.concatenate([decoded[f"{key}_{i}"] for key in ("x0", "y", "x1")])
            images = source.frames(i).images
            np.testing.assert_array_equal(images, expected)


def test_one_shard_alone():
    assert len(TFRecordTriplets(str(SHARDS[1]))) == 2


def test_check_sums_are_tensorflows():
    """CRC-32C of "123456789" is 0xe3069283 (RFC 3720 and others); the mask is TensorFlow's."""
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


def test_a_flipped_bit_is_found_unless_checks_are_off(copies):
    span = list(scan(copies[0]))[1]
    data = bytearray(copies[0].read_bytes())
    data[span.start + span.length - 3] ^= 1  # in a number at the record's end: still a message
    copies[0].write_bytes(data)
    source = TFRecordTriplets(str(copies[0]))
    source.frames(0)
    with pytest.raises(ValueError, match=f"byte {span.start}.*check sum"):
        source.frames(1)
    assert read_record(span, check=False) != read_record(list(scan(SHARDS[0]))[1])


@pytest.mark.parametrize("cut", [5, 200, -1])
def test_a_file_cut_short_keeps_what_is_before(copies, cut):
    start = list(scan(copies[0]))[1].start - 12
    copies[0].write_bytes(copies[0].read_bytes()[: start + cut if cut > 0 else cut])
    source = TFRecordTriplets(str(copies[0].with_name("tiny_triplets.tfrecord@2")))
    assert [span.length == BROKEN for span in source.spans] == [False, True, False, False]
    source.frames(0)
    source.frames(2)
    with pytest.raises(ValueError, match="damaged or cut short"):
        source.frames(1)


def test_a_damaged_length_ends_the_file(copies):
    data = bytearray(copies[0].read_bytes())
    data[2] ^= 1
    copies[0].write_bytes(data)
    assert list(scan(copies[0])) == [Span(copies[0], 0, BROKEN)]


def test_a_missing_shard_is_named(copies):
    copies[1].unlink()
    with pytest.raises(FileNotFoundError, match="00001-of-00002"):
        len(TFRecordTriplets(str(copies[0].with_name("tiny_triplets.tfrecord@2"))))
    with pytest.raises(FileNotFoundError, match="name@200"):
        len(TFRecordTriplets(str(copies[0].with_name("nosuch-*"))))


def test_only_wanted_features_are_parsed():
    record = read_record(next(scan(SHARDS[0])))
    found = parse_example(record, ["frame_1/format", "path", "nosuch"])
    assert found["frame_1/format"] == b"png" and set(found) == {"frame_1/format", "path"}


def test_other_records_are_refused_in_one_line(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(frame(b"\xff" * 20) + frame(b"") + frame(read_record(next(scan(SHARDS[0])))[:-1]))
    source = TFRecordTriplets(str(path))
    for index, words in ((0, "not a tf.train.Example"), (1, "no feature 'frame_0/encoded'"), (2, "tf.train.Example")):
        with pytest.raises(ValueError, match=words):
            source.frames(index)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="no record"):
        len(TFRecordTriplets(str(tmp_path / "empty")))
