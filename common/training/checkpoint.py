"""Saving and resuming a run: state through orbax, the data's position as JSON beside it.

A task with renewed arrays has two more parts in its checkpoints: what is known of them as JSON, and, for a run that has
to repeat itself, the arrays (`renewal.py`).

Each checkpoint is a folder `checkpoints/<step>`, complete or absent (orbax renames it when finished). Restoring needs
a target of the same structure, which fixes types and placement: a run saved on four devices restores on one. All
processes of a run take part in saving and restoring; the data's position is the same in each.
"""

from __future__ import annotations

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
    `best` (None: none), the highest or, if not `higher`, the lowest of those that `save` was told.
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
            enable_async_checkpointing=False,
        )
        self.manager = ocp.CheckpointManager((folder / "checkpoints").absolute(), options=options)

    def latest(self) -> int | None:
        return self.manager.latest_step()

    def save(
        self,
        step: int,
        state: Any,
        position: Any,
        scores: Mapping[str, float] | None = None,
        renewal: Mapping[str, Any] | None = None,
        renewed: Any = None,
    ) -> None:
        """`position` is JSON: what the data needs to go on with the next batch; `scores` of this state, if any.

        `renewal`, JSON, and `renewed`, arrays, are what `Renewal.saved` gives."""
        if step == self.latest():
            return
        parts = {"state": ocp.args.StandardSave(state), "data": ocp.args.JsonSave(position)}
        if renewal is not None:
            parts["renewal"] = ocp.args.JsonSave(dict(renewal))
        if renewed is not None:
            parts["renewed"] = ocp.args.StandardSave(renewed)
        self.manager.save(step, args=ocp.args.Composite(**parts), metrics=dict(scores) if scores else None)
        self.manager.wait_until_finished()

    def restore(self, step: int, target: Any) -> tuple[Any, Any]:
        """State like `target` (arrays or shapes with shardings), and the data's position."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
        restored = self.manager.restore(step, args=arguments)
        return restored["state"], restored["data"]

    def renewal(self, step: int) -> dict[str, Any] | None:
        """What `save` was told of renewed arrays; None if the task had none."""
        if not (self.manager.directory / str(step) / "renewal").exists():
            return None
        return self.manager.restore(step, args=ocp.args.Composite(renewal=ocp.args.JsonRestore()))["renewal"]

    def renewed(self, step: int, target: Any) -> Any:
        """The renewed arrays, like `target`."""
        arguments = ocp.args.Composite(renewed=ocp.args.StandardRestore(target))
        return self.manager.restore(step, args=arguments)["renewed"]

    def scores(self, step: int) -> dict[str, float]:
        """The scores that `save` was told at `step`; empty if none."""
        return dict(self.manager.metrics(step) or {})

    def steps(self) -> list[int]:
        return sorted(self.manager.all_steps())

    def close(self) -> None:
        self.manager.close()
