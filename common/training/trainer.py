"""The training loop, read top to bottom as the phases of a run.

Where the state comes from, in this order: this run's own newest checkpoint; else fresh parameters. The data's
position and the step travel with the state, so the same command again goes on where the run stopped, and ends in the
same weights as if it had never stopped. Metrics stay on the device until the next line of the log is due, so that
steps are dispatched without waiting for each other.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int
from tqdm import tqdm

from common.training.checkpoint import Checkpoints
from common.training.logger import Logger
from common.training.mesh import make_mesh, replicated, shard_batch
from common.training.optimizer import OptimConfig, make_optimizer
from common.training.task import Batch, Batches, Data, Metrics, Params, Task

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """How long a run is and what it leaves behind; all in steps.

    Attributes:
      steps: length of the run.
      log_every, picture_every, checkpoint_every: how often; pictures and checkpoints also at the end.
      keep: newest checkpoints kept.
      devices: accelerators to split the batch over; 0 takes all.
      progress: show a progress bar.
    """

    steps: int = 3_000_000
    log_every: int = 100
    picture_every: int = 1000
    checkpoint_every: int = 1000
    keep: int = 2
    devices: int = 0
    progress: bool = True


class TrainState(NamedTuple):
    """Everything that a step changes. `ema` is the averaged parameters, or None."""

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    ema: Params | None

    @property
    def averaged(self) -> Params:
        """The parameters to evaluate and export."""
        return self.params if self.ema is None else self.ema


def init_state(task: Task, tx: optax.GradientTransformation, optim: OptimConfig, seed: int) -> TrainState:
    params = task.init(jax.random.key(seed))
    ema = jax.tree.map(jnp.copy, params) if optim.ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), ema)


def train_step(
    task: Task, tx: optax.GradientTransformation, optim: OptimConfig, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """One step of gradient descent; pure."""
    grad = jax.value_and_grad(task.loss, has_aux=True)
    (loss, metrics), grads = grad(state.params, batch, state.step)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    # A young average would remember the random start: its decay grows with the step until it is `ema`.
    decay = jnp.minimum(optim.ema, (1 + state.step) / (10 + state.step))
    ema = None if state.ema is None else optax.incremental_update(params, state.ema, 1 - decay)
    metrics = {"loss": loss, "grad_norm": optax.tree.norm(grads), **metrics}
    return TrainState(state.step + 1, params, opt_state, ema), metrics


def train(
    task: Task,
    data: Data,
    optim: OptimConfig,
    config: TrainerConfig,
    folder: Path,
    seed: int = 0,
    **metadata: Any,
) -> Path:
    """Trains `task` on `data` and returns the exported weights, `folder/weights.safetensors`.

    `metadata` goes into the weights. Raises FloatingPointError when the loss stops being a number.
    """
    # 1. What the run is made of.
    mesh = make_mesh(config.devices)
    tx = make_optimizer(optim, config.steps)
    batches = data.batches(seed)
    checkpoints = Checkpoints(folder, config.keep)

    # 2. State: shapes first, then this run's newest checkpoint or a fresh start, placed on the mesh.
    fresh = partial(init_state, task, tx, optim, seed)
    place = replicated(mesh)
    start = checkpoints.latest()
    if start is None:
        start, state = 0, jax.jit(fresh, out_shardings=place)()
    else:
        shapes = jax.eval_shape(fresh)
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
        state, position = checkpoints.restore(start, target)
        batches.set_state(position)
        log.info("resumed %s at step %d", folder, start)

    # 3. The step, compiled once; the old state's memory is given to the new one.
    step = jax.jit(partial(train_step, task, tx, optim), donate_argnums=0)

    # 4. The loop.
    logger = Logger(folder, start)
    save = partial(_save, checkpoints, batches)
    try:
        state = _loop(task, step, state, batches, config, mesh, logger, save, start)
        path = folder / "weights.safetensors"
        task.export(path, jax.device_get(state.averaged), {"steps": int(state.step), "seed": seed, **metadata})
    finally:
        logger.close()
        checkpoints.close()
    return path


def _loop(
    task: Task,
    step: Callable,
    state: TrainState,
    batches: Batches,
    config: TrainerConfig,
    mesh: jax.sharding.Mesh,
    logger: Logger,
    save: Callable[[int, TrainState], None],
    start: int,
) -> TrainState:
    pending: list[Metrics] = []
    bar = tqdm(total=config.steps, initial=start, unit="step", disable=None if config.progress else True)
    clock = time.perf_counter()
    with Interrupt() as interrupt:
        for number in range(start + 1, config.steps + 1):
            batch = next(batches)
            state, metrics = step(state, shard_batch(mesh, batch))
            pending.append(metrics)
            if number % config.log_every == 0 or number == config.steps:
                values = _mean(pending)
                values["steps_per_s"] = len(pending) / (time.perf_counter() - clock)
                pending, clock = [], time.perf_counter()
                logger.scalars(number, values)
                bar.set_postfix(loss=f"{values['loss']:.4f}")
                if bar.disable:
                    log.info("step %d: %s", number, "  ".join(f"{k} {v:.4g}" for k, v in values.items()))
                _check_finite(number, values["loss"])
            asked = interrupt.asked  # read once: a wish that comes while this step is saved waits for the next
            last = number == config.steps or asked
            if number % config.picture_every == 0 or number == config.steps:
                logger.pictures(number, task.pictures(state.averaged, batch))
            if number % config.checkpoint_every == 0 or last:
                # A broken state is never saved.
                _check_finite(number, *(float(m[name]) for m in pending for name in ("loss", "grad_norm")))
                save(number, state)
            bar.update()
            if asked and number < config.steps:
                raise KeyboardInterrupt(f"stopped and saved at step {number}; the same command goes on from there")
    bar.close()
    return state


class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a wish (`asked`) that the loop grants between two steps."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Interrupt:
        self.asked = False
        self.before = [signal.signal(s, self._ask) for s in self.SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(self.SIGNALS, self.before, strict=True):
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def _save(checkpoints: Checkpoints, batches: Batches, step: int, state: TrainState) -> None:
    checkpoints.save(step, state, batches.get_state())


def _check_finite(step: int, *losses: float) -> None:
    bad = [loss for loss in losses if not math.isfinite(loss)]
    if bad:
        raise FloatingPointError(
            f"the loss became {bad[0]} at or shortly before step {step}; the last checkpoint is from before: "
            "lower optim.lr or set optim.clip, then start again"
        )


def _mean(pending: list[Metrics]) -> dict[str, float]:
    fetched = jax.device_get(pending)
    return {name: float(np.mean([m[name] for m in fetched])) for name in fetched[0]}
