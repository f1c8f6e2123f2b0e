"""Saving and resuming a run: state through orbax, the data's position as JSON beside it.

Each checkpoint is a folder `checkpoints/<step>`, complete or absent (orbax renames it when finished). Restoring needs
a target of the same structure, which fixes types and placement: a run saved on four devices restores on one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """The checkpoints of one run folder; keeps the newest `keep`."""

    def __init__(self, folder: Path, keep: int = 2):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager((folder / "checkpoints").absolute(), options=options)

    def latest(self) -> int | None:
        return self.manager.latest_step()

    def save(self, step: int, state: Any, position: Any) -> None:
        """`position` is JSON: what the data needs to go on with the next batch."""
        if step == self.latest():
            return
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(position))
        self.manager.save(step, args=arguments)
        self.manager.wait_until_finished()

    def restore(self, step: int, target: Any) -> tuple[Any, Any]:
        """State like `target` (arrays or shapes with shardings), and the data's position."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
        restored = self.manager.restore(step, args=arguments)
        return restored["state"], restored["data"]

    def close(self) -> None:
        self.manager.close()
