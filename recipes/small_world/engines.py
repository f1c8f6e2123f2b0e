"""The search engines compared on the same questions, with many more items than questions are about.

    python -m recipes.small_world.engines runs/world_full_0                    8,000 distractors: 33,004 items

Distractors are entities without questions, four items each, in the same colours and textures. They make the memory
large enough for a FAISS graph (1,000 items of a source); FAISS's IVF-PQ starts at 10,000, and is measured by
`benchmarks.memory_search`.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tyro

from common import terminal
from common.evaluation.evaluation import write_json
from common.evaluation.score_table import markdown
from common.io.files import check_output_file
from recipes.memory_evaluation import Scores
from recipes.small_world.data import WorldConfig
from recipes.small_world.evaluation import WorldEvaluation
from reveal.memory.engines.engine import Engine
from reveal.memory.engines.faiss_engine import FaissEngine
from reveal.memory.engines.milvus_engine import MilvusEngine
from reveal.memory.memory import Memory
from reveal.network import weights

ENGINES: dict[str, Callable[[Path], Engine | None]] = {
    "exact, in the graph": lambda folder: None,
    "FAISS flat": lambda folder: FaissEngine("flat"),
    "FAISS HNSW": lambda folder: FaissEngine("hnsw"),
    "Milvus, a file": lambda folder: MilvusEngine(str(folder / "keys.db")),
}


def compare(model_file: str, distractors: int = 8_000, renderings: int = 4) -> dict[str, Scores]:
    """Scores of held-out questions by engine; `seconds`: search and reading of all of them."""
    model, rows = weights.load(model_file), {}
    data = WorldConfig(size=model.config.vit.image_size, distractors=distractors)
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
    lines = []
    for name, scores in rows.items():
        shares = [f"{100 * scores[share]:.1f}" for share in ("accuracy", "recall_1", "recall_4")]
        lines.append([name, *shares, f"{scores['seconds']:.1f}"])
    return markdown(["engine", "right", "recall@1", "recall@4", "seconds"], lines)


def main(
    model_file: tyro.conf.Positional[str],
    distractors: int = 8_000,
    output: Path = Path("runs/world_engines.json"),
    overwrite: bool = False,
) -> None:
    """Ask the small world's held-out questions through every engine (extras `faiss` and `milvus`)."""
    check_output_file(output, overwrite)  # before minutes of work
    rows = compare(model_file, distractors)
    write_json(output, {"weights": model_file, "distractors": distractors, "engines": rows}, overwrite)
    terminal.say(table(rows))


if __name__ == "__main__":
    terminal.program(main)
