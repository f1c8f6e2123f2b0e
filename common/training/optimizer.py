"""Optimisers and learning-rate schedules from config, all of them optax's."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from optax import contrib

SCHEDULES = ("constant", "cosine", "staircase")
OPTIMIZERS = ("adam", "adamw", "muon")
MUON_ADAM = 0.05  # biases learn at this part of `lr`: a Muon step bounds a kernel's gain, which is far larger


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """How parameters move.

    Attributes:
      name: one of `OPTIMIZERS`. `adam` is Keras', as in FILM's reference; `muon` orthogonalises the momentum of
        kernels of two and more dimensions (inputs x outputs) and falls back to Adam for biases.
      lr: peak learning rate.
      schedule: one of `SCHEDULES`, after a linear warm-up of `warmup` steps. `staircase` multiplies by `decay_rate`
        every `decay_every` steps; `cosine` ends at `final_lr * lr` at the last step.
      clip: bound on the gradient's global norm; 0 for none.
      weight_decay: for `adamw` and `muon`.
      ema: decay of the averaged parameters that are evaluated and exported; 0 for none.
    """

    name: str = "adam"
    lr: float = 1e-4
    schedule: str = "constant"
    warmup: int = 0
    final_lr: float = 0.0
    decay_every: int = 750_000
    decay_rate: float = 0.464158
    clip: float = 0.0
    weight_decay: float = 0.0
    ema: float = 0.0

    def __post_init__(self):
        for value, known in ((self.name, OPTIMIZERS), (self.schedule, SCHEDULES)):
            if value not in known:
                raise ValueError(f"optim: {value!r} is not known; choose one of {', '.join(known)}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"optim.ema is {self.ema}: it lies in [0, 1); 0 turns averaging off")


def make_schedule(config: OptimConfig, steps: int) -> optax.Schedule:
    """Learning rate by step, for a run of `steps` steps."""
    after = max(1, steps - config.warmup)
    schedule = {
        "constant": lambda: optax.constant_schedule(config.lr),
        "cosine": lambda: optax.cosine_decay_schedule(config.lr, after, config.final_lr),
        "staircase": lambda: optax.exponential_decay(config.lr, config.decay_every, config.decay_rate, staircase=True),
    }[config.schedule]()
    if not config.warmup:
        return schedule
    return optax.join_schedules([optax.linear_schedule(0.0, config.lr, config.warmup), schedule], [config.warmup])


def make_optimizer(config: OptimConfig, steps: int) -> optax.GradientTransformation:
    """The chain clip -> optimiser, with the schedule inside."""
    schedule = make_schedule(config, steps)
    if config.name == "muon":
        optimizer = contrib.muon(
            schedule,
            weight_decay=config.weight_decay,
            adam_learning_rate=lambda step: MUON_ADAM * schedule(step),
            muon_weight_dimension_numbers=_kernel_dimensions,
        )
    elif config.name == "adamw":
        optimizer = optax.adamw(schedule, weight_decay=config.weight_decay)
    else:
        optimizer = keras_adam(schedule)
    return optax.chain(optax.clip_by_global_norm(config.clip), optimizer) if config.clip else optimizer


def keras_adam(lr: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-7):
    """Adam as Keras and the paper's section 2 end compute it: `lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)`.

    optax adds its epsilon after the bias correction of v, so that Keras' is up to 30 times larger in the first steps:
    FILM's small gradients feel it.
    """

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        zeros = optax.tree.zeros_like(params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None):
        assert isinstance(state, optax.ScaleByAdamState)
        count = state.count + 1
        t = jnp.asarray(count, jnp.float32)
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(updates, state.nu, b2, 2)
        scale = jnp.sqrt(1 - b2**t) / (1 - b1**t)
        steps = jax.tree.map(lambda m, v: scale * m / (jnp.sqrt(v) + eps), mu, nu)
        return steps, optax.ScaleByAdamState(count, mu, nu)

    return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(lr))


def _kernel_dimensions(params):
    """Muon's view of each parameter: kernels are (all inputs) x outputs matrices, the rest is Adam's."""

    def dimensions(x):
        return contrib.MuonDimensionNumbers(tuple(range(x.ndim - 1)), x.ndim - 1) if x.ndim >= 2 else None

    return jax.tree.map(dimensions, params)
