"""Training sources that are no picture folders: tfds and ArrayRecord data sets, and what `film.data.cutting` cut.

| source                            | what it reads                                                              |
| --------------------------------- | -------------------------------------------------------------------------- |
| the classes of `film.data.datasets`     | picture folders                                                            |
| `film.data.reference_tfrecords.TFRecordTriplets`  | the reference's TFRecords                                                  |
| `TfdsTriplets`                    | ArrayRecord data sets: those of `film prepare`, and any with three pictures |
| `CutTriplets`                     | the frames of patches cut from a film, without their teacher flow          |

All are `film.data.triplet.Source`: name them in the config of `film.data.triplet_batches.MixtureConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from film.data.triplet import Encoded, Frames, Source, encode

EXTRA = 'pip install "film-plugins-reveal[tfds]"'


@dataclass(frozen=True)
class TfdsTriplets(Source):
    """A data set of tensorflow-datasets with random access, by `tfds.data_source`. TensorFlow is not needed.

    Attributes:
      dataset: folder that `film prepare` wrote (it has dataset_info.json), or a data set's name, `name:1.0.0`.
      split: such as train, or train[:90%].
      frames: features that hold x0, y, x1 as pictures.
      data_dir: where tfds keeps prepared data sets; needed only with a name, and then only if it is not the default.
    """

    dataset: str
    split: str = "train"
    keys: tuple[str, ...] | list[str] = ("frame_0", "frame_1", "frame_2")
    data_dir: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(self.keys))
        if len(self.keys) != 3:
            raise ValueError(f"keys {self.keys} must be three features: x0, the truth, x1")

    @cached_property
    def records(self) -> Any:
        """The `tfds.data_source`, pictures left as files. Raises ImportError, FileNotFoundError, ValueError."""
        tfds = import_tfds()
        builder = self._builder(tfds)
        missing = [key for key in self.keys if key not in builder.info.features]
        if missing:
            features = ", ".join(builder.info.features)
            raise ValueError(f"{self.dataset}: no feature {missing[0]!r}; name three of {features} as keys")
        skip = {key: tfds.decode.SkipDecoding() for key in self.keys}
        return builder.as_data_source(split=self.split, decoders=skip)

    def __len__(self) -> int:
        return len(self.records)

    def name(self, index: int) -> str:
        return f"{self.dataset} {self.split} {index}"

    def encoded(self, index: int) -> Encoded:
        record = self.records[index]
        x0, y, x1 = (record[key] for key in self.keys)
        return Encoded(self.name(index), (x0, y, x1), float(record.get("time", 0.5)))

    def _builder(self, tfds: Any) -> Any:
        if (Path(self.dataset) / "dataset_info.json").is_file():
            return tfds.builder_from_directory(self.dataset)
        if Path(self.dataset).is_dir():
            raise FileNotFoundError(
                f"{self.dataset}: no dataset_info.json in it; give `film prepare` again to finish it"
            )
        try:
            return tfds.builder(self.dataset, data_dir=self.data_dir)
        except tfds.core.DatasetNotFoundError as error:  # whose message lists all the names there are
            way = "give a folder that `film prepare` wrote, or a name under data_dir"
            raise FileNotFoundError(
                f"{self.dataset}: no such folder, and no data set that tfds knows: {way}"
            ) from error


@dataclass(frozen=True)
class CutTriplets(Source):
    """The three frames of each patch in a folder of `film.data.cutting` (8 bits, square), without flow."""

    folder: str | Path

    @cached_property
    def patches(self) -> Any:
        from film.data.triplet_batches import (
            TripletPatches,  # here: it brings grain, for which `film prepare` would wait
        )

        return TripletPatches(self.folder)

    def __len__(self) -> int:
        return len(self.patches)

    def name(self, index: int) -> str:
        return f"{self.folder} patch {index}"

    def frames(self, index: int) -> Frames:
        return Frames(self.name(index), np.asarray(self.patches[index]["images"]))

    def encoded(self, index: int) -> Encoded:
        x0, y, x1 = (encode(np.ascontiguousarray(image)) for image in self.frames(index).images)
        return Encoded(self.name(index), (x0, y, x1))


def import_tfds() -> Any:
    """The package tensorflow-datasets, imported when needed: it takes two seconds. Raises ImportError."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(f"tensorflow-datasets is not installed: {EXTRA}") from error
    return tensorflow_datasets
