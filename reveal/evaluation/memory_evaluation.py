"""A trained network's answers to published benchmarks, from a memory on disk.

    python eval.py evaluation=reveal_sets weights=runs/mine evaluation.memory=facts sets=[okvqa,aokvqa]
    python eval.py evaluation=reveal_sets weights=runs/mine evaluation.memory=facts sets=[coco] evaluation.beams=4

Of each benchmark, the questions that can be scored are answered as `reveal ask` does, but greedily unless `beams` says
otherwise; others are skipped and counted by reason (`strict`: an error). predictions_SET.jsonl has each answer with the
ids of the items that it was read from; results.json and results.md have a row per benchmark: metric, retrieval (recall,
MRR, by source, where questions name gold items of the memory; else how often an item contains an answer), evaluator,
number of questions (and `limit`), what was skipped, and provenance.

**Provenance.** Scores of one network from two initialisations differ by tens of points, and a memory that has the
evaluation's own images by more. So a score is printed with both, as the files describe themselves:

    runs/mine/weights.safetensors (experiment mine, step 5,865, objective vqa, begun from runs/warm/weights.safetensors)
    facts (4,000 items: wiki 3,000, web 1,000; version 3, encoder 1f0c..., contents 9ab2...)
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from tqdm import tqdm

from common.checked import Named, NotNegative, Positive
from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.score_table import markdown
from common.weights.model_file import Metadata
from reveal import pretrained
from reveal.assistant import MOST_READ, Assistant, items_to_find, text_of
from reveal.evaluation.benchmarks import Benchmark, Example
from reveal.memory.engines.engine import engine_of
from reveal.memory.memory import Memory
from reveal.metrics.retrieval import mrr, pr_recall_at_k, recall_at_k
from reveal.network import weights as files
from reveal.network.generator import Decoding
from reveal.processing.processor import Processor, processor_of, recipe_of
from reveal.reader import Reader, reader_fingerprint
from reveal.sources.records import Skips

RESULTS, TABLE = "results.json", "results.md"
COLUMNS = ("set", "score", "retrieval", "questions", "left out", "evaluator", "weights", "memory", "asked")
Row = dict[str, Any]
Input = tuple[Int[np.ndarray, " n"], Float[np.ndarray, "v s s 3"]]  # tokens, views of the image
Batch = list[tuple[Example, Future[Input | str]]]


class Prediction(NamedTuple):
    """The answer, and the ids of the items that were read, best first."""

    text: str
    items: list[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Answering:
    """Answers questions in batches as `Assistant.ask` does one; two-hop questions run one at a time. Questions that the
    network cannot take (too long, a damaged image) are skipped and counted."""

    assistant: Assistant  # with a memory unless k is 0
    k: int  # items to read
    decoding: Decoding
    sources: Sequence[str] | None = None  # names of those to search; None: all
    batch: int = 32  # questions at a time
    threads: int = 2  # for reading images

    def __call__(self, examples: Sequence[Example], skips: Skips) -> Iterator[tuple[Example, Prediction | None]]:
        """Each question with its prediction, in order; None for one that is skipped."""
        two_hops, reader = self.assistant.processor.two_hops, self.assistant.reader(self.batch)
        for batch in self._batches(examples):
            inputs = [(example, future.result()) for example, future in batch]
            single = [read for one, read in inputs if not isinstance(read, str) and two_hops(one.question.text) is None]
            predictions = iter(self._predict(reader, single))
            for example, read in inputs:
                if isinstance(read, str):
                    skips.add(read, f"question {example.id}")
                    yield example, None
                elif two_hops(example.question.text) is None:
                    yield example, next(predictions)
                else:
                    image, text = example.question.image, example.question.text
                    assert isinstance(image, Path)  # `read_input` has read it
                    answer = self.assistant.ask(image, text, self.k, self.sources, self.decoding)
                    ids = [one.item.id for one in answer.items if one.item.id is not None]
                    yield example, Prediction(answer.answer, ids)

    def _batches(self, examples: Sequence[Example]) -> Iterator[Batch]:
        """Batches in order; the inputs of the next one are already being read."""
        with ThreadPoolExecutor(self.threads) as pool:
            read = functools.partial(read_input, self.assistant.processor)
            starts = range(0, len(examples), self.batch)
            begun: Iterator[Batch] = (
                [(one, pool.submit(read, one)) for one in examples[start : start + self.batch]] for start in starts
            )
            for batch, _ in itertools.pairwise(itertools.chain(begun, [[]])):
                yield batch

    def _predict(self, reader: Reader, inputs: Sequence[Input]) -> list[Prediction]:
        if not inputs:
            return []
        tokens, views = (np.stack(column) for column in zip(*inputs, strict=True))
        images = views[:, 0]
        if self.k:
            images = reader.best_views(tokens, views, self.assistant.processor.views, self.sources)
        answers = reader.ask(tokens, images, self.k, sources=self.sources, decoding=self.decoding)
        texts = map(self.assistant.processor.tokenizer.decode, answers.tokens)
        found = zip(texts, answers.retrieved.ids, answers.retrieved.present, strict=True)
        return [Prediction(text, ids[present].tolist()) for text, ids, present in found]


def read_input(processor: Processor, example: Example) -> Input | str:
    try:
        tokens = processor.question(example.question.text)
    except ValueError:
        return f"longer than the {processor.question_length} tokens that the network reads"
    image = example.question.image
    assert isinstance(image, Path), "published benchmarks keep their images in folders"
    try:
        return tokens, processor.views_of(image)
    except (OSError, ValueError):
        return "whose picture cannot be read"


def weights_provenance(file: Path, header: Metadata, encoder: str) -> tuple[dict[str, Any], str]:
    """What the header says about weights, as a record, with None for what it leaves open, and as a line."""
    record: dict[str, Any] = {"weights": str(file), "encoder": encoder, "git_commit": header.git_commit}
    data, task, metadata = recipe_of(header, "data"), recipe_of(header, "task"), header.metadata
    parts = []
    for name, values, kind, text in (
        ("experiment", metadata, str, "experiment {}"),
        ("steps", metadata, int, "step {:,}"),
        ("objective", data, str, "objective {}"),
        ("start_from", task, str, "begun from {}"),
    ):
        record[name] = values.get(name) if isinstance(values.get(name), kind) else None
        parts += [text.format(record[name])] if record[name] is not None else []
    if parts and record["start_from"] is None:
        parts.append("begun at random")
    return record, f"{file} ({', '.join(parts) or 'its file does not say how it was made'})"


def memory_provenance(folder: str, memory: Memory) -> tuple[dict[str, Any], str]:
    """A memory's present state, as a record and as a line."""
    encoder, contents = memory.layout.encoder, memory.manifest.hash()
    counts = ", ".join(f"{name} {count:,}" for name, count in memory.sources.items())
    about = f"version {memory.version}, encoder {encoder}, contents {contents[:16]}"
    record = {"memory": folder, "items": len(memory), "sources": dict(memory.sources), "version": memory.version}
    record |= {"encoder": encoder, "contents": contents}
    return record, f"{folder} ({len(memory):,} items: {counts}; {about})"


