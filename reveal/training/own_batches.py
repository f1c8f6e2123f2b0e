"""Batches of your own items and questions, for both training stages.

A batch of b images of s pixels, with n tokens of text, o of answer and h negatives:

    image       float32 [b s s 3]   RGB in [0, 1], a crop resized to a square
    tokens      int32   [b n]       the question or prompt
    answer      int32   [b o]       the target and its end token, padded with 0
    id          int64   [b]         the question's id in its source (`names`)
    gold        int32   [b]         id of the item that has the answer     } where questions name their gold item
    source      int32   [b]         its source                             }
    negatives   int32   [b h]       ids of other items                     }

| objective | tokens | answer |
| --- | --- | --- |
| `vqa` | "Question: what does it eat" | the answer of a randomly drawn annotator |
| `caption` | "Describe the picture:" | a randomly drawn caption |
| `prefix` | "Describe the picture:", the beginning of a caption, MASK | the rest of the caption |

Prefix language modelling splits all captions of a batch after the same number of tokens, drawn from 0 to `prefix` (Hu
et al., CVPR 2023, as released); a shorter caption keeps its last token as its answer.

**Knowledge.** All items are in RAM of each process, and split over the devices (`device_memory.Contents`): 100,000
images of 224 pixels take 15 GB. For the warm start, images of questions may be cropped (`crop`), and those of items
cropped (`item_crop`) or dropped (`drop_image`), once, so that retrieval cannot compare pixels.

**Negatives** that a question names come first, shuffled; then come other questions' gold items. An item that answers no
question would teach that its key is to be far from all questions.

The same seed gives the same batches, for any number of threads and processes, and an iterator can be resumed from its
state. Images of questions are read when needed; a damaged one is named in the log, and the next question takes its
place, unless `strict`.
"""

import functools
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import grain
import numpy as np
from jaxtyping import Bool, Int, UInt8

from common.checked import NotNegative, OneOrMore, Positive, Rule, Share, whole
from common.data.stored import decode_picture
from common.io.images import from_uint8
from common.training.batches import Batched, Readable
from reveal.memory.items import Item
from reveal.processing import tokenizers
from reveal.processing.images import WHOLE, resized
from reveal.processing.processor import CUT, DESCRIBE, Row, network_input, prompted, row_of, stacked
from reveal.sources.records import Question, Skips
from reveal.sources.registry import Items, Questions

log = logging.getLogger(__name__)
Example = dict[str, Any]
Objective = Literal["vqa", "caption", "prefix"]
SHARES = Rule(lambda share: len(share) == 2 and 0 < share[0] <= share[1] <= 1, "the least and largest share, 0 to 1")
Span = Annotated[Sequence[float | int], SHARES]
CROP_SEED = 0x63726F70  # with an item's id, seeds its crop and drop
_SHARED: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # of task and data


@dataclass(frozen=True, eq=False)
class ItemArrays:
    """All items of a training run, a row each."""

    tokens: Int[np.ndarray, "n l"]
    image: UInt8[np.ndarray, "n s s 3"]  # black where there is none
    has_image: Bool[np.ndarray, " n"]
    source: UInt8[np.ndarray, " n"]  # index
    id: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.id)


def arrays_of(
    items: Iterable[Item],
    sources: Sequence[str],
    tokenizer: tokenizers.Tokenizer,
    length: int,
    size: int,
    crop: Sequence[float | int] = WHOLE,
    drop_image: float | int = 0,
    skips: Skips | None = None,
) -> ItemArrays:
    """All usable items; one with a damaged image, or with neither text nor image, is skipped. `sources` are names, in
    order of their indices; `crop` is the range of the share of an image that is kept, and `drop_image` the share of the
    images of items with text that are dropped, both drawn once, seeded by the item's id. Raises ValueError for an
    unknown source, a missing or repeated id, and no usable item."""
    skips = skips or Skips()
    rows: dict[int, Row] = {}
    source: list[int] = []
    for item in items:
        number = item.id
        if item.source not in sources:
            raise ValueError(f"item {number} is of source {item.source!r}, sources are {', '.join(sources)}: add it")
        if number is None or number in rows or not 0 <= number < 2**31:
            rule = "ids are unique, in training 0 to 2^31 - 1: number items and gold anew, or set a reader's first_id"
            raise ValueError(f"item {number} of {item.source}: {rule}")
        rng = np.random.default_rng([CROP_SEED, number])
        row = row_of(item, tokenizer, length, size, skips, rng, crop, drop_image)
        if row is not None:
            rows[number] = row
            source.append(sources.index(item.source))
    if not rows:
        raise ValueError(f"no usable item in the knowledge ({skips}): check its path and its images")
    arrays = stacked(list(rows.values()), length, size)
    return ItemArrays(*arrays, np.array(source, np.uint8), np.array(list(rows), np.int64))


