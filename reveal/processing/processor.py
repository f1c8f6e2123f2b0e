"""The processor of a trained network: its tokenizer, lengths in tokens, prompt, and the names of its sources.

Token ids and source indices mean nothing without the vocabulary and the source names of training, and a network answers
badly if a question is phrased otherwise than in training. So a weights file describes its processor: `train.py` writes
the description below into the header (`processor`) where the data has one, and the recipe of the data in any case.
Older files may have a `processor.json` beside them.

| what | from the first of |
| --- | --- |
| tokenizer | the argument; the description's words; `BESIDE` the weights; the description's file; the recipe's |
| lengths, prompt, blank image, hops | the description; the recipe's `data`; those of the published networks |
| sources | the argument; the description; the recipe; the caller's default |

A description is a JSON object with any of: `tokenizer` (a path), `words` (of a vocabulary of whole words), `sources`,
`item_length`, `question_length`, `answer_length`, `prompt`, `blank` (grey level in [0, 1] of the image of a question
without one), `hops` (two-hop questions about an image, each with the two that it is decomposed into), `views` (fields
of `images.Views`) and `doubt` (`doubt.Doubt`).

An item's text is its text fields in their order, joined by the tokenizer's separator. Images are resized to a square
whatever their aspect, so that nothing is cut off.
"""

from __future__ import annotations

import dataclasses
import errno
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from common.io.images import check_image, from_uint8, read_image, to_uint8
from common.io.tensor_files import read_json
from common.weights.model_file import Metadata
from reveal.memory.items import Item
from reveal.network.config import RevealConfig
from reveal.processing import tokenizers
from reveal.processing.doubt import Doubt
from reveal.processing.images import WHOLE, Views, resized
from reveal.processing.tokenizers import WORD, Tokenizer, Words

if TYPE_CHECKING:  # answering needs no sources
    from reveal.sources.records import Skips

ASK, DESCRIBE = "Question: {}", "Describe the picture:"
BESIDE = ("spiece.model", "vocabulary.json", "words.json")  # file names of tokenizers beside weights
DESCRIPTION = "processor.json"
LENGTHS = {"item_length": "item_length", "question_length": "text_length", "answer_length": "answer_length"}  # recipe's
CUT = "whose text was cut after"  # so many tokens
MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)  # not the image's fault
Resize = Callable[[UInt8[np.ndarray, "h w 3"]], UInt8[np.ndarray, "s s 3"]]
PROBE = 4  # encode at most so many times `question_length` to report how long a question is


def prompted(question: str, prompt: str = ASK) -> str:
    """The prompted question; without a question, the prompt for a description where there is a prompt at all."""
    return DESCRIBE if not question and prompt == ASK else prompt.format(question)


class Hops(NamedTuple):
    about_image: str
    about_answer: str  # without an image; {} is the answer to the first


