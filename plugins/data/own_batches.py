"""Pictures of a user's own in batches: for a control's training, and without conditions for a base's.

A batch of b pictures, cut and resized to squares of s pixels, with captions of at most n tokens:

    image       float32 [b s s 3]   RGB in [0, 1]
    tokens      int32   [b n]       start, caption, end, padding; one of the picture's captions at random, or ""
    id          int64   [b]         number of the picture in its source, whatever the split: `names` tells what it is
    condition   float32 [b s s 3]   in [0, 1], if one is asked for

Those are the batches of `plugins/data/controlled_batches.py`. A condition is the one stored beside the picture, of
which the same part is cut out (`plugins/data/crop.py`), or is made of what the batch shows of the picture. Both are mirrored with
it, so that left stays left (`plugins/conditions/mirror.py`). With a cache (`plugins/data/latent_cache.py --size`),
`latents_mean` and `latents_std` [b h w c] come in the place of the image.

Held-out pictures are chosen by a hash of their keys: the same ones for every seed and on every machine, and a picture
that is added later moves no other. The same seed gives the same batches, for any number of threads and processes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grain
import numpy as np
from jaxtyping import Float

from common.training.batches import batches
from plugins.conditions.mirror import PLAIN, SIDED, mirror
from plugins.conditions.registry import CONDITIONS
from plugins.data.captioned import is_sided
from plugins.data.controlled_batches import check_condition, make_condition
from plugins.data.crop import cut, square
from plugins.data.latent_cache import Cache
from plugins.data.opening import open_source
from plugins.data.record import Record, Source
from plugins.diffusion.io.pretrained import find
from plugins.diffusion.io.tokenizer import Tokenizer

Example = dict[str, Any]
Split = Literal["train", "unseen", "all"]


@dataclass(frozen=True)
class OwnPicturesConfig:
    """A source of pictures in batches.

    Attributes:
      path: what `plugins.data.open_source` opens, or one of its sources.
      split: train, unseen (what is held out) or all. unseen: the share that is held out.
      size: side of the squares, in pixels.
      crop: centre, or random along the longer side.
      mirror: flip every second picture; never one whose caption tells left from right.
      condition: its kind; None: there is none, for a base's training.
      stored: True: the pictures' own condition pictures, False: made of the pictures, None: own where there is one.
      options: of the condition that is made. vary: options drawn anew each time, between two numbers: {low: [50, 150]}.
      drop: probability of an empty caption.
      latents: folder that `plugins.data.latent_cache` wrote of this source at this size; None: pictures themselves.
      tokenizer: a folder with a CLIP vocabulary, a base, or a shipped base's name; None: the shipped one.
      length: tokens of a caption, start and end included; the base's text encoder has a most.
      batch_size: pictures per batch, over all processes.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    path: str | Source
    split: Split = "train"
    unseen: float | int = 0.05
    size: int = 64
    crop: Literal["centre", "random"] = "centre"
    mirror: bool = False
    condition: str | None = None
    stored: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    drop: float | int = 0.1
    latents: str | None = None
    tokenizer: str | None = None
    length: int = 24
    batch_size: int = 64
    threads: int = 2
    buffer: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for values that suit no data set."""
        least = dict(size=self.size, batch_size=self.batch_size, threads=self.threads, buffer=self.buffer)
        if min(least.values()) < 1 or self.length < 3:
            values = ", ".join(f"{name} {value}" for name, value in least.items())
            raise ValueError(f"{values} must be 1 or more, length {self.length} 3 or more")
        if not (0 <= self.drop <= 1 and 0 <= self.unseen < 1):
            raise ValueError(f"drop {self.drop} has to be in [0, 1], unseen {self.unseen} in [0, 1): they are shares")
        if self.latents is not None and self.crop != "centre":
            raise ValueError(f"latents are of the middle of each picture, crop is {self.crop!r}: set crop=centre")
        if self.condition is None:
            return
        if self.condition in CONDITIONS:
            check_condition(self.condition, self.options, self.vary)
        elif not self.stored or self.options or self.vary:
            raise ValueError(
                f"condition {self.condition!r} cannot be made of a picture, as {', '.join(CONDITIONS)} can: store it"
                " beside the pictures and set stored=true, without options and vary"
            )
        if self.mirror and self.condition not in (*SIDED, *PLAIN):
            known = ", ".join(sorted((*SIDED, *PLAIN)))
            raise ValueError(f"how to mirror {self.condition!r} is not known, but for {known}: set mirror=false")

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (defaults: what JAX says).

        Raises FileNotFoundError, ImportError (no source, no vocabulary), ValueError (an empty split, a condition that
        is not stored, a batch that is larger than the split or cannot be divided)."""
        pictures, *_ = self.pictures, self.text, self.cache  # fails early on missing files
        if self.batch_size > len(pictures):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(pictures)} pictures there are: lower it")
        if self.condition is not None and self.stored:
            for index in range(len(pictures)):
                self._stored(pictures.record(index), self.condition)
        # Numbers, not pictures: where each is cut is drawn before it is made smaller.
        dataset = grain.MapDataset.range(len(pictures)).seed(seed).shuffle().repeat().random_map(self._prepare)
        return batches(dataset, self.batch_size, self.threads, self.buffer, process_index, process_count)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """What the pictures with these ids are."""
        return [f"{self.path} picture {number}: {self.pictures.source[int(number)].key}" for number in ids]

    @functools.cached_property
    def pictures(self) -> OwnPictures:
        source = open_source(self.path) if isinstance(self.path, str) else self.path
        return OwnPictures(source, self.split, self.unseen, self.size)

    @functools.cached_property
    def text(self) -> Tokenizer:
        """The captions' tokenizer."""
        return Tokenizer.from_folder(find(self.tokenizer))

    @functools.cached_property
    def cache(self) -> Cache | None:
        """Latents of the images, computed once."""
        if self.latents is None:
            return None
        cache = Cache(Path(self.latents), len(self.pictures.source))
        if (size := cache.about.get("size")) != self.size:
            raise ValueError(f"{self.latents}: latents of {size} pixels a side, size is {self.size}; cache again")
        return cache

    def conditioned(
        self, example: Example, flip: bool = False, rng: np.random.Generator | None = None
    ) -> Float[np.ndarray, "h w 3"]:
        """The condition of one example of `pictures`; without `rng`, varied options stand in the middle.

        Raises ValueError, with the picture's key, when it is missing, does not fit or cannot be made."""
        record, kind = example["record"], self.condition
        if kind is None:
            raise ValueError("condition is null: name one, such as condition=canny")
        stored = self._stored(record, kind)
        try:
            if stored is None:
                return make_condition(kind, example["image"], flip, rng, self.options, self.vary)
            whole = stored.decode()
            part = cut(whole, example["frame"].within(whole.shape), self.size).astype(np.float32) / 255
            return mirror(kind, part) if flip else part
        except ValueError as error:
            raise ValueError(f"picture {record.key}: {error}") from error

    def _stored(self, record: Record, kind: str) -> Any:
        """Where the condition of a picture is stored; None: make it. Raises ValueError when it should be there."""
        found = None if self.stored is False else record.condition(kind)
        if found is None and self.stored:
            there = ", ".join(record.stored) or "none at all"
            hint = "store it, or set stored=null to have it made" if kind in CONDITIONS else "store it"
            raise ValueError(f"picture {record.key} has no stored condition {kind!r} (it has {there}): {hint}")
        return found

    def _prepare(self, index: int | np.integer, rng: np.random.Generator) -> Example:
        record, number = self.pictures.record(int(index)), self.pictures.ids[index]
        captions = record.captions
        caption = captions[rng.integers(len(captions))] if captions else ""
        flip = bool(self.mirror and rng.random() < 0.5 and not is_sided(caption))
        tokens = self.text("" if rng.random() < self.drop else caption, self.length)[0]
        batch: Example = {"tokens": tokens, "id": np.int64(number)}
        if self.cache is not None:
            place = number, int(flip)
            batch |= {"latents_mean": np.array(self.cache.mean[place]), "latents_std": np.array(self.cache.std[place])}
            if self.condition is None:
                return batch
        example = self.pictures.example(int(index), rng if self.crop == "random" else None)
        if self.cache is None:
            batch["image"] = (example["image"][:, ::-1] if flip else example["image"]).astype(np.float32) / 255
        return batch if self.condition is None else batch | {"condition": self.conditioned(example, flip, rng)}


