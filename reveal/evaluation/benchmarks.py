"""Published sets as they are scored: which questions count, what is right, and which evaluator a number is from.

| set | read by | the number | beside it |
| --- | --- | --- | --- |
| `Vqa` | `sources.coco` | VQA accuracy (`metrics.vqa`) | by type of answer |
| `AOkVqa` | `sources.coco` | direct answer (`metrics.aokvqa`) | multiple choice |
| `Captions` | `sources.coco` | CIDEr-D (`metrics.captions`) | BLEU-4, ROUGE-L |
| `NoCaps` | `sources.coco` | CIDEr-D of all pictures | of each domain |
| `EncyclopedicVqa` | `sources.evqa` | exact match (`metrics.evqa`) | by kind of question, pages not in training |
| `InfoSeek` | `sources.infoseek` | harmonic mean of two splits (`metrics.infoseek`) | of each split, of each kind |

A set gives the questions that can be scored (`asked`), and makes a `Score` of predictions to them. Two programs that
score the same answers may differ by points, so each set names its evaluator, and nothing that is not the published one
goes by its name. A further set is another subclass of `PublishedSet`; a config names it (configs/evaluation).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from reveal.evaluation.published import Asked, PublishedSet, Score
from reveal.metrics import aokvqa, captions, vqa
from reveal.metrics import evqa as evqa_metrics
from reveal.metrics import infoseek as infoseek_metrics
from reveal.sources import coco, evqa, infoseek
from reveal.sources.records import Skips

OWN_WORDS = "own tokenizer (not the Java PTB tokenizer)"


@dataclass(frozen=True, kw_only=True)
class Vqa(PublishedSet):
    """VQA-v2 and OK-VQA.

    Attributes:
      annotations: the file of the answers.
      rules: an evaluator of `metrics.vqa`.
      answer: entry of an annotator's that counts; OK-VQA has `raw_answer` too.
    """

    annotations: str
    rules: vqa.Evaluator = "current"
    answer: Literal["answer", "raw_answer"] = "answer"

    FILES: ClassVar[Sequence[str]] = ("path", "annotations")

    @property
    def evaluator(self) -> str:
        how = "min(1, n / 3), nobody left out" if self.rules == "short" else "official 10-answer leave-one-out"
        return f'VQA accuracy, {how}, evaluator "{self.rules}", {self.answer} as published, predictions not stemmed'

    def asked(self, skips: Skips) -> Iterator[Asked]:
        rows = coco.rows_of(coco.read_json(self.annotations), "annotations", self.annotations)
        types = {row.get("question_id"): row.get("answer_type") for row in rows}
        least = vqa.ENOUGH + (self.rules != "short")
        for question in coco.vqa_questions(self.path, self.images, self.annotations, self.answer, skips=skips):
            people = tuple(vqa.ten_answers({"answers": [{"answer": one} for one in question.answers]}))
            if len(people) < least:
                skips.add(f"with fewer than {least} answers", f"{self.path} question {question.id}")
            else:
                kind = types.get(question.id)
                yield Asked(question, question.id, people, {} if kind is None else {"answer_type": str(kind)})

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        said = {one.name: prediction for one, prediction in zip(asked, predictions, strict=True)}
        rows = [
            {"question_id": one.name, "answers": [{"answer": text} for text in one.answers], **one.about}
            for one in asked
        ]
        found = vqa.vqa_scores(said, rows, self.rules)
        kinds = found.by_answer_type if len(found.by_answer_type) > 1 else {}
        return Score("VQA accuracy", found.accuracy, kinds, [found.each[one.name] for one in asked])


@dataclass(frozen=True, kw_only=True)
class AOkVqa(PublishedSet):
    """A-OKVQA, its training or validation file: the test set's answers are not public."""

    @property
    def evaluator(self) -> str:
        return (
            "A-OKVQA direct answer, min(1, n / 3) by equal strings, difficult ones left out;"
            " multiple choice by word overlap (not the official GloVe vectors)"
        )

    def asked(self, skips: Skips) -> Iterator[Asked]:
        rows = coco.rows_of(coco.read_json(self.path), "questions", self.path)
        for question in coco.aokvqa_questions(self.path, self.images, skips=skips):
            row, texts = rows[question.id], [one for one in question.answers if isinstance(one, str)]
            name = row.get("question_id", question.id)
            if not texts:
                skips.add("without an answer", f"{self.path} question {name}")
                continue
            choices, right = row.get("choices") or [], row.get("correct_choice_idx")
            about = {"question_id": name, "direct_answers": texts}
            about |= {"difficult_direct_answer": bool(question.group)}
            if isinstance(right, int) and 0 <= right < len(choices):
                about |= {"choices": choices, "correct_choice_idx": right}
            yield Asked(question, name, tuple(texts), about)

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        """Raises ValueError for nothing but difficult questions without choices."""
        said = {one.name: prediction for one, prediction in zip(asked, predictions, strict=True)}
        each = [min(1.0, one.answers.count(said[one.name]) / vqa.ENOUGH) for one in asked]
        found: dict[str, float] = {}
        if easy := [one.about for one in asked if not one.about["difficult_direct_answer"]]:
            found["direct answer"] = aokvqa.direct_answer(
                easy, {row["question_id"]: said[row["question_id"]] for row in easy}
            )
        if chosen := [one.about for one in asked if "choices" in one.about]:
            mine = {row["question_id"]: said[row["question_id"]] for row in chosen}
            found["multiple choice"] = aokvqa.multiple_choice(chosen, aokvqa.to_choices(chosen, mine))
        if not found:
            raise ValueError(f"{self.path}: all questions are difficult and have no choices; give the whole file")
        metric, *others = found
        return Score(metric, found[metric], {name: found[name] for name in others}, each)