@dataclasses.dataclass(frozen=True, eq=False)
class Processor:
    tokenizer: Tokenizer
    sources: tuple[str, ...]  # names, in order of the network's gate
    image_size: int  # in pixels
    item_length: int = 326  # in tokens, including the end token, as are the next two
    question_length: int = 64
    answer_length: int = 32
    prompt: str = ASK  # template of a question
    blank: Float[np.ndarray, "s s 3"] | None = None  # image of a question without one; None: the network gets none
    hops: Mapping[str, Hops] = dataclasses.field(default_factory=dict)  # of two-hop questions, in lower case
    views: Views = dataclasses.field(default_factory=Views)
    doubt: Doubt | None = None  # how far to trust an answer
    completes: bool = False  # trained to complete captions (`prefix`): MASK ends the prompt for a description

    def question(self, text: str) -> Int[np.ndarray, " n"]:
        """The tokens of a question. Raises ValueError for one longer than `question_length`."""
        question = prompted(text.strip(), self.prompt)
        tokens = self.tokenizer.encode(question, PROBE * self.question_length)
        count = int((tokens != self.tokenizer.pad).sum())
        if count > self.question_length:
            more, start = "or more " if count == len(tokens) else "", textwrap.shorten(question, 60, placeholder="...")
            raise ValueError(f"{start!r} has {count} {more}tokens, at most {self.question_length} are read: shorten it")
        if self.completes and question == DESCRIBE:
            if count == self.question_length:
                raise ValueError(f"question_length is {count}: the prompt for a description and MASK take one more")
            tokens[count] = self.tokenizer.mask
        return tokens[: self.question_length]

    def unknown(self, text: str) -> list[str]:
        """The words that a vocabulary of words lacks; pieces of words spell everything."""
        if not isinstance(self.tokenizer, Words):
            return []
        words = dict.fromkeys(word for word in WORD.findall(text.lower()) if word[0].isalnum())
        return [word for word in words if word not in self.tokenizer.numbers]

    def image(self, image: Any) -> Float[np.ndarray, "s s 3"]:
        """A question's image: a file's, resized to a square, or an array of the network's size in [0, 1]. Raises as
        `read_image`, and ValueError for any other array."""
        if isinstance(image, str | Path):
            return from_uint8(resized(to_uint8(read_image(image)), self.image_size))
        check_image("the question's image", image)
        return image

    def views_of(self, path: str | Path) -> Float[np.ndarray, "v s s 3"]:
        """A question's image and windows of it, each resized to a square. Raises as `read_image`."""
        return self.views.of(to_uint8(read_image(path)), self.image_size)

    def two_hops(self, question: str) -> Hops | None:
        return self.hops.get(question.strip().lower())

    def row(self, item: Item, skips: Skips) -> Row | None:
        """An item's tokens and image; None, and counted, if it cannot be used."""
        return row_of(item, self.tokenizer, self.item_length, self.image_size, skips)

    def batch(self, rows: Sequence[Row]) -> Mapping[str, np.ndarray]:
        """Rows as `Reveal.encode_item` takes them."""
        return stacked_input(rows, self.item_length, self.image_size)

    def items(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        """Items as `Reveal.encode_item` takes them: a `reveal.reader.ReadItem`."""
        return network_input(items, self.tokenizer, self.item_length, self.image_size)


def processor_of(
    weights: Path,
    config: RevealConfig,
    header: Metadata,
    tokenizer: str | Path | None = None,
    sources: Sequence[str] = (),
    default_sources: Sequence[str] = (),
) -> Processor:
    """The processor of the network in the file `weights`, whose contents are `config` and `header`. `tokenizer`, a file
    for `tokenizers.load`, and `sources`, names, override the file's; `default_sources` are for a file without any.
    Raises FileNotFoundError for no tokenizer; ValueError for one that does not fit the network, for another number of
    sources, and for a description with an unknown key."""
    description = _description(weights, header)
    data = recipe_of(header, "data")
    found = tokenizers.load(tokenizer) if tokenizer is not None else _tokenizer(weights, description, data)
    names = tuple(sources or description.get("sources") or data.get("sources") or default_sources)
    if len(names) != config.sources:
        given = f"{len(names)} sources ({', '.join(names)})" if names else "no names of sources"
        raise ValueError(f"{weights}: {given} for the {config.sources} that it tells apart: name them with --names")
    if len(found) > config.vocab_size or found.bos != config.bos:
        other = f"{config.vocab_size} tokens and begins with {config.bos}, the tokenizer {len(found)} and {found.bos}"
        raise ValueError(f"{weights} has {other}: give the one that it was trained with, --tokenizer FILE")
    options: dict[str, Any] = {ours: int(data[theirs]) for ours, theirs in LENGTHS.items() if theirs in data}
    options |= {key: description[key] for key in (*LENGTHS, "prompt") if key in description}
    options["completes"] = data.get("objective") == "prefix"
    size = config.vit.image_size
    if (grey := description.get("blank")) is not None:
        options["blank"] = np.full((size, size, 3), grey, np.float32)
    options["views"] = Views.from_json(description.get("views", ()))
    if (doubt := description.get("doubt")) is not None:
        options["doubt"] = Doubt.from_json(doubt)
    if hops := description.get("hops"):
        options["hops"] = {hop["question"].lower(): Hops(hop["about_image"], hop["about_answer"]) for hop in hops}
    return Processor(found, names, size, **options)


def recipe_of(header: Metadata, part: str) -> Mapping[str, Any]:
    """The `data`, or another part, of the recipe that training wrote; {} without one."""
    recipe = header.metadata.get("recipe")
    found = recipe.get(part) if isinstance(recipe, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _description(weights: Path, header: Metadata) -> dict[str, Any]:
    beside = weights.parent / DESCRIPTION
    found = header.metadata.get("processor")
    if found is None and beside.is_file():
        found = read_json(beside)
    known = {*LENGTHS, "tokenizer", "words", "sources", "prompt", "blank", "hops", "views", "doubt"}
    if found is not None and (not isinstance(found, dict) or not found.keys() <= known):
        keys = ", ".join(sorted(found.keys() - known)) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{weights}: the processor's description has {keys}; it may have {', '.join(sorted(known))}")
    return found or {}


def _tokenizer(weights: Path, description: Mapping[str, Any], data: Mapping[str, Any]) -> Tokenizer:
    """The first that exists of the module's table."""
    if words := description.get("words"):
        return Words(tuple(words))
    files = [weights.parent / name for name in BESIDE]
    files += [Path(node["tokenizer"]) for node in (description, data) if isinstance(node.get("tokenizer"), str)]
    if existing := [path for path in files if path.is_file()]:
        return tokenizers.load(existing[0])
    raise FileNotFoundError(f"no tokenizer: {weights.parent} has no {' or '.join(BESIDE)}; give --tokenizer FILE")


class Row(NamedTuple):
    """One item: padded text, and square image; of two towers several of each."""

    tokens: Int[np.ndarray, "*v l"]
    image: UInt8[np.ndarray, "*v s s 3"] | None


def row_of(
    item: Item,
    tokenizer: Tokenizer,
    length: int,
    size: int,
    skips: Skips,
    rng: np.random.Generator | None = None,
    crop: Sequence[float | int] = WHOLE,
    drop_image: float | int = 0,
) -> Row | None:
    """One item; None, and counted, if it cannot be used. Arguments as in `arrays_of`."""
    name = f"item {item.id} of {item.source}"
    text = text_of(item, tokenizer.separator)
    whole = tokenizer.encode(text, 2 * length)
    tokens = whole[:length]
    if whole[length:].any():
        skips.note(f"{CUT} {length} tokens", name)
    if rng is not None and rng.random() < drop_image and tokens.any():
        item = dataclasses.replace(item, picture=None)
    return usable_row(item, tokens, lambda image: resized(image, size, rng, crop), name, skips)


def usable_row(item: Item, tokens: Int[np.ndarray, "*v l"], resize: Resize, name: str, skips: Skips) -> Row | None:
    """The row of an item that messages call `name`; None, and counted, for a damaged image, or neither text nor one."""
    try:
        image = item.pixels()
        row = Row(tokens, None if image is None else resize(image))
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            raise
        skips.add("whose picture is damaged", f"{name} ({error})")
        return None
    if row.image is None and not tokens.any():
        skips.add("with neither text nor picture", name)
        return None
    return row


def network_input(items: Sequence[Item], tokenizer: Tokenizer, length: int, size: int) -> Mapping[str, np.ndarray]:
    """tokens, image and has_image, as `Reveal.encode_item` takes them. Raises ValueError for a damaged image."""
    pictures = (item.pixels() for item in items)
    images = [None if picture is None else resized(picture, size) for picture in pictures]
    tokens = [tokenizer.encode(text_of(item, tokenizer.separator), length) for item in items]
    return stacked_input(list(map(Row, tokens, images)), length, size)


def stacked_input(rows: Sequence[Row], length: int, size: int) -> Mapping[str, np.ndarray]:
    tokens, image, has_image = stacked(rows, length, size)
    return {"tokens": tokens, "image": from_uint8(image), "has_image": has_image}


def stacked(
    rows: Sequence[Row], length: int, size: int
) -> tuple[Int[np.ndarray, "n l"], UInt8[np.ndarray, "n s s 3"], Bool[np.ndarray, " n"]]:
    tokens = np.array([row.tokens for row in rows], np.int32).reshape(-1, length)
    image, has_image = np.zeros((len(rows), size, size, 3), np.uint8), np.zeros(len(rows), bool)
    for n, row in enumerate(rows):
        if row.image is not None:
            image[n], has_image[n] = row.image, True
    return tokens, image, has_image


def text_of(item: Item, separator: str) -> str:
    return f" {separator} ".join(filter(None, item.texts()))
