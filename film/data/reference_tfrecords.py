"""FILM's own training files: TFRecords of three encoded frames each, read without TensorFlow.

A data set `name@200` is the files `name-00000-of-00200` ... `name-00199-of-00200`, framed as `common.io.tfrecord` says.
A record has the features `frame_0/encoded`, `frame_1/encoded` (the truth), `frame_2/encoded` (picture files), their
format, height and width, and `path` (folder of the middle frame); see `datasets/util.py` of the reference. PNG frames
decode to the very values that TensorFlow gives. JPEG frames differ by one level of 255 on average: TensorFlow takes a
faster, coarser DCT.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from natsort import natsorted

from common.io.files import require_file
from common.io.tfrecord import Span, parse_example, read_record, scan
from film.data.triplet import Encoded, Source

FRAMES = ("frame_0", "frame_1", "frame_2")


@dataclass(frozen=True)
class TFRecordTriplets(Source):
    """The triplets of FILM's TFRecords.

    Attributes:
      files: `folder/name@200`, one file, or a glob such as `folder/name-*`.
      check: compare each record's CRC-32C (about 1 ms for 3 MB).
    """

    files: str
    check: bool = True

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The place of each record, file after file. Raises FileNotFoundError when a shard is missing."""
        spans = tuple(span for path in find_shards(self.files) for span in scan(path))
        if not spans:
            raise ValueError(f"{self.files}: no record in it")
        return spans

    def __len__(self) -> int:
        return len(self.spans)

    def name(self, index: int) -> str:
        span = self.spans[index]
        return f"{span.path.name} at byte {span.start}"

    def encoded(self, index: int) -> Encoded:
        name = self.name(index)
        wanted = [f"{frame}/encoded" for frame in FRAMES]
        features = parse_example(read_record(self.spans[index], self.check), wanted, name)
        missing = [key for key in wanted if key not in features]
        if missing:
            raise ValueError(f"{name}: no feature {missing[0]!r}; a record of FILM has {', '.join(wanted)}")
        return Encoded(name, (features[wanted[0]], features[wanted[1]], features[wanted[2]]))


def find_shards(files: str) -> list[Path]:
    """The files of `name@N`, a glob or one name. Raises FileNotFoundError for the first that is missing."""
    if match := re.fullmatch(r"(.+)@(\d+)", files):
        name, count = match[1], int(match[2])
        return [require_file(f"{name}-{shard:05d}-of-{count:05d}") for shard in range(count)]
    if Path(files).is_file():
        return [Path(files)]
    pattern = Path(files)
    found = Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor)))
    shards = natsorted((path for path in found if path.is_file()), key=str)
    if not shards:
        raise FileNotFoundError(f"{files}: no such file and no match; give a file, a glob, or name@200 for 200 shards")
    return shards
