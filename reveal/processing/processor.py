"""What a trained network was trained to read: its tokenizer, its lengths, its prompt, and the names of its sources.

Numbers of tokens, and of sources, mean nothing without the vocabulary and the names that training had, and the answer
to a question that is put otherwise than in training is worth little. A weights file that `train.py` wrote tells its
recipe, so `inputs_of` finds most by itself:

| what | where from, the first that is there |
| --- | --- |
| tokenizer | the one that is named; one of `BESIDE`, beside the weights; the recipe's file |
| lengths, prompt | the recipe's `data`; else those of the published networks |
| sources | those that are named; the recipe's |

Networks of the small world (`recipes/small_world`) and of the countries (`recipes/countries`) need no file: their vocabularies
are always the same. Those of the countries are asked some questions in two hops, and shown grey where there is no
picture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from common.io.images import read_image, to_uint8
from common.training import renamed
from common.weights.model_file import Metadata
from recipes.countries import looks, phrases
from recipes.small_world.facts import SOURCES
from recipes.small_world.items import LENGTH
from recipes.small_world.vocabulary import Vocabulary
from reveal.evidence import short
from reveal.memory.items import Item
from reveal.network.config import RevealConfig
from reveal.processing import tokenizers
from reveal.processing.item_arrays import network_input, resized
from reveal.processing.prompts import ASK, asked
from reveal.processing.tokenizers import WORD, Tokenizer, Words

BESIDE = ("spiece.model", "vocabulary.json", "words.json")  # names of tokenizers
WORLD, COUNTRIES = "recipes.small_world.data.WorldConfig", "recipes.countries.data.CountriesConfig"
PIECES_OF_COUNTRIES = Path(__file__).parents[1] / "weights" / "countries" / BESIDE[0]
LONGEST = 4  # times the tokens that are read: how much of a text is looked at to say that it is too long


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """How a network reads.

    Attributes:
      tokenizer: of all texts.
      sources: names, in the order of the network's gate.
      image_size: side of the pictures, in pixels.
      item_length, question_length, answer_length: in tokens; the answer's end is one of them.
      prompt: what a question is put into.
      nothing: the picture of a question that is about none; None: it has none.
      steps: makes two of a question about a picture, one about the picture, and one about none with {} for the answer
        to the first; or None of what needs one hop only. None: nothing needs two.
    """

    tokenizer: Tokenizer
    sources: tuple[str, ...]
    image_size: int
    item_length: int = 326
    question_length: int = 64
    answer_length: int = 32
    prompt: str = ASK
    nothing: Float[np.ndarray, "s s 3"] | None = None
    steps: Callable[[str], tuple[str, str] | None] | None = None

    def question(self, text: str) -> Int[np.ndarray, " n"]:
        """Tokens. Raises ValueError for a question that is longer than the network reads."""
        said = asked(text.strip(), self.prompt)
        tokens = self.tokenizer.encode(said, LONGEST * self.question_length)
        count = int((tokens != self.tokenizer.pad).sum())
        if count > self.question_length:
            more = "or more " if count == len(tokens) else ""
            raise ValueError(
                f"{short(said)!r} has {count} {more}tokens, this network reads {self.question_length}: shorten it"
            )
        return tokens[: self.question_length]

    def unknown(self, text: str) -> list[str]:
        """The words of a text that a vocabulary of words lacks, without marks; pieces of words spell everything."""
        if not isinstance(self.tokenizer, Words):
            return []
        words = dict.fromkeys(word for word in WORD.findall(text.lower()) if word[0].isalnum())
        return [word for word in words if word not in self.tokenizer.vocabulary.numbers]

    def picture(self, path: str | Path) -> Float[np.ndarray, "s s 3"]:
        """The picture of a question, whole, as a square. Raises as `read_image`."""
        return resized(to_uint8(read_image(path)), self.image_size).astype(np.float32) / 255

    def items(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        """Items as `Reveal.encode_item` takes them: a `reveal.reader.ReadItem`."""
        return network_input(items, self.tokenizer, self.item_length, self.image_size)


def inputs_of(
    weights: Path,
    config: RevealConfig,
    header: Metadata,
    tokenizer: str | Path | None = None,
    sources: Sequence[str] = (),
    otherwise: Sequence[str] = (),
) -> Inputs:
    """How the network of a file reads.

    Args:
      weights: the file. config, header: what is in it.
      tokenizer: a file that `reveal.processing.tokenizers` opens. sources: their names. Both: what counts, if given.
      otherwise: the names of sources, where neither the caller nor the recipe has any.

    Raises:
      FileNotFoundError: there is no tokenizer.
      ValueError: a tokenizer, or a number of sources, that is not the network's; no names of sources.
    """
    data = _recipe(header)
    in_world = data.get("_target_") == WORLD
    told: dict[str, Any]
    if in_world:
        told = {"item_length": LENGTH, "question_length": 2, "answer_length": 2, "prompt": "{}"}
    else:
        names = {"item_length": "item_length", "question_length": "text_length", "answer_length": "answer_length"}
        told = {ours: int(data[theirs]) for ours, theirs in names.items() if theirs in data}
    if data.get("_target_") == COUNTRIES:
        told |= {"nothing": looks.nothing(config.vit.image_size), "steps": phrases.steps}
    names = tuple(sources) or (SOURCES if in_world else tuple(data.get("sources") or otherwise))
    if len(names) != config.sources:
        known = f"{len(names)} sources ({', '.join(names)})" if names else "no names of sources"
        raise ValueError(f"{weights}: {known} for the {config.sources} that it tells apart: name them with --names")
    found = _tokenizer(weights, tokenizer, data)
    if len(found) > config.vocab_size or found.bos != config.bos:
        raise ValueError(
            f"{weights} has {config.vocab_size} tokens and begins answers with {config.bos}, the tokenizer"
            f" {len(found)} and {found.bos}: give the one that it was trained with, --tokenizer FILE"
        )
    return Inputs(found, names, config.vit.image_size, **told)


def _recipe(header: Metadata) -> Mapping[str, Any]:
    """What the file says about the data that it was trained on."""
    recipe = header.metadata.get("recipe")
    data = recipe.get("data") if isinstance(recipe, dict) else None
    return renamed.node(data) if isinstance(data, dict) else {}


def _tokenizer(weights: Path, named: str | Path | None, data: Mapping[str, Any]) -> Tokenizer:
    """The first that is there of the module's table."""
    beside, recipe = [weights.parent / name for name in BESIDE], data.get("tokenizer")
    if named is not None:
        return tokenizers.load(named)
    files = [*beside, *([Path(recipe)] if isinstance(recipe, str) else [])]
    if data.get("_target_") == COUNTRIES and recipe is None:
        files.append(PIECES_OF_COUNTRIES)
    if there := [path for path in files if path.is_file()]:
        return tokenizers.load(there[0])
    if data.get("_target_") == WORLD:
        return Words(Vocabulary.of_world())
    raise FileNotFoundError(f"no tokenizer: {weights.parent} has no {' or '.join(BESIDE)}; give --tokenizer FILE")
