"""Saving and resuming a run: the train state through orbax, the position of the data iterator as JSON beside it.

Each checkpoint is a folder `checkpoints/<step>`, complete or absent. `save` copies the arrays and returns; a background
thread writes them, and syncs them with the disk before orbax renames the folder: a power cut costs the newest at most.
A damaged one is moved to `damaged/<step>` of the run folder, or `<step>_2`, ...: nothing is deleted.

Restoring needs a target of the same structure, which fixes types and shardings: a run saved on four devices restores
on one. All processes of a run take part in saving and restoring; the position of the data is the same in each.

A task with refreshed arrays (`refresh.py`) has two more items: `renewal`, JSON about the versions, and, with a lag,
`renewed`, the arrays.
"""

import copy
import itertools
import logging
import math
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from common.io.files import sync

log = logging.getLogger(__name__)
T = TypeVar("T")


class Manager(ocp.CheckpointManager):
    """orbax's, which does not ask JAX whether a signal has come: `trainer` does, by its own count of steps."""

    def reached_preemption(self, step: int) -> bool:
        return False


class Checkpoints:
    """The checkpoints of one run folder: the newest `keep`, those at multiples of `keep_every` steps (0: none), and the
    one with the best score `best` (None: none), which is the highest, or the lowest if not `higher`."""

    def __init__(
        self, folder: Path, keep: int = 2, keep_every: int = 0, best: str | None = None, higher: bool = True
    ) -> None:
        self.best, self.sign = str(best), 1 if higher else -1
        kept: list[policies.PreservationPolicy] = [policies.LatestN(keep)]
        if keep_every:
            kept.append(policies.EveryNSteps(keep_every))
        if best:
            kept.append(policies.BestN(get_metric_fn=self.rank, n=1, keep_checkpoints_without_metrics=False))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            best_fn=self.rank if best else None,  # without it orbax would not write the scores
            enable_async_checkpointing=True,
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._sync),  # before the rename
        )
        self.manager = Manager((folder / "checkpoints").absolute(), options=options)

    def rank(self, scores: Mapping[str, float]) -> float:
        """A number that is higher for a better checkpoint; minus infinity for a missing score, NaN or infinity."""
        score = self.sign * scores.get(self.best, math.nan)
        return score if math.isfinite(score) else -math.inf

    def is_best(self, scores: Mapping[str, float]) -> bool:
        """Whether a state with these scores is better than all checkpoints."""
        return self.rank(scores) > max(map(self.rank, self.scores().values()), default=-math.inf)

    def latest(self) -> int | None:
        """The newest step; its checkpoint may not be on disk yet."""
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
        """Starts to write a checkpoint after the one before is complete; `state` may be donated afterwards.

        `position`, JSON, is that of the data iterator; `scores` are those of this state; `refresh`, JSON, and `arrays`
        come from `Refresh.saved`. Raises an error of the write before."""
        if step == self.latest():
            return
        # copied: the iterator may change its position while the background thread writes
        items = {"state": ocp.args.StandardSave(state), "data": ocp.args.JsonSave(copy.deepcopy(position))}
        items |= {} if refresh is None else {"renewal": ocp.args.JsonSave(refresh)}
        items |= {} if arrays is None else {"renewed": ocp.args.StandardSave(arrays)}
        self.manager.save(step, args=ocp.args.Composite(**items), metrics=dict(scores) if scores else None)

    def wait(self) -> None:
        """Returns when every checkpoint is on disk. Raises errors of writing."""
        self.manager.wait_until_finished()
        if jax.process_index() == 0:
            sync(Path(self.manager.directory))

    def _sync(self) -> None:
        for written in Path(self.manager.directory).glob("*orbax-checkpoint-tmp*"):
            sync(*written.rglob("*"), written)

    def restore(self, step: int, target: Any) -> tuple[Any, Any]:
        """State like `target` (arrays or shapes with shardings), and the position of the data."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
        restored = self.manager.restore(step, args=arguments)
        return restored["state"], restored["data"]

    def newest_whole(self, restore: Callable[[int], T]) -> T | None:
        """`restore(step)` for the newest checkpoint that can be read; None if there is no checkpoint.

        Newer ones, for which it raised, are moved, and the log names them. If none can be read, nothing is moved, and
        the error of the newest is raised: then the target does not fit, or the disk is away. Of several processes each
        raises its first: they could not agree on a step."""
        errors: dict[int, Exception] = {}
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                restored = restore(step)
            except Exception as error:
                if jax.process_count() > 1:
                    error.add_note(f"move {self.manager.directory / str(step)} away to resume from an older one")
                    raise
                errors[step] = error
                continue
            for damaged, error in errors.items():
                aside = self.manager.directory.parent / "damaged"
                aside.mkdir(exist_ok=True)
                targets = (aside / (f"{damaged}_{n}" if n > 1 else str(damaged)) for n in itertools.count(1))
                target = next(path for path in targets if not path.exists())
                (self.manager.directory / str(damaged)).rename(target)
                cause = textwrap.shorten(str(error), 200)  # the storage library's own take a screen
                log.warning("checkpoint %d is damaged and now in %s: %s", damaged, target, cause)
            self.manager.reload()
            return restored
        if errors:
            raise errors[max(errors)]
        return None

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
        self.wait()
        return {step: dict(self.manager.metrics(step) or {}) for step in sorted(self.manager.all_steps())}

    def close(self) -> None:
        self.manager.close()
