"""The training loop, read top to bottom as the phases of a run.

Where the state comes from, in this order: this run's own newest checkpoint; else the parameters that the task starts
from; else fresh ones. The data's position and the step travel with the state, so the same command again goes on where
the run stopped, and ends in the same weights as if it had never stopped. The numbers of a step are read while the next
one is computed (`window.py`), and arrays that follow the parameters are made anew beside the steps (`renewal.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
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
from common.training.interrupt import Interrupt
from common.training.logger import Logger, LoggerConfig
from common.training.mesh import check_rules, make_mesh, shard_batch, shardings
from common.training.optimizer import OptimConfig, make_optimizer, make_schedule
from common.training.refresh import Nothing, make_renewal, renewal_config
from common.training.state import TrainState, as_seed, init_state, train_step
from common.training.task import IDS, Batch, Data, Metrics, Params, Task
from common.training.window import Window

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """How long a run is, what it leaves behind and where it is computed; all times in steps.

    Attributes:
      steps: length of the run.
      log_every, picture_every, checkpoint_every: how often; pictures and checkpoints also at the end.
      evaluate_every: how often the experiment's evaluation scores the averaged weights (0: never), a multiple of
        `checkpoint_every`; also at the end.
      best: name of the score that decides which checkpoint is the best, kept and exported as `best.safetensors`.
      best_is_highest: whether a higher score is better.
      keep, keep_every: the newest so many checkpoints are kept, and those at multiples of `keep_every` (0: none).
      accumulate: parts that a batch is computed in, one after the other, to save memory.
      devices, fsdp: devices of the mesh (0: all but a renewal's spare ones), and along how many of them large
        parameters are split.
      sharding: (regular expression, tactic) rules of `common/training/mesh.py`; with fsdp=1 they split nothing.
      progress: show a progress bar.
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

    def __post_init__(self):
        object.__setattr__(self, "sharding", tuple((pattern, tactic) for pattern, tactic in self.sharding))
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
    # 1. What the run is made of.
    if config.evaluate_every and evaluation is None:
        raise ValueError("trainer.evaluate_every is set, but this experiment has no evaluation: choose evaluation=...")
    if config.evaluate_every and evaluation is not None:
        names = distributed.on_first(lambda: list(evaluation.prepare()))  # what is missing is told now, not hours later
        if config.best and config.best not in names:
            raise ValueError(f"trainer.best is {config.best!r}: the evaluation gives {', '.join(sorted(names))}")
    renews = renewal_config(task)
    mesh = make_mesh(config.devices, config.fsdp, renews.spare if renews else 0)
    tx = make_optimizer(optim, config.steps)
    batches = data.batches(seed)
    checkpoints = Checkpoints(folder, config.keep, config.keep_every, config.best, config.best_is_highest)

    # 2. State: shapes first, then this run's newest checkpoint or a fresh start, created where it belongs.
    fresh, number = partial(init_state, task, tx, optim), as_seed(seed)
    shapes = jax.eval_shape(fresh, number)
    places = shardings(mesh, shapes, config.sharding)  # type: ignore[arg-type]
    start = checkpoints.latest()
    if start is None:
        start, state = 0, jax.jit(fresh, out_shardings=places)(number, task.start())
    else:
        target = jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places)
        state, position = checkpoints.restore(start, target)
        batches.set_state(position)
        log.info("resumed %s at step %d", folder, start)
    frozen = task.frozen()
    frozen = jax.device_put(frozen, shardings(mesh, frozen, config.sharding))  # type: ignore[arg-type]
    renewal = make_renewal(task, mesh, frozen)
    renewal.start(start, state.params, checkpoints)

    # 3. The step, compiled once; the old state's memory is given to the new one.
    pure = partial(train_step, task, tx, optim, config.accumulate, mesh=mesh)
    program: Callable = jax.jit(pure, donate_argnums=0, out_shardings=(places, None))
    ready = False

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal program, ready
        arguments = state, shard_batch(mesh, batch, config.accumulate), frozen, renewal.arrays, number
        program, ready = (program if ready else distributed.compiled(program, *arguments)), True
        return program(*arguments)

    # 4. The loop, and the weights.
    writer = Logger(folder, start, logger)
    rate = make_schedule(optim, config.steps)
    about = metadata | {"seed": seed}
    run = Run(task, config, rate, folder, checkpoints, writer, evaluation, renewal, about, data.names)
    try:
        state = run.loop(step, state, batches, start)
        return run.export("weights.safetensors", state)
    finally:
        renewal.close()
        run.logger.close()
        checkpoints.close()


