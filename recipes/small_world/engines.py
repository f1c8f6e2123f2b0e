"""The same questions to memories that search in different ways, with many more items than anybody asks about.

    python -m recipes.small_world.engines runs/world_full_0                    8,000 distractors: 33,004 items in all

Distractors are entities that nothing is asked about, four items each, in the colours and textures of the others. They
make the memory of the small world large enough for a graph of FAISS to be built (1,000 items of a source); its IVF-PQ
begins at 10,000, and is measured by `benchmarks.memory_search`.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tyro

from common import terminal
from common.evaluation.evaluation import write_json
from common.evaluation.score_table import markdown
from recipes.small_world.data import WorldConfig
from recipes.small_world.evaluation import Scores, WorldEvaluation
from reveal.memory.engines.engine import Engine
from reveal.memory.memory import Memory
from reveal.network import weights

ENGINES: dict[str, Callable[[Path], Engine | None]] = {
    "exact, in the graph": lambda folder: None,
    "FAISS flat": lambda folder: _faiss("flat"),
    "FAISS HNSW": lambda folder: _faiss("hnsw"),
    "Milvus, a file": lambda folder: _milvus(str(folder / "keys.db")),
}


def compare(model_file: str, distractors: int = 8_000, renderings: int = 4) -> dict[str, Scores]:
    """Held-out questions, asked through each engine; `seconds` is of the search and the reading of all of them."""
    model, rows = weights.load(model_file), {}
    data = dataclasses.replace(WorldConfig(), distractors=distractors)
    evaluation = WorldEvaluation(data, renderings=renderings)
    questions = data.evaluation("held_out", renderings)
    with tempfile.TemporaryDirectory() as folder:
        reader = evaluation.reader(model, Path(folder) / "memory")
        for name, engine in ENGINES.items():
            reader.memory = Memory.load(Path(folder) / "memory", engine(Path(folder)))
            evaluation.ask(reader, questions)  # compiles, and copies the keys
            started = time.perf_counter()
            scores = evaluation.ask(reader, questions)
            rows[name] = scores | {"seconds": time.perf_counter() - started}
    return rows


def table(rows: dict[str, Scores]) -> str:
    """The rows in Markdown: percent, and seconds."""
    shares = ("accuracy", "recall_1", "recall_4")
    lines = [
        [name, *(f"{100 * scores[share]:.1f}" for share in shares), f"{scores['seconds']:.1f}"]
        for name, scores in rows.items()
    ]
    return markdown(["engine", "right", "recall@1", "recall@4", "seconds"], lines)


def _faiss(kind: str) -> Engine:
    from reveal.memory.engines.faiss_engine import FaissEngine

    return FaissEngine(kind)


def _milvus(uri: str) -> Engine:
    from reveal.memory.engines.milvus_engine import MilvusEngine

    return MilvusEngine(uri)


def main(
    model_file: tyro.conf.Positional[str],
    distractors: int = 8_000,
    output: Path = Path("runs/world_engines.json"),
    overwrite: bool = False,
) -> None:
    """Ask the small world's held-out questions through every engine (extras `faiss` and `milvus`)."""
    rows = compare(model_file, distractors)
    write_json(output, {"weights": model_file, "distractors": distractors, "engines": rows}, overwrite)
    terminal.say(table(rows))


if __name__ == "__main__":
    terminal.program(main)