@dataclass(frozen=True, kw_only=True)
class Captions(PublishedSet):
    """COCO's captions.

    Attributes:
      splits: of Karpathy's `dataset_coco.json`; none: `path` is a file of COCO's own.
    """

    splits: Sequence[str] = ()

    @property
    def evaluator(self) -> str:
        return f"CIDEr-D, {OWN_WORDS}, idf of these references; BLEU-4 and ROUGE-L with the same words"

    def asked(self, skips: Skips) -> Iterator[Asked]:
        if self.splits:
            found = coco.karpathy(self.path, self.images, self.splits, skips=skips)
        else:
            found = coco.captions(self.path, self.images, skips=skips)
        for question in found:
            said = tuple(text for text in question.answers if text)
            if not said:
                skips.add("without a caption", f"{self.path} picture {question.id}")
            else:
                yield Asked(question, question.id, said)

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        references = [one.answers for one in asked]
        found = captions.cider_d(predictions, references)
        parts = {"BLEU-4": captions.bleu(predictions, references)[3]}
        parts |= {"ROUGE-L": captions.rouge_l(predictions, references).mean}
        return Score("CIDEr-D", found.mean, parts, found.each)


@dataclass(frozen=True, kw_only=True)
class NoCaps(PublishedSet):
    """NoCaps' validation file: the test set's captions are not public."""

    @property
    def evaluator(self) -> str:
        return f"CIDEr-D, {OWN_WORDS}, each domain with idf of its own (not the benchmark's server)"

    def asked(self, skips: Skips) -> Iterator[Asked]:
        for one in Captions(path=self.path, images=self.images).asked(skips):
            if one.question.group.removesuffix("-domain") not in captions.DOMAINS:
                skips.add("without a domain", f"{self.path} picture {one.name}")
            else:
                yield one

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        references, domains = [one.answers for one in asked], [one.question.group for one in asked]
        found = captions.nocaps(predictions, references, domains)
        parts = {name: value for name, value in found.items() if name != "all"}
        return Score("CIDEr-D", found["all"], parts, captions.cider_d(predictions, references).each)


@dataclass(frozen=True, kw_only=True)
class EncyclopedicVqa(PublishedSet):
    """Encyclopedic-VQA.

    Attributes:
      names: iNaturalist's files; kinds, most: as in `sources.evqa.entries`.
    """

    names: Sequence[str] = ()
    kinds: Sequence[str] = field(default=evqa.KINDS)
    most: int = evqa.MOST

    FILES: ClassVar[Sequence[str]] = ("path", "names")

    @property
    def evaluator(self) -> str:
        return "E-VQA exact match, lists by IoU of 0.5, without BEM: never above the published score"

    def asked(self, skips: Skips) -> Iterator[Asked]:
        for entry in evqa.entries(self.path, self.images, self.names, self.kinds, self.most, skips=skips):
            references = tuple(filter(evqa_metrics.says_something, entry.references))
            if not references:
                skips.add("without an answer", f"{self.path} question {entry.question.id}")
            else:
                yield Asked(entry.question, entry.question.id, references, {"seen": entry.seen, "page": entry.page})

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        pairs = zip(asked, predictions, strict=True)
        each = [float(evqa_metrics.exact_match(said, one.answers, one.question.group)) for one, said in pairs]
        groups: dict[str, list[float]] = {}
        for right, one in zip(each, asked, strict=True):
            kind = one.question.group
            single = ["single hop"] if kind in ("templated", "automatic") else []
            for group in [kind, *single, *(["page not in training"] if one.about["seen"] is False else [])]:
                groups.setdefault(group, []).append(right)
        return Score("exact match", _mean(each), {name: _mean(part) for name, part in groups.items()}, each)


@dataclass(frozen=True, kw_only=True)
class InfoSeek(PublishedSet):
    """InfoSeek's validation file: the answers of the test and the human set are not public.

    Attributes:
      types, entities: the other two files, as in `sources.infoseek.entries`; None: without.
    """

    types: str | None = None
    entities: str | None = None

    FILES: ClassVar[Sequence[str]] = ("path", "types", "entities")

    @property
    def evaluator(self) -> str:
        return (
            "InfoSeek exact match (string, time), relaxed accuracy (numerical), harmonic mean of the two unseen splits"
        )

    def asked(self, skips: Skips) -> Iterator[Asked]:
        for entry in infoseek.entries(self.path, self.images, self.types, self.entities, skips=skips):
            numerical = entry.kind == "numerical"
            if entry.span is None if numerical else not entry.references:
                reason = "without a range" if numerical and entry.references else "without an answer"
                skips.add(reason, f"{self.path} question {entry.name}")
                continue
            about = {"kind": entry.kind, "split": entry.split}
            about |= {"range": entry.span} if numerical else {}
            about |= {"entity": entry.entity} if entry.entity else {}
            shown = entry.question.answers if numerical else entry.references
            yield Asked(entry.question, entry.name, shown, about)

    def score(self, asked: Sequence[Asked], predictions: Sequence[str]) -> Score:
        right = [
            infoseek_metrics.relaxed(said, one.about["range"])
            if "range" in one.about
            else infoseek_metrics.exact_match(said, one.answers)
            for one, said in zip(asked, predictions, strict=True)
        ]
        splits, kinds = ([one.about[name] for one in asked] for name in ("split", "kind"))
        found = infoseek_metrics.scores(right, splits, kinds)
        each, parts = [float(one) for one in right], found.by_split | found.by_kind
        if found.score is None:
            return Score("accuracy, for want of one of the splits", found.accuracy, parts, each)
        return Score("harmonic mean", found.score, parts | {"all alike": found.accuracy}, each)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
