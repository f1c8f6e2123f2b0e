"""The processor of a CLIP or SigLIP: texts as ids of its tokenizer, images as its `preprocessor_config.json` says.

| file of the folder | what |
| --- | --- |
| `vocab.json` and `merges.txt`, or `tokenizer.json` | CLIP's byte pairs |
| `spiece.model` | SigLIP's pieces: lower case, no punctuation; end and padding have the same id |
| `tokenizer.json` | SigLIP 2's; lower case |
"""

import dataclasses
import hashlib
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from jaxtyping import Float, Int, UInt8

from common.io.clip_tokenizer import Tokenizer as ClipTokenizer
from common.io.image_preparation import HALF, ImagePreparation
from common.io.images import check_image, read_image, to_uint8
from common.nn.two_towers import TwoTowerConfig
from reveal.memory.items import Item, is_text
from reveal.processing.images import crops
from reveal.processing.processor import CUT, Row, text_of, usable_row
from reveal.sources.documents import origin_of
from reveal.sources.records import Skips

PUNCTUATION = str.maketrans("", "", string.punctuation)
SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
SEPARATOR = "."  # between the fields of an item, and the caption's
PIECES, JSON = "spiece.model", "tokenizer.json"
Encode = Callable[[str], list[int]]  # text -> ids, of any number


@dataclasses.dataclass(frozen=True, eq=False)
class TowerTokenizer:
    """Texts as rows of `length` ids, start and end included."""

    encode: Encode
    length: int
    padding: int
    end: int
    digest: str  # of the mapping

    def __call__(self, text: str) -> tuple[Int[np.ndarray, " n"], int]:
        """The ids, cut if they are too many, and how many there would have been; of no text all are 0."""
        row = np.full(self.length, self.padding, np.int32)
        if not text.strip():
            return 0 * row, 0
        ids = self.encode(text)
        row[: len(ids)] = [*ids[: self.length - 1], self.end] if len(ids) > self.length else ids
        return row, len(ids)


def tokenizer_of(folder: Path, config: TwoTowerConfig) -> TowerTokenizer:
    """The tokenizer in a model's folder. Raises FileNotFoundError; ValueError for one with more ids than the tower."""
    if config.family == "clip":
        clip = ClipTokenizer.from_folder(folder)
        size, encode, padding, end = len(clip.vocab), clip.encode, clip.pad_id, clip.end_id
        digest = hashlib.sha256(repr((sorted(clip.vocab.items()), clip.merges)).encode()).hexdigest()
    elif (folder / PIECES).is_file():
        model = sentencepiece.SentencePieceProcessor()
        data = (folder / PIECES).read_bytes()
        model.LoadFromSerializedProto(data)
        size, padding = len(model), model.eos_id()
        end, digest = padding, hashlib.sha256(data).hexdigest()

        def encode(text: str) -> list[int]:
            return [*model.encode(" ".join(text.translate(PUNCTUATION).lower().split())), end]
    elif (folder / JSON).is_file():
        data = (folder / JSON).read_bytes()
        fast: Any = tokenizers.Tokenizer.from_buffer(data)
        fast.no_padding()
        fast.no_truncation()
        ids, digest = fast.get_vocab(), hashlib.sha256(data).hexdigest()
        size, end = len(ids), ids.get("<eos>", ids.get("</s>", 1))
        padding = ids.get("<pad>", end)

        def encode(text: str) -> list[int]:
            return fast.encode(text.lower()).ids
    else:
        raise FileNotFoundError(f"{folder} has neither {PIECES} nor {JSON}: copy the tokenizer's files too")
    if size > config.text.vocab_size:
        raise ValueError(f"{folder} has {size} tokens, the text tower {config.text.vocab_size}: take one model's")
    return TowerTokenizer(encode, config.text_length, padding, end, digest[:16])


