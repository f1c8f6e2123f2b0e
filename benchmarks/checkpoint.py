"""Time that a training step waits for a checkpoint, written in the background or in the foreground.

    python -m benchmarks.checkpoint --megabytes 500

Parameters of that size, with two moments each, are saved `turns` times. `save` is the median time until training goes
on; `save and wait` that until the checkpoint is on disk, which a trainer that writes in the foreground would wait.
"""

import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from benchmarks.measuring import heading, line, medians, timed
from common.training.checkpoint import Checkpoints

COLUMNS = {"save s": ".3f", "save and wait s": ".3f"}


def main(megabytes: int = 100, turns: int = 5) -> None:
    """Stall of a step by a checkpoint.

    Args:
      megabytes: Of parameters; the state has three times as much.
      turns: Checkpoints.
    """
    arrays = {f"layer_{i}": jnp.full((megabytes, 2**14), float(i)) for i in range(16)}  # 1 MB a row in all
    state = {"params": arrays, "mu": jax.tree.map(jnp.copy, arrays), "nu": jax.tree.map(jnp.copy, arrays)}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        for step in range(1, turns + 1):
            jax.block_until_ready(state)
            saving = timed(partial(checkpoints.save, step, state, {"step": step}))[1]
            rows.append({"save s": saving, "save and wait s": saving + timed(checkpoints.wait)[1]})
        checkpoints.close()
    heading(f"checkpoints of {3 * megabytes} MB", COLUMNS)
    line(COLUMNS, medians(rows))


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.checkpoint")
