"""The training loop, read top to bottom as the phases of a run.

Where the state comes from, in this order: this run's own newest checkpoint (resume); else the parameters of another
run or file that the task names (`Task.start`); else fresh ones (`Task.init`). The data's position and the step travel
with the state, so the same command again continues where the run stopped, and ends in the same weights as if it had
never stopped.

The host never holds up the device: the metrics of a step are read while the next one runs (`MetricWindow`), checkpoints
are written in the background (`checkpoint.py`), and so are arrays that follow the parameters (`refresh.py`). Each
compiled step runs under `jax.transfer_guard("disallow")`: an array that is not on the device yet is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from tqdm import tqdm

from common.evaluation.evaluation import Evaluation
from common.training import distributed
from common.training.checkpoint import Checkpoints
from common.training.logger import Logger, LoggerConfig, MetricWindow
from common.training.mesh import check_rules, make_mesh, replicated, shard_batch, shardings
from common.training.optimizer import OptimConfig, make_optimizer, make_schedule
from common.training.refresh import NoRefresh, make_refresh, refresh_config
from common.training.state import TrainState, as_seed, init_state, train_step
from common.training.task import IDS, Batch, Data, Metrics, Params, Task

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """Length of a run, what it leaves behind and which devices it uses; all times in steps.

    Attributes:
      steps: length of the run.
      log_every, picture_every, checkpoint_every: intervals; pictures and checkpoints also at the end.
      evaluate_every: interval of scoring the averaged weights by the experiment's evaluation (0: never), a multiple of
        `checkpoint_every`; also at the end.
      best: name of the score that decides which checkpoint is the best, kept and exported as `best.safetensors`.
      best_is_highest: whether a higher score is better.
      keep, keep_every: number of newest checkpoints to keep; those at multiples of `keep_every` (0: none) stay too.
      accumulate: microbatches that a batch is split into, computed one after the other, to save memory.
      devices, fsdp: devices of the mesh (0: all but those of `refresh.spare`), and along how many of them large
        parameters are split.
      sharding: (regular expression, tactic) rules of `common/training/mesh.py`; with fsdp=1 they split nothing.
      progress: show a progress bar.
      profile: [first, last] step to trace with `jax.profiler` into `profile/` of the run folder; []: none.
    """

    steps: int = 3_000_000
    log_every: int = 100
    picture_every: int = 1000
    checkpoint_every: int = 1000
    evaluate_every: int = 0
    best: str | None = None
    best_is_highest: bool = True
    keep: int = 2
    keep_every: int = 0
    accumulate: int = 1
    devices: int = 0
    fsdp: int = 1
    sharding: Sequence[Sequence[str]] = (("", "fsdp"),)
    progress: bool = True
    profile: Sequence[int] = ()

    def __post_init__(self):
        object.__setattr__(self, "sharding", tuple((pattern, tactic) for pattern, tactic in self.sharding))
        object.__setattr__(self, "profile", tuple(self.profile))
        check_rules(self.sharding)  # type: ignore[arg-type]
        for name in ("steps", "log_every", "picture_every", "checkpoint_every", "keep", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"trainer.{name} is {getattr(self, name)}: it has to be at least 1")
        if self.evaluate_every % self.checkpoint_every:
            raise ValueError(
                f"trainer.evaluate_every is {self.evaluate_every}: give a multiple of checkpoint_every, "
                f"{self.checkpoint_every}, so that what was scored is also saved"
            )
        if self.best and not self.evaluate_every:
            raise ValueError(f"trainer.best is {self.best!r}, but nothing is scored: set trainer.evaluate_every")
        if self.profile and not (len(self.profile) == 2 and 1 <= self.profile[0] <= self.profile[1]):
            raise ValueError(f"trainer.profile is {list(self.profile)}: give [first, last] step, or [] for no trace")


def train(
    task: Task,
    data: Data,
    optim: OptimConfig,
    config: TrainerConfig,
    folder: Path,
    seed: int = 0,
    evaluation: Evaluation | None = None,
    logger: LoggerConfig | None = None,
    **metadata: Any,
) -> Path:
    """Trains `task` on `data` and returns the exported weights, `folder/weights.safetensors`.

    `metadata` goes into the weights. Raises FloatingPointError when the loss stops being a number, KeyboardInterrupt
    after Ctrl-C or SIGTERM, when the state is saved.
    """
    # 1. Everything that a user can get wrong, before anything is computed.
    if config.evaluate_every and evaluation is None:
        raise ValueError("trainer.evaluate_every is set, but this experiment has no evaluation: choose evaluation=...")
    if config.evaluate_every and evaluation is not None:
        names = distributed.on_first(lambda: list(evaluation.prepare()))  # raises for what is missing
        if config.best and config.best not in names:
            raise ValueError(f"trainer.best is {config.best!r}: the evaluation gives {', '.join(sorted(names))}")
    refreshed = refresh_config(task)
    mesh = make_mesh(config.devices, config.fsdp, refreshed.spare if refreshed else 0)
    tx = make_optimizer(optim, config.steps)
    batches = data.batches(seed)
    checkpoints = Checkpoints(folder, config.keep, config.keep_every, config.best, config.best_is_highest)

    # 2. State: shapes first; then resume, start from other weights, or initialise; each array created where it belongs.
    fresh, traced_seed = partial(init_state, task, tx, optim), jax.device_put(as_seed(seed), replicated(mesh))
    shapes = jax.eval_shape(fresh, traced_seed)
    places = shardings(mesh, shapes, config.sharding)  # type: ignore[arg-type]
    start = checkpoints.latest()
    if start is None:
        start, state = 0, jax.jit(fresh, out_shardings=places)(traced_seed, task.start())
    else:
        target = jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places)
        state, position = checkpoints.restore(start, target)
        batches.set_state(position)
        log.info("resumed %s at step %d", folder, start)
    frozen = task.frozen()
    frozen = jax.device_put(frozen, shardings(mesh, frozen, config.sharding))  # type: ignore[arg-type]
    refresh = make_refresh(task, mesh, frozen)
    refresh.start(start, state.params, checkpoints)

    # 3. The step, compiled once; it donates the old state's memory to the new one.
    pure = partial(train_step, task, tx, optim, config.accumulate, mesh=mesh)
    compiled: Callable = jax.jit(pure, donate_argnums=0, out_shardings=(places, None))
    first = True

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal compiled, first
        arguments = state, shard_batch(mesh, batch, config.accumulate), frozen, refresh.arrays, traced_seed
        if first:  # compiles, which may place constants
            first, compiled = False, distributed.compiled(compiled, *arguments)
            return compiled(*arguments)
        with jax.transfer_guard("disallow"):
            return compiled(*arguments)

    # 4. The loop, and the weights.
    rate, metadata = make_schedule(optim, config.steps), {**metadata, "seed": seed}
    writer = Logger(folder, start, logger)
    run = Run(task, config, rate, folder, checkpoints, writer, evaluation, refresh, metadata, data.names)
    try:
        state = run.loop(step, state, batches, start)
        return run.export("weights.safetensors", state)
    finally:
        refresh.close()
        writer.close()
        checkpoints.close()


@dataclasses.dataclass
class Run:
    """What the loop does besides stepping: log, show image summaries, score, save."""

    task: Task
    config: TrainerConfig
    rate: optax.Schedule
    folder: Path
    checkpoints: Checkpoints
    logger: Logger
    evaluation: Evaluation | None
    refresh: NoRefresh
    metadata: Mapping[str, Any]
    names: Callable[[Any], Sequence[str]]

    def loop(self, step: Callable, state: TrainState, batches: Any, start: int) -> TrainState:
        config = self.config
        window = MetricWindow(self.checkpoints.latest, self.names)
        hidden = None if config.progress and distributed.is_first() else True  # None: unless it is no terminal
        bar = tqdm(total=config.steps, initial=start, unit="step", disable=hidden)
        with bar, Interrupt() as interrupt, Profiler(self.folder / "profile", config.profile) as profiler:
            for number in range(start + 1, config.steps + 1):
                batch = next(batches)
                ids = batch.pop(IDS, None)
                profiler.before_step(number)
                state, metrics = step(state, batch)
                profiler.after_step(number, metrics)
                window.add(number, ids, metrics)
                self.refresh.after_step(number, state.params)
                last = number == config.steps
                if number % config.log_every == 0 or last:
                    self.log(number, window, bar)
                # Read once: a signal that comes while this step is saved waits for the next. Processes have to agree.
                meet = jax.process_count() == 1 or number % config.log_every == 0
                stop = meet and distributed.any_process(interrupt.requested)
                if number % config.picture_every == 0 or last:
                    self.show(number, state, batch)
                if number % config.checkpoint_every == 0 or last or stop:
                    window.check()  # a broken state is never saved
                    self.refresh.check()
                    self.save(number, state, batches.get_state(), last)
                bar.update()
                if stop and not last:
                    self.checkpoints.wait()
                    raise KeyboardInterrupt(f"stopped and saved at step {number}; the same command goes on from there")
        self.checkpoints.wait()
        return state

    def log(self, number: int, window: MetricWindow, bar: tqdm) -> None:
        values = window.mean() | {"lr": float(np.asarray(self.rate(number - 1)))} | self.refresh.scalars(number)
        self.logger.scalars(number, values)
        bar.set_postfix(loss=f"{values['loss']:.4f}")
        if bar.disable and distributed.is_first():
            log.info("step %d: %s", number, "  ".join(f"{k} {v:.4g}" for k, v in values.items()))

    def show(self, number: int, state: TrainState, batch: Batch) -> None:
        params = distributed.fetch(state.averaged)
        if distributed.is_first():
            self.logger.pictures(number, self.task.pictures(params, batch))

    def save(self, number: int, state: TrainState, position: Any, last: bool) -> None:
        scores, keep = None, partial(self.checkpoints.save, number, state, position, **self.refresh.saved())
        every = self.config.evaluate_every
        if self.evaluation is not None and every and (number % every == 0 or last):
            params = distributed.fetch(state.averaged)
            try:
                scores = distributed.on_first(partial(self.score, params))
            except Exception:
                keep()  # a score that fails costs no steps
                raise
            self.logger.scalars(number, scores)
            if self.config.best and self.is_best(scores):
                self.export("best.safetensors", state, **scores)
        keep(scores)

    def score(self, params: Params) -> dict[str, float]:
        assert self.evaluation is not None
        return {name: float(value) for name, value in self.evaluation.score(self.task, params).items()}

    def is_best(self, scores: Mapping[str, float]) -> bool:
        name, sign = str(self.config.best), 1 if self.config.best_is_highest else -1
        before = [scores.get(name, math.nan) for scores in self.checkpoints.scores().values()]
        known = [value for value in before if value is not None and math.isfinite(value)]
        return math.isfinite(scores[name]) and all(sign * scores[name] > sign * value for value in known)

    def export(self, name: str, state: TrainState, **more: Any) -> Path:
        path = self.folder / name
        params, steps = distributed.fetch(state.averaged), int(state.step)
        if distributed.is_first():
            return self.task.export(path, params, {"steps": steps, **self.metadata, **more})
        return path


class Interrupt:
    """Notes the first SIGINT or SIGTERM in `requested`, for the loop to stop between two steps; a second one
    interrupts at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Interrupt:
        self.requested = False
        self.before = [signal.signal(s, self._request) for s in self.SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(self.SIGNALS, self.before, strict=True):
            signal.signal(number, handler)

    def _request(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class Profiler:
    """Traces steps `first` to `last` of the first process; TensorBoard and Perfetto show the trace."""

    def __init__(self, folder: Path, steps: Sequence[int]):
        self.folder, self.steps, self.trace = folder, steps, contextlib.ExitStack()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.trace.close()

    def before_step(self, number: int) -> None:
        if self.steps and number == self.steps[0] and distributed.is_first():
            self.trace.enter_context(jax.profiler.trace(self.folder))

    def after_step(self, number: int, metrics: Metrics) -> None:
        if self.steps and number == self.steps[1]:
            jax.block_until_ready(metrics)
            self.trace.close()
