"""Questions about flags and countries: the endless stream that training reads, and the sets that evaluation asks.

A batch of b questions, with h hard negatives each and a vocabulary of v pieces:

    image         float32 [b s s 3]  RGB in [0, 1]: the flag, drawn anew (`looks.py`); grey where one asks by name
    tokens        int32   [b n]      "Question: Which country is this?", filled up with 0
    answer        int32   [b o]      the first of the right answers, end, filled up with 0
    relation      int32   [b]        number in `facts.RELATIONS`
    source        int32   [b]        number in `phrases.SOURCES` of the source that knows: what the gate should choose
    gold          int32   [b]        id of the item that has the answer
    negatives     int32   [b h]      ids of items that have not, and are easily taken for it (`items.Confusion`)
    permutation   int32   [b v]      the batch's language (below), unless `shuffle` is 0
    id            int64   [b]        country * 7 + relation: `names` tells it

Memory holds all real countries, the held-out ones too, and the invented ones. Questions are about the real ones that
are not held out, `repeats` times in an epoch, and about the invented ones once.

**The shuffle of pieces.** In the small world answers change their meaning in each batch, or they would be learnt by
heart. Here 4,000 invented countries make that slower, but not impossible: a memory that never changes is asked 25,000
questions, each of them a hundred times and more. Facts cannot be drawn anew for each batch, as the memory is fixed;
but their spelling can. `permutation` gives every piece that only names and facts are made of (no word of a phrasing,
no digit, no mark) another one's place, first pieces of words among themselves: in that batch Chad is "Zomtu" wherever
it is said, in questions, items and answers. What a task reads of items goes through the table as in the small world
(`recipes/small_world/data.py`), question and answer have gone through it. So there is nothing but to compare and to copy, and
every piece is copied everywhere. `shuffle` is the share of batches with a language of their own.

The second stage needs `shuffle: 0`: it searches among keys that were made in the world's own language, where a name
in another one would find nothing. It is short, and starts from a network that has learnt to read.

The same seed gives the same batches, for any number of threads and processes, and an iterator set to a state goes on
as if it had never stopped.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np
from jaxtyping import Bool, Int

from common.training.batches import batches
from recipes.countries import drawing, invented, looks, phrases
from recipes.countries.facts import EVALUATION, INVENTED, RELATIONS, Atlas
from recipes.countries.items import Confusion, items_about
from recipes.countries.phrases import (
    QUESTIONS,
    SEEN,
    SLOT_OF,
    SOURCE_OF_SLOT,
    SOURCES,
    asked_of,
    fixed_texts,
    item_id,
    question_id,
)
from reveal import pretrained
from reveal.memory.items import Item
from reveal.processing import tokenizers
from reveal.processing.item_arrays import ItemArrays, Later, arrays_of, network_input
from reveal.processing.processor import prompted

Example = dict[str, Any]
RELATION_OF = {relation: number for number, relation in enumerate(RELATIONS)}
MODEL = pretrained.DATA / "spiece.model"  # recipes.countries.pieces trains it
BLANK = "\u2581"


@dataclass(frozen=True)
class CountriesConfig:
    """The world of flags and countries, and the questions about it.

    Attributes:
      seed: of the split and of what is invented; the stream has one of its own.
      folder: with the files of `fetch.py`; None: those that come with the package.
      tokenizer: a SentencePiece model; None: the one that comes with the package.
      sources: names, in the order of the network's gate.
      size: side of the pictures, 16 or more.
      held_out: real countries that training does not ask about.
      invented: countries beside the real ones.
      repeats: how often a real country's questions come in an epoch, for one of an invented one's.
      batch_size: questions per batch, over all processes.
      own: hard negatives about the same country. near: about countries that are like it.
      shuffle: share of batches in a language of their own.
      text_length, item_length, answer_length: tokens of a question, an item, and an answer with its end.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    seed: int = 0
    folder: str | None = None
    tokenizer: str | None = None
    sources: Sequence[str] = SOURCES
    size: int = 48
    held_out: int = 50
    invented: int = 4000
    repeats: int = 8
    batch_size: int = 32
    own: int = 1
    near: int = 2
    shuffle: int | float = 0.5
    text_length: int = 28
    item_length: int = 40
    answer_length: int = 12
    threads: int = 1
    buffer: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for values that make no world."""
        least = ("batch_size", "repeats", "text_length", "item_length", "threads", "buffer")
        small = [f"{name} {getattr(self, name)}" for name in least if getattr(self, name) < 1]
        if small or self.size < 16 or self.answer_length < 2 or min(self.own, self.near, self.invented) < 0:
            raise ValueError(
                f"{', '.join(small) or 'all else'} must be 1 or more, size {self.size} 16 or more, answer_length"
                f" {self.answer_length} 2 or more, own {self.own}, near {self.near}, invented {self.invented} 0 or more"
            )
        if not 0 <= self.shuffle <= 1:
            raise ValueError(f"shuffle is {self.shuffle}: it is a share of the batches, 0 to 1")
        if tuple(self.sources) != SOURCES:
            raise ValueError(f"sources are {list(self.sources)}: of countries they are {', '.join(SOURCES)}")
        object.__setattr__(self, "sources", SOURCES)

    def processor(self) -> dict[str, Any]:
        """How a network of this data reads, for the header of its weights (`reveal.processing.processor`)."""
        lengths = {"item_length": self.item_length, "question_length": self.text_length}
        lengths["answer_length"] = self.answer_length
        tokenizer = os.path.relpath(self.tokenizer or MODEL)
        return lengths | {
            "tokenizer": tokenizer,
            "sources": list(SOURCES),
            "blank": looks.BLANK,
            "hops": phrases.hops(),
        }

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (defaults: what JAX says).

        Raises ValueError for a batch that is larger than all questions or cannot be divided."""
        real, others = (self.questions_about(self.atlas.sets[which]) for which in ("train", "invented"))
        questions = np.concatenate([np.tile(real, self.repeats), others])
        if self.batch_size > len(questions):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(questions)} questions there are: lower it")
        dataset = grain.MapDataset.source(questions.tolist()).seed(seed).shuffle().repeat().random_map(self._prepare)
        if self.shuffle:
            dataset = dataset.map_with_index(functools.partial(self._translate, seed))
        return batches(dataset, self.batch_size, self.threads, self.buffer, process_index, process_count)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """The questions with these ids."""
        pairs = [divmod(int(number), len(RELATIONS)) for number in ids]
        return [f"{RELATIONS[r]} of {self.atlas.countries[c].name} (country {c})" for c, r in pairs]

    @functools.cached_property
    def atlas(self) -> Atlas:
        return _atlas(self.seed, self.held_out, self.invented, self.folder)

    @functools.cached_property
    def vocabulary(self) -> Any:
        """A `Tokenizer`. Its first use raises as `tokenizers.load`."""
        return Later(lambda: tokenizers.load(self.tokenizer or MODEL))

    @functools.cached_property
    def items(self) -> Any:
        """What memory holds while training goes on, `ItemArrays`: everything."""
        return Later(lambda: _items(self))

    def real_items(self, atlas: Atlas | None = None, about: Iterable[int | np.integer] | None = None) -> list[Item]:
        """What memory holds in evaluation: all real countries, or some, with the facts of `atlas` (default: true)."""
        return items_about(atlas or self.atlas, range(self.atlas.real) if about is None else about)

    def read_item(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        """Items as `Reveal.encode_item` takes them: a `reveal.reader.ReadItem`."""
        return network_input(items, self.vocabulary, self.item_length, self.size)

    def questions_about(self, about: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """The ids of all questions that have an answer, and of which, if about a flag, the flag says whose it is."""
        relation = np.arange(len(RELATIONS))
        return question_id(about[:, None], relation)[self.askable[about]].astype(np.int64)

    def evaluation(self, which: str, renderings: int = 2, atlas: Atlas | None = None) -> Example:
        """Every question about the countries of a set (`Atlas.sets`), `renderings` times, each time in other words and
        about another look at the flag. The arrays are those of a batch, without negatives and permutation; answers are
        those of `atlas` (default: this one). Raises ValueError for an unknown set."""
        if which not in self.atlas.sets or renderings < 1:
            raise ValueError(f"{renderings} renderings of {which!r}: give 1 or more of {', '.join(self.atlas.sets)}")
        ids = self.questions_about(self.atlas.sets[which]).repeat(renderings)
        if not len(ids):
            raise ValueError(f"there is nothing to ask about {which!r}: raise data.{which}")
        rngs = [np.random.default_rng([self.seed, EVALUATION, int(n), i % renderings]) for i, n in enumerate(ids)]
        rows = [self.ask(int(number), rng) for number, rng in zip(ids, rngs, strict=True)]
        examples = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        if atlas is not None:
            told = [atlas.answers(*self.of(number))[0] for number in ids]
            examples["answer"] = np.stack([self.ended(text) for text in told])
        return examples

    def of(self, question: int | np.integer) -> tuple[int, str]:
        """The country and the relation that a question is about."""
        country, relation = divmod(int(question), len(RELATIONS))
        return country, RELATIONS[relation]

    def ask(self, question: int, rng: np.random.Generator) -> Example:
        """One question with its answer, in words and with a look drawn by `rng`."""
        country, relation = self.of(question)
        phrasing = int(rng.integers(len(QUESTIONS[relation])))
        seen, slot = relation in SEEN, SLOT_OF[relation]
        flag = self.atlas.flags[country]
        return {
            "image": looks.look(flag, self.size, rng) if seen else looks.nothing(self.size),
            "tokens": self.question(asked_of(relation, self.atlas.countries[country].name, phrasing)),
            "answer": self.answers[country, RELATION_OF[relation]],
            "relation": np.int32(RELATION_OF[relation]),
            "source": np.int32(SOURCE_OF_SLOT[slot]),
            "gold": np.int32(item_id(country, slot)),
            "id": np.int64(question),
        }

    def question(self, text: str) -> Int[np.ndarray, " n"]:
        """The tokens of a question."""
        return self.vocabulary.encode(prompted(text), self.text_length)

    def ended(self, text: str) -> Int[np.ndarray, " o"]:
        """The tokens of an answer with its end, which takes the last one's place where there is no room."""
        tokens = self.vocabulary.encode(text, self.answer_length)
        tokens[min(int((tokens != self.vocabulary.pad).sum()), self.answer_length - 1)] = self.vocabulary.eos
        return tokens

    @functools.cached_property
    def answers(self) -> Int[np.ndarray, "countries relations o"]:
        """The first right answer to every question; only an end where there is none."""
        first = [[(country.told[relation] or ("",))[0] for relation in RELATIONS] for country in self.atlas.countries]
        return np.array([[self.ended(text) for text in row] for row in first], np.int32)

    @functools.cached_property
    def askable(self) -> Bool[np.ndarray, "countries relations"]:
        """Which questions have an answer that there is room for, and can be asked by flag or name."""
        full = (self.answers != self.vocabulary.pad).all(-1)
        known = np.array([[bool(country.told[relation]) for relation in RELATIONS] for country in self.atlas.countries])
        by_name = np.array([relation not in SEEN for relation in RELATIONS])
        return known & ~full & (self.atlas.alone[:, None] | by_name)

    @functools.cached_property
    def confusion(self) -> Confusion:
        return Confusion(self.atlas)

    @functools.cached_property
    def movable(self) -> list[Int[np.ndarray, " m"]]:
        """Pieces that change places among themselves: those of letters that no phrasing has, by whether a word begins
        with them."""
        fixed = set(np.concatenate([self.vocabulary.encode(prompted(text), 99) for text in fixed_texts()]).tolist())
        spelt = {number: self.vocabulary.spelling(number) for number in range(self.vocabulary.pieces)}
        free = {n: text for n, text in spelt.items() if n not in fixed and text.removeprefix(BLANK).isalpha()}
        begins = np.array([text.startswith(BLANK) for text in free.values()])
        return [np.array(list(free), np.int32)[begins == kind] for kind in (False, True)]

    def _prepare(self, question: int, rng: np.random.Generator) -> Example:
        negatives = self.confusion.negatives(*self.of(question), self.own, self.near, rng)
        return {**self.ask(question, rng), "negatives": negatives}

    def _translate(self, seed: int, index: int, example: Example) -> Example:
        """Into the language of the batch that the example with this number is in."""
        table = self.language(seed, index // self.batch_size)
        translated = {name: table[example[name]] for name in ("tokens", "answer")}
        return {**example, **translated, "permutation": table}

    def language(self, seed: int, step: int) -> Int[np.ndarray, " v"]:
        """A table from token to token, the same for all rows of a batch."""
        rng, table = np.random.default_rng([seed, step]), np.arange(len(self.vocabulary), dtype=np.int32)
        if rng.random() < self.shuffle:
            for pieces in self.movable:
                table[pieces] = rng.permutation(pieces)
        return table


@functools.lru_cache(maxsize=2)
def _atlas(seed: int, held_out: int, others: int, folder: str | Path | None) -> Atlas:
    """Task and data of a run are two objects alike, which share it."""
    atlas = Atlas.create(seed, held_out, folder)
    if not others:
        return atlas
    made = invented.invent(atlas.countries, others, np.random.default_rng([seed, INVENTED]))
    return atlas.with_others(made, drawing.flags(others, seed))


@functools.lru_cache(maxsize=2)
def _items(config: CountriesConfig) -> ItemArrays:
    everything = items_about(config.atlas, range(len(config.atlas.countries)))
    return arrays_of(everything, SOURCES, config.vocabulary, config.item_length, config.size)
