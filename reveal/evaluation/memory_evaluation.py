"""A trained network's answers to published sets, read from a memory on the disk.

    python eval.py evaluation=reveal_sets weights=runs/mine evaluation.memory=facts sets=[okvqa,aokvqa]
    python eval.py evaluation=reveal_sets weights=runs/mine evaluation.memory=facts sets=[coco] evaluation.beams=4

For each set, in the order of its file:

1. read the questions that can be scored; what cannot is left out and counted, by reason (`strict` refuses it);
2. read pictures ahead, ask `batch` questions at a time: encode, search, fuse, write, as `reveal ask` does, but
   greedily unless `beams` says otherwise;
3. score all answers together (`evaluation_sets.py`), and write predictions_SET.jsonl, an answer a line with the ids of
   the items that it was read from;
4. write results.json and results.md anew: a line a set, with the metric and its evaluator, how many questions, what
   was left out, and the weights and the memory that the number is of. A number of the first questions only says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from common.evaluation.score_table import write_json
from common.io.files import atomic_output, check_output_file
from common.weights.model_file import git_commit
from reveal.assistant import MOST_READ, Assistant
from reveal.evaluation.answering import Answer, Answering
from reveal.evaluation.provenance import Looked, StartingPoint, recipe_of
from reveal.evaluation.published import Asked, PublishedSet, Score
from reveal.memory.engines.registry import engine_of
from reveal.memory.memory import Memory
from reveal.network import weights as files
from reveal.network.generator import Beam, Decoding, Greedy, likeliest
from reveal.processing.processor import Inputs, inputs_of
from reveal.reader import reader_fingerprint
from reveal.sources.records import Skips

FILES = ("results.json", "results.md")
COLUMNS = ("set", "score", "questions", "left out", "evaluator", "weights", "memory", "asked")
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SetsEvaluation:
    """What to ask, and how.

    Attributes:
      sets: by name.
      memory: its folder, made by these weights (`reveal build`); None: answers without one.
      k: items to read; None: as many as in training, else 4.
      sources: names of those to look in; None: all.
      engine: that searches, as `memory.choice.engine_of` says.
      tokenizer: the one of training; None: where `inputs_of` finds it.
      names: of the network's sources, in order, if neither memory nor weights say.
      beams: 1 writes greedily, more by beam search, with `penalty` for short texts.
      length: tokens of an answer at most; None: as in training.
      batch: questions at a time. threads: that read pictures.
      limit: only the first so many questions of each set; 0: all.
      strict: what cannot be asked is an error.
      progress: show bars.
    """

    sets: Mapping[str, PublishedSet]
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
            raise ValueError("evaluation.sets names nothing to ask: give one, as sets=[okvqa]")
        if self.k and self.memory is None:
            raise ValueError(f"evaluation.k is {self.k}, but there is no memory: give evaluation.memory=FOLDER, or k=0")

    def run(self, weights: str, output: Path, overwrite: bool = False) -> str:
        """Writes the files of the module's docstring, returns the table. Raises OSError and ValueError, in one line;
        for files that are missing, or would be overwritten, before the work."""
        for name in (*FILES, *map(predictions_file, self.sets)):
            check_output_file(output / name, overwrite)
        for name, one in self.sets.items():
            try:
                one.check()
            except (OSError, ValueError) as error:
                told = f"evaluation.sets.{name}: {error}; or leave it out, sets=[...]"
                raise type(error)(told) from error
        assistant, start, k = self._load(weights)
        how = self._how(assistant.inputs)
        answering = Answering(assistant, k, how, self.sources, self.batch, self.threads)
        looked = None if assistant.memory is None else Looked.of(str(self.memory), assistant.memory)
        about = {"weights": str(start), "memory": str(looked) if looked else "none", "asked": self._asked(k, how)}
        record = {"git_commit": git_commit(), "device": jax.devices()[0].device_kind}
        record |= {"weights": dataclasses.asdict(start), "memory": looked and dataclasses.asdict(looked), "k": k}
        record |= {"sources": self.sources and list(self.sources), "engine": self.engine, "limit": self.limit}
        record |= {"decoding": {"kind": type(how).__name__, **dataclasses.asdict(how)}}
        rows: dict[str, Row] = {}
        for name, one in self.sets.items():
            scored, answers, row = self._examine(name, one, answering)
            write_predictions(output / predictions_file(name), scored, answers, row.pop("each"), overwrite)
            ours = overwrite or bool(rows)  # each set's scores are kept when they are known
            rows[name] = row | about
            write_json(output / FILES[0], record | {"rows": rows}, ours)
            with atomic_output(output / FILES[1], ours) as temporary:
                temporary.write_text(table(rows) + "\n", "utf-8")
        return table(rows)

    def _load(self, weights: str) -> tuple[Assistant, StartingPoint, int]:
        """The network with its memory, what it is, and how many items it reads."""
        file = files.file_of(weights)
        model, header = files.load_with_metadata(file)
        encoder, memory = reader_fingerprint(model), None
        if self.memory is not None:
            Memory.load(self.memory, encoder=encoder)  # before an engine, which may be far away
            memory = Memory.load(self.memory, engine_of(self.engine, self.memory), encoder)
        names = tuple(self.names) or (() if memory is None else memory.store.layout.sources)
        assistant = Assistant(model, inputs_of(file, model.config, header, self.tokenizer, names), memory)
        task = recipe_of(header).get("task")
        told = task.get("k") if isinstance(task, Mapping) else None
        k = 0
        if memory is not None and self.k != 0:
            least = told if isinstance(told, int) and told > 0 else MOST_READ
            k = assistant.items_to_find(self.k, least, self.sources)
        return assistant, StartingPoint.of(file, header, encoder), k

    def _how(self, inputs: Inputs) -> Greedy | Beam:
        length = inputs.answer_length if self.length is None else self.length
        return likeliest(length, self.beams, self.penalty)

    def _asked(self, k: int, how: Decoding) -> str:
        written = f"beams {how.width}, penalty {how.penalty:g}" if isinstance(how, Beam) else "greedy"
        where = f" of {', '.join(self.sources)}" if self.sources else ""
        found = f"k {k}{where}, engine {self.engine}" if k else "k 0"
        return f"{found}; {written}, {how.length} tokens"

    def _examine(self, name: str, one: PublishedSet, answering: Answering) -> tuple[list[Asked], list[Answer], Row]:
        """A set: what was answered, the answers, and its row."""
        skips = Skips(self.strict)
        asked = list(itertools.islice(once(one.asked(skips), skips), self.limit or None))
        bar = tqdm(answering(asked, skips), name, total=len(asked), disable=not self.progress)
        told = [(one, answer) for one, answer in bar if answer is not None]
        if not told:
            raise ValueError(f"evaluation.sets.{name}: no question that can be asked ({skips}); check its files")
        scored, answers = [one for one, _ in told], [answer for _, answer in told]
        score = one.score(scored, [answer.text for answer in answers])
        row = {"questions": len(told), "left_out": dict(skips.counts), "evaluator": one.evaluator, **score._asdict()}
        return scored, answers, row | {"limit": self.limit}


def once(asked: Iterator[Asked], skips: Skips) -> Iterator[Asked]:
    """Without questions whose name came before."""
    names: set[int | str] = set()
    for one in asked:
        if one.name in names:
            skips.add("whose id came before", f"question {one.name}")
        else:
            names.add(one.name)
            yield one


def predictions_file(name: str) -> str:
    return f"predictions_{name}.jsonl"


def write_predictions(
    path: Path, asked: Sequence[Asked], answers: Sequence[Answer], each: Sequence[float], overwrite: bool
) -> None:
    """A line an answer: id, question, prediction, answers, score, items, and what else the set says of it."""
    with atomic_output(path, overwrite) as temporary, Path(temporary).open("w", encoding="utf-8") as file:
        for one, answer, score in zip(asked, answers, each, strict=True):
            line = {"id": one.name, "question": one.question.text, "prediction": answer.text}
            line |= {"answers": list(one.answers), "score": score, "items": answer.items}
            file.write(json.dumps(line | {"about": dict(one.about)}, ensure_ascii=False) + "\n")


def table(rows: Mapping[str, Row]) -> str:
    """For people, in Markdown: all scores times 100."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    for name, row in rows.items():
        score = Score(row["metric"], row["value"], row["parts"], [])
        parts = ", ".join(f"{part} {100 * value:.2f}" for part, value in score.parts.items())
        shown = f"{score.metric} {100 * score.value:.2f}" + (f" ({parts})" if parts else "")
        left = ", ".join(f"{count:,} {reason}" for reason, count in row["left_out"].items()) or "none"
        count = f"{row['questions']:,}" + (f", limit {row['limit']}" if row["limit"] else "")
        lines.append([name, shown, count, left, *(row[key] for key in COLUMNS[4:])])
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |" for cells in lines)
