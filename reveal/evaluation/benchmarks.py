"""Published benchmarks: which questions count, which answers are correct, and whose evaluator a score is from.

| benchmark | read by | metric | further scores |
| --- | --- | --- | --- |
| `Vqa` | `sources.coco` | VQA accuracy (`metrics.vqa`) | by type of answer |
| `AOkVqa` | `sources.coco` | direct answer (`metrics.aokvqa`) | multiple choice |
| `Captions` | `sources.coco` | CIDEr-D (`metrics.captions`) | BLEU-4, ROUGE-L |
| `NoCaps` | `sources.coco` | CIDEr-D of all images | of each domain |
| `EncyclopedicVqa` | `sources.evqa` | exact match (`metrics.evqa`) | by kind of question, pages not in training |
| `OwnQuestions` | `sources.jsonl` | exact match, ignoring case and blanks | by group |
| `InfoSeek` | `sources.infoseek` | harmonic mean of two splits (`metrics.infoseek`) | of each split, of each kind |

Two evaluators may differ by points on the same answers, so each benchmark names its evaluator, and nothing but the
published one goes by its name. A further benchmark is a subclass of `Benchmark` that a config names
(configs/evaluation/reveal_sets.yaml).
"""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from common.io.files import require_file
from reveal.metrics import aokvqa, captions, vqa
from reveal.metrics import evqa as evqa_metrics
from reveal.metrics import infoseek as infoseek_metrics
from reveal.sources import Questions, coco, evqa, infoseek
from reveal.sources.records import Question, Skips, as_question, usable

OWN_WORDS = "own tokenizer (not the Java PTB tokenizer)"


class Example(NamedTuple):
    """A question that can be scored."""

    question: Question
    id: int | str  # in the published file
    references: tuple[str, ...]  # correct answers
    metadata: Mapping[str, Any] = {}  # what else its score needs


class Score(NamedTuple):
    """The score of a benchmark; papers print it times 100."""

    metric: str  # the name of `value`
    value: float
    parts: dict[str, float]  # further scores
    each: list[float]  # of each question, in order


