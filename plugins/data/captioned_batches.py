"""Captioned images in batches, for training the small diffusion base: an endless stream of images and tokens.

A batch of b pictures of s pixels, captions of at most n tokens:

    image    float32 [b s s 3]   RGB in [0, 1]
    tokens   int32   [b n]       start, caption, end, padding (`plugins.diffusion.io.tokenizer`)
    id       int64   [b]         number of the picture in its folder: `names` tells what it is

With a cache (`cache.py`), `latents_mean` and `latents_std` [b h w c] come in the place of the image, and, if asked for,
`states` [b n d] in the place of tokens; both float16.

The folder is one that `recipes.captioned_pictures` writes. Each time
an image comes by, its caption is composed anew:

    ""                           with probability `drop`: the unconditional half of classifier-free guidance
                                 (Ho and Salimans, 2022, section 3.2)
    "red apple, 3d emoji"        label and style
    "red apple, fruit, 3d emoji" with a tag, with probability `tag`
    "red apple"                  without the style, with probability `plain`: a prompt need not name one

and it is mirrored every second time where left and right mean nothing. The same seed gives the same batches; the state
of the iterator is small and plain, and after `set_state` the very next batch follows.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np

from common.training.batches import batches
from plugins.data.captioned import caption
from plugins.data.latent_cache import Cache
from plugins.diffusion.io.tokenizer import Tokenizer

Example = dict[str, Any]


class CaptionedPictures:
    """Random access to one split of a folder of captioned pictures; pixels stay on disk until they are asked for.

    Item: image uint8 [s s 3], id (number in the folder), label, style, tags, mirror.
    Raises FileNotFoundError when the folder is not such a folder, ValueError when it has no such split.
    """

    def __init__(self, folder: str | Path, split: str) -> None:
        folder = Path(folder)
        if not (folder / "index.json").is_file():
            raise FileNotFoundError(
                f"{folder}: no captioned pictures here; `python -m recipes.captioned_pictures` writes them"
            )
        self.entries: list[Example] = json.loads((folder / "index.json").read_text("utf-8"))["pictures"]
        self._images = np.load(folder / "images.npy", mmap_mode="r")
        if len(self._images) != len(self.entries):
            raise ValueError(f"{folder}: {len(self._images)} pictures, {len(self.entries)} captions: prepare it again")
        self.ids = [number for number, entry in enumerate(self.entries) if entry["split"] == split]
        if not self.ids:
            there = ", ".join(sorted({entry["split"] for entry in self.entries}))
            raise ValueError(f"split {split!r} is not in {folder}: choose {there}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        number = self.ids[index]
        fields = {name: self.entries[number][name] for name in ("label", "style", "tags", "mirror")}
        return {"image": self._images[number], "id": np.int64(number), **fields}

    def caption(self, index: int) -> str:
        """The whole caption: label and style."""
        entry = self.entries[self.ids[index]]
        return caption(entry["label"], entry["style"])


@dataclass(frozen=True)
class CaptionedConfig:
    """Captioned pictures in batches.

    Attributes:
      folder: written by `recipes.captioned_pictures`.
      split: train, unseen, unseen_style or test.
      tokenizer: folder of a CLIP vocabulary; None: the one in `folder`.
      batch_size: pictures per batch, over all processes. length: tokens of a caption, start and end included.
      drop, tag, plain: probabilities of an empty caption, of a tag in it, of no style in it.
      mirror: flip pictures where it does not matter.
      latents: folder that `cache.py` wrote; None: pictures themselves.
      states: text states from there; they are of whole captions, so `tag` and `plain` have to be 0.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    folder: str = "data/captioned64"
    split: str = "train"
    tokenizer: str | None = None
    batch_size: int = 64
    length: int = 24
    drop: float | int = 0.1
    tag: float | int = 0.3
    plain: float | int = 0.1
    mirror: bool = True
    latents: str | None = None
    states: bool = False
    threads: int = 1
    buffer: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for values that suit no data set."""
        least = min(self.batch_size, self.threads, self.buffer)
        if least < 1 or self.length < 3:
            raise ValueError(
                f"batch_size {self.batch_size}, threads {self.threads}, buffer {self.buffer} must be 1 or more,"
                f" length {self.length} 3 or more"
            )
        if not all(0 <= share <= 1 for share in (self.drop, self.tag, self.plain)):
            raise ValueError(f"drop {self.drop}, tag {self.tag}, plain {self.plain} are probabilities: keep to [0, 1]")

        if self.states and (self.latents is None or self.tag or self.plain):
            raise ValueError("states are read from the folder latents, for whole captions: set tag=0 and plain=0")

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (defaults: what JAX says).

        Raises FileNotFoundError (no pictures, no vocabulary), ValueError (no such split, a batch that is larger than
        the split or cannot be divided)."""
        pictures = self.pictures
        if self.batch_size > len(pictures):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(pictures)} pictures there are: lower it")
        # What is missing is told now.
        _ = self.text, self.cache and self.states and self.cache.states
        dataset = grain.MapDataset.source(pictures).seed(seed).shuffle().repeat().random_map(self._prepare)
        return batches(dataset, self.batch_size, self.threads, self.buffer, process_index, process_count)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the pictures with these ids are."""
        entries = self.pictures.entries
        return [f"{self.folder} picture {number}: {entries[int(number)]['label']}" for number in ids]

    @functools.cached_property
    def pictures(self) -> CaptionedPictures:
        return CaptionedPictures(self.folder, self.split)

    @functools.cached_property
    def text(self) -> Tokenizer:
        """The captions' tokenizer."""
        return Tokenizer.from_folder(self.tokenizer or Path(self.folder) / "tokenizer")

    @functools.cached_property
    def cache(self) -> Cache | None:
        """Outputs of frozen networks on the images, computed once."""
        return None if self.latents is None else Cache(Path(self.latents), len(self.pictures.entries))

    def _prepare(self, example: Example, rng: np.random.Generator) -> Example:
        flip = bool(self.mirror and example["mirror"] and rng.random() < 0.5)
        text = self.draw(example["label"], example["style"], example["tags"], rng)
        return {**self._picture(example, flip, rng), **self._text_inputs(example, text), "id": example["id"]}

    def _picture(self, example: Example, flip: bool, rng: np.random.Generator) -> Example:
        if self.cache is None:
            image = example["image"][:, ::-1] if flip else example["image"]
            return {"image": image.astype(np.float32) / 255}
        place = int(example["id"]), int(flip)
        return {"latents_mean": np.array(self.cache.mean[place]), "latents_std": np.array(self.cache.std[place])}

    def _text_inputs(self, example: Example, text: str) -> Example:
        if self.states and self.cache is not None:
            return {"states": np.array(self.cache.states[int(example["id"]) if text else -1])}
        return {"tokens": self.text(text, self.length)[0]}

    def draw(self, label: str, style: str, tags: Sequence[str], rng: np.random.Generator) -> str:
        """One of the captions of the module's docstring."""
        dropped, plain, tagged = rng.random(3) < (self.drop, self.plain, self.tag)
        if dropped:
            return ""
        tag = str(rng.choice(list(tags))) if tagged and tags else ""
        return caption(label, "" if plain else style, tag)
