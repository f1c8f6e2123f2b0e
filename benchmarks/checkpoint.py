"""Time that a training step waits for a checkpoint, written in the background or in the foreground.

    python -m benchmarks.checkpoint --megabytes 500

Parameters of that size, with two moments each, are saved `turns` times. `save` is the time until training goes on;
`save and wait` the time until the checkpoint is on disk, which a trainer that writes in the foreground would wait.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from common.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """Stall of a step by a checkpoint."""

    megabytes: int = 100
    """Of parameters; the state has three times as much."""
    turns: int = 5
    """Checkpoints."""


def measure(case: Checkpoint) -> list[tuple[float, float]]:
    """(seconds of `save`, seconds until it is on disk) of each checkpoint."""
    arrays = {f"layer_{i}": jnp.full((case.megabytes, 2**14), float(i)) for i in range(16)}  # 1 MB a row in all
    state = {"params": arrays, "mu": jax.tree.map(jnp.copy, arrays), "nu": jax.tree.map(jnp.copy, arrays)}
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        for step in range(1, case.turns + 1):
            jax.block_until_ready(state)
            clock = time.perf_counter()
            checkpoints.save(step, state, {"step": step})
            saved = time.perf_counter() - clock
            checkpoints.wait()
            seconds.append((saved, time.perf_counter() - clock))
        checkpoints.close()
    return seconds


def table(seconds: list[tuple[float, float]]) -> str:
    """In Markdown, medians."""
    save, whole = (statistics.median(column) for column in zip(*seconds, strict=True))
    return f"| | seconds |\n| --- | ---: |\n| save | {save:.3f} |\n| save and wait | {whole:.3f} |"


if __name__ == "__main__":
    print(table(measure(tyro.cli(Checkpoint, prog="python -m benchmarks.checkpoint"))))
