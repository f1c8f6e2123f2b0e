"""How parameters move: optimiser, learning rate, and which parameters take part, all from one config.

    gradient -> clip by its global norm -> optimiser, weight decay, learning rate -> factor of the parameter's path

Four optimisers:

    adam       Keras', as in FILM's reference; no weight decay
    adamw      Adam with decoupled weight decay (Loshchilov & Hutter 2019), equal to PyTorch's
    adafactor  the second moment of a matrix by its rows and columns alone, and steps relative to the size of what they
               change (Shazeer & Stern 2018, algorithm 4): nearly no memory, for large language models
    muon       orthogonalises the momentum of kernels of two and more dimensions (inputs x outputs), Adam for the rest

The learning rate rises linearly from 0 during `warmup` steps, follows its schedule from there, and may be cooled down
to 0 over the last `cooldown` steps.

Which parameters move, and how far, is said by expressions over their paths: see `parts.py`. The factor comes last, so
that it scales weight decay too. Accumulating gradients and averaging parameters are the trainer's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree
from optax import contrib

from common.training.param_groups import (
    check_expressions,
    decayed,
    freeze,
    read_expressions,
    read_multipliers,
    scale_by_path,
)
from common.training.schedules import rsqrt, with_cooldown

SCHEDULES = ("constant", "staircase", "cosine", "linear", "rsqrt")
DTYPES = ("float32", "bfloat16")
MUON_ADAM = 0.05  # biases learn at this part of `lr`: a Muon step bounds a kernel's gain, which is far larger

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (lambda x: 0 < x < math.inf, "it has to be above 0"),
    "warmup": (lambda x: x >= 0 and x == int(x), "it counts whole steps; 0 for none"),
    "final_lr": (lambda x: 0 <= x <= 1, "it is a part of optim.lr, in [0, 1]"),
    "decay_every": (lambda x: x >= 1 and x == int(x), "it counts whole steps, at least 1"),
    "decay_rate": (lambda x: 0 < x <= 1, "it is a factor in (0, 1]"),
    "timescale": (lambda x: x >= 1 and x == int(x), "it counts whole steps, at least 1"),
    "cooldown": (lambda x: x >= 0 and x == int(x), "it counts whole steps; 0 for none"),
    "clip": (lambda x: 0 <= x < math.inf, "it bounds a norm; 0 for no bound"),
    "weight_decay": (lambda x: 0 <= x < math.inf, "it may not be negative; 0 for none"),
    "momentum": (lambda x: x is None or 0 <= x < 1, "it lies in [0, 1); null takes the optimiser's own"),
    "update_clip": (lambda x: 0 <= x < math.inf, "it bounds a root mean square; 0 for no bound"),
    "ema": (lambda x: 0 <= x < 1, "it lies in [0, 1); 0 turns averaging off"),
    "ema_power": (lambda x: 0 <= x < math.inf, "it may not be negative; 0 for the usual warm-up"),
}


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """How parameters move. All steps are the optimiser's: with accumulated gradients, one for several batches.

    Attributes:
      name: one of `OPTIMIZERS`.
      lr: peak learning rate. Adafactor's is relative to a parameter's size (see `parameter_scale`).
      schedule: one of `SCHEDULES`, after the warm-up. `staircase` multiplies by `decay_rate` every `decay_every`
        steps; `cosine` and `linear` end at `final_lr * lr` at the last step; `rsqrt` falls as
        `sqrt(timescale / (timescale + step))`.
      warmup: steps of the linear rise from 0.
      final_lr, decay_every, decay_rate, timescale: see `schedule`.
      cooldown: last steps of the run, over which the rate of any schedule falls to 0 in a line on top of it.
      clip: bound on the gradient's global norm; 0 for none.
      weight_decay: part of a parameter that is taken off per unit of learning rate, in every optimiser but `adam`.
        Never of biases and norms: arrays of fewer than two dimensions. (optax's own Adafactor takes it per step.)
      no_decay: list of expressions for paths of more dimensions that are not decayed either, such as stacked biases.
      multipliers: list of (expression, factor), see `parts.py`. Both lists become tuples.
      momentum: decay of the first moment; None: 0.9 for `adam` and `adamw`, 0.95 for `muon`, none for `adafactor`.
      momentum_dtype: "float32", or "bfloat16" for half the memory of the first moment. Second moments stay float32.
      update_clip: Adafactor's bound on the root mean square of an array's update, d in the paper; 0 for none.
      parameter_scale: Adafactor's step is `lr` times the parameter's root mean square (at least 1e-3).
      ema: decay of the averaged parameters that are evaluated and exported; 0 for none.
      ema_power: how the decay grows to `ema` (`state.ema_decay`): 0 as in TensorFlow, above it as in diffusers.

    Raises ValueError for a value that cannot be.
    """

    name: str = "adam"
    lr: float = 1e-4
    schedule: str = "constant"
    warmup: int = 0
    final_lr: float = 0.0
    decay_every: int = 750_000
    decay_rate: float = 0.464158
    timescale: int = 10_000
    cooldown: int = 0
    clip: float = 0.0
    weight_decay: float = 0.0
    no_decay: Any = ()
    multipliers: Any = ()
    momentum: float | None = None
    momentum_dtype: str = "float32"
    update_clip: float = 1.0
    parameter_scale: bool = True
    ema: float = 0.0
    ema_power: float = 0.0

    def __post_init__(self):
        choices = {"name": tuple(OPTIMIZERS), "schedule": SCHEDULES, "momentum_dtype": DTYPES}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"optim.{name}: {getattr(self, name)!r} is not known; choose one of {', '.join(known)}"
                )
        for name, (holds, rule) in RULES.items():
            if not _holds(holds, getattr(self, name)):
                raise ValueError(f"optim.{name} is {getattr(self, name)}: {rule}")
        if self.name == "adam" and self.weight_decay:
            raise ValueError(f"optim.weight_decay is {self.weight_decay}, but adam has none; choose optim.name=adamw")
        object.__setattr__(self, "no_decay", read_expressions(self.no_decay, "no_decay"))
        object.__setattr__(self, "multipliers", read_multipliers(self.multipliers))

    @property
    def knows_its_end(self) -> bool:
        """Whether the learning rate depends on how long the run is."""
        return self.schedule in ("cosine", "linear") or self.cooldown > 0


def make_schedule(config: OptimConfig, steps: int) -> optax.Schedule:
    """Learning rate by step, for a run of `steps` steps.

    Raises ValueError if warm-up and cool-down leave nothing between them where the schedule needs it.
    """
    after = steps - config.warmup
    ends = config.schedule in ("cosine", "linear")
    if (ends and after <= 0) or (config.cooldown and after < config.cooldown):
        raise ValueError(
            f"optim.warmup is {config.warmup} and optim.cooldown {config.cooldown}, which leave nothing of a "
            f"{config.schedule} schedule in {steps} steps: lower them or raise trainer.steps"
        )
    schedule = {
        "constant": lambda: optax.constant_schedule(config.lr),
        "staircase": lambda: optax.exponential_decay(config.lr, config.decay_every, config.decay_rate, staircase=True),
        "cosine": lambda: optax.cosine_decay_schedule(config.lr, after, config.final_lr),
        "linear": lambda: optax.linear_schedule(config.lr, config.lr * config.final_lr, after),
        "rsqrt": lambda: rsqrt(config.lr, config.timescale),
    }[config.schedule]()
    if config.warmup:
        rise = optax.linear_schedule(0.0, config.lr, config.warmup)
        schedule = optax.join_schedules([rise, schedule], [config.warmup])
    return with_cooldown(schedule, steps, config.cooldown) if config.cooldown else schedule


def make_optimizer(config: OptimConfig, steps: int) -> optax.GradientTransformation:
    """The chain of the module's docstring, for a run of `steps` steps; `update` needs the parameters.

    Its `init` raises ValueError for an expression that decides over no parameter, and if all are frozen.
    """
    parts = [OPTIMIZERS[config.name](config, make_schedule(config, steps))]
    if config.clip:
        parts.insert(0, optax.clip_by_global_norm(config.clip))
    if any(factor not in (0, 1) for _, factor in config.multipliers):
        parts.append(scale_by_path(config.multipliers))
    tx = optax.chain(*parts) if len(parts) > 1 else parts[0]
    if any(factor == 0 for _, factor in config.multipliers):
        tx = freeze(tx, config.multipliers)

    def init(params: optax.Params) -> optax.OptState:
        check_expressions(config.multipliers, config.no_decay, params)
        return tx.init(params)

    return optax.GradientTransformation(init, tx.update)


def keras_adam(
    lr: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-7, dtype: str = "float32"
) -> optax.GradientTransformation:
    """Adam as Keras and the paper's section 2 end compute it: `lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)`.

    optax adds its epsilon after the bias correction of v, so that Keras' is up to 30 times larger in the first steps:
    FILM's small gradients feel it. `dtype` is m's.
    """

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        zeros = partial(optax.tree.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros(dtype=dtype), zeros())

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None):
        assert isinstance(state, optax.ScaleByAdamState)
        count = state.count + 1
        t = jnp.asarray(count, jnp.float32)
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(updates, state.nu, b2, 2)
        scale = jnp.sqrt(1 - b2**t) / (1 - b1**t)
        steps = jax.tree.map(lambda m, v: scale * m / (jnp.sqrt(v) + eps), mu, nu)
        return steps, optax.ScaleByAdamState(count, optax.tree.cast(mu, dtype), nu)

    return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(lr))


def _adam(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return keras_adam(schedule, _momentum(config, 0.9), dtype=config.momentum_dtype)


def _adamw(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        schedule,
        _momentum(config, 0.9),
        mu_dtype=config.momentum_dtype,
        weight_decay=config.weight_decay,
        mask=partial(decayed, config.no_decay),
    )


def _adafactor(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adafactor(
        schedule,
        multiply_by_parameter_scale=config.parameter_scale,
        clipping_threshold=config.update_clip or None,
        momentum=config.momentum or None,
        dtype_momentum=config.momentum_dtype,
        weight_decay_rate=(lambda step: config.weight_decay * schedule(step)) if config.weight_decay else None,
        weight_decay_mask=partial(decayed, config.no_decay),
    )


def _muon(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return contrib.muon(
        schedule,
        beta=_momentum(config, 0.95),
        mu_dtype=config.momentum_dtype,
        weight_decay=config.weight_decay,
        weight_decay_mask=partial(decayed, config.no_decay) if config.no_decay else None,  # Adam's are not decayed
        adam_learning_rate=lambda step: MUON_ADAM * schedule(step),
        muon_weight_dimension_numbers=_kernel_dimensions,
    )


OPTIMIZERS = {"adam": _adam, "adamw": _adamw, "adafactor": _adafactor, "muon": _muon}


def _holds(rule: Callable[[Any], bool], value: Any) -> bool:
    try:
        return rule(value)
    except (TypeError, OverflowError):  # no number at all
        return False


def _momentum(config: OptimConfig, own: float) -> float:
    return own if config.momentum is None else config.momentum


def _kernel_dimensions(params: PyTree) -> PyTree:
    """Muon's view of each parameter: kernels are (all inputs) x outputs matrices, the rest is Adam's."""

    def dimensions(x):
        return contrib.MuonDimensionNumbers(tuple(range(x.ndim - 1)), x.ndim - 1) if x.ndim >= 2 else None

    return jax.tree.map(dimensions, params)