@dataclasses.dataclass(frozen=True, eq=False)
class TwoTowerProcessor:
    """As `Processor`, for two towers; `answer_length` is that of a reader, in tokens.

    An item is as many views as `vectors`: the whole image and crops, the whole text and its first sentences."""

    tokenizer: TowerTokenizer
    preparation: ImagePreparation
    sources: tuple[str, ...]
    answer_length: int = 32
    vectors: int = 1

    @classmethod
    def of_folder(
        cls, folder: Path, config: TwoTowerConfig, sources: Sequence[str], vectors: int = 1
    ) -> "TwoTowerProcessor":
        """Raises as `tokenizer_of` and `ImagePreparation.from_json`."""
        side = config.vision.image_size
        siglip = ImagePreparation(side, crop=False, mean=HALF, std=HALF)
        default = siglip if config.family == "siglip" else ImagePreparation(side)
        preparation = ImagePreparation.of_folder(folder, side, default)
        return cls(tokenizer_of(folder, config), preparation, tuple(sources), vectors=vectors)

    @property
    def image_size(self) -> int:
        """Pixels of an image, so that the smallest view has as many as the tower."""
        return self.preparation.size * (1 + max(min(self.vectors, 2), math.ceil(math.sqrt(self.vectors - 1)))) // 2

    @property
    def item_length(self) -> int:
        return self.tokenizer.length

    def question(self, text: str) -> Int[np.ndarray, " n"]:
        """Ids. Raises ValueError for a text that is too long."""
        row, count = self.tokenizer(text)
        if count > self.tokenizer.length:
            raise ValueError(f"{text[:60]!r}... has {count} tokens, {self.tokenizer.length} are read: shorten it")
        return row

    def unknown(self, text: str) -> list[str]:
        return []

    def image(self, image: str | Path | Float[np.ndarray, "_h _w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """A question's image, a file or values in [0, 1]. Raises as `read_image`."""
        if isinstance(image, np.ndarray):
            check_image("the question's image", image)
        pixels = image if isinstance(image, np.ndarray) else read_image(image)
        return self.preparation.resized(to_uint8(pixels))

    def row(self, item: Item, skips: Skips) -> Row | None:
        """The ids and images of an item's views; None, and counted, if it cannot be used."""
        origin = origin_of(item)
        name = f"{origin['file']}, part {origin['part']}" if origin else f"item {item.id}"
        texts = list(dict.fromkeys([text_of(item, SEPARATOR), *sentences_of(item)]))[: self.vectors]
        tokens, counts = zip(*map(self.tokenizer, texts + [""] * (self.vectors - len(texts))), strict=True)
        if counts[0] > self.tokenizer.length:
            skips.note(f"{CUT} {self.tokenizer.length} tokens to find it by", name)

        def views(image: UInt8[np.ndarray, "_h _w 3"]) -> UInt8[np.ndarray, "v s s 3"]:
            return np.stack([self.preparation.resized(one) for one in (image, *crops(image, self.vectors - 1))])

        return usable_row(item, np.stack(tokens), views, name, skips)

    def batch(self, rows: Sequence[Row]) -> Mapping[str, np.ndarray]:
        """tokens, has_text, image and has_image of each view, row by row."""
        tokens = np.concatenate([row.tokens for row in rows])
        blank = np.zeros((self.vectors, self.preparation.size, self.preparation.size, 3), np.uint8)
        image = np.concatenate([blank if row.image is None else row.image for row in rows])
        has_image = np.repeat([row.image is not None for row in rows], self.vectors)
        return {"tokens": tokens, "has_text": np.any(tokens, axis=1), "image": image, "has_image": has_image}


def sentences_of(item: Item) -> list[str]:
    """What an answer may quote: the sentences of the field `text`, without any those of all texts."""
    for values in ([item.fields.get("text", "")], item.fields.values()):
        texts = [text for value in values if is_text(value) for text in ([value] if isinstance(value, str) else value)]
        if found := [one.strip() for text in texts for one in SENTENCE.split(text) if one.strip()]:
            return found
    return []