@dataclass(frozen=True)
class OwnDataConfig(Batched):
    knowledge: str | Sequence[Items]  # a .jsonl of the general format, or `reveal.sources.Items`
    questions: str | Questions  # a .jsonl, or a `reveal.sources.Questions`
    sources: OneOrMore[str]  # names of the items' sources, in order of the network's gate
    tokenizer: str  # a file for `tokenizers.load`
    objective: Objective = "vqa"
    image_size: Positive = 224  # in pixels, as the network's
    item_length: Positive = 326  # in tokens, as are the next two
    text_length: Positive = 64
    answer_length: Annotated[int, whole(2)] = 32  # with the end token
    prefix: NotNegative = 5  # most tokens of a caption in the prompt
    crop: Span = (1, 1)  # range of the share of a question's image that is kept, drawn each time
    item_crop: Span = (1, 1)  # the same of an item's image, drawn once
    drop_image: Share = 0  # share of the items with text whose image is dropped
    negatives: NotNegative = 1  # per question, where questions name their gold items
    strict: bool = False  # unusable items and questions are errors; readers have a `strict` of their own
    batch_size: Positive = field(default=64, kw_only=True)

    def rules(self):
        yield len(set(self.sources)) == len(self.sources), "sources names each source of knowledge once"

    def dataset(self, seed: int) -> grain.MapDataset:
        """Raises OSError for missing files; ValueError for unusable questions, a text_length too short for the prompt,
        or a batch that exceeds the questions."""
        count, _ = len(self._readable), self._caption_prompt
        if self.batch_size > count:
            raise ValueError(f"batch_size {self.batch_size} exceeds the {count} questions: lower it")
        dataset = grain.MapDataset.range(count).seed(seed).shuffle().repeat().random_map(self._prepare)
        prefix = self.objective == "prefix"
        return dataset.map_with_index(functools.partial(self._split_caption, seed)) if prefix else dataset

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        questions = {question.id: question for question in self.usable_questions}
        return [_name(questions[int(number)]) for number in ids]

    @functools.cached_property
    def vocabulary(self) -> tokenizers.Tokenizer:
        """Raises as `tokenizers.load`."""
        return tokenizers.load(self.tokenizer)

    @functools.cached_property
    def items(self) -> ItemArrays:
        """Shared by equal configs of unchanged files. Raises OSError and ValueError as `arrays_of`."""
        knowledge, skips = self.knowledge, Skips(self.strict)
        if isinstance(knowledge, str):
            knowledge = [Items("jsonl", knowledge, strict=self.strict)]
        options = self.item_length, self.image_size, self.item_crop, self.drop_image
        files = [Path(path) for path in (self.tokenizer, *(source.path for source in knowledge))]
        changed = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
        key = repr((list(knowledge), self.tokenizer, self.sources, options, self.strict, changed))
        if (shared := _SHARED.get(key)) is None:
            items = (item for source in knowledge for item in source)
            shared = _SHARED[key] = arrays_of(items, self.sources, self.vocabulary, *options, skips)
            if skips.counts:
                log.warning("knowledge: %s", skips)
        return shared

    @functools.cached_property
    def usable_questions(self) -> list[Question]:
        source = self.questions
        if isinstance(source, str):
            source = Questions("jsonl", source, strict=self.strict)
        questions, skips = list(source), Skips(self.strict)
        if len({question.id for question in questions}) < len(questions):
            raise ValueError(f"{source.path}: some questions have the same id; number them")
        golds = sum(question.gold is not None for question in questions)
        if golds not in (0, len(questions)):
            raise ValueError(f"{source.path}: {golds} of {len(questions)} questions name gold items: give all, or none")
        ids = set(self.items.id.tolist()) if golds else set()
        usable = [one for question in questions if (one := self._usable(question, ids, skips)) is not None]
        if skips.counts:
            log.warning("%s: %s", source.path, skips)
        if not usable:
            raise ValueError(f"{source.path}: no usable question; {skips}")
        if golds and len({one.gold for one in usable}) < 2 and self.negatives:
            raise ValueError(f"{source.path}: all questions have one gold item, so there are no negatives: set 0")
        return usable

    def read_item(self, items: Sequence[Item]) -> Mapping[str, np.ndarray]:
        """Items as `Reveal.encode_item` takes them (a `reveal.reader.ReadItem`), their images uncropped."""
        return network_input(items, self.vocabulary, self.item_length, self.image_size)

    def prompt(self, question: str = "") -> Int[np.ndarray, " n"]:
        return self.vocabulary.encode(prompted(question), self.text_length)

    def _usable(self, question: Question, ids: set[int], skips: Skips) -> Question | None:
        """The question with its non-empty answers and its known negatives; None, and counted, if it cannot be used."""
        answers = tuple(answer.strip() for answer in question.answers if answer.strip())
        vqa, name = self.objective == "vqa", _name(question)
        faults = {
            "without text": vqa and not question.text.strip(),
            "without an answer": not answers,
            "whose gold item is not in the knowledge": question.gold is not None and question.gold not in ids,
        }
        if fault := next((fault for fault, there in faults.items() if there), None):
            skips.add(fault, name)
            return None
        if vqa and self.vocabulary.encode(prompted(question.text), 2 * self.text_length)[self.text_length :].any():
            skips.note(f"{CUT} {self.text_length} tokens", name)
        negatives = tuple(number for number in question.negatives if number in ids and number != question.gold)
        return question._replace(answers=answers, negatives=negatives)

    def _prepare(self, index: int | np.integer, rng: np.random.Generator) -> Example:
        question, picture = self._readable[int(index)]
        answer = question.answers[rng.integers(len(question.answers))]
        image = from_uint8(resized(picture, self.image_size, rng, self.crop))
        example: Example = {"image": image, "id": np.int64(question.id)}
        if self.objective == "prefix":
            example["caption"] = self.vocabulary.encode(answer, self.prefix + self.answer_length)
        else:
            tokens = self.prompt(question.text if self.objective == "vqa" else "")
            example |= {"tokens": tokens, "answer": self._ended(self.vocabulary.encode(answer, self.answer_length))}
        if question.gold is not None:
            ids, sources = self._sources
            example |= {"gold": np.int32(question.gold), "source": sources[np.searchsorted(ids, question.gold)]}
            example["negatives"] = self._negatives(question, rng)
        return example

    @functools.cached_property
    def _readable(self) -> Readable:
        questions = self.usable_questions

        def read(number: int) -> tuple[Question, UInt8[np.ndarray, "h w 3"]]:
            question = questions[number]
            return question, decode_picture(question.image, _name(question))

        return Readable(len(questions), read, lambda number: _name(questions[number]), self.strict)

    def _split_caption(self, seed: int, index: int, example: Example) -> Example:
        """Splits a caption where the batch of the example with this index does."""
        caption = example.pop("caption")
        caption = caption[caption != self.vocabulary.pad]
        at = np.random.default_rng([seed, index // self.batch_size]).integers(self.prefix + 1)
        at = min(int(at), max(len(caption) - 1, 0))
        tokens = tokenizers.padded([*self._caption_prompt, *caption[:at], self.vocabulary.mask], self.text_length)
        return example | {"tokens": tokens, "answer": self._ended(tokenizers.padded(caption[at:], self.answer_length))}

    def _ended(self, answer: Int[np.ndarray, " o"]) -> Int[np.ndarray, " o"]:
        """The tokens with the end token after the last one, or in its place."""
        length = min(int((answer != self.vocabulary.pad).sum()), len(answer) - 1)
        answer[length] = self.vocabulary.eos
        return answer

    def _negatives(self, question: Question, rng: np.random.Generator) -> Int[np.ndarray, " h"]:
        """In a time that does not grow with the items; for a question that names its gold item."""
        assert question.gold is not None
        named = rng.permutation(np.array(question.negatives, np.int32))[: self.negatives]
        drawn = np.zeros(0, np.int64)
        if self.negatives > len(named):
            drawn = rng.integers(len(self._golds) - 1, size=self.negatives - len(named))
            drawn += drawn >= np.searchsorted(self._golds, question.gold)  # all but the question's own
        return np.concatenate([named, self._golds[drawn]]).astype(np.int32)

    @functools.cached_property
    def _caption_prompt(self) -> Int[np.ndarray, " p"]:
        """The prompt for a description. Raises ValueError if text_length has no room for it."""
        tokens = self.vocabulary.encode(DESCRIBE, 64)
        tokens = tokens[tokens != self.vocabulary.pad]
        needed = len(tokens) + self.prefix + 1
        if self.objective == "prefix" and needed > self.text_length:
            raise ValueError(f"text_length {self.text_length}: a prompt, {self.prefix} tokens and MASK take {needed}")
        return tokens

    @functools.cached_property
    def _golds(self) -> Int[np.ndarray, " g"]:
        return np.unique(np.array([question.gold for question in self.usable_questions], np.int32))

    @functools.cached_property
    def _sources(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The items' ids in order, and the source of each."""
        order = np.argsort(self.items.id)
        return self.items.id[order], self.items.source[order].astype(np.int32)


def _name(question: Question) -> str:
    image = question.image
    where = "an image" if isinstance(image, bytes) else image if isinstance(image, Path) else image.name
    return f"question {question.id} ({question.text or 'to describe'}) about {where}"
