"""A task whose loss reads arrays of earlier parameters: `line.Fit`, held back by where it has been. Also a program."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from line import Fit, Line

from common.training.task import RefreshConfig


@dataclasses.dataclass(frozen=True)
class Follow(Fit):
    """`before(n)` runs as the n-th refresh of the process begins, in its thread, from 0. `seen` holds the parameters
    that refreshes were given, `traces` what each compilation of the loss saw."""

    refresh: RefreshConfig | None = dataclasses.field(default_factory=RefreshConfig)
    before: Callable[[int], None] = lambda _: None
    seen: list = dataclasses.field(default_factory=list)
    traces: list = dataclasses.field(default_factory=list)

    def refresh_arrays(self, params, frozen, check_cancelled=None):
        self.seen.append((params, frozen))
        self.before(len(self.seen) - 1)
        kernel = params["layer"]["kernel"]
        rows = jnp.arange(16.0).reshape(8, 2) * kernel[0] + frozen["offset"]
        return {"kernel": kernel, "more": {"rows": rows, "host": np.ones(3, np.float32)}}

    def loss(self, params, batch, context):
        self.traces.append(context)
        loss, metrics = super().loss(params, batch, context)
        away = jnp.mean(jnp.square(params["layer"]["kernel"] - context.refreshed["kernel"]))
        more = context.refreshed["more"]
        return loss + 0.1 * away + 1e-3 * jnp.mean(more["rows"]) * more["host"][0], {**metrics, "away": away}


def main(folder: str, settings: str) -> None:
    """`python refreshing.py FOLDER JSON`: a run with these settings: "cluster", "trainer", "refresh", "kill" (a step)
    and "stuck" (a refresh that never ends)."""
    import threading

    from common.training import distributed, refresh
    from common.training.optimizer import OptimConfig
    from common.training.trainer import TrainerConfig, train

    chosen = json.loads(settings)
    distributed.join(distributed.ClusterConfig(**chosen.get("cluster", {})))
    refresh.PATIENCE = 0.1
    kill, stuck = chosen.get("kill", 0), chosen.get("stuck", -1)
    data = Line(hook=lambda n: os.kill(os.getpid(), signal.SIGKILL) if n == kill else None)
    task = Follow(
        refresh=RefreshConfig(**chosen["refresh"]), before=lambda n: threading.Event().wait() if n == stuck else None
    )
    train(task, data, OptimConfig(lr=0.05), TrainerConfig(progress=False, **chosen["trainer"]), Path(folder), 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
