"""The smallest thing to train, a line through points, with and without refreshed arrays; also run as a program."""

import dataclasses
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.evaluation.evaluation import Evaluation
from common.training import distributed, mesh, refresh
from common.training.checkpoint import Checkpoints
from common.training.optimizer import OptimConfig
from common.training.task import RefreshConfig
from common.training.trainer import TrainerConfig, train

TRUTH = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.0]], np.float32)
Hook = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Line:
    """Endless batches of points on a line; number n depends on n alone. `hook(n)` runs as batch n is drawn."""

    size: int = 8
    hook: Hook = lambda number: None
    not_finite: int = 0
    threads: int = 1

    def batches(self, seed: int) -> "Points":
        return Points(self, seed)

    def names(self, ids):
        return [f"point {number}" for number in ids]


class Points:
    def __init__(self, line: Line, seed: int):
        self.line, self.seed, self.drawn = line, seed, 0

    def __next__(self):
        self.drawn += 1
        self.line.hook(self.drawn)
        x = np.random.default_rng([self.seed, self.drawn]).standard_normal((self.line.size, 3)).astype(np.float32)
        y = x @ TRUTH + 0.25 if self.drawn != self.line.not_finite else np.full((self.line.size, 2), np.nan, np.float32)
        share = slice(jax.process_index(), None, jax.process_count())
        return {"x": x[share], "y": y[share], "id": (100 * self.drawn + np.arange(self.line.size))[share]}

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = state["drawn"]


@dataclasses.dataclass(frozen=True)
class Fit:
    """Least squares; the loss depends on the step and the random start, so that losing either would show."""

    start_from: str | None = None
    scale: float = 1.0
    image_summaries: Sequence[str] = ()
    while_drawing: Callable[[], None] = lambda: None

    def init(self, key):
        return {"layer": {"kernel": 0.1 * jax.random.normal(key, (3, 2)), "bias": jnp.zeros((2,))}}

    def start(self):
        if self.start_from is None:
            return None
        params = json.loads(Path(self.start_from).read_text())["params"]
        return jax.tree.map(np.float32, params, is_leaf=lambda x: isinstance(x, list))

    def frozen(self):
        return {"offset": np.zeros(2, np.float32)}

    def loss(self, params, batch, context):
        error = batch["x"] @ params["layer"]["kernel"] + params["layer"]["bias"] - batch["y"] + context.frozen["offset"]
        loss = jnp.mean(jnp.square(error))
        noise = 1e-3 * jax.random.uniform(context.key)
        return loss * (1 + 1e-3 * context.step.astype(jnp.float32) + noise), {"mse": loss}

    def pictures(self, params, batch):
        self.while_drawing()
        return {"fit": np.full((4, 6, 3), 0.5, np.float32)}

    def export(self, path, params, metadata):
        path.write_text(json.dumps({"params": jax.tree.map(lambda x: x.tolist(), params), **metadata}))
        return path


@dataclasses.dataclass(frozen=True)
class Follow(Fit):
    """Its loss reads arrays of earlier parameters. `before(n)` runs as the n-th refresh of the process begins, in its
    thread, from 0. `seen` holds the parameters given to refreshes, `traces` the context of each compilation."""

    refresh: RefreshConfig | None = dataclasses.field(default_factory=lambda: RefreshConfig(5, 3))
    before: Hook = lambda number: None
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


@dataclasses.dataclass(frozen=True)
class Distance(Evaluation):
    """Scores by a given list: the best checkpoint must follow the scores, not the order."""

    values: Sequence[Any]  # NaN too
    seen: list = dataclasses.field(default_factory=list)
    files = evaluate = None  # type: ignore[assignment]  # not called in training

    def prepare(self):
        return ["toy/distance"]

    def score(self, task, params):
        self.seen.append(params)
        return {"toy/distance": self.values[len(self.seen) - 1]}


def log_of(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl but the measured times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in row.items() if name not in ("steps_per_s", "refresh_seconds")} for row in rows]


def checkpoints_of(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def at(step: int, action: Callable[[], object]) -> Hook:
    """A hook that acts as batch `step` is drawn."""
    return lambda number: action() if number == step else None


def crash() -> None:
    raise RuntimeError("power cut")


def start(folder: Path, devices: int = 1, **settings) -> subprocess.Popen:
    """`main` in a process of its own that sees `devices` CPU devices."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, __file__, str(folder), json.dumps(settings)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*runs: subprocess.Popen, code: int = 0) -> None:
    for run in runs:
        output, _ = run.communicate(timeout=300)
        assert run.returncode == code, output


def two_processes() -> list[dict]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [dict(coordinator=address, processes=2, process=i) for i in range(2)]


def main(folder: str, settings: str) -> None:
    """A run with these settings: "trainer", "stages" (changes of those, one after the other), "cluster", "refresh",
    "kill" and "stop" (steps), "stuck" (a refresh that never ends), "smallest_split" (bytes), "scores" (of evaluations)
    and "late" (the disk shows this process no new checkpoint)."""
    chosen = json.loads(settings)
    # Seconds until a killed process is missed; JAX's 100 would all be waited for.
    jax.distributed.initialize = functools.partial(jax.distributed.initialize, heartbeat_timeout_seconds=20)
    distributed.join(distributed.ClusterConfig(**chosen.get("cluster", {})))
    mesh.SMALLEST_SPLIT = chosen.get("smallest_split", mesh.SMALLEST_SPLIT)
    refresh.PATIENCE = 0.1
    if chosen.get("late"):
        Checkpoints.is_best = lambda *_: False
    task = Fit()
    if "refresh" in chosen:
        before = at(chosen.get("stuck", -1), lambda: threading.Event().wait())
        task = Follow(refresh=RefreshConfig(**chosen["refresh"]), before=before)

    def send(number: int) -> None:
        if number == chosen.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == chosen.get("stop"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(3)  # JAX looks every second

    data = Line(hook=send)
    for stage in chosen.get("stages", [{}]):
        config = TrainerConfig(progress=False, **chosen["trainer"] | stage)
        evaluation = Distance(chosen.get("scores", ()))
        train(task, data, OptimConfig(lr=0.05, ema=0.9), config, Path(folder), 3, evaluation)


if __name__ == "__main__":
    main(*sys.argv[1:])
