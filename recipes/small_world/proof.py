"""The proof in small that the memory is what answers: all of it by one command.

    python -m recipes.small_world.proof                            all rows, three seeds for the main ones; resumes
    python -m recipes.small_world.proof --jobs 2                   on two cores: two trainings side by side
    python -m recipes.small_world.proof --seeds 1 --rows full      the shortest

1. Warm start (`experiment=world_warm`): items are given; query and keys are brought together. Retrieval of held-out
   entities' items is scored before the next stage begins.
2. Joint (`experiment=world_joint`): items are found; the loss on the answer alone is left.
3. Held-out entities are asked about, and the memory is changed (`evaluation.py`).

A row is one thing done otherwise:

| row | what |
| --- | --- |
| full | nothing |
| no memory | trained and asked without items |
| random memory | trained and asked with any four items |
| no warm start | the second stage from random weights |
| no prior | the score does not enter the fusion: nothing trains the retriever in the second stage |
| no prior, no warm start | nothing ever trains it |
| log prior | the score enters as a logarithm on the attention's logits |
| c = 1 | one value token for each item, in both stages |
| c = 32 | as many as an item has tokens of its own |

What happens without one of the sources, and with another engine, is measured on the networks of the full rows.
"""

from __future__ import annotations

import json
import multiprocessing
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
from recipes.small_world import evaluation
from recipes.small_world.facts import RELATIONS

NONE = "no warm start"
COLUMNS = ("accuracy", *RELATIONS, "recall_1", "recall_4", "gate")
MAIN = ("full", "no memory", "random memory")
ROWS: dict[str, tuple[str, ...]] = {  # what is set otherwise in the second stage
    "full": (),
    "no memory": ("task.k=0",),
    "random memory": ("+task.find=random", "+evaluation.engine._target_=recipes.small_world.evaluation.RandomEngine"),
    NONE: ("task.start_from=null",),
    "no prior": ("task.network.prior=off",),
    f"no prior, {NONE}": ("task.network.prior=off", "task.start_from=null"),
    "log prior": ("task.network.prior=logits",),
    "c = 1": ("task.network.value_tokens=1",),
    "c = 32": ("task.network.value_tokens=32",),
}
WARM, JOINT = 400, 400  # steps
ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
Rows = dict[str, dict[str, float]]


@dataclass
class Proof:
    """Train in the small world, change the memory, and count right answers."""

    seeds: int = 3
    """Runs of the main rows; the others have one."""
    rows: tuple[str, ...] = tuple(ROWS)
    """Some of the rows of the module's docstring."""
    output: str = "runs/world_proof.json"
    """Where the numbers go."""
    warm: int = WARM
    """Steps of the first stage."""
    joint: int = JOINT
    """Steps of the second stage; no warm start gets both stages' steps."""
    jobs: int = 1
    """Trainings side by side. With two or more, each computes on one core of the processor."""
    set: tuple[str, ...] = ()
    """Further settings of both stages, as train.py takes them: data.batch_size=16."""


@dataclass(frozen=True)
class Stage:
    """One training and the evaluation after it.

    Attributes:
      name: of the run.
      overrides: for train.py and eval.py.
    """

    name: str
    overrides: tuple[str, ...]

    def __call__(self) -> Rows:
        """The rows of `WorldEvaluation`; resumes a training that was begun, and does nothing where all is done."""
        train(*self.overrides)
        weights, results = weights_of(self.name), Path(f"runs/{self.name}/evaluation/results.json")
        if not results.exists() or results.stat().st_mtime < Path(weights).stat().st_mtime:
            evaluate(*self.overrides, f"weights={weights}", "overwrite=true")
        return json.loads(results.read_text())["rows"]


def prove(proof: Proof) -> dict[str, list[dict[str, Any]]]:
    """The results of each row, a run each. Raises ValueError for a row that is none."""
    if unknown := [row for row in proof.rows if row not in ROWS]:
        raise ValueError(f"row {unknown[0]!r} is not known; choose of {', '.join(ROWS)}")
    runs = {row: [plan(proof, row, seed) for seed in range(proof.seeds if row in MAIN else 1)] for row in proof.rows}
    results: dict[Stage, Rows] = {}
    for part in ("warm", "joint"):  # all of the first before any of the second, which begins with its weights
        stages = tuple(dict.fromkeys(run[part] for row in runs.values() for run in row if part in run))
        results |= zip(stages, perform(stages, proof.jobs), strict=True)
    rows = {row: [{part: results[stage] for part, stage in run.items()} for run in of] for row, of in runs.items()}
    write_json(Path(proof.output), {"rows": rows}, overwrite=True)
    return rows


def plan(proof: Proof, row: str, seed: int) -> dict[str, Stage]:
    """Both stages of a row; several rows may share the first."""
    changes, settings = ROWS[row], (f"seed={seed}", *proof.set)
    joint = f"world_{row.replace(', ', '_').replace(' ', '_').replace('=', '')}_{seed}"
    if "task.start_from=null" in changes:
        return {"joint": stage_of("world_joint", joint, *settings, *changes, *length(proof.warm + proof.joint))}
    shape = [change for change in changes if "value_tokens" in change]
    warm = f"world_warm{shape[0].rpartition('=')[2] if shape else ''}_{seed}"
    begin = f"task.start_from={weights_of(warm)}"
    return {
        "warm": stage_of("world_warm", warm, *settings, *shape, *length(proof.warm)),
        "joint": stage_of("world_joint", joint, *settings, begin, *changes, *length(proof.joint)),
    }


def stage_of(experiment: str, name: str, *settings: str) -> Stage:
    return Stage(name, (f"experiment={experiment}", f"name={name}", *settings))


def weights_of(name: str) -> str:
    return f"runs/{name}/weights.safetensors"


def perform(stages: Sequence[Stage], jobs: int) -> Iterator[Rows]:
    """The results in order. A worker keeps its compiled programs, so that stages of one shape are compiled once."""
    if jobs == 1:
        yield from (stage() for stage in stages)
        return
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_CORE}"
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        yield from workers.map(_call, stages)


def _call(stage: Stage) -> Rows:
    return stage()


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """In Markdown: percent of right answers about held-out entities, and of items found."""
    lines = []
    for row, runs in results.items():
        held = [run["joint"]["held out"] for run in runs]
        before = [run["warm"]["held out"] for run in runs if "warm" in run]
        cells = [percent([scores.get(name) for scores in held]) for name in COLUMNS]
        lines.append([row, str(len(runs)), *cells, percent([scores["recall_1"] for scores in before])])
    return markdown(["", "runs", "right", *RELATIONS, "recall@1", "recall@4", "gate", "recall@1 before"], lines)


def percent(values: Sequence[float | None]) -> str:
    """Mean, and the range of several; nothing where there is none."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ({min(known):.1f} to {max(known):.1f})" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}"


def changes_table(results: dict[str, list[dict[str, Any]]]) -> str:
    """What follows when the memory of the full rows is changed: means over the runs, of everything counted."""
    runs = [run["joint"] for run in results["full"]]
    means = {
        row: {name: statistics.mean(run[row][name] for run in runs) for name in scores}
        for row, scores in runs[0].items()
    }
    return evaluation.table(means)


def main() -> None:
    proof = tyro.cli(Proof, prog="python -m recipes.small_world.proof")
    with terminal.exits("recipes.small_world.proof", out_of_memory="give --set data.batch_size=16"):
        results = prove(proof)
        terminal.say(table(results))
        if "full" in results:
            terminal.say("\n" + changes_table(results))


if __name__ == "__main__":
    main()
