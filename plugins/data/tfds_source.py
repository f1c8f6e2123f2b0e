"""Images of tensorflow-datasets, by random access.

    TfdsPictures("coco_captions", caption="captions/text")
    TfdsPictures("tf_flowers", caption="label")                          its class names as captions
    TfdsPictures("data/mine", conditions={"depth": "depth_picture"})     a prepared folder, with dataset_info.json

The dataset must be prepared as ArrayRecord (`tfds build --file_format=array_record`). A nested feature is written with
a slash. A key is the record's number.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.data.stored import Stored
from common.data.tfds import open_rows
from plugins.data.record import Record, Source


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
    def rows(self) -> Any:
        """The `tfds.data_source`; raises as `open_rows`."""
        images, texts = [self.image, *self.conditions.values()], () if self.caption is None else (self.caption,)
        return open_rows(self.dataset, self.split, images, texts, self.data_dir)

    def texts(self, index: int) -> tuple[str, ...]:
        """The captions of one record."""
        assert self.caption is not None
        first, *inner = self.caption.split("/")
        found: Any = self.rows[index][first]
        for name in inner:
            found = [each[name] for each in found] if isinstance(found, list) else found[name]
        feature = self.rows.dataset_info.features[first]
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
