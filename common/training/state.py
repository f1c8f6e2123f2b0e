"""One step of training, as a pure function from a state and a batch to the next state.

    split the batch into `accumulate` microbatches -> mean loss and gradient over them, one in memory at a time
    -> optimiser -> parameters -> their running average

The seed is an argument, so that runs that differ in nothing else share one compiled program.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from common.training.mesh import Rules, shardings
from common.training.optimizer import OptimConfig, factors, stop_frozen_gradients
from common.training.task import Batch, Context, Metrics, Params, Task

Seed = int | np.uint32 | UInt32[Array, ""]


def as_seed(seed: int) -> np.uint32:
    """`seed` as an argument of a compiled function, with the same key."""
    return np.uint32(seed & 0xFFFFFFFF)


class TrainState(NamedTuple):
    """All that a step changes; `ema` holds the averaged parameters, if there are any."""

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    ema: Params | None

    @property
    def averaged(self) -> Params:
        """The parameters to evaluate and export."""
        return self.params if self.ema is None else self.ema


def init_state(
    task: Task, tx: optax.GradientTransformation, optim: OptimConfig, seed: Seed, params: Params | None = None
) -> TrainState:
    """The state before the first step, of `params` or else of the task's `init`."""
    params = task.init(jax.random.key(seed)) if params is None else params
    ema = jax.tree.map(jnp.copy, params) if optim.ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), ema)


def abstract_state(
    task: Task, tx: optax.GradientTransformation, optim: OptimConfig, mesh: Mesh, rules: Rules
) -> TrainState:
    """The shapes, types and shardings of the state: the target that a checkpoint is restored to."""
    shapes = jax.eval_shape(partial(init_state, task, tx, optim), np.uint32(0))
    places = shardings(mesh, shapes, rules)
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places)


def train_step(
    task: Task,
    tx: optax.GradientTransformation,
    optim: OptimConfig,
    accumulate: int,
    state: TrainState,
    batch: Batch,
    frozen: Any,
    refreshed: Any = None,
    seed: Seed = 0,
    mesh: Mesh | None = None,
) -> tuple[TrainState, Metrics]:
    """One step of gradient descent; pure."""
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    context = Context(state.step, key, frozen, refreshed, mesh)

    def loss_of(params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        return task.loss(stop_frozen_gradients(optim.multipliers, params), batch, context)

    loss, metrics, grads = gradient(loss_of, accumulate, state.params, batch, context)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params, ema = optax.apply_updates(state.params, updates), None
    if state.ema is not None:  # frozen parameters are their own average, to the bit
        ema = optax.incremental_update(params, state.ema, 1 - ema_decay(state.step, optim.ema, optim.ema_power))
        trained = factors(optim.multipliers, params)
        ema = jax.tree.map(lambda old, new, factor: new if factor else old, state.ema, ema, trained)
    own = {"loss": loss, "grad_norm": optax.tree.norm(grads), "update_norm": optax.tree.norm(updates)}
    if reserved := own.keys() & metrics.keys():
        raise ValueError(f"the trainer logs its own {reserved.pop()!r}: give the loss or metric another name")
    return TrainState(state.step + 1, params, opt_state, ema), own | metrics


def ema_decay(step: Int[Array, ""], most: float, power: float) -> Float[Array, ""]:
    """Decay of the average after `step` steps, at most `most`; it starts low, to forget the random initialization.

    It grows as (1 + step) / (10 + step), as in TensorFlow, or, with a power above 0, as 1 - (1 + step)^-power: 2/3 is
    for averages of a million steps, 3/4 for shorter ones (the warm-up of diffusers and k-diffusion)."""
    return jnp.minimum(most, (1 + step) / (10 + step) if power == 0 else 1 - (1.0 + step) ** -power)


def gradient(
    loss_of: Callable, accumulate: int, params: Params, batch: Batch, context: Context
) -> tuple[Float[Array, ""], Metrics, Params]:
    """Loss, metrics and gradient: their means over `accumulate` microbatches, computed one after the other.

    Those of the whole batch if the loss is a mean over examples. A loss that compares examples compares those of a
    microbatch, and one that is divided by a number of tokens or pixels divides by those of a microbatch."""

    def microbatch_gradient(batch: Batch, key: PRNGKeyArray):
        grad = jax.value_and_grad(loss_of, has_aux=True)
        (loss, metrics), grads = grad(params, batch, context._replace(key=key))
        return loss, metrics, grads

    if accumulate == 1:
        return microbatch_gradient(batch, context.key)
    # Each takes every `accumulate`-th example, so that the share of each device stays on that device.
    microbatches = jax.tree.map(lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), batch)
    keys = jax.random.split(context.key, accumulate)
    shapes = jax.eval_shape(microbatch_gradient, jax.tree.map(lambda x: x[0], microbatches), keys[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(total: Any, microbatch: tuple[Batch, PRNGKeyArray]):
        return jax.tree.map(jnp.add, total, microbatch_gradient(*microbatch)), None

    total, _ = jax.lax.scan(add, zeros, (microbatches, keys))
    return jax.tree.map(lambda x: x / accumulate, total)
