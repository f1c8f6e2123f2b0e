"""The numbers of the latest steps: fetched one step late, so that the device never waits for the log.

The step that has just been dispatched stays on the device; the one before it is read meanwhile. A loss, gradient or
update that is not a number is thereby noticed one step after it happened, and before anything is saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from common.training.checkpoint import Checkpoints
from common.training.task import Metrics

WATCHED = ("loss", "grad_norm", "update_norm")


class Window:
    """The numbers of the steps since the last line of the log; looked at one step late."""

    def __init__(self, checkpoints: Checkpoints, names: Callable[[Any], Sequence[str]]):
        self.checkpoints, self.names = checkpoints, names
        self.clock = time.perf_counter()
        self.rows: list[dict[str, float]] = []
        self.waiting: tuple[int, Any, Metrics] | None = None

    def add(self, step: int, ids: Any, metrics: Metrics) -> None:
        """Called when `step` has been dispatched: by then the one before is, or soon will be, done."""
        self.check()
        self.waiting = step, ids, metrics

    def check(self) -> None:
        """Reads the step that waits. Raises FloatingPointError if one of `WATCHED` is not a number."""
        if self.waiting is None:
            return
        (step, ids, metrics), self.waiting = self.waiting, None
        row = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.rows.append(row)
        bad = [name for name in WATCHED if not math.isfinite(row[name])]
        if bad:
            examples = "" if ids is None else f" on {', '.join(self.names(np.asarray(ids).tolist()))}"
            good = self.checkpoints.latest()
            saved = "there is no checkpoint yet" if good is None else f"the last good checkpoint is of step {good}"
            raise FloatingPointError(
                f"{bad[0]} became {row[bad[0]]} at step {step}{examples}; {saved}: "
                "lower optim.lr or set optim.clip, then start again"
            )

    def mean(self) -> dict[str, float]:
        """Means since the last call, with the speed; waits for the newest step."""
        self.check()
        values = {name: float(np.mean([row[name] for row in self.rows])) for name in self.rows[0]}
        now = time.perf_counter()
        values["steps_per_s"] = len(self.rows) / (now - self.clock)
        self.rows, self.clock = [], now
        return values
