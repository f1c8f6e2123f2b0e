"""Saving and resuming a run: the train state through orbax, the data iterator's position as JSON beside it.

Each checkpoint is a folder `checkpoints/<step>`, complete or absent (orbax renames it when finished). `save` copies the
arrays and returns; a background thread writes them, and training goes on. `wait` ends when the newest is on disk: before
the program says that it is saved, before scores are read, and before it exits. A checkpoint that is deleted because
newer ones take its place goes only after those are complete.

Restoring needs a target of the same structure, which fixes types and placement: a run saved on four devices restores
on one. All processes of a run take part in saving and restoring; the data's position is the same in each.

A task with refreshed arrays (`refresh.py`) has two more items in its checkpoints: `renewal`, JSON about the versions,
and, for a run that has to repeat itself, the arrays, `renewed`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies


class Checkpoints:
    """The checkpoints of one run folder.

    Kept are the newest `keep`, those at multiples of `keep_every` steps (0: none), and the one with the best score
    `best` (None: none): the highest, or the lowest if not `higher`, of the scores given to `save`.
    """

    def __init__(
        self, folder: Path, keep: int = 2, keep_every: int = 0, best: str | None = None, higher: bool = True
    ) -> None:
        def rank(scores: Mapping[str, float]) -> float:
            score = scores.get(str(best), math.nan)
            score = score if higher else -score
            return score if math.isfinite(score) else -math.inf  # not a number is never the best

        kept: list[policies.PreservationPolicy] = [policies.LatestN(keep)]
        if keep_every:
            kept.append(policies.EveryNSteps(keep_every))
        if best:
            kept.append(policies.BestN(get_metric_fn=rank, n=1, keep_checkpoints_without_metrics=False))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            best_fn=rank if best else None,  # without it orbax would not write the scores
            enable_async_checkpointing=True,
        )
        self.manager = ocp.CheckpointManager((folder / "checkpoints").absolute(), options=options)

    def latest(self) -> int | None:
        """The newest step, which may still be on its way to the disk."""
        return self.manager.latest_step()

    def save(
        self,
        step: int,
        state: Any,
        position: Any,
        scores: Mapping[str, float] | None = None,
        refresh: Mapping[str, Any] | None = None,
        arrays: Any = None,
    ) -> None:
        """Begins to write a checkpoint; `state` may be donated afterwards. Waits for the one before.

        `position` is JSON: what the data iterator needs to go on with the next batch. `scores` of this state, if any.
        `refresh`, JSON, and `arrays` come from `Refresh.saved`. Raises what failed while the one before was written.
        """
        if step == self.latest():
            return
        items = {"state": ocp.args.StandardSave(state), "data": ocp.args.JsonSave(_frozen_json(position))}
        if refresh is not None:
            items["renewal"] = ocp.args.JsonSave(_frozen_json(refresh))
        if arrays is not None:
            items["renewed"] = ocp.args.StandardSave(arrays)
        self.manager.save(step, args=ocp.args.Composite(**items), metrics=dict(scores) if scores else None)

    def wait(self) -> None:
        """Returns when every checkpoint is on disk; raises what failed while one was written."""
        self.manager.wait_until_finished()

    def restore(self, step: int, target: Any) -> tuple[Any, Any]:
        """State like `target` (arrays or shapes with shardings), and the data's position."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
        restored = self.manager.restore(step, args=arguments)
        return restored["state"], restored["data"]

    def refresh(self, step: int) -> dict[str, Any] | None:
        """The `refresh` of `save`; None if the task had none."""
        if not (self.manager.directory / str(step) / "renewal").exists():
            return None
        return self.manager.restore(step, args=ocp.args.Composite(renewal=ocp.args.JsonRestore()))["renewal"]

    def arrays(self, step: int, target: Any) -> Any:
        """The `arrays` of `save`, like `target`."""
        arguments = ocp.args.Composite(renewed=ocp.args.StandardRestore(target))
        return self.manager.restore(step, args=arguments)["renewed"]

    def scores(self) -> dict[int, dict[str, float]]:
        """The scores of each checkpoint by its step; empty where `save` had none."""
        self.wait()
        return {step: dict(self.manager.metrics(step) or {}) for step in sorted(self.manager.all_steps())}

    def close(self) -> None:
        """Waits, and ends the background threads."""
        self.manager.close()


def _frozen_json(value: Any) -> Any:
    """A copy: the iterator may change its position while the background thread writes."""
    return json.loads(json.dumps(value))
