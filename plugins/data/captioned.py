"""Prepared folders of captioned images: what `recipes.captioned_pictures` and `recipes.shapes` write.

A folder holds `images.npy` uint8 [n s s 3] and `index.json`, {"pictures": [{label, style, tags, mirror, split, ...}]};
`mirror`: the caption fits the mirror image too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SIDED = {"left", "right", "leftwards", "rightwards", "east", "west", "clockwise", "counterclockwise", "anticlockwise"}


class CaptionedPictures:
    """One split of a prepared folder, None: all; pixels stay on disk until they are accessed.

    An example is `image` uint8 [s s 3] and `id`, its number in the folder.
    Raises FileNotFoundError for another folder, ValueError for an unknown split.
    """

    def __init__(self, folder: str | Path, split: str | None) -> None:
        folder = Path(folder)
        if not (folder / "index.json").is_file():
            raise FileNotFoundError(
                f"{folder}: no captioned images here; `python -m recipes.captioned_pictures` writes them"
            )
        self.entries: list[dict[str, Any]] = json.loads((folder / "index.json").read_text("utf-8"))["pictures"]
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        if len(self.images) != len(self.entries):
            raise ValueError(f"{folder}: {len(self.images)} images, {len(self.entries)} captions: prepare it again")
        self.ids = [i for i, entry in enumerate(self.entries) if split in (None, entry["split"])]
        if not self.ids:
            known = ", ".join(sorted({entry["split"] for entry in self.entries}))
            raise ValueError(f"split {split!r} is not in {folder}: choose {known}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[self.ids[index]], "id": np.int64(self.ids[index])}

    def caption(self, index: int) -> str:
        """The whole caption: label and style."""
        entry = self.entries[self.ids[index]]
        return caption(entry["label"], entry["style"])


def caption(label: str, style: str = "", tag: str = "") -> str:
    """A prompt as users type it: "red apple, fruit, 3d emoji"; fields may be empty."""
    return ", ".join(field for field in (label, tag, style) if field)


def is_sided(text: str) -> bool:
    """Whether a label tells left from right."""
    return not SIDED.isdisjoint(text.lower().replace("-", " ").split())
