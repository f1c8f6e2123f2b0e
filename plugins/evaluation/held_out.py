"""The held-out images that controls are compared on: always the same ones, with captions and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from common.io.images import contact_sheet
from plugins.data.controlled_batches import ControlledConfig
from plugins.data.own_batches import OwnPicturesConfig

Images = Float[np.ndarray, "n h w 3"]


class HeldOut(NamedTuple):
    """Images in [0, 1], the caption of each, and the condition made of each."""

    images: Images
    prompts: list[str]
    conditions: Images

    def first(self, count: int) -> HeldOut:
        return HeldOut(self.images[:count], self.prompts[:count], self.conditions[:count])


def held_out(data: ControlledConfig | OwnPicturesConfig, count: int) -> HeldOut:
    """The first images of the split in a fixed random order; fewer than `count` if the split has no more."""
    source = data.pictures
    chosen = np.random.default_rng(0).permutation(len(source))[:count]
    examples = [source[int(i)] for i in chosen]
    images = np.stack([example["image"] for example in examples]).astype(np.float32) / 255
    conditions = np.stack([data.conditioned(example) for example in examples])
    return HeldOut(images, [source.caption(int(i)) for i in chosen], conditions)


def sheet(columns: Mapping[str, Images], rows: int) -> Float[np.ndarray, "_h _w 3"]:
    """The first images of each column, under its name."""
    rows = min(rows, *map(len, columns.values()))
    cells = [images[i] for i in range(rows) for images in columns.values()]
    return contact_sheet(cells, columns=len(columns), labels=[*columns, *[""] * (len(cells) - len(columns))])