class OwnPictures:
    """One split of a source, as squares.

    Item: image uint8 [s s 3] out of the middle, frame (what was cut out), id (number in the source), record.
    Raises ValueError when nothing is in the split.
    """

    def __init__(self, source: Source, split: Split, unseen: float | int, size: int) -> None:
        self.source, self.size = source, size
        held = [split != "all" and share(source[index].key) < unseen for index in range(len(source))]
        self.ids = [index for index, out in enumerate(held) if out == (split == "unseen")]
        if not self.ids:
            hint = "raise unseen" if split == "unseen" else "lower unseen"
            raise ValueError(
                f"split {split!r} is empty: unseen {unseen} of {len(source)} pictures; {hint}, or add some"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        return self.example(index)

    def example(self, index: int, rng: np.random.Generator | None = None) -> Example:
        """The item; with `rng` cut out anywhere."""
        record = self.record(index)
        image = record.image
        frame = square(image.shape, rng)
        return {
            "image": cut(image, frame, self.size),
            "frame": frame,
            "id": np.int64(self.ids[index]),
            "record": record,
        }

    def record(self, index: int) -> Record:
        return self.source[self.ids[index]]

    def caption(self, index: int) -> str:
        """The first caption; "" if there is none."""
        return next(iter(self.record(index).captions), "")


def share(key: str) -> float:
    """A number in [0, 1) that hangs on the key alone, evenly spread."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest(), "big") / 2**48
