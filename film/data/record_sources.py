"""Training sources that are no image folders: TFRecords, tfds and ArrayRecord datasets, patches cut from a film.

FILM's own training files are TFRecords, read here without TensorFlow. A dataset `name@200` is the files
`name-00000-of-00200` ... `name-00199-of-00200`, framed as `common.io.tfrecord` says. A record has the features
`frame_0/encoded`, `frame_1/encoded` (the truth), `frame_2/encoded` (image files), their format, height and width, and
`path`; see `datasets/util.py` of the reference. PNG frames decode to the very values that TensorFlow gives, JPEG frames
differ by one level of 255 on average: TensorFlow takes a faster, coarser DCT.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from natsort import natsorted

from common.checked import Rule
from common.data.tfds import open_rows
from common.io.arrays import check_whole, mapped
from common.io.files import require_file
from common.io.tensor_files import read_json
from common.io.tfrecord import Span, parse_example, read_record, scan
from film.data.triplet import Encoded, Frames, Source

FRAMES = ("frame_0", "frame_1", "frame_2")


@dataclass(frozen=True)
class TFRecordTriplets(Source):
    files: str  # `folder/name@200`, one file, or a glob such as `folder/name-*`
    check: bool = True  # compare each record's CRC-32C (about 1 ms for 3 MB)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
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
        name, keys = self.name(index), [f"{frame}/encoded" for frame in FRAMES]
        features = parse_example(read_record(self.spans[index], self.check), keys, name)
        if missing := [key for key in keys if key not in features]:
            raise ValueError(f"{name}: no feature {missing[0]!r}; a record of FILM has {', '.join(keys)}")
        x0, y, x1 = (features[key] for key in keys)
        return Encoded(name, (x0, y, x1))


@dataclass(frozen=True)
class TfdsTriplets(Source):
    """A dataset of tensorflow-datasets with random access, by `tfds.data_source`. TensorFlow is not needed."""

    dataset: str  # folder that `film prepare` wrote (it has dataset_info.json), or a dataset's name, `name:1.0.0`
    split: str = "train"  # or for instance train[:90%]
    keys: Annotated[Sequence[str], Rule(lambda keys: len(keys) == 3, "three features: x0, the truth, x1")] = FRAMES
    data_dir: str | None = None  # where tfds keeps prepared datasets by name, if not the default

    @cached_property
    def records(self) -> Any:
        """The `tfds.data_source`; raises as `open_rows`."""
        return open_rows(self.dataset, self.split, self.keys, data_dir=self.data_dir)

    def __len__(self) -> int:
        return len(self.records)

    def name(self, index: int) -> str:
        return f"{self.dataset} {self.split} {index}"

    def encoded(self, index: int) -> Encoded:
        record = self.records[index]
        x0, y, x1 = (record[key] for key in self.keys)
        return Encoded(self.name(index), (x0, y, x1), float(record.get("time", 0.5)))


@dataclass(frozen=True)
class CutTriplets(Source):
    """A folder of `film.data.cutting`, its arrays left on disk until a record is read.

    As a `Source` it gives the three frames alone. Item i is the whole record: images uint8 [3 S S 3] (x0, y, x1), flows
    [2 s s 2] and valid [2 s s] (to x0, to x1), motion (px), id.
    """

    folder: str | Path

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        index = Path(self.folder) / "index.json"
        if not index.is_file():
            raise FileNotFoundError(f"{index} does not exist; `python -m film.data.cutting` writes training triplets")
        names = ("images", "flows", "valid")
        arrays = {name: mapped(index.with_name(f"{name}.npy")) for name in names}
        arrays["motion"] = np.array([triplet["motion"] for triplet in read_json(index)["triplets"]], np.float32)
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError(f"{self.folder}: arrays and index differ in length: cut the triplets again")
        return arrays

    @property
    def size(self) -> int:
        return int(self.arrays["images"].shape[2])

    def __len__(self) -> int:
        return len(self.arrays["motion"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        for array in self.arrays.values():
            check_whole(array)
        return {"id": np.array(index, np.int64), **{name: array[index] for name, array in self.arrays.items()}}

    def name(self, index: int) -> str:
        return f"{self.folder} patch {index}"

    def frames(self, index: int) -> Frames:
        check_whole(self.arrays["images"])
        return Frames(self.name(index), np.asarray(self.arrays["images"][index]))


def find_shards(files: str) -> list[Path]:
    """The files of `name@N`, a glob or one name."""
    if match := re.fullmatch(r"(.+)@(\d+)", files):
        name, count = match[1], int(match[2])
        return [require_file(f"{name}-{shard:05d}-of-{count:05d}") for shard in range(count)]
    path = Path(files)
    found = [path] if path.exists() else Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
    shards = natsorted(filter(Path.is_file, found), key=str)
    if not shards:
        raise FileNotFoundError(f"{files}: no such file and no match; give a file, a glob, or name@200 for 200 shards")
    return shards
