"""The data of the countries: questions, and the items of the memory (`recipes.questions` has the batch).

A question asks about a flag, photographed anew (`augmentation.py`), or by name with a grey image. The memory holds all
real countries, the held-out ones too, and the invented ones. An epoch has the questions about the training countries
`repeats` times, and those about the invented ones once.

**Permutation.** The memory is fixed, so facts cannot be drawn anew for each batch, but their spelling can: otherwise
25,000 questions, each seen a hundred times, would be memorised. `permutation` permutes the SentencePiece tokens that
occur in names and facts only (in no phrasing; no digits, no punctuation), word-initial tokens among themselves. In one
batch Chad is "Zomtu" in questions, items and answers: what is left to learn is to compare and to copy. The second stage
needs `shuffle: 0`: it searches among keys of the original spelling.
"""

import functools
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from common.checked import NotNegative, Positive, Share, whole
from recipes.countries import augmentation, drawing, invented, phrases
from recipes.countries.facts import EVALUATION, INVENTED, ITEMS, RELATIONS, Atlas, nearest
from recipes.countries.phrases import BY_FLAG, ITEM_KINDS, KIND_OF, SOURCES, item_id
from recipes.questions import Example, Questions
from reveal import pretrained
from reveal.memory.items import Item
from reveal.processing import tokenizers
from reveal.processing.processor import network_input, prompted
from reveal.training.own_batches import ItemArrays, arrays_of

TOKENIZER = pretrained.DATA / "spiece.model"  # trained by recipes.countries.pieces
WORD_START = "\u2581"
ASKED_BY_FLAG = np.array([relation in BY_FLAG for relation in RELATIONS])
NEIGHBOURS = 16  # similar countries from which hard negatives are drawn
BINS = 2048  # of the hashed trigrams of a name


def items_about(atlas: Atlas, about: Iterable[int | np.integer]) -> list[Item]:
    """The items of all sources about some countries, sorted by id; pictures are the stored flags.

    The phrasing depends on the atlas's seed and the item's id alone, so an edit changes only the fact."""
    items = []
    for country in about:
        for kind, name in enumerate(ITEM_KINDS):
            number = int(item_id(country, kind))
            rng = np.random.default_rng([atlas.seed, ITEMS, number])
            text = phrases.item_text(atlas.countries[country].facts, kind, rng)
            picture = atlas.flags[country] if name in ("passage", "caption", "vqa") else None
            if text:
                items.append(Item(SOURCES[phrases.SOURCE_OF_KIND[kind]], {"text": text}, picture, number))
    return items


@dataclass(frozen=True, eq=False)
class HardNegatives:
    """Items that are likely to be retrieved by mistake. Held-out countries have none of them: they would only ever be
    negatives, and their keys would be pushed away from all questions."""

    atlas: Atlas

    def sample(
        self, country: int, relation: str, own: int, near: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " h"]:
        """Ids of `own` + `near` items: other items of the country, then items of the same kind about countries with a
        similar flag, or a similar name if the question contains the name. Random ones of the kind fill up."""
        kind = KIND_OF[relation]
        others = [other for other in range(len(ITEM_KINDS)) if other != kind and self.exists[country, other]]
        first = item_id(country, rng.permutation(others)[:own].astype(np.int64))
        table = self.similar_flags if relation in BY_FLAG else self.similar_names
        similar = rng.permutation(table[country])
        random = rng.choice(self.candidates, own + near, replace=False)
        countries = np.concatenate([similar[self.exists[similar, kind]], random[self.exists[random, kind]]])
        countries = list(dict.fromkeys(countries[countries != country].tolist()))
        return np.concatenate([first, item_id(np.array(countries, np.int64), kind)])[: own + near].astype(np.int32)

    @functools.cached_property
    def exists(self) -> Bool[np.ndarray, "n kinds"]:
        """Which items exist: those with a known relation."""
        kinds = [[relation for relation in RELATIONS if KIND_OF[relation] == kind] for kind in range(len(ITEM_KINDS))]
        countries = self.atlas.countries
        return np.array([[any(country.facts[r] for r in kind) for kind in kinds] for country in countries])

    @functools.cached_property
    def candidates(self) -> Int[np.ndarray, " m"]:
        return np.concatenate([self.atlas.splits["train"], self.atlas.splits["invented"]])

    @functools.cached_property
    def similar_flags(self) -> Int[np.ndarray, "n near"]:
        return self._neighbours(self.atlas.grid_colours.reshape(len(self.exists), -1))

    @functools.cached_property
    def similar_names(self) -> Int[np.ndarray, "n near"]:
        return self._neighbours(trigrams([country.name for country in self.atlas.countries]))

    def _neighbours(self, vectors: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "n near"]:
        """Among `candidates`; the rows of held-out countries are unused."""
        table = np.zeros((len(vectors), min(NEIGHBOURS, len(self.candidates) - 1)), np.int64)
        table[self.candidates] = self.candidates[nearest(vectors[self.candidates], table.shape[1])]
        return table


