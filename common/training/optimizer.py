"""Optimiser, learning rate and parameter groups, all from one config.

    gradient -> clip by its global norm -> optimiser, weight decay, learning rate -> multiplier of the parameter's group

Four optimisers:

    adam       Keras', as in FILM's reference; no weight decay
    adamw      Adam with decoupled weight decay (Loshchilov & Hutter 2019), equal to PyTorch's
    adafactor  the second moment of a matrix by its rows and columns alone, and steps relative to the size of what they
               change (Shazeer & Stern 2018, algorithm 4): nearly no memory, for large language models
    muon       orthogonalises the momentum of kernels of two and more dimensions (inputs x outputs), Adam for the rest

The learning rate rises linearly from 0 during `warmup` steps, follows its schedule from there, and may be cooled down
to 0 over the last `cooldown` steps.

Parameter groups are regular expressions over paths, which join a parameter's keys as in `fusion/convs/3/kernel`:

    multipliers:
      - ["^encoder/", 0]         # frozen: no bit changes, nothing decays, and there is no optimiser state
      - ["^heads/.*bias$", 2.0]  # twice the step, weight decay included
      - ["^heads/", 0.3]

The first expression found in a path (`re.search`) decides; without one the multiplier is 1. End with `[".*", 0]` to
freeze everything else. Gradients of frozen parameters count for nothing, in the clipped norm neither. An expression
that decides over no parameter is an error: a layer that was renamed is not silently trained.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import PyTree
from optax import contrib

Multipliers = Sequence[tuple[str, float]]  # (expression, factor); see `read_multipliers`

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
    """Optimiser settings. All steps are the optimiser's: with accumulated gradients, one for several microbatches.

    Attributes:
      name: one of `OPTIMIZERS`.
      lr: peak learning rate. Adafactor's is relative to a parameter's size (see `parameter_scale`).
      schedule: one of `SCHEDULES`, after the warm-up. `staircase` multiplies by `decay_rate` every `decay_every`
        steps; `cosine` and `linear` end at `final_lr * lr` at the last step; `rsqrt` falls as
        `sqrt(timescale / (timescale + step))`.
      warmup: steps of the linear rise from 0.
      final_lr, decay_every, decay_rate, timescale: see `schedule`.
      cooldown: last steps of the run, over which the rate of any schedule is multiplied by a line from 1 to 0.
      clip: bound on the gradient's global norm; 0 for none.
      weight_decay: fraction of a parameter that is subtracted per unit of learning rate, in every optimiser but `adam`.
        Arrays of fewer than two dimensions, biases and norms, never decay. (optax's own Adafactor takes it per step.)
      no_decay: list of expressions for paths of more dimensions that do not decay either, such as stacked biases.
      multipliers: list of (expression, factor), see the module. Both lists become tuples.
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
            try:
                good = holds(getattr(self, name))
            except (TypeError, OverflowError):  # no number at all
                good = False
            if not good:
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
        # T5's and big_vision's: with timescale = warmup it is lr * sqrt(warmup / step) after the warm-up
        "rsqrt": lambda: lambda n: config.lr * jnp.sqrt(config.timescale / (config.timescale + jnp.maximum(n, 0))),
    }[config.schedule]()
    if config.warmup:
        rise = optax.linear_schedule(0.0, config.lr, config.warmup)
        schedule = optax.join_schedules([rise, schedule], [config.warmup])
    if not config.cooldown:
        return schedule
    return lambda step: schedule(step) * (jnp.clip(steps - step, 0, config.cooldown) / config.cooldown)


def make_optimizer(config: OptimConfig, steps: int) -> optax.GradientTransformation:
    """The chain of the module's docstring, for a run of `steps` steps; `update` needs the parameters.

    Its `init` raises ValueError for an expression that decides over no parameter, and if all are frozen.
    """
    links = [OPTIMIZERS[config.name](config, make_schedule(config, steps))]
    if config.clip:
        links.insert(0, optax.clip_by_global_norm(config.clip))
    if any(factor not in (0, 1) for _, factor in config.multipliers):
        links.append(optax.stateless(partial(_scale_by_path, config.multipliers)))
    tx = optax.chain(*links) if len(links) > 1 else links[0]
    if any(factor == 0 for _, factor in config.multipliers):

        def groups(params: PyTree) -> PyTree:
            return jax.tree.map(lambda t: "trained" if t else "frozen", trainable(config.multipliers, params))

        tx = optax.partition({"trained": tx, "frozen": optax.stateless(_no_update)}, groups)

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
    momentum = 0.9 if config.momentum is None else config.momentum
    return keras_adam(schedule, momentum, dtype=config.momentum_dtype)


def _adamw(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        schedule,
        0.9 if config.momentum is None else config.momentum,
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
        beta=0.95 if config.momentum is None else config.momentum,
        mu_dtype=config.momentum_dtype,
        weight_decay=config.weight_decay,
        weight_decay_mask=partial(decayed, config.no_decay) if config.no_decay else None,  # Adam's are not decayed
        adam_learning_rate=lambda step: MUON_ADAM * schedule(step),
        muon_weight_dimension_numbers=_kernel_dimensions,
    )