@dataclass(frozen=True, kw_only=True)
class Benchmark(ABC):
    path: str  # of the questions, as published
    images: str  # a folder that has the images, at any depth

    FILES: ClassVar[Sequence[str]] = ("path",)
    EVALUATOR: ClassVar[str] = ""

    def check(self) -> None:
        """Raises OSError for missing files and folders, and ValueError for empty files."""
        for name in self.FILES:
            paths = getattr(self, name) or ()
            for path in [paths] if isinstance(paths, str) else paths:
                require_file(path)
        if not Path(self.images).is_dir():
            raise FileNotFoundError(f"{self.images}: no such folder of images; check the name")

    @property
    def evaluator(self) -> str:
        """Whose rules the scores follow, and where they differ."""
        return self.EVALUATOR

    @abstractmethod
    def examples(self, skips: Skips) -> Iterator[Example]:
        """The questions; others are skipped and counted. Raises OSError and ValueError for unusable files."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        """The score of one prediction per example; there is one or more."""


@dataclass(frozen=True, kw_only=True)
class Vqa(Benchmark):
    annotations: str  # the file of the answers
    rules: vqa.Evaluator = "current"
    answer: Literal["answer", "raw_answer"] = "answer"  # of each annotator; only OK-VQA has `raw_answer`

    FILES: ClassVar[Sequence[str]] = ("path", "annotations")

    @property
    def evaluator(self) -> str:
        how = "min(1, n / 3), nobody left out" if self.rules == "short" else "official 10-answer leave-one-out"
        return f'VQA accuracy, {how}, evaluator "{self.rules}", {self.answer} as published, predictions not stemmed'

    def examples(self, skips: Skips) -> Iterator[Example]:
        least = vqa.ENOUGH + (self.rules != "short")
        records = coco.vqa(self.path, self.annotations, self.answer, skips=skips)
        for record in usable(records, self.images, skips, image_needed=True):
            answers = tuple(vqa.ten_answers(record.answers))
            if len(answers) < least:
                skips.add(f"with fewer than {least} answers", f"{self.path} question {record.number}")
            else:
                yield Example(as_question(record), record.number, answers, record.metadata)

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        pairs = zip(examples, predictions, strict=True)
        each = [vqa.vqa_accuracy(prediction, example.references, self.rules) for example, prediction in pairs]
        types = [[one.metadata["answer_type"]] if one.metadata else [] for one in examples]
        parts = vqa.group_means(each, types)
        return Score("VQA accuracy", statistics.fmean(each), parts if len(parts) > 1 else {}, each)


@dataclass(frozen=True, kw_only=True)
class AOkVqa(Benchmark):
    """A-OKVQA, its training or validation file: the test set's answers are not public."""

    EVALUATOR: ClassVar[str] = (
        "A-OKVQA direct answer, min(1, n / 3) by equal strings, difficult ones left out;"
        " multiple choice by word overlap (not the official GloVe vectors)"
    )

    def examples(self, skips: Skips) -> Iterator[Example]:
        for record in usable(coco.aokvqa(self.path, skips=skips), self.images, skips, image_needed=True):
            row, answers = record.metadata, list(record.answers)
            id = row.get("question_id", record.number)
            if not answers:
                skips.add("without an answer", f"{self.path} question {id}")
                continue
            choices, correct = row.get("choices") or [], row.get("correct_choice_idx")
            metadata = {"question_id": id, "direct_answers": answers, "difficult_direct_answer": bool(record.group)}
            if isinstance(correct, int) and 0 <= correct < len(choices):
                metadata |= {"choices": choices, "correct_choice_idx": correct}
            yield Example(as_question(record), id, record.answers, metadata)

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        """Raises ValueError if all questions are difficult and have no choices."""
        answers: dict[Any, str] = {one.id: text for one, text in zip(examples, predictions, strict=True)}
        each = [min(1.0, one.references.count(answers[one.id]) / vqa.ENOUGH) for one in examples]
        scores: dict[str, float] = {}
        if easy := [one.metadata for one in examples if not one.metadata["difficult_direct_answer"]]:
            scores["direct answer"] = aokvqa.direct_answer(easy, answers)
        if chosen := [one.metadata for one in examples if "choices" in one.metadata]:
            texts = {row["question_id"]: answers[row["question_id"]] for row in chosen}
            scores["multiple choice"] = aokvqa.multiple_choice(chosen, aokvqa.to_choices(chosen, texts))
        if not scores:
            raise ValueError(f"{self.path}: all questions are difficult and have no choices; give the whole file")
        metric = next(iter(scores))
        return Score(metric, scores.pop(metric), scores, each)


@dataclass(frozen=True, kw_only=True)
class Captions(Benchmark):
    splits: Sequence[str] = ()  # of Karpathy's `dataset_coco.json`; none: `path` is a file of COCO's own

    EVALUATOR: ClassVar[str] = f"CIDEr-D, {OWN_WORDS}, idf of these references; BLEU-4 and ROUGE-L with the same words"

    def examples(self, skips: Skips) -> Iterator[Example]:
        reader, options = ("karpathy", {"splits": self.splits}) if self.splits else ("coco", {})
        for question in Questions(reader, self.path, {"images": self.images, **options}).read(skips):
            if references := tuple(filter(None, question.answers)):
                yield Example(question, question.id, references)
            else:
                skips.add("without a caption", f"{self.path} image {question.id}")

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        references = [example.references for example in examples]
        cider = captions.cider_d(predictions, references)
        parts = {"BLEU-4": captions.bleu(predictions, references)[3]}
        parts |= {"ROUGE-L": captions.rouge_l(predictions, references).mean}
        return Score("CIDEr-D", cider.mean, parts, cider.each)


@dataclass(frozen=True, kw_only=True)
class NoCaps(Benchmark):
    """NoCaps' validation file: the test set's captions are not public."""

    EVALUATOR: ClassVar[str] = f"CIDEr-D, {OWN_WORDS}, each domain with idf of its own (not the benchmark's server)"

    def examples(self, skips: Skips) -> Iterator[Example]:
        for example in Captions(path=self.path, images=self.images).examples(skips):
            if example.question.group.removesuffix("-domain") in captions.DOMAINS:
                yield example
            else:
                skips.add("without a domain", f"{self.path} image {example.id}")

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        references, domains = [one.references for one in examples], [one.question.group for one in examples]
        parts = captions.nocaps(predictions, references, domains)
        return Score("CIDEr-D", parts.pop("all"), parts, captions.cider_d(predictions, references).each)


