"""Cost of refreshing a memory in the background: steps per second of training with it and without, in turns.

    python -m benchmarks.refresh                     the small world's second stage, a refresh every 100 steps
    python -m benchmarks.refresh --every 20 --distractors 3000

Two devices, each of one thread: one trains, the other refreshes (`task.refresh.spare`). On a CPU both are cores, which
share caches and the memory's bandwidth, so the machine needs two free ones. Each turn is a run of `train.py
experiment=world_joint` in a process of its own; its rate is the median of those that the run logged, less the first,
which compiled. `versions` counts the refreshes that came into use.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tyro

NEVER = 10**9
FLAGS = "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True)
class Refresh:
    """Training with and without refresh."""

    steps: int = 300  # Of each turn
    every: int = 100  # Steps from one refresh to the next
    turns: int = 3  # Runs of each kind
    distractors: int = 0  # Further entities of the world, four items each: a larger memory
    set: tuple[str, ...] = ()  # Further settings, as train.py takes them


class Turn(NamedTuple):
    rate: float  # steps per second
    versions: int  # refreshes that came into use
    seconds: float  # of the last one


def run(case: Refresh, every: int, folder: Path) -> Turn:
    overrides = ["experiment=world_joint", f"name={folder.name}", "task.start_from=null", "task.refresh.lag=null"]
    overrides += [f"task.refresh.every={every}", "task.refresh.spare=1", f"data.distractors={case.distractors}"]
    overrides += [f"optim.warmup={min(case.steps // 3, 100)}", f"trainer.log_every={max(case.steps // 15, 1)}"]
    overrides += [f"trainer.{name}={case.steps}" for name in ("steps", "checkpoint_every", "picture_every")]
    overrides += ["trainer.progress=false", *case.set]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    command = [sys.executable, str(root / "train.py"), *overrides]
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"train.py failed: {done.stderr.strip().splitlines()[-1]}")
    metrics = folder.parent / "runs" / folder.name / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    rates = [line["steps_per_s"] for line in lines if "steps_per_s" in line][1:]
    last = lines[-1]
    return Turn(statistics.median(rates), int(last["refresh_version"]), float(last["refresh_seconds"]))


def main() -> None:
    case = tyro.cli(Refresh, prog="python -m benchmarks.refresh")
    kinds = {"without": NEVER, "with": case.every}
    turns: dict[str, list[Turn]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(case.turns):
            for kind, every in kinds.items():
                turns[kind].append(run(case, every, Path(folder) / f"{kind}_{number}"))
    print("| refresh | steps/s | versions | seconds of one |\n| --- | ---: | ---: | ---: |")
    for kind, runs in turns.items():
        rates = ", ".join(f"{turn.rate:.3f}" for turn in runs)
        print(f"| {kind} | {rates} | {runs[-1].versions} | {runs[-1].seconds:.2f} |")
    fast, slow = (statistics.median(turn.rate for turn in turns[kind]) for kind in kinds)
    print(f"\nwith / without: {slow / fast:.3f}")


if __name__ == "__main__":
    main()