OPTIMIZERS = {"adam": _adam, "adamw": _adamw, "adafactor": _adafactor, "muon": _muon}


def _kernel_dimensions(params: PyTree) -> PyTree:
    """Muon's view of each parameter: kernels are (all inputs) x outputs matrices, the rest is Adam's."""

    def dimensions(x):
        return contrib.MuonDimensionNumbers(tuple(range(x.ndim - 1)), x.ndim - 1) if x.ndim >= 2 else None

    return jax.tree.map(dimensions, params)


def parameter_paths(params: PyTree) -> PyTree:
    """A tree like `params` that holds each leaf's path."""
    return tree_map_with_path(lambda path, _: keystr(path, simple=True, separator="/"), params)


def trainable(multipliers: Multipliers, params: PyTree) -> PyTree:
    """A tree like `params` (arrays or shapes) that is False where they are frozen."""
    return jax.tree.map(lambda path: _factor(multipliers, path) != 0, parameter_paths(params))


def stop_frozen_gradients(multipliers: Multipliers, params: PyTree) -> PyTree:
    """`params` with the frozen ones behind `stop_gradient`: their backward pass is left out of the program."""
    if not any(factor == 0 for _, factor in multipliers):
        return params
    return jax.tree.map(
        lambda moves, x: x if moves else jax.lax.stop_gradient(x), trainable(multipliers, params), params
    )


def decayed(no_decay: Sequence[str], params: PyTree) -> PyTree:
    """A tree like `params` that is True where weights decay: two and more dimensions, and no expression found."""
    return jax.tree.map(
        lambda x, path: x.ndim >= 2 and _deciding(no_decay, path) is None, params, parameter_paths(params)
    )


def check_expressions(multipliers: Multipliers, no_decay: Sequence[str], params: PyTree) -> None:
    """Raises ValueError for an expression that decides over none of `params`, and if all of them are frozen."""
    paths = jax.tree.leaves(parameter_paths(params))
    expressions = [expression for expression, _ in multipliers]
    for name, asked in (("multipliers", expressions), ("no_decay", no_decay)):
        for expression in asked:
            if not any(re.search(expression, path) for path in paths):
                raise ValueError(f"optim.{name}: {expression!r} is found in no path; paths are {_some(paths)}")
    deciding = {_deciding(expressions, path) for path in paths}
    for index, expression in enumerate(expressions):
        if index not in deciding:
            raise ValueError(
                f"optim.multipliers: earlier expressions decide over every path of {expression!r}; move it up"
            )
    if not any(_factor(multipliers, path) for path in paths):
        raise ValueError(f"optim.multipliers freeze every parameter; give some a factor above 0: {_some(paths)}")


def read_multipliers(multipliers: Sequence[Any]) -> tuple[tuple[str, float], ...]:
    """Config's pairs as tuples; ValueError for one that is no (expression, factor >= 0)."""
    pairs = []
    for pair in _check_list(multipliers, "multipliers"):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"optim.multipliers: {pair!r} is no pair; write [expression, factor]")
        expression, factor = pair
        if isinstance(factor, str) or not 0 <= factor < math.inf:
            raise ValueError(f"optim.multipliers: the factor of {expression!r} is {factor!r}; give 0 or more")
        pairs.append((*read_expressions([expression], "multipliers"), float(factor)))
    return tuple(pairs)


def read_expressions(expressions: Sequence[str], name: str) -> tuple[str, ...]:
    """Config's list as a tuple; ValueError, which calls it `name`, for one that is no regular expression."""
    for expression in _check_list(expressions, name):
        try:
            re.compile(expression)
        except (re.error, TypeError) as error:
            raise ValueError(f"optim.{name}: {expression!r} is not a regular expression ({error})") from error
    return tuple(expressions)


def _check_list(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"optim.{name} is {value!r}: it has to be a list; [] for none")
    return value


def _factor(multipliers: Multipliers, path: str) -> float:
    index = _deciding([expression for expression, _ in multipliers], path)
    return 1.0 if index is None else multipliers[index][1]


def _deciding(expressions: Sequence[str], path: str) -> int | None:
    return next((i for i, expression in enumerate(expressions) if re.search(expression, path)), None)


def _scale_by_path(multipliers: Multipliers, updates: PyTree, _: Any) -> PyTree:
    return jax.tree.map(lambda u, path: u * _factor(multipliers, path), updates, parameter_paths(updates))


def _no_update(updates: PyTree, _: Any) -> PyTree:
    """-0.0, the only number that changes nothing when it is added: optax's 0.0 would turn a parameter of -0.0 into 0.0.

    (An addition on a CPU still turns subnormal numbers, below 1.2e-38, into 0.)
    """
    return jax.tree.map(partial(jnp.full_like, fill_value=-0.0), updates)


def _some(paths: Sequence[str]) -> str:
    shown = paths[:: max(1, len(paths) // 5)][:5]
    more = f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else ""
    return ", ".join(shown) + more
