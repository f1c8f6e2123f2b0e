"""The proof in small that the memory answers: all trainings and evaluations by one command.

    python -m recipes.small_world.proof                            all rows, three seeds for the main ones; resumes
    python -m recipes.small_world.proof --jobs 2                   two trainings side by side, a core each
    python -m recipes.small_world.proof --seeds 1 --rows full      the shortest

The warm start (`experiment=world_warm`: items are given) is followed by joint training (`world_joint`: items are
retrieved; only the answer's loss is left) and the evaluation (`evaluation.py`). Each row changes one thing:

| row | change |
| --- | --- |
| full | none |
| no memory | trained and evaluated without items |
| random memory | trained and evaluated with four random items |
| no warm start | the second stage from random weights |
| no prior | the score does not enter the fusion: nothing trains the retriever in the second stage |
| no prior, no warm start | nothing trains the retriever |
| log prior | the score enters the attention's logits as a logarithm |
| c = 1, c = 32 | one value token per item, or as many as an item has tokens, in both stages |
"""

import json
import multiprocessing
import operator
import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from common import terminal
from common.evaluation.evaluation import write_json
from common.evaluation.score_table import markdown
from recipes.commands import evaluate, length, train
from recipes.memory_evaluation import Scores
from recipes.small_world.data import WorldConfig
from recipes.small_world.evaluation import WorldEvaluation
from recipes.small_world.facts import RELATIONS

COLUMNS = ("accuracy", *RELATIONS, "recall_1", "recall_4", "gate")
MAIN = ("full", "no memory", "random memory")
FROM_SCRATCH = "task.start_from=null"
ROWS: dict[str, tuple[str, ...]] = {  # overrides of the second stage
    "full": (),
    "no memory": ("task.k=0",),
    "random memory": ("+task.find=random", "+evaluation.engine._target_=recipes.small_world.evaluation.RandomEngine"),
    "no warm start": (FROM_SCRATCH,),
    "no prior": ("task.network.prior=off",),
    "no prior, no warm start": ("task.network.prior=off", FROM_SCRATCH),
    "log prior": ("task.network.prior=logits",),
    "c = 1": ("task.network.value_tokens=1",),
    "c = 32": ("task.network.value_tokens=32",),
}
ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
Results = dict[str, list[dict[str, dict[str, Scores]]]]  # row -> run -> stage -> row of `WorldEvaluation` -> scores


@dataclass
class Proof:
    """Train in the small world, change the memory, and count right answers."""

    seeds: int = 3  # Runs of the main rows; the others have one
    rows: tuple[str, ...] = tuple(ROWS)  # Some rows of the module's docstring
    output: str = "runs/world_proof.json"  # JSON file of the scores
    warm: int = 400  # Steps of the first stage
    joint: int = 400  # Steps of the second stage; rows without a warm start get the steps of both stages
    jobs: int = 1  # Trainings side by side; from two on, each uses one processor core
    set: tuple[str, ...] = ()  # Further overrides of both stages, as of train.py: data.batch_size=16


@dataclass(frozen=True)
class Stage:
    """One training, named `name`, and its evaluation; `overrides` are those of train.py and eval.py."""

    name: str
    overrides: tuple[str, ...]

    @classmethod
    def create(cls, experiment: str, name: str, *overrides: str) -> "Stage":
        return cls(name, (f"experiment={experiment}", f"name={name}", *overrides))

    @property
    def weights(self) -> str:
        return f"runs/{self.name}/weights.safetensors"

    def run(self) -> dict[str, Scores]:
        """The rows of `WorldEvaluation`. Resumes a training; does nothing where all is done."""
        train(*self.overrides)
        results = Path(f"runs/{self.name}/evaluation/results.json")
        if not results.exists() or results.stat().st_mtime < Path(self.weights).stat().st_mtime:
            evaluate(*self.overrides, f"weights={self.weights}", "overwrite=true")
        return json.loads(results.read_text())["rows"]


def prove(proof: Proof) -> Results:
    """Trains and evaluates every row. Raises ValueError for an unknown row."""
    if unknown := [row for row in proof.rows if row not in ROWS]:
        raise ValueError(f"row {unknown[0]!r} is unknown: choose from {', '.join(ROWS)}")
    runs = {row: [plan(proof, row, seed) for seed in range(proof.seeds if row in MAIN else 1)] for row in proof.rows}
    scores: dict[Stage, dict[str, Scores]] = {}
    for part in ("warm", "joint"):  # all warm starts first: the second stages begin with their weights
        stages = tuple(dict.fromkeys(run[part] for row in runs.values() for run in row if part in run))
        scores |= zip(stages, run_stages(stages, proof.jobs), strict=True)
    rows = {row: [{part: scores[stage] for part, stage in run.items()} for run in of] for row, of in runs.items()}
    write_json(Path(proof.output), {"rows": rows}, overwrite=True)
    return rows


def plan(proof: Proof, row: str, seed: int) -> dict[str, Stage]:
    """Both stages of a row; rows of one network shape share the first."""
    changes, common = ROWS[row], (f"seed={seed}", *proof.set)
    name = f"world_{row.replace(', ', '_').replace(' ', '_').replace('=', '')}_{seed}"
    if FROM_SCRATCH in changes:
        return {"joint": Stage.create("world_joint", name, *common, *changes, *length(proof.warm + proof.joint))}
    shape = [change for change in changes if "value_tokens" in change]
    warm_name = f"world_warm{shape[0].rpartition('=')[2] if shape else ''}_{seed}"
    warm = Stage.create("world_warm", warm_name, *common, *shape, *length(proof.warm))
    start = f"task.start_from={warm.weights}"
    return {"warm": warm, "joint": Stage.create("world_joint", name, *common, start, *changes, *length(proof.joint))}


def run_stages(stages: Sequence[Stage], jobs: int) -> Iterator[dict[str, Scores]]:
    """Results in order. A worker keeps its compiled functions, so stages of one shape are compiled once."""
    if jobs == 1:
        yield from (stage.run() for stage in stages)
        return
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_CORE}"
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        yield from workers.map(operator.methodcaller("run"), stages)


def table(results: Results) -> str:
    """In Markdown: percent of right answers about held-out entities, and of gold items retrieved."""
    lines = []
    for row, runs in results.items():
        held_out = [run["joint"]["held out"] for run in runs]
        before = [run["warm"]["held out"]["recall_1"] for run in runs if "warm" in run]
        cells = [percent([scores.get(name) for scores in held_out]) for name in COLUMNS]
        lines.append([row, str(len(runs)), *cells, percent(before)])
    return markdown(["", "runs", "right", *RELATIONS, "recall@1", "recall@4", "gate", "recall@1 before"], lines)


def percent(values: Sequence[float | None]) -> str:
    """Mean, and the range of several values; empty without values."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ({min(known):.1f} to {max(known):.1f})" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}"


def changes_table(results: Results) -> str:
    """The full rows after changes of the memory: means over the runs."""
    runs: list[dict[str, Any]] = [run["joint"] for run in results["full"]]
    means = {
        row: {name: statistics.mean(run[row][name] for run in runs) for name in scores}
        for row, scores in runs[0].items()
    }
    return WorldEvaluation(WorldConfig()).table(means)


def main() -> None:
    proof = tyro.cli(Proof, prog="python -m recipes.small_world.proof")
    with terminal.exits("recipes.small_world.proof", out_of_memory="give --set data.batch_size=16"):
        results = prove(proof)
        terminal.say(table(results))
        if "full" in results:
            terminal.say("\n" + changes_table(results))


if __name__ == "__main__":
    main()
