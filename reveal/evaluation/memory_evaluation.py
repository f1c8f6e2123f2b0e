"""A trained network's answers to published benchmarks, read from a memory on disk.

    python eval.py evaluation=reveal_sets weights=runs/mine evaluation.memory=facts sets=[okvqa,aokvqa]
    python eval.py evaluation=reveal_sets weights=runs/mine evaluation.memory=facts sets=[coco] evaluation.beams=4

For each benchmark, in the order of its file:

1. read the questions that can be scored; others are left out and counted, by reason (`strict` refuses them);
2. read images ahead, answer `batch` questions at a time: encode, search, fuse, decode, as `reveal ask` does, but
   greedily unless `beams` says otherwise;
3. score all answers together (`benchmarks.py`), and write predictions_SET.jsonl, an answer a line with the ids of the
   items that it was read from;
4. write results.json and results.md anew: a line for each benchmark, with the metric and its evaluator, the number of
   questions, what was left out, and the provenance of weights and memory. A number of the first questions only says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from tqdm import tqdm

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.score_table import markdown
from reveal.assistant import MOST_READ, Assistant
from reveal.evaluation.answering import Answering
from reveal.evaluation.benchmarks import Benchmark, Example
from reveal.evaluation.provenance import MemoryProvenance, WeightsProvenance, recipe_of
from reveal.memory.engines.engine import engine_of
from reveal.memory.memory import Memory
from reveal.network import weights as files
from reveal.network.generator import Beam, Decoding, likeliest
from reveal.processing.processor import processor_of
from reveal.reader import reader_fingerprint
from reveal.sources.records import Skips

RESULTS, TABLE = "results.json", "results.md"
COLUMNS = ("set", "score", "questions", "left out", "evaluator", "weights", "memory", "asked")
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SetsEvaluation(Evaluation):
    """Benchmarks and settings.

    Attributes:
      sets: benchmarks by name.
      memory: its folder, made by these weights (`reveal build`); None: answers without one.
      k: items to read; None: as many as in training, else 4.
      sources: names of those to search; None: all.
      engine: that searches, as `memory.engines.engine.engine_of` says.
      tokenizer: the one of training; None: where `processor_of` finds it.
      names: of the network's sources, in order, if neither memory nor weights say.
      beams: beam width; 1 is greedy decoding. penalty: of short texts, for beams.
      length: tokens of an answer at most; None: as in training.
      batch: questions at a time. threads: that read images.
      limit: only the first so many questions of each benchmark; 0: all.
      strict: a question that cannot be asked is an error.
      progress: show bars.
    """

    sets: Mapping[str, Benchmark]
    memory: str | None = None
    k: int | None = None
    sources: Sequence[str] | None = None
    engine: str = "exact"
    tokenizer: str | None = None
    names: Sequence[str] = ()
    beams: int = 1
    penalty: float | int = 0.6
    length: int | None = None
    batch: int = 32
    threads: int = 2
    limit: int = 0
    strict: bool = False
    progress: bool = True

    def __post_init__(self):
        small = [f"{name} {getattr(self, name)}" for name in ("beams", "batch", "threads") if getattr(self, name) < 1]
        small += [f"{name} {value}" for name, value in (("k", self.k), ("limit", self.limit)) if (value or 0) < 0]
        if small:
            raise ValueError(f"evaluation.{small[0]}: beams, batch and threads are 1 or more, k and limit 0 or more")
        if not self.sets:
            raise ValueError("evaluation.sets is empty: give one, as sets=[okvqa]")
        if self.k and self.memory is None:
            raise ValueError(f"evaluation.k is {self.k}, but there is no memory: give evaluation.memory=FOLDER, or k=0")

    def files(self) -> Sequence[str]:
        return (RESULTS, TABLE, *map(predictions_file, self.sets))

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores every benchmark; the files of those before one that fails stay."""
        for name, benchmark in self.sets.items():
            try:
                benchmark.check()
            except (OSError, ValueError) as error:
                raise type(error)(f"evaluation.sets.{name}: {error}; or leave it out, sets=[...]") from error
        assistant, of_weights, of_memory, k = self._load(weights)
        length = assistant.processor.answer_length if self.length is None else self.length
        how = likeliest(length, self.beams, self.penalty)
        answering = Answering(assistant, k, how, self.sources, self.batch, self.threads)
        about = {"weights": str(of_weights), "memory": str(of_memory or "none"), "asked": self._settings(k, how)}
        record = provenance(weights) | {"device": jax.devices()[0].device_kind}
        record |= {"weights": dataclasses.asdict(of_weights)}
        record |= {"memory": of_memory and dataclasses.asdict(of_memory), "k": k}
        record |= {"sources": self.sources and list(self.sources), "engine": self.engine, "limit": self.limit}
        record |= {"decoding": {"kind": type(how).__name__, **dataclasses.asdict(how)}}
        rows: dict[str, Row] = {}
        for name, benchmark in self.sets.items():
            rows[name] = self._score_set(name, benchmark, answering, output) | about
            output.write_json(RESULTS, record | {"rows": rows})
            output.write_text(TABLE, table(rows))
        return table(rows)

    def _load(self, weights: str) -> tuple[Assistant, WeightsProvenance, MemoryProvenance | None, int]:
        """The network with its memory, the provenance of both, and how many items it reads."""
        file = files.file_of(weights)
        model, header = files.load_with_metadata(file)
        encoder, memory = reader_fingerprint(model), None
        if self.memory is not None:
            Memory.load(self.memory, encoder=encoder)  # before an engine, which may be remote
            memory = Memory.load(self.memory, engine_of(self.engine, self.memory), encoder)
        names = tuple(self.names) or (() if memory is None else memory.layout.sources)
        assistant = Assistant(model, processor_of(file, model.config, header, self.tokenizer, names), memory)
        task = recipe_of(header).get("task")
        trained = task.get("k") if isinstance(task, Mapping) else None
        k = 0
        if memory is not None and self.k != 0:
            default = trained if isinstance(trained, int) and trained > 0 else MOST_READ
            k = assistant.items_to_find(self.k, default, self.sources)
        of_memory = None if memory is None else MemoryProvenance.of(str(self.memory), memory)
        return assistant, WeightsProvenance.of(file, header, encoder), of_memory, k

    def _settings(self, k: int, how: Decoding) -> str:
        decoding = f"beams {how.width}, penalty {how.penalty:g}" if isinstance(how, Beam) else "greedy"
        where = f" of {', '.join(self.sources)}" if self.sources else ""
        search = f"k {k}{where}, engine {self.engine}" if k else "k 0"
        return f"{search}; {decoding}, {how.length} tokens"

    def _score_set(self, name: str, benchmark: Benchmark, answering: Answering, output: Output) -> Row:
        """The row of a benchmark; its predictions are written."""
        skips = Skips(self.strict)
        examples = list(itertools.islice(once(benchmark.examples(skips), skips), self.limit or None))
        bar = tqdm(answering(examples, skips), name, total=len(examples), disable=not self.progress)
        answered = [(example, prediction) for example, prediction in bar if prediction is not None]
        if not answered:
            raise ValueError(f"evaluation.sets.{name}: no question that can be asked ({skips}); check its files")
        score = benchmark.score([one for one, _ in answered], [prediction.text for _, prediction in answered])
        with output.open(predictions_file(name)) as temporary, temporary.open("w", encoding="utf-8") as file:
            for (example, prediction), value in zip(answered, score.each, strict=True):
                line = {"id": example.id, "question": example.question.text, "prediction": prediction.text}
                line |= {"answers": list(example.references), "score": value, "items": prediction.items}
                line |= {"about": dict(example.metadata)}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        row = score._asdict() | {"questions": len(answered), "left_out": dict(skips.counts)}
        del row["each"]
        return row | {"evaluator": benchmark.evaluator, "limit": self.limit}


def once(examples: Iterator[Example], skips: Skips) -> Iterator[Example]:
    """Without examples whose id came before."""
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
    """The rows in Markdown; all scores times 100."""
    lines = []
    for name, row in rows.items():
        parts = ", ".join(f"{part} {100 * value:.2f}" for part, value in row["parts"].items())
        score = f"{row['metric']} {100 * row['value']:.2f}" + (f" ({parts})" if parts else "")
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in row["left_out"].items()) or "none"
        count = f"{row['questions']:,}" + (f", limit {row['limit']}" if row["limit"] else "")
        lines.append([name, score, count, left_out, *(row[key] for key in COLUMNS[4:])])
    return markdown(COLUMNS, lines, len(COLUMNS))
