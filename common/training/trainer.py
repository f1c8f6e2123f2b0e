"""The training loop, read top to bottom as the phases of a run.

Where the state comes from, in this order: this run's own newest checkpoint (resume); else the parameters of another
run or file that the task names (`Task.start`); else `Task.init`. Checkpoints hold the step and the position of the data
as well, so the same command again resumes, and ends in the same weights as a run without a stop.

The host never holds up the device: the metrics of a step are read while the next one runs (`MetricWindow`), checkpoints
and refreshed arrays come in the background. Each compiled step runs under `jax.transfer_guard("disallow")`: an array
that is still on the host is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental.multihost_utils import reached_preemption_sync_point
from tqdm import tqdm

from common.checked import Checked, NotNegative, Positive
from common.evaluation.evaluation import Evaluation
from common.nn.init import COMPILE_FAST
from common.training import distributed
from common.training.checkpoint import Checkpoints
from common.training.logger import Logger, LoggerConfig, MetricWindow
from common.training.mesh import Rules, make_mesh, place, replicated, shard_batch, shardings
from common.training.optimizer import OptimConfig, make_optimizer, make_schedule
from common.training.refresh import NoRefresh, make_refresh, spare_devices
from common.training.state import TrainState, abstract_state, as_seed, init_state, train_step
from common.training.task import IDS, Batch, Data, Metrics, Task

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainerConfig(Checked):
    """Length, outputs and devices of a run; all intervals in steps. Pictures, evaluations and checkpoints come at the
    end as well."""

    steps: Positive = 3_000_000
    log_every: Positive = 100
    picture_every: NotNegative = 1000  # 0: never
    checkpoint_every: Positive = 1000
    evaluate_every: NotNegative = 0  # evaluation of the averaged weights (0: never); a multiple of `checkpoint_every`
    best: str | None = None  # name of the score by which the best checkpoint is kept, exported as `best.safetensors`
    best_is_highest: bool = True
    keep: Positive = 2  # number of newest checkpoints to keep
    keep_every: NotNegative = 0  # those at multiples of it (0: none) stay too
    accumulate: Positive = 1  # microbatches, to save memory: a loss is the mean of theirs; none sees the whole batch
    devices: int = 0  # of the mesh; 0: all but those of `refresh.spare`
    fsdp: int = 1  # along how many of them large parameters are split
    sharding: Rules = (("", "fsdp"),)  # (regular expression, tactic), see `mesh.py`; the tactic "fsdp" needs fsdp > 1
    progress: bool = True
    profile: Sequence[Positive] = ()  # [first, last] step to trace with `jax.profiler` into the run folder's `profile/`

    def rules(self):
        rule = "evaluate_every is a multiple of checkpoint_every, to save scored weights"
        yield self.evaluate_every % self.checkpoint_every == 0, rule
        yield not self.best or self.evaluate_every > 0, "best needs an evaluation: set evaluate_every"
        first_and_last = len(self.profile) == 2 and self.profile[0] <= self.profile[1]
        yield not self.profile or first_and_last, "profile is [first, last] step, or [] for no trace"


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
    """Trains `task` on `data` and returns the exported weights, `folder/weights.safetensors`, which hold `metadata`.
    Raises KeyboardInterrupt after Ctrl-C or SIGTERM, with the state saved."""
    # 1. Check the user's choices before anything is computed.
    if config.evaluate_every:
        if evaluation is None:
            raise ValueError("trainer.evaluate_every is set, but there is no evaluation: choose evaluation=...")
        names = distributed.on_first(lambda: list(evaluation.prepare()))  # raises for a missing test set
        if config.best and config.best not in names:
            raise ValueError(f"trainer.best is {config.best!r}: the evaluation gives {', '.join(sorted(names))}")
    mesh = make_mesh(config.devices, config.fsdp, spare_devices(task))
    tx = make_optimizer(optim, config.steps)
    batches = data.batches(seed)
    checkpoints = Checkpoints(folder, config.keep, config.keep_every, config.best, config.best_is_highest)

    # 2. State: shapes first; then resume, start from other weights, or initialise; each array created where it belongs.
    traced_seed = jax.device_put(as_seed(seed), replicated(mesh))
    target = abstract_state(task, tx, optim, mesh, config.sharding)
    state_sharding = jax.tree.map(lambda x: x.sharding, target)
    frozen = task.frozen()
    frozen = place(frozen, shardings(mesh, frozen, (*getattr(task, "frozen_rules", ()), *config.sharding)))
    refresh = make_refresh(task, mesh, frozen)

    def resume(step: int) -> tuple[int, TrainState, Any]:
        state, position = checkpoints.restore(step, target)
        batches.set_state(position)
        return step, state, refresh.read(step, state.params, checkpoints)

    if (resumed := checkpoints.newest_whole(resume)) is not None:
        start, state, arrays = resumed
        if start > config.steps:
            raise ValueError(f"trainer.steps is {config.steps}: {folder} is at step {start}; give that or more")
        log.info("resumed %s at step %d", folder, start)
    else:
        options: Any = dict(out_shardings=state_sharding, compiler_options=COMPILE_FAST)
        state = jax.jit(partial(init_state, task, tx, optim), **options)(traced_seed, task.start())
        start, arrays = 0, None
    refresh.start(start, state.params, arrays)

    # 3. The step, compiled once; it donates the memory of the old state to the new one. Only compiling may move arrays
    # to the device, constants of the program.
    pure = partial(train_step, task, tx, optim, config.accumulate, mesh=mesh)
    jitted = jax.jit(pure, donate_argnums=0, out_shardings=(state_sharding, None))
    compiled: Callable | None = None

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal compiled
        arguments = state, shard_batch(mesh, batch, config.accumulate), frozen, refresh.arrays, traced_seed
        with jax.transfer_guard("disallow" if compiled else "allow"):
            compiled = compiled or distributed.compiled(jitted, *arguments)
            return compiled(*arguments)

    # 4. Loop, then export.
    rate, writer = make_schedule(optim, config.steps), Logger(folder, start, logger)
    window, metadata = MetricWindow(checkpoints.latest, data.names), {**metadata, "seed": seed}
    run = Run(task, config, folder, metadata, evaluation, checkpoints, refresh, writer, window, rate)
    try:
        state = run.loop(step, state, batches, start)
        return run.export("weights.safetensors", state)
    finally:
        refresh.close()
        writer.close()
        checkpoints.close()


@dataclasses.dataclass
class Run:
    """The loop: steps, logs, pictures, evaluations and checkpoints."""

    task: Task
    config: TrainerConfig
    folder: Path
    metadata: Mapping[str, Any]
    evaluation: Evaluation | None
    checkpoints: Checkpoints
    refresh: NoRefresh
    logger: Logger
    window: MetricWindow
    learning_rate: optax.Schedule

    def loop(self, step: Callable, state: TrainState, batches: Any, start: int) -> TrainState:
        config = self.config
        hidden = None if config.progress and distributed.is_first() else True  # None: hidden without a terminal
        bar = tqdm(total=config.steps, initial=start, unit="step", disable=hidden)
        first_traced, last_traced = config.profile or (0, 0)
        with bar, Interrupt() as interrupt, contextlib.ExitStack() as trace:
            for number in range(start + 1, config.steps + 1):
                batch = next(batches)
                ids = batch.pop(IDS, None)
                if number == first_traced and distributed.is_first():
                    trace.enter_context(jax.profiler.trace(self.folder / "profile"))
                state, metrics = step(state, batch)
                if number == last_traced:
                    jax.block_until_ready(metrics)
                    trace.close()
                self.window.add(number, ids, metrics)
                self.refresh.after_step(number, state.params)
                last = number == config.steps
                if number % config.log_every == 0 or last:
                    self.log(number, bar)
                # Read once: a signal during the checkpoint of this step waits for the next.
                agree = jax.process_count() == 1 or number % config.log_every == 0  # on a step; JAX does on SIGTERM
                stop = agree and distributed.any_process(interrupt.requested)
                stop = stop or reached_preemption_sync_point(number - start)
                if number % config.checkpoint_every == 0 or last or stop:
                    with self.window.paused():  # it checks the step: a state that is not finite is never saved
                        self.refresh.check()
                        self.save(number, state, batches.get_state(), last, stop)
                if config.picture_every and (number % config.picture_every == 0 or last):
                    with self.window.paused():
                        self.write_pictures(number, state, batch)
                bar.update()
                if stop and not last:
                    self.checkpoints.wait()
                    raise KeyboardInterrupt(f"stopped and saved at step {number}; the same command resumes there")
        self.checkpoints.wait()
        return state

    def log(self, number: int, bar: tqdm) -> None:
        rate = float(np.asarray(self.learning_rate(number - 1)))
        values = self.window.mean() | {"lr": rate} | self.refresh.scalars(number)
        self.logger.scalars(number, values)
        bar.set_postfix(loss=f"{values['loss']:.4f}")
        if bar.disable and distributed.is_first():
            log.info("step %d: %s", number, "  ".join(f"{k} {v:.4g}" for k, v in values.items()))

    def write_pictures(self, number: int, state: TrainState, batch: Batch) -> None:
        params = distributed.fetch(state.averaged)
        if distributed.is_first():
            self.logger.pictures(number, self.task.pictures(params, batch))

    def save(self, number: int, state: TrainState, position: Any, last: bool, stop: bool) -> None:
        """Writes a checkpoint, after the evaluation if one is due; a run that is to `stop` may not have the time."""
        scores, write = None, partial(self.checkpoints.save, number, state, position, **self.refresh.saved())
        evaluation, every = self.evaluation, self.config.evaluate_every
        if evaluation is not None and every and (last or (number % every == 0 and not stop)):
            params = distributed.fetch(state.averaged)
            try:
                scores = distributed.on_first(
                    lambda: {k: float(v) for k, v in evaluation.score(self.task, params).items()}
                )
                self.logger.scalars(number, scores)
                if self.config.best:
                    self.checkpoints.wait()  # in all processes
                    # One process decides: a shared disk may show others the newest checkpoint late, and all must export
                    if distributed.on_first(lambda: self.checkpoints.is_best(scores)):
                        self.export("best.safetensors", state, **scores)
            except Exception:
                write()  # a failure loses no steps; without scores, the best checkpoint stays the exported one
                raise
        write(scores)

    def export(self, name: str, state: TrainState, **more: Any) -> Path:
        path, params = self.folder / name, distributed.fetch(state.averaged)
        metadata = {"steps": int(state.step), **self.metadata, **more}
        return self.task.export(path, params, metadata) if distributed.is_first() else path


class Interrupt:
    """Sets `requested` at SIGINT or SIGTERM, so that the loop stops between two steps; a second SIGINT interrupts at
    once. With several processes SIGTERM is left to JAX, which tells all."""

    def __enter__(self) -> Interrupt:
        self.requested = False
        numbers = (signal.SIGINT, signal.SIGTERM)[: 2 if jax.process_count() == 1 else 1]
        self.before = {number: signal.signal(number, self._request) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _request(self, number: int, _: object) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