def trigrams(names: Iterable[str]) -> Float[np.ndarray, "n bins"]:
    """Hashed counts of letter trigrams, as unit vectors."""
    rows = []
    for name in names:
        row, padded = np.zeros(BINS, np.float32), f"  {name.lower()} "
        for start in range(len(padded) - 2):
            row[zlib.crc32(padded[start : start + 3].encode()) % BINS] += 1
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)


@dataclass(frozen=True)
class CountriesConfig(Questions):
    """Flags and countries, and the questions about them; `seed` is of the split and of what is invented."""

    relations = RELATIONS
    source_of = phrases.SOURCE_OF
    evaluation_stream = EVALUATION

    folder: str | None = None  # files of `fetch.py`; None: those of the repository
    tokenizer: str | None = None  # a SentencePiece model; None: the shipped one
    sources: Sequence[str] = SOURCES  # names, in the order of the network's gate
    size: Annotated[int, whole(16)] = 48  # side of the pictures
    held_out: int = 50  # real countries that training does not ask about
    invented: NotNegative = 4000  # number of invented countries
    repeats: Positive = 8  # how often a real country's questions come per epoch
    own: NotNegative = 1  # hard negatives about the same country
    near: NotNegative = 2  # about similar countries
    shuffle: Share = 0.5
    text_length: Positive = 28  # tokens of a question
    item_length: Positive = 40
    answer_length: Annotated[int, whole(2)] = 12  # with the end

    def rules(self):
        yield self.sources == SOURCES, f"sources are {', '.join(SOURCES)}"

    def processor(self) -> dict[str, Any]:
        return {
            "item_length": self.item_length,
            "question_length": self.text_length,
            "answer_length": self.answer_length,
            "tokenizer": os.path.relpath(self.tokenizer or TOKENIZER),
            "sources": list(SOURCES),
            "blank": augmentation.BLANK,
            "hops": phrases.hops(),
        }

    @functools.cached_property
    def atlas(self) -> Atlas:
        return _atlas(self.seed, self.held_out, self.invented, self.folder)

    @property
    def splits(self) -> Mapping[str, Int[np.ndarray, " n"]]:
        return self.atlas.splits

    @functools.cached_property
    def vocabulary(self) -> Any:
        return tokenizers.load(self.tokenizer or TOKENIZER)

    @functools.cached_property
    def items(self) -> ItemArrays:
        return _items(self)

    def memory_items(self, about: Iterable[int | np.integer] | None = None, atlas: Atlas | None = None) -> list[Item]:
        """Items about some countries (default: all real ones) with the facts of `atlas` (default: the true ones)."""
        return items_about(atlas or self.atlas, range(self.atlas.real) if about is None else about)

    def read_item(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        return network_input(items, self.vocabulary, self.item_length, self.size)

    def training_questions(self) -> Int[np.ndarray, " n"]:
        real, others = (self.questions_about(self.splits[split]) for split in ("train", "invented"))
        return np.concatenate([np.tile(real, self.repeats), others])

    def questions_about(self, subjects: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """Ids of all `askable` questions about some countries."""
        ids = subjects[:, None] * len(RELATIONS) + np.arange(len(RELATIONS))
        return ids[self.askable[subjects]].astype(np.int64)

    def subject_and_relation(self, question: int | np.integer) -> tuple[int, str]:
        country, relation = divmod(int(question), len(RELATIONS))
        return country, RELATIONS[relation]

    def right_answers(self, question: int | np.integer, atlas: Atlas | None = None) -> tuple[str, ...]:
        return (atlas or self.atlas).answers(*self.subject_and_relation(question))

    def ask(self, question: int, rng: np.random.Generator, facts: Atlas | None = None) -> Example:
        country, relation = self.subject_and_relation(question)
        number, kind, name = RELATIONS.index(relation), KIND_OF[relation], self.atlas.countries[country].name
        text = phrases.QUESTIONS[relation][rng.integers(len(phrases.QUESTIONS[relation]))].format(name)
        if relation in BY_FLAG:
            image = augmentation.augment(self.atlas.flags[country], self.size, rng)
        else:
            image = augmentation.blank_image(self.size)
        answer = self.answers[country, number]
        return {
            "image": image,
            "tokens": self.question_tokens(text),
            "answer": answer if facts is None else self.answer_tokens(self.right_answers(question, facts)[0]),
            "relation": np.int32(number),
            "source": np.int32(phrases.SOURCE_OF_KIND[kind]),
            "gold": np.int32(item_id(country, kind)),
            "id": np.int64(question),
        }

    def negatives(self, question: int, rng: np.random.Generator) -> Int[np.ndarray, " h"]:
        return self.hard_negatives.sample(*self.subject_and_relation(question), self.own, self.near, rng)

    def _example(self, question: int, rng: np.random.Generator) -> Example:
        """Draws the negatives first: the order decides the data that the shipped weights were trained on."""
        negatives = self.negatives(question, rng)
        return {**self.ask(question, rng), "negatives": negatives}

    def permutation(self, seed: int, step: int) -> Int[np.ndarray, " v"]:
        rng, table = np.random.default_rng([seed, step]), np.arange(len(self.vocabulary), dtype=np.int32)
        if rng.random() < self.shuffle:
            for tokens in self.permuted_tokens:
                table[tokens] = rng.permutation(tokens)
        return table

    def describe(self, subject: int) -> str:
        return f"{self.atlas.countries[subject].name} (country {subject})"

    def question_tokens(self, text: str) -> Int[np.ndarray, " n"]:
        return self.vocabulary.encode(prompted(text), self.text_length)

    def answer_tokens(self, text: str) -> Int[np.ndarray, " o"]:
        """With the end, which replaces the last token of an answer that is too long."""
        tokens = self.vocabulary.encode(text, self.answer_length)
        tokens[min(int((tokens != self.vocabulary.pad).sum()), self.answer_length - 1)] = self.vocabulary.eos
        return tokens

    @functools.cached_property
    def answers(self) -> Int[np.ndarray, "countries relations o"]:
        """The first right answer to every question; only the end where it is unknown."""
        first = [[(country.facts[relation] or ("",))[0] for relation in RELATIONS] for country in self.atlas.countries]
        return np.array([[self.answer_tokens(text) for text in row] for row in first], np.int32)

    @functools.cached_property
    def askable(self) -> Bool[np.ndarray, "countries relations"]:
        """Which questions have an answer of at most `answer_length` tokens and, if they show the flag, a unique one."""
        too_long = (self.answers != self.vocabulary.pad).all(-1)
        known = np.array([[bool(one.facts[relation]) for relation in RELATIONS] for one in self.atlas.countries])
        return known & ~too_long & (self.atlas.unique_flag[:, None] | ~ASKED_BY_FLAG)

    @functools.cached_property
    def hard_negatives(self) -> HardNegatives:
        return HardNegatives(self.atlas)

    @functools.cached_property
    def permuted_tokens(self) -> list[Int[np.ndarray, " m"]]:
        """Two groups, each permuted within itself: tokens of letters that are in no phrasing, inside a word and
        word-initial."""
        fixed = {int(n) for text in phrases.fixed_texts() for n in self.vocabulary.encode(prompted(text), 99)}
        spellings = {number: self.vocabulary.spelling(number) for number in range(self.vocabulary.pieces)}
        free = {n: text for n, text in spellings.items() if n not in fixed and text.removeprefix(WORD_START).isalpha()}
        initial = np.array([text.startswith(WORD_START) for text in free.values()])
        return [np.array(list(free), np.int32)[initial == group] for group in (False, True)]


@functools.lru_cache(maxsize=2)
def _atlas(seed: int, held_out: int, others: int, folder: str | Path | None) -> Atlas:
    """Cached: task and data of a run hold two equal configs."""
    atlas = Atlas.create(seed, held_out, folder)
    if not others:
        return atlas
    made = invented.invent(atlas.countries, others, np.random.default_rng([seed, INVENTED]))
    flags = np.concatenate([atlas.flags, drawing.flags(others, seed)])
    return replace(atlas, countries=(*atlas.countries, *made), flags=flags)


@functools.lru_cache(maxsize=2)
def _items(config: CountriesConfig) -> ItemArrays:
    everything = config.memory_items(range(len(config.atlas.countries)))
    return arrays_of(everything, SOURCES, config.vocabulary, config.item_length, config.size)
