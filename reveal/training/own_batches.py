"""Knowledge and questions of one's own in batches, for both stages of training.

A batch of b pictures of s pixels, with n tokens of text, o of answer and h negatives:

    image       float32 [b s s 3]   RGB in [0, 1], a part of the picture resized to a square
    tokens      int32   [b n]       what is asked
    answer      int32   [b o]       what to write, and the end; filled up with 0
    id          int64   [b]         number of the question in its source: `names` tells what it is
    gold        int32   [b]         id of the item that has the answer     } where the questions name theirs
    source      int32   [b]         its source                             }
    negatives   int32   [b h]       ids of items that have not             }

**Objectives.** What is asked depends on it:

| objective | tokens | answer |
| --- | --- | --- |
| `vqa` | "Question: what does it eat" | the answer of one annotator, drawn |
| `caption` | "Describe the picture:" | one of the captions, drawn |
| `prefix` | "Describe the picture:", the beginning of a caption, MASK | the rest of the caption |

Prefix language modelling cuts the captions of a batch after the same number of tokens, drawn from 0 to `prefix` (Hu et
al., CVPR 2023, as released); a caption that is shorter keeps its last token as its answer.

**Knowledge.** All items are held in the RAM and on the devices (`bank.Contents`): a picture of 224 pixels takes 150 KB,
so 100,000 take 15 GB. A picture may be cropped (`item_crop`) or left out (`drop_image`) for the warm start, so that a
query does not find its item by comparing pixels. Both are drawn once per item and not per step as in the reference.

**Negatives** that a question names come first, in any order; then come the gold items of others, as if the batch were
rolled. An item that is nobody's answer would teach that its key is to be kept away from all questions.

The same seed gives the same batches, for any number of threads and processes; an iterator set to a state goes on as if
it had never stopped. Questions are held in the RAM, their pictures are read when they are needed.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import grain
import numpy as np
from jaxtyping import Int

from common.training.batches import batches
from reveal.memory.items import Item
from reveal.processing import item_arrays, tokenizers
from reveal.processing.item_arrays import ItemArrays, arrays_of, network_input, resized
from reveal.processing.prompts import DESCRIBE, asked
from reveal.sources.records import Question, Skips, decode_picture
from reveal.sources.registry import Items, Questions

log = logging.getLogger(__name__)
Example = dict[str, Any]
Objective = Literal["vqa", "caption", "prefix"]
_SHARED: weakref.WeakValueDictionary[str, item_arrays.Later] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class OwnDataConfig:
    """Knowledge and the questions about it.

    Attributes:
      knowledge: a .jsonl of the general format, or a list of `reveal.sources.Items`.
      questions: a .jsonl, or one of `reveal.sources.Questions`.
      sources: names of the items' sources; the place is the number that the network's gate has, and the network needs
        as many.
      tokenizer: a file that `reveal.processing.tokenizers` opens.
      objective: vqa, caption or prefix.
      image_size: side of the pictures, as the network's.
      item_length, text_length, answer_length: tokens of an item, of what is asked, and of an answer with its end.
      prefix: tokens of the caption that a query may show.
      crop: least and largest share of a query's picture that is shown, drawn each time; [1, 1]: all.
      item_crop: the same of an item's picture, drawn once.
      drop_image: share of the items with text that lose their picture.
      negatives: per question, where questions name their gold items.
      strict: what cannot be used is an error instead of being left out and counted. Readers have a `strict` too.
      batch_size: questions per batch, over all processes.
      threads: readers inside this process. buffer: batches they may prepare ahead.
    """

    knowledge: str | Sequence[Items]
    questions: str | Questions
    sources: Sequence[str]
    tokenizer: str
    objective: Objective = "vqa"
    image_size: int = 224
    item_length: int = 326
    text_length: int = 64
    answer_length: int = 32
    prefix: int = 5
    crop: Sequence[float | int] = (1, 1)
    item_crop: Sequence[float | int] = (1, 1)
    drop_image: float | int = 0
    negatives: int = 1
    strict: bool = False
    batch_size: int = 64
    threads: int = 2
    buffer: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for values that suit no data; no file is opened."""
        least = ("image_size", "item_length", "text_length", "batch_size", "threads", "buffer")
        small = [f"{name} {getattr(self, name)}" for name in least if getattr(self, name) < 1]
        if small or self.answer_length < 2 or min(self.prefix, self.negatives) < 0:
            raise ValueError(
                f"{', '.join(small) or 'sizes'} must be 1 or more, answer_length {self.answer_length} 2 or more,"
                f" prefix {self.prefix} and negatives {self.negatives} not negative"
            )
        for name in ("crop", "item_crop"):
            share = tuple(getattr(self, name))
            if len(share) != 2 or not 0 < share[0] <= share[1] <= 1:
                raise ValueError(f"{name} is {list(share)}: give the least and the largest share of a picture, 0 to 1")
            object.__setattr__(self, name, share)
        if not 0 <= self.drop_image <= 1:
            raise ValueError(f"drop_image is {self.drop_image}: it is a share of the items, 0 to 1")
        if self.objective not in get_args(Objective):
            raise ValueError(f"objective is {self.objective!r}: choose one of {', '.join(get_args(Objective))}")
        if not self.sources or len(set(self.sources)) != len(self.sources):
            raise ValueError(f"sources are {list(self.sources)}: name each source of knowledge once")
        object.__setattr__(self, "sources", tuple(self.sources))

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it (defaults: what JAX says).

        Raises OSError for files that are missing; ValueError for questions that cannot be used, a text_length without
        room for the prompt, a batch that is larger than all questions or cannot be divided."""
        asked, *_ = self.asked, self._described
        if self.batch_size > len(asked):
            raise ValueError(f"batch_size {self.batch_size} exceeds the {len(asked)} questions there are: lower it")
        dataset = grain.MapDataset.range(len(asked)).seed(seed).shuffle().repeat().random_map(self._prepare)
        if self.objective == "prefix":
            dataset = dataset.map_with_index(functools.partial(self._cut, seed))
        return batches(dataset, self.batch_size, self.threads, self.buffer, process_index, process_count)

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        """The questions with these ids."""
        questions = {question.id: question for question in self.asked}
        return [_name(questions[int(number)]) for number in ids]

    @functools.cached_property
    def vocabulary(self) -> Any:
        """A `Tokenizer`. Its first use raises as `tokenizers.load`."""
        return tokenizers.Later(self.tokenizer)

    @functools.cached_property
    def items(self) -> Any:
        """What memory holds: `ItemArrays`. Its first use raises OSError and ValueError (`item_arrays.arrays_of`)."""
        return _SHARED.setdefault(self._deciding, item_arrays.Later(self._read_items))

    @property
    def _sources_of_items(self) -> Sequence[Items]:
        if isinstance(self.knowledge, str):
            return [Items("jsonl", self.knowledge, strict=self.strict)]
        return self.knowledge

    @property
    def _deciding(self) -> str:
        """What the items follow from. Task and data of a run are two objects alike, which share them."""
        paths = [Path(path) for path in (self.tokenizer, *(source.path for source in self._sources_of_items))]
        changed = [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
        what = self.sources, self.tokenizer, self.image_size, self.item_length, self.item_crop, self.drop_image
        return repr((list(self._sources_of_items), what, self.strict, changed))

    def _read_items(self) -> ItemArrays:
        sources, skips, how = self._sources_of_items, Skips(self.strict), (self.item_crop, self.drop_image)
        read = (item for source in sources for item in source)
        lengths = self.item_length, self.image_size
        items = arrays_of(read, self.sources, self.vocabulary, *lengths, *how, skips=skips)
        if skips.counts:
            log.warning("knowledge: %s", skips)
        return items

    @functools.cached_property
    def asked(self) -> list[Question]:
        """The questions that can be used. Raises OSError and ValueError."""
        source = self.questions
        if isinstance(source, str):
            source = Questions("jsonl", source, strict=self.strict)
        skips = Skips(self.strict)
        found = list(source)
        if len({question.id for question in found}) < len(found):
            raise ValueError(f"{source.path}: some questions have the same id; number them")
        golds = sum(question.gold is not None for question in found)
        if golds not in (0, len(found)):
            raise ValueError(
                f"{source.path}: {golds} of {len(found)} questions name their gold item; name it for all, or for none"
            )
        there = set(self.items.id.tolist()) if golds else set()
        usable = [one for question in found if (one := self._usable(question, there, skips)) is not None]
        if skips.counts:
            log.warning("%s: %s", source.path, skips)
        if not usable:
            raise ValueError(f"{source.path}: no question that can be used; {skips}")
        if golds and len({one.gold for one in usable}) < 2 and self.negatives:
            raise ValueError(f"{source.path}: all questions have one gold item, so there are no negatives: set 0")
        return usable

    def read_item(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        """Items as `Reveal.encode_item` takes them: a `reveal.reader.ReadItem`. Pictures are whole."""
        return network_input(items, self.vocabulary, self.item_length, self.image_size)

    def ask(self, question: str = "") -> Int[np.ndarray, " n"]:
        """The tokens of a question, or of a picture to describe: what `Reader.ask` takes, a row of it."""
        return self.vocabulary.encode(asked(question), self.text_length)

    def _usable(self, question: Question, there: set[int], skips: Skips) -> Question | None:
        """With only the answers that say something and the negatives that are there; None if it cannot be used."""
        answers = tuple(answer.strip() for answer in question.answers if answer.strip())
        if not answers or (self.objective == "vqa" and not question.text.strip()):
            skips.add(
                "without an answer" if question.text or self.objective != "vqa" else "without text", _name(question)
            )
        elif question.gold is not None and question.gold not in there:
            skips.add("whose gold item is not in the knowledge", _name(question))
        else:
            kept = tuple(number for number in question.negatives if number in there and number != question.gold)
            return question._replace(answers=answers, negatives=kept)
        return None

    def _prepare(self, index: int | np.integer, rng: np.random.Generator) -> Example:
        question = self.asked[int(index)]
        answer = question.answers[rng.integers(len(question.answers))]
        image = resized(decode_picture(question.image, _name(question)), self.image_size, rng, self.crop)
        example: Example = {"image": image.astype(np.float32) / 255, "id": np.int64(question.id)}
        if self.objective == "prefix":
            example["caption"] = self.vocabulary.encode(answer, self.prefix + self.answer_length)
        else:
            tokens = self.ask(question.text if self.objective == "vqa" else "")
            example |= {"tokens": tokens, "answer": self._ended(self.vocabulary.encode(answer, self.answer_length))}
        if question.gold is None:
            return example
        negatives = self._negatives(question, rng)
        return example | {
            "gold": np.int32(question.gold),
            "source": self._source[question.gold],
            "negatives": negatives,
        }

    def _cut(self, seed: int, index: int, example: Example) -> Example:
        """A caption in two, at the place of the batch that the example with this number is in."""
        caption = example.pop("caption")
        caption = caption[caption != self.vocabulary.pad]
        place = np.random.default_rng([seed, index // self.batch_size]).integers(self.prefix + 1)
        place = min(int(place), max(len(caption) - 1, 0))
        mask = np.array([self.vocabulary.mask], np.int32)
        tokens = np.concatenate([self._described, caption[:place], mask])
        return example | {
            "tokens": _row(tokens, self.text_length),
            "answer": self._ended(_row(caption[place:], self.answer_length)),
        }

    def _ended(self, answer: Int[np.ndarray, " o"]) -> Int[np.ndarray, " o"]:
        """With the end behind its last token, or in its place."""
        length = min(int((answer != self.vocabulary.pad).sum()), len(answer) - 1)
        answer[length] = self.vocabulary.eos
        return answer

    def _negatives(self, question: Question, rng: np.random.Generator) -> Int[np.ndarray, " h"]:
        named = rng.permutation(np.array(question.negatives, np.int32))[: self.negatives]
        others = self._golds[self._golds != question.gold]
        drawn = rng.choice(others, self.negatives - len(named)) if self.negatives > len(named) else others[:0]
        return np.concatenate([named, drawn]).astype(np.int32)

    @functools.cached_property
    def _described(self) -> Int[np.ndarray, " p"]:
        """The prompt of a picture to describe. Raises ValueError if text_length has no room for it."""
        tokens = self.vocabulary.encode(DESCRIBE, 64)
        tokens = tokens[tokens != self.vocabulary.pad]
        if self.objective == "prefix" and len(tokens) + self.prefix + 1 > self.text_length:
            need = len(tokens) + self.prefix + 1
            raise ValueError(f"text_length {self.text_length}: a prompt, {self.prefix} tokens and MASK take {need}")
        return tokens

    @functools.cached_property
    def _golds(self) -> Int[np.ndarray, " g"]:
        return np.unique(np.array([question.gold for question in self.asked], np.int32))

    @functools.cached_property
    def _source(self) -> dict[int, np.int32]:
        return dict(zip(self.items.id.tolist(), self.items.source.astype(np.int32), strict=True))


def _row(tokens: Int[np.ndarray, " _m"], length: int) -> Int[np.ndarray, " length"]:
    kept = tokens[:length]
    return np.pad(kept, (0, length - len(kept)))


def _name(question: Question) -> str:
    image = question.image
    where = "an image" if isinstance(image, bytes) else image if isinstance(image, Path) else image.name
    return f"question {question.id} ({question.text or 'to describe'}) about {where}"
