"""Batches of a prepared folder, which `recipes.captioned_pictures` and `recipes.shapes` write (`batches`).

Each time an image comes by, its caption is composed anew:

    ""                           with probability `drop`
    "red apple, 3d emoji"        label and style
    "red apple, fruit, 3d emoji" with a tag, with probability `tag`
    "red apple"                  without the style, with probability `plain`, as a prompt need not name one

With `states`, the text states of whole captions [b n d], float16, replace the tokens.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.checked import NotNegative, Positive, Share
from common.io.clip_tokenizer import Tokenizer
from plugins.data.batches import Batch, PictureBatches
from plugins.data.captioned import CaptionedPictures, caption
from plugins.data.latent_cache import STATES, Cache


@dataclass(frozen=True)
class CaptionedConfig(PictureBatches):
    """Prepared images in batches; further options as `PictureBatches`. `split`: train, unseen, unseen_style or test."""

    folder: str = "data/captioned64"
    tokenizer: str | None = None  # folder of a CLIP vocabulary; None: the one in `folder`
    tag: Share = 0.3  # probability of a tag in the caption
    plain: Share = 0.1  # probability of no style in it
    plain_styles: Sequence[str] = ()  # styles to leave out; none: all. This and `repeat` change the split train alone
    mirror: bool = field(default=True, kw_only=True)
    threads: Positive = field(default=1, kw_only=True)
    # {group or style: n}: an image comes n times an epoch, by both their product; 1 where not listed, 0 leaves it out
    repeat: Mapping[str, NotNegative] = field(default_factory=dict)
    states: bool = False  # read text states from `latents`; they are of whole captions, so `tag` and `plain` must be 0

    def rules(self):
        whole = not self.states or (self.latents is not None and not self.tag and not self.plain)
        yield whole, "states are read from the folder latents, for whole captions: set tag=0 and plain=0"

    @functools.cached_property
    def source(self) -> CaptionedPictures:
        return CaptionedPictures(self.folder)

    @functools.cached_property
    def ids(self) -> list[int]:
        ids, entries = self.source.split(self.split), self.source.entries
        if self.split != "train":
            return ids
        kinds = {number: (entries[number].get("group", ""), entries[number]["style"]) for number in ids}
        if unknown := set(self.repeat).union(self.plain_styles).difference(*kinds.values()):
            raise ValueError(f"{min(unknown)!r} is no group or style of split {self.split!r} of {self.folder}")
        times = {kind: math.prod(self.repeat.get(name, 1) for name in kind) for kind in set(kinds.values())}
        return [number for number in ids for _ in range(times[kinds[number]])]

    @functools.cached_property
    def text(self) -> Tokenizer:
        return Tokenizer.from_folder(self.tokenizer or Path(self.folder) / "tokenizer")

    @functools.cached_property
    def cache(self) -> Cache | None:
        return None if self.latents is None else Cache(Path(self.latents), self.source, states=self.states)

    def compose(self, label: str, style: str, tags: Sequence[str], rng: np.random.Generator) -> str:
        """A random caption (module docstring)."""
        dropped, plain, tagged = rng.random(3) < (self.drop, self.plain, self.tag)
        plain = plain and (not self.plain_styles or style in self.plain_styles)
        if dropped:
            return ""
        return caption(label, "" if plain else style, str(rng.choice(list(tags))) if tagged and tags else "")

    def _draw(self, number: int, rng: np.random.Generator) -> tuple[str, bool]:
        entry = self.source.entries[number]
        flip = bool(self.mirror and entry["mirror"] and rng.random() < 0.5)
        return self.compose(entry["label"], entry["style"], entry["tags"], rng), flip

    def _text_inputs(self, number: int, caption: str) -> Batch:
        if self.states and self.cache is not None:
            return {"states": np.array(self.cache.arrays[STATES][number if caption else -1])}
        return super()._text_inputs(number, caption)