@dataclass(frozen=True, kw_only=True)
class EncyclopedicVqa(Benchmark):
    """Encyclopedic-VQA; options as in `sources.evqa.records`."""

    names: Sequence[str] = ()
    kinds: Sequence[str] = field(default=evqa.KINDS)
    most: int = evqa.MOST

    FILES: ClassVar[Sequence[str]] = ("path", "names")
    EVALUATOR: ClassVar[str] = "E-VQA exact match, lists by IoU of 0.5, without BEM: never above the published score"

    def examples(self, skips: Skips) -> Iterator[Example]:
        records = evqa.records(self.path, self.names, self.kinds, self.most, skips=skips)
        for record in usable(records, self.images, skips, image_needed=True):
            references = tuple(filter(evqa_metrics.says_something, record.metadata["references"]))
            if not references:
                skips.add("without an answer", f"{self.path} question {record.number}")
            else:
                metadata = {name: record.metadata[name] for name in ("seen", "page")}
                yield Example(as_question(record), record.number, references, metadata)

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        each, groups = [], []
        for example, prediction in zip(examples, predictions, strict=True):
            kind = example.question.group
            each.append(float(evqa_metrics.exact_match(prediction, example.references, kind)))
            more = {"single hop": kind in ("templated", "automatic")}
            more["page not in training"] = example.metadata["seen"] is False
            groups.append([kind, *(name for name, belongs in more.items() if belongs)])
        return Score("exact match", statistics.fmean(each), vqa.group_means(each, groups), each)


@dataclass(frozen=True, kw_only=True)
class InfoSeek(Benchmark):
    """InfoSeek's validation file: the answers of the test and the human set are not public. Options as in
    `sources.infoseek.records`."""

    types: str | None = None
    entities: str | None = None

    FILES: ClassVar[Sequence[str]] = ("path", "types", "entities")
    EVALUATOR: ClassVar[str] = (
        "InfoSeek exact match (string, time), relaxed accuracy (numerical), harmonic mean of the two unseen splits"
    )

    def examples(self, skips: Skips) -> Iterator[Example]:
        records = infoseek.records(self.path, self.types, self.entities, skips=skips)
        for record in usable(records, self.images, skips, image_needed=True):
            about = record.metadata
            numerical, references = about["kind"] == "numerical", about["references"]
            if about["range"] is None if numerical else not references:
                reason = "without a range" if numerical and references else "without an answer"
                skips.add(reason, f"{self.path} question {about['id']}")
                continue
            kept = ("kind", "split", *(["range"] if numerical else []), *(["entity"] if about["entity"] else []))
            references = record.answers if numerical else references
            yield Example(as_question(record), about["id"], references, {name: about[name] for name in kept})

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        correct = [
            infoseek_metrics.relaxed(prediction, one.metadata["range"])
            if "range" in one.metadata
            else infoseek_metrics.exact_match(prediction, one.references)
            for one, prediction in zip(examples, predictions, strict=True)
        ]
        splits, kinds = ([one.metadata[name] for one in examples] for name in ("split", "kind"))
        scores = infoseek_metrics.scores(correct, splits, kinds)
        each, parts = list(map(float, correct)), scores.by_split | scores.by_kind
        if scores.score is None:
            return Score("accuracy, for want of one of the splits", scores.accuracy, parts, each)
        return Score("harmonic mean", scores.score, parts | {"all alike": scores.accuracy}, each)


@dataclass(frozen=True, kw_only=True)
class OwnQuestions(Benchmark):
    """Questions of one's own (docs/reveal-data.md), which may name their gold items in a memory."""

    EVALUATOR: ClassVar[str] = "exact match with one of the answers, ignoring case and blanks"

    def examples(self, skips: Skips) -> Iterator[Example]:
        for question in Questions("jsonl", self.path, {"images": self.images}).read(skips):
            if question.answers:
                yield Example(question, question.id, tuple(question.answers))
            else:
                skips.add("without an answer", f"{self.path} question {question.id}")

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Score:
        each = [
            float(plain(prediction) in map(plain, one.references))
            for one, prediction in zip(examples, predictions, strict=True)
        ]
        parts = vqa.group_means(each, [[one.question.group] if one.question.group else [] for one in examples])
        return Score("exact match", statistics.fmean(each), parts, each)


def plain(text: str) -> str:
    return " ".join(text.casefold().split())
