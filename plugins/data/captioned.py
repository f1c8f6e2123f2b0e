"""Prepared folders of captioned images: what `recipes.captioned_pictures` and `recipes.shapes` write.

A folder holds `images.npy` uint8 [n s s 3] and `index.json`, {"pictures": [{label, style, tags, mirror, split, ...}]};
`mirror`: the caption fits the mirror image too.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from common.data.stored import Stored
from common.io.arrays import check_whole, mapped
from common.io.tensor_files import read_json
from plugins.data.record import Record, Source

INDEX, IMAGES = "index.json", "images.npy"
SIDED = {"left", "right", "leftward", "rightward", "leftwards", "rightwards", "east", "west"}
SIDED |= {"clockwise", "counterclockwise", "anticlockwise"}


@dataclass(frozen=True)
class CaptionedPictures(Source):
    """All images of a prepared folder; a record's caption is label and style."""

    folder: str | Path

    @functools.cached_property
    def entries(self) -> list[dict[str, Any]]:
        """The metadata. Raises FileNotFoundError for another folder."""
        index = Path(self.folder) / INDEX
        if not index.is_file():
            raise FileNotFoundError(f"{self.folder}: no images; `python -m recipes.captioned_pictures` writes them")
        pictures = read_json(index).get("pictures")
        if not isinstance(pictures, list) or not all(isinstance(one, dict) for one in pictures):
            raise ValueError(f"{index} lists no pictures; prepare the folder again")
        return pictures

    @functools.cached_property
    def images(self) -> UInt8[np.ndarray, "n s s 3"]:
        """Pixels, on disk until they are accessed. Raises ValueError for other than one image an entry."""
        count, images = len(self.entries), mapped(Path(self.folder) / IMAGES)
        if len(images) != count:
            raise ValueError(f"{self.folder}: {len(images)} images, {count} captions: prepare it again")
        return images

    def split(self, name: str) -> list[int]:
        """The indices of a split. Raises ValueError for an unknown one."""
        if found := [index for index, entry in enumerate(self.entries) if entry["split"] == name]:
            return found
        known = ", ".join(sorted({entry["split"] for entry in self.entries}))
        raise ValueError(f"split {name!r} is not in {self.folder}: choose {known}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Record:
        entry = self.entries[index]
        return Record(entry["label"], Pixels(self, index), (caption(entry["label"], entry["style"]),))


@dataclass(frozen=True)
class Pixels(Stored):
    """An image of a prepared folder."""

    source: CaptionedPictures
    index: int

    @property
    def name(self) -> str:
        return f"{self.source.folder} picture {self.index}: {self.source.entries[self.index]['label']}"

    def read(self) -> bytes:
        return self.decode().tobytes()

    def decode(self) -> UInt8[np.ndarray, "h w 3"]:
        check_whole(self.source.images)
        return self.source.images[self.index]


def caption(label: str, style: str = "", tag: str = "") -> str:
    """A prompt as users type it: "red apple, fruit, 3d emoji"; fields may be empty."""
    return ", ".join(field for field in (label, tag, style) if field)


def is_sided(text: str) -> bool:
    """Whether a label distinguishes left and right."""
    return not SIDED.isdisjoint(re.findall("[a-z]+", text.lower()))
