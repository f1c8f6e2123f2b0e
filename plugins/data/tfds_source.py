"""Images of tensorflow-datasets, by random access (`tfds.data_source`); TensorFlow itself is not needed.

    TfdsPictures("coco_captions", caption="captions/text")
    TfdsPictures("tf_flowers", caption="label")                          its class names as captions
    TfdsPictures("data/mine", conditions={"depth": "depth_picture"})     a prepared folder, with dataset_info.json

The dataset must be prepared as ArrayRecord (`tfds build --file_format=array_record`). A nested feature is written with
a slash. A key is the record's number.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.data.stored import Stored
from plugins.data.record import Record, Source

INFO = "dataset_info.json"


@dataclass(frozen=True)
class TfdsPictures(Source):
    """One split of a dataset, and the names of its features."""

    dataset: str  # a name, `name:1.0.0`, or a prepared folder
    split: str = "train"  # or train[:90%]
    image: str = "image"
    caption: str | None = None  # texts or class labels; None: no captions
    conditions: Mapping[str, str] = field(default_factory=dict)  # by kind
    data_dir: str | None = None  # where tfds keeps prepared datasets, if not in its default folder

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:
        conditions = {kind: Cell(self, index, feature) for kind, feature in self.conditions.items()}
        texts = () if self.caption is None else functools.partial(self.texts, index)
        return Record(f"{index:08d}", Cell(self, index, self.image), texts, conditions)

    @functools.cached_property
    def builder(self) -> Any:
        """Raises FileNotFoundError for an unknown dataset."""
        import tensorflow_datasets as tfds  # takes two seconds

        if (Path(self.dataset) / INFO).is_file():
            return tfds.builder_from_directory(self.dataset)
        try:
            return tfds.builder(self.dataset, data_dir=self.data_dir)
        except (tfds.core.DatasetNotFoundError, ValueError) as error:  # their messages list all names, or none
            raise FileNotFoundError(f"{self.dataset}: no folder with {INFO}, and no dataset of tfds") from error

    @functools.cached_property
    def rows(self) -> Any:
        """The `tfds.data_source`, images left encoded. Raises as `builder`; ValueError for a missing feature."""
        images = [self.image, *self.conditions.values()]
        known = self.builder.info.features
        missing = [name for name in (*images, self.caption or self.image) if name.partition("/")[0] not in known]
        if missing:
            raise ValueError(f"{self.dataset}: no feature {missing[0]!r}; choose of {', '.join(sorted(known))}")
        import tensorflow_datasets as tfds

        decoders = dict.fromkeys(images, tfds.decode.SkipDecoding())
        try:
            return self.builder.as_data_source(split=self.split, decoders=decoders)
        except NotImplementedError as error:
            raise ValueError(f"{self.dataset} has no random access; prepare it as array_record") from error

    def texts(self, index: int) -> tuple[str, ...]:
        """The captions of one record."""
        assert self.caption is not None
        first, *inner = self.caption.split("/")
        found: Any = self.rows[index][first]
        for name in inner:
            found = [each[name] for each in found] if isinstance(found, list) else found[name]
        feature = self.builder.info.features[first]
        if hasattr(feature, "int2str"):
            return (feature.int2str(int(found)),)
        texts = [found] if isinstance(found, bytes | str) else list(found)
        return tuple(text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in texts)


@dataclass(frozen=True)
class Cell(Stored):
    """An encoded image in a record."""

    source: TfdsPictures
    index: int
    feature: str

    @property
    def name(self) -> str:
        return f"{self.source.dataset} {self.source.split} {self.index} feature {self.feature}"

    def read(self) -> bytes:
        return self.source.rows[self.index][self.feature]