@dataclasses.dataclass
class Run:
    """What the loop does besides stepping: looking at numbers, showing, scoring, saving."""

    task: Task
    config: TrainerConfig
    rate: optax.Schedule
    folder: Path
    checkpoints: Checkpoints
    logger: Logger
    evaluation: Evaluation | None
    renewal: Nothing
    metadata: Mapping[str, Any]
    names: Callable[[Any], Sequence[str]]

    def loop(self, step: Callable, state: TrainState, batches: Any, start: int) -> TrainState:
        config = self.config
        window = Window(self.checkpoints, self.names)
        first = distributed.is_first()
        bar = tqdm(total=config.steps, initial=start, unit="step", disable=None if config.progress and first else True)
        with bar, Interrupt() as interrupt:
            for number in range(start + 1, config.steps + 1):
                batch = next(batches)
                ids = batch.pop(IDS, None)
                state, metrics = step(state, batch)
                window.add(number, ids, metrics)
                self.renewal.turn(number, state.params)
                last = number == config.steps
                if number % config.log_every == 0 or last:
                    self.log(number, window, bar)
                # Read once: a wish that comes while this step is saved waits for the next. Processes have to agree.
                meet = jax.process_count() == 1 or number % config.log_every == 0
                asked = meet and distributed.any_process(interrupt.asked)
                if number % config.picture_every == 0 or last:
                    self.show(number, state, batch)
                if number % config.checkpoint_every == 0 or last or asked:
                    window.check()  # a broken state is never saved
                    self.renewal.check()
                    self.save(number, state, batches.get_state(), last)
                bar.update()
                if asked and not last:
                    raise KeyboardInterrupt(f"stopped and saved at step {number}; the same command goes on from there")
        return state

    def log(self, number: int, window: Window, bar: tqdm) -> None:
        values = window.mean() | {"lr": float(np.asarray(self.rate(number - 1)))} | self.renewal.scalars(number)
        self.logger.scalars(number, values)
        bar.set_postfix(loss=f"{values['loss']:.4f}")
        if bar.disable and distributed.is_first():
            log.info("step %d: %s", number, "  ".join(f"{k} {v:.4g}" for k, v in values.items()))

    def show(self, number: int, state: TrainState, batch: Batch) -> None:
        params = distributed.fetch(state.averaged)
        if distributed.is_first():
            self.logger.pictures(number, self.task.pictures(params, batch))

    def save(self, number: int, state: TrainState, position: Any, last: bool) -> None:
        scores, keep = None, partial(self.checkpoints.save, number, state, position, **self.renewal.saved())
        every = self.config.evaluate_every
        if self.evaluation is not None and every and (number % every == 0 or last):
            params = distributed.fetch(state.averaged)
            try:
                scores = distributed.on_first(partial(self.score, params))
            except Exception:
                keep()  # a score that fails costs no steps
                raise
            self.logger.scalars(number, scores)
            if self.config.best and self._is_best(scores):
                self.export("best.safetensors", state, **scores)
        keep(scores)

    def score(self, params: Params) -> dict[str, float]:
        assert self.evaluation is not None
        return {name: float(value) for name, value in self.evaluation.score(self.task, params).items()}

    def export(self, name: str, state: TrainState, **more: Any) -> Path:
        path = self.folder / name
        params, steps = distributed.fetch(state.averaged), int(state.step)
        if distributed.is_first():
            return self.task.export(path, params, {"steps": steps, **self.metadata, **more})
        return path

    def _is_best(self, scores: Mapping[str, float]) -> bool:
        name = str(self.config.best)
        before = [self.checkpoints.scores(step).get(name) for step in self.checkpoints.steps()]
        sign = 1 if self.config.best_is_highest else -1
        known = [value for value in before if value is not None and math.isfinite(value)]
        return math.isfinite(scores[name]) and all(sign * scores[name] > sign * value for value in known)
