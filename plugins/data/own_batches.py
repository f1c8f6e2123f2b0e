"""Batches of a user's own images, from any source of `plugins.data`, cropped to squares (`batches`).

One of an image's captions is drawn at random. A condition is the one stored beside the image, of which the same part
is cropped (`crop`), or is made of the crop. Image and condition are flipped alike, so that left stays left. Held-out
images are chosen by a hash of their keys: the same everywhere, and an image that is added later moves no other.
"""

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import grain
import numpy as np

from common.checked import Positive, real
from common.data.stored import Stored
from common.io.clip_tokenizer import Tokenizer
from common.io.images import from_uint8
from plugins.conditions.registry import CONDITIONS, mirror
from plugins.data import open_source
from plugins.data.batches import Example, Image, PictureBatches
from plugins.data.captioned import is_sided
from plugins.data.crop import cut, square
from plugins.data.latent_cache import Cache
from plugins.data.record import Record, Source
from plugins.diffusion.io.base import read_tokenizer

Split = Literal["train", "unseen", "all"]


@dataclass(frozen=True)
class OwnPicturesConfig(PictureBatches):
    """A source of images in batches; further options as `PictureBatches`. `condition` may also be a kind of your own,
    with stored=True."""

    path: str | Source  # a path for `plugins.data.open_source`, or a source
    split: Split = field(default="train", kw_only=True)
    unseen: Annotated[float | int, real(0, below=1)] = 0.05  # the share that is held out
    size: Positive = 64  # side of the squares, in pixels
    crop: Literal["centre", "random"] = "centre"  # random: along the longer side. Latents are of the centre
    stored: bool | None = None  # True: the stored condition images, False: made of the images, None: stored if there
    tokenizer: str | None = None  # a base (folder, file, shipped name), or a vocabulary's folder; None: the shipped one

    def rules(self):
        yield self.latents is None or self.crop == "centre", "latents are of the centre of each image: set crop=centre"

    def _check_condition(self) -> None:
        if self.condition is None or self.condition in CONDITIONS:
            return super()._check_condition()
        known = ", ".join(CONDITIONS)
        if not self.stored or self.options or self.vary:
            hint = "store it beside the images and set stored=true, without options and vary"
            raise ValueError(f"condition {self.condition!r} cannot be made of an image, as {known} can: {hint}")
        if self.mirror:
            raise ValueError(f"a flip of {self.condition!r} is not known, only of {known}: set mirror=false")

    @functools.cached_property
    def source(self) -> Source:
        return open_source(self.path) if isinstance(self.path, str) else self.path

    @functools.cached_property
    def ids(self) -> list[int]:
        """Raises ValueError for an empty split."""
        count = len(self.source)
        held_out = [self.split != "all" and share(self.source[index].key) < self.unseen for index in range(count)]
        ids = [index for index, out in enumerate(held_out) if out == (self.split == "unseen")]
        if not ids:
            hint = f"{'raise' if self.split == 'unseen' else 'lower'} unseen, or add images"
            raise ValueError(f"split {self.split!r} is empty: unseen {self.unseen} of {count} images; {hint}")
        return ids

    @functools.cached_property
    def text(self) -> Tokenizer:
        return read_tokenizer(self.tokenizer)

    @functools.cached_property
    def cache(self) -> Cache | None:
        return None if self.latents is None else Cache(Path(self.latents), self.source, size=self.size)

    def dataset(self, seed: int) -> grain.MapDataset:
        """As `PictureBatches.dataset`; ValueError also for a missing condition image, if all have to be stored."""
        if self.condition is not None and self.stored:
            for number in self.ids:
                self._stored_condition(self.source[number], self.condition)
        return super().dataset(seed)

    def example(self, number: int, rng: np.random.Generator | None = None) -> Example:
        record = self.source[number]
        image = record.image
        frame = square(image.shape, rng if self.crop == "random" else None)
        return Example(record, cut(image, frame, self.size), frame)

    def conditioned(self, example: Example, flip: bool = False, rng: np.random.Generator | None = None) -> Image:
        """As `PictureBatches.conditioned`, or the stored one. ValueError names the image's key."""
        record, kind, frame = example.record, self.condition, example.frame
        stored = None if kind is None else self._stored_condition(record, kind)
        try:
            if kind is None or stored is None or frame is None:
                return super().conditioned(example, flip, rng)
            whole = stored.decode()
            part = from_uint8(cut(whole, frame.within(whole.shape), self.size))
            return mirror(kind, part) if flip else part
        except ValueError as error:
            raise ValueError(f"picture {record.key}: {error}") from error

    def _stored_condition(self, record: Record, kind: str) -> Stored | None:
        """The record's condition image; None: make it. Raises ValueError if it has to be stored, and is not."""
        found = None if self.stored is False else record.condition(kind)
        if found is None and self.stored:
            kinds = ", ".join(record.conditions) or "none"
            hint = "store it, or set stored=null to have it made" if kind in CONDITIONS else "store it"
            raise ValueError(f"picture {record.key} has no stored condition {kind!r} (it has {kinds}): {hint}")
        return found

    def _draw(self, number: int, rng: np.random.Generator) -> tuple[str, bool]:
        captions = self.source[number].captions
        caption = captions[rng.integers(len(captions))] if captions else ""
        flip = bool(self.mirror and rng.random() < 0.5 and not is_sided(caption))
        return "" if rng.random() < self.drop else caption, flip


def share(key: str) -> float:
    """A number in [0, 1) that depends on the key alone, uniformly distributed."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest(), "big") / 2**48
