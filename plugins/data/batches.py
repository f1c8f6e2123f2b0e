"""Batches of captioned images, with a condition image for a control's training or without for a base's.

A batch of b images of s pixels, captions of at most n tokens:

    image       float32 [b s s 3]   RGB in [0, 1]
    tokens      int32   [b n]       start, caption, end, padding (`common.io.clip_tokenizer`)
    id          int64   [b]         number of the image in its source, whatever the split; `names` gives its name
    condition   float32 [b s s 3]   in [0, 1], if `condition` names a kind (`plugins.conditions`)

A condition is made of the image in the batch, so it always fits. With a cache (`latent_cache`), `latents_mean` and
`latents_std` [b h w c], float16, replace the image. Empty captions are the unconditional half of classifier-free
guidance (Ho and Salimans, 2022, section 3.2).

The same seed gives the same batches for any number of threads and processes; after `set_state` the very next follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import grain
import numpy as np
from jaxtyping import Float, UInt8

from common.checked import Number, Positive, Rule, Share, whole
from common.io.clip_tokenizer import Tokenizer
from common.io.images import from_uint8
from common.training.batches import Batched, Readable
from plugins.conditions.registry import make, maker_of
from plugins.data.crop import Frame
from plugins.data.latent_cache import Cache
from plugins.data.record import Record, Source

Batch = dict[str, Any]
Image = Float[np.ndarray, "h w 3"]


class Example(NamedTuple):
    """A record's image, as a square in `frame`; None: the whole image."""

    record: Record
    image: UInt8[np.ndarray, "s s 3"]
    frame: Frame | None = None


ENDS = Rule(lambda ends: len(ends) == 2 and ends[0] <= ends[1], "the lowest and the highest value")
Range = Annotated[Sequence[Number], ENDS]


@dataclass(frozen=True, kw_only=True)
class PictureBatches(Batched):
    """The options that all sources share."""

    split: str = "train"  # of the source
    condition: str | None = None  # a kind of `plugins.conditions.registry`; None: no condition images
    options: Mapping[str, Any] = field(default_factory=dict)  # of the condition
    vary: Mapping[str, Range] = field(default_factory=dict)  # {low: [50, 150]}: drawn uniformly for each image
    drop: Share = 0.1  # probability of an empty caption
    mirror: bool = False  # flip every second image, where the caption allows it
    latents: str | None = None  # folder that `plugins.data.latent_cache` wrote; None: images
    strict: bool = False  # a damaged image, or one without the condition, is an error; else the next one is taken
    length: Annotated[int, whole(3)] = 24  # tokens of a caption, start and end included
    batch_size: Positive = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_condition()

    def _check_condition(self) -> None:
        if self.condition is not None:
            maker_of(self.condition, [*self.options, *self.vary])

    # What subclasses give: the source, the indices of the split's images in it, the tokenizer, and the latents' cache.
    source: ClassVar[Source]
    ids: ClassVar[list[int]]
    text: ClassVar[Tokenizer]
    cache: ClassVar[Cache | None]

    def _draw(self, number: int, rng: np.random.Generator) -> tuple[str, bool]:
        """A random caption of an image, and whether to flip it."""
        raise NotImplementedError

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """The names of the images with these ids."""
        return [self.source[int(number)].stored.name for number in ids]

    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed. Raises FileNotFoundError, ImportError for missing files or extras;
        ValueError for an empty split, or a batch that is larger than the split."""
        ids, *_ = self.ids, self.text, self.cache  # fails early on missing files
        readable = Readable(len(ids), self._prepare, lambda index: f"number {ids[index]}", self.strict)
        if self.batch_size > len(ids):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(ids)} images of the split: lower it")
        return grain.MapDataset.range(len(ids)).seed(seed).shuffle().repeat().random_map(readable.get)

    def example(self, number: int, rng: np.random.Generator | None = None) -> Example:
        """An image of the source; with `rng` its crop may be random."""
        record = self.source[number]
        return Example(record, record.image)

    def conditioned(self, example: Example, flip: bool = False, rng: np.random.Generator | None = None) -> Image:
        """The condition of an example; without `rng`, varied options take the middle of their range."""
        drawn = {name: float((a + b) / 2 if rng is None else rng.uniform(a, b)) for name, (a, b) in self.vary.items()}
        return make(str(self.condition), as_float(example.image, flip), **self.options, **drawn)

    def _prepare(self, index: int, rng: np.random.Generator) -> Batch:
        number = self.ids[index]
        caption, flip = self._draw(number, rng)
        batch = {"id": np.int64(number), **self._text_inputs(number, caption)}
        if self.cache is not None:
            batch |= self.cache.latents(number, flip)
            if self.condition is None:
                return batch
        example = self.example(number, rng)
        if self.cache is None:
            batch["image"] = as_float(example.image, flip)
        return batch if self.condition is None else batch | {"condition": self.conditioned(example, flip, rng)}

    def _text_inputs(self, number: int, caption: str) -> Batch:
        return {"tokens": self.text(caption, self.length)[0]}


def as_float(image: UInt8[np.ndarray, "h w 3"], flip: bool) -> Image:
    """The image in [0, 1], flipped left to right if `flip`."""
    return from_uint8(image[:, ::-1] if flip else image)