@dataclasses.dataclass(frozen=True)
class SetsEvaluation(Evaluation):
    """Scores a network and its memory on benchmarks; the fields are its settings."""

    sets: Named[Benchmark]  # by name
    memory: str | None = None  # a folder built with these weights, or a shipped name; None: answers without one
    k: NotNegative | None = None  # items to read; None: as many as in training, else 4
    sources: Sequence[str] | None = None  # names of those to search; None: all
    engine: str = "exact"  # as in `memory.engines.engine.engine_of`
    tokenizer: str | None = None  # None: where `processor_of` finds it
    names: Sequence[str] = ()  # of the network's sources, in order, where neither memory nor weights have them
    beams: Positive = 1  # beam width; 1 is greedy decoding
    penalty: float | int = 0.6  # length penalty of beam search
    length: int | None = None  # most tokens of an answer; None: as in training
    batch: Positive = 32  # questions at a time
    threads: Positive = 2  # for reading images
    limit: NotNegative = 0  # only the first so many questions of each benchmark; 0: all
    strict: bool = False  # a question that would be skipped is an error
    progress: bool = True  # show progress bars

    def rules(self):
        yield not self.k or self.memory is not None, "k reads items of a memory: give memory=FOLDER, or k=0"

    def files(self) -> Sequence[str]:
        return (RESULTS, TABLE, *map(predictions_file, self.sets))

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores every benchmark; the files of those before one that fails stay."""
        for name, benchmark in self.sets.items():
            try:
                benchmark.check()
            except (OSError, ValueError) as error:
                raise type(error)(f"evaluation.sets.{name}: {error}; or leave it out, sets=[...]") from error
        assistant, k, record, about = self._load(weights)
        length = assistant.processor.answer_length if self.length is None else self.length
        decoding = Decoding(length, self.beams, self.penalty)
        answering = Answering(assistant, k, decoding, self.sources, self.batch, self.threads)
        record |= {"k": k, "sources": self.sources, "engine": self.engine, "limit": self.limit}
        record["decoding"] = dataclasses.asdict(decoding)
        search = f"k {k}{' of ' + ', '.join(self.sources) if self.sources else ''}, engine {self.engine}"
        described = f"beams {self.beams}, penalty {self.penalty:g}" if self.beams > 1 else "greedy"
        about["asked"] = f"{search if k else 'k 0'}; {described}, {length} tokens"
        rows: dict[str, Row] = {}
        for name, benchmark in self.sets.items():
            rows[name] = self._score_set(name, benchmark, answering, output) | about
            output.write_json(RESULTS, record | {"rows": rows})
            output.write_text(TABLE, table(rows))
        return table(rows)

    def _load(self, weights: str) -> tuple[Assistant, int, Row, dict[str, str]]:
        """The network with its memory, how many items it reads, and the provenance of both: for results.json, and as
        lines."""
        file = pretrained.weights(weights)
        model, header = files.load_with_metadata(file)
        encoder, memory = reader_fingerprint(model), None
        record = provenance(weights) | {"device": jax.devices()[0].device_kind, "memory": None}
        record["weights"], line = weights_provenance(file, header, encoder)
        about = {"weights": line, "memory": "none"}
        if self.memory is not None:
            memory = Memory.load(pretrained.memory(self.memory), encoder=encoder)
            memory.engine = engine_of(self.engine, memory.folder)  # after the check, for it may be remote
            record["memory"], about["memory"] = memory_provenance(str(self.memory), memory)
        names = tuple(self.names) or (() if memory is None else memory.layout.sources)
        assistant = Assistant(model, processor_of(file, model.config, header, self.tokenizer, names), memory)
        k = 0
        if memory is not None and self.k != 0:
            trained = recipe_of(header, "task").get("k")
            default = trained if isinstance(trained, int) and trained > 0 else MOST_READ
            k = items_to_find(assistant.memory, self.k, default, self.sources)
        return assistant, k, record, about

    def _score_set(self, name: str, benchmark: Benchmark, answering: Answering, output: Output) -> Row:
        skips = Skips(self.strict)
        examples = list(itertools.islice(once(benchmark.examples(skips), skips), self.limit or None))
        bar = tqdm(answering(examples, skips), name, total=len(examples), disable=not self.progress)
        answered = [(example, prediction) for example, prediction in bar if prediction is not None]
        if not answered:
            raise ValueError(f"evaluation.sets.{name}: no usable question ({skips}); check its files")
        score = benchmark.score([one for one, _ in answered], [prediction.text for _, prediction in answered])
        with output.open(predictions_file(name)) as temporary, temporary.open("w", encoding="utf-8") as file:
            for (one, prediction), value in zip(answered, score.each, strict=True):
                line = {"id": one.id, "question": one.question.text, "prediction": prediction.text}
                line |= {"answers": one.references, "score": value, "items": prediction.items}
                line["about"] = dict(one.metadata)
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        row = {"metric": score.metric, "value": score.value, "parts": score.parts, "questions": len(answered)}
        if answering.k and answering.assistant.memory is not None:
            row["retrieval"] = retrieval(answering.assistant.memory, answered, answering.k)
        return row | {"left_out": dict(skips.counts), "evaluator": benchmark.evaluator, "limit": self.limit}


def retrieval(memory: Memory, answered: Sequence[tuple[Example, Prediction]], k: int) -> dict[str, dict[str, float]]:
    """Scores of what was read (`metrics.retrieval`): over all questions, and by the source of the gold item.

    Questions that name a gold item of this memory have recall at 1 and k, and MRR. Those without one have the published
    pseudo-relevance: an item that contains an answer."""
    golds, sources = [one.question.gold for one, _ in answered], {}
    for number in {number for number in golds if number is not None}:
        with contextlib.suppress(ValueError):  # gold items of another memory
            sources[number] = memory.items([number])[0].source
    groups: dict[str, list[tuple[list[int], int]]] = {}
    for gold, (_, prediction) in zip(golds, answered, strict=True):
        if gold is not None and gold in sources:
            for group in ("gold items", sources[gold]):
                groups.setdefault(group, []).append((prediction.items, gold))
    scores: dict[str, dict[str, float]] = {}
    for group, pairs in groups.items():
        ranked, gold_items = [items for items, _ in pairs], [[gold] for _, gold in pairs]
        recall = {f"recall@{n}": recall_at_k(ranked, gold_items, n) for n in dict.fromkeys((1, k))}
        scores[group] = {"questions": float(len(pairs)), **recall, "MRR": mrr(ranked, gold_items)}
    unnamed = (pair for gold, pair in zip(golds, answered, strict=True) if gold not in sources)
    if rest := [pair for pair in unnamed if pair[0].references]:  # InfoSeek's numbers may have a range alone
        texts = [[text_of(item) for item in memory.items(np.array(one.items, np.int64))] for _, one in rest]
        answers = [one.references for one, _ in rest]
        recall = {f"PRRecall@{n}": pr_recall_at_k(texts, answers, n) for n in dict.fromkeys((1, k))}
        scores["items that contain an answer"] = {"questions": float(len(rest)), **recall}
    return scores


def once(examples: Iterator[Example], skips: Skips) -> Iterator[Example]:
    """The examples without those whose id came before, which are counted."""
    ids: set[int | str] = set()
    for example in examples:
        if example.id in ids:
            skips.add("whose id came before", f"question {example.id}")
        else:
            ids.add(example.id)
            yield example


def predictions_file(name: str) -> str:
    return f"predictions_{name}.jsonl"


def table(rows: Mapping[str, Row]) -> str:
    lines = []
    for name, row in rows.items():
        parts = ", ".join(f"{part} {100 * value:.2f}" for part, value in row["parts"].items())
        score = f"{row['metric']} {100 * row['value']:.2f}" + (f" ({parts})" if parts else "")
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in row["left_out"].items()) or "none"
        found = "; ".join(
            f"{group}: {', '.join(f'{part} {100 * x:.2f}' for part, x in parts.items() if part != 'questions')}"
            for group, parts in row.get("retrieval", {}).items()
        )
        count = f"{row['questions']:,}" + (f", limit {row['limit']}" if row["limit"] else "")
        lines.append([name, score, found, count, left_out, *(row[key] for key in COLUMNS[5:])])
    return markdown(COLUMNS, lines, len(COLUMNS))
