"""Optimiser, learning rate and parameter groups, all from one config.

    gradient -> clip by its global norm -> optimiser, weight decay, learning rate -> multiplier of the parameter group

Optimisers:

    adam       Keras', as in FILM's reference; no weight decay
    adamw      Adam with decoupled weight decay (Loshchilov & Hutter 2019), equal to PyTorch's
    adafactor  factored second moments, steps relative to the size of a parameter (Shazeer & Stern 2018, algorithm 4):
               nearly no memory, for large language models
    muon       orthogonalised momentum for kernels (inputs x outputs), Adam for the rest

The learning rate rises linearly from 0 during `warmup` steps, then follows its schedule, and may fall to 0 over the
last `cooldown` steps.

Parameter groups are regular expressions over paths, which join the keys of a parameter as in `fusion/convs/3/kernel`:

    multipliers:
      - ["^encoder/", 0]         # frozen: no bit changes, nothing decays, and there is no optimiser state
      - ["^heads/.*bias$", 2.0]  # twice the step, weight decay included
      - ["^heads/", 0.3]

The first expression found in a path (`re.search`) decides; without one the multiplier is 1. End with `[".*", 0]` to
freeze everything else. The clipped norm excludes the gradients of frozen parameters. An expression that decides over no
parameter is an error, so that a renamed layer is not silently trained.
"""

import dataclasses
import math
import operator
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

Multipliers = Sequence[Sequence[Any]]  # (expression, factor); see `read_multipliers`

OPTIMIZERS = ("adam", "adamw", "adafactor", "muon")
SCHEDULES = ("constant", "staircase", "cosine", "linear", "rsqrt")
DTYPES = ("float32", "bfloat16")
MUON_ADAM = 0.05  # of `lr`, for biases: a Muon step bounds the gain of a kernel, which is far larger

STEPS = (lambda x: x >= 0 and x == int(x), "give a whole number of steps; 0 for none")
POSITIVE_STEPS = (lambda x: x >= 1 and x == int(x), "give a whole number of steps, at least 1")
NOT_NEGATIVE = (lambda x: 0 <= x < math.inf, "give a finite number, at least 0")
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (lambda x: 0 < x < math.inf, "give a finite number above 0"),
    "warmup": STEPS,
    "final_lr": (lambda x: 0 <= x <= 1, "give a fraction of optim.lr, in [0, 1]"),
    "decay_every": POSITIVE_STEPS,
    "decay_rate": (lambda x: 0 < x <= 1, "give a factor in (0, 1]"),
    "timescale": POSITIVE_STEPS,
    "cooldown": STEPS,
    "clip": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "momentum": (lambda x: x is None or 0 <= x < 1, "give a number in [0, 1), or null for the default"),
    "update_clip": NOT_NEGATIVE,
    "ema": (lambda x: 0 <= x < 1, "give a number in [0, 1); 0 for none"),
    "ema_power": NOT_NEGATIVE,
}


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """Optimiser settings. Steps are those of the optimiser: one per batch, however many microbatches it is split into.

    Arrays of fewer than two dimensions, biases and norms, never decay. (optax's own Adafactor decays per step.)"""

    name: str = "adam"
    lr: float = 1e-4  # peak learning rate; Adafactor's is relative to the size of a parameter (`parameter_scale`)
    schedule: str = "constant"  # after the warm-up
    warmup: int = 0  # steps of the linear rise from 0
    final_lr: float = 0.0  # `cosine` and `linear` end at `final_lr * lr` at the last step
    decay_every: int = 750_000  # `staircase` multiplies by `decay_rate` every `decay_every` steps
    decay_rate: float = 0.464158
    timescale: int = 10_000  # `rsqrt` falls as `sqrt(timescale / (timescale + step))`
    cooldown: int = 0  # last steps of the run, over which the rate of any schedule is multiplied by a line from 1 to 0
    clip: float = 0.0  # bound on the global norm of the gradient; 0 for none
    weight_decay: float = 0.0  # fraction of a parameter subtracted per unit of learning rate; `adam` has none
    no_decay: Sequence[str] = ()  # expressions for further paths that do not decay, such as stacked biases
    multipliers: Sequence[Sequence[Any]] = ()  # (expression, factor) pairs of the module's docstring
    momentum: float | None = None  # decay of the first moment; None: adam(w) 0.9, muon 0.95, adafactor none
    momentum_dtype: str = "float32"  # of the first moment; second moments stay float32
    update_clip: float = 1.0  # Adafactor's bound on the root mean square of an update, d in the paper; 0 for none
    parameter_scale: bool = True  # Adafactor's step is `lr` times the root mean square of the parameter, at least 1e-3
    ema: float = 0.0  # decay of the averaged parameters that are evaluated and exported; 0 for none
    ema_power: float = 0.0  # growth of the decay to `ema` (`state.ema_decay`): 0 as TensorFlow, above as diffusers

    def __post_init__(self):
        choices = {"name": OPTIMIZERS, "schedule": SCHEDULES, "momentum_dtype": DTYPES}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"optim.{name} is {value!r}; choose one of {', '.join(known)}")
        for name, (valid, rule) in RULES.items():
            if not valid(value := getattr(self, name)):
                raise ValueError(f"optim.{name} is {value}: {rule}")
        if self.name == "adam" and self.weight_decay:
            raise ValueError(f"optim.weight_decay is {self.weight_decay}, but adam has none; choose optim.name=adamw")
        object.__setattr__(self, "no_decay", read_expressions(self.no_decay, "no_decay"))
        object.__setattr__(self, "multipliers", read_multipliers(self.multipliers))

    def same_until(self, step: int, *lengths: int) -> bool:
        """Whether runs of these lengths have the same learning rates in their first `step` steps."""
        if len(set(lengths)) == 1:
            return True
        return self.schedule not in ("cosine", "linear") and (not self.cooldown or step <= min(lengths) - self.cooldown)


def make_schedule(config: OptimConfig, steps: int) -> optax.Schedule:
    """Learning rate by step, for a run of `steps` steps. Raises ValueError if it is too short for the schedule."""
    after = steps - config.warmup
    ends = config.schedule in ("cosine", "linear")
    if (ends and after <= 0) or (config.cooldown and after < config.cooldown):
        both = f"optim.warmup is {config.warmup} and optim.cooldown {config.cooldown}"
        raise ValueError(
            f"{both}: too long for a {config.schedule} schedule of {steps} steps; raise trainer.steps, or lower them"
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
    """The chain of the module docstring, for a run of `steps` steps; `update` needs the parameters, `init` checks the
    expressions (`check_expressions`)."""
    links = [base_optimizer(config, make_schedule(config, steps))]
    if config.clip:
        links.insert(0, optax.clip_by_global_norm(config.clip))
    factors_of = partial(factors, config.multipliers)
    if any(factor not in (0, 1) for _, factor in config.multipliers):
        links.append(optax.stateless(lambda updates, _: jax.tree.map(operator.mul, updates, factors_of(updates))))
    tx = optax.chain(*links) if len(links) > 1 else links[0]
    if any(factor == 0 for _, factor in config.multipliers):
        # -0.0 is the only number that changes nothing when it is added: optax's 0.0 would turn a parameter of -0.0 into
        # 0.0. (An addition on a CPU still turns subnormal numbers, below 1.2e-38, into 0.)
        still = optax.stateless(lambda updates, _: jax.tree.map(partial(jnp.full_like, fill_value=-0.0), updates))

        def groups(params: PyTree) -> PyTree:  # their names are in checkpoints
            return jax.tree.map(lambda factor: "trained" if factor else "frozen", factors_of(params))

        tx = optax.partition({"trained": tx, "frozen": still}, groups)

    def init(params: optax.Params) -> optax.OptState:
        check_expressions(config.multipliers, config.no_decay, params)
        return tx.init(params)

    return optax.GradientTransformation(init, tx.update)


def keras_adam(
    lr: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-7, dtype: str = "float32"
) -> optax.GradientTransformation:
    """Adam of Keras and of the end of the paper's section 2: `lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)`.

    optax adds its epsilon after the bias correction of v, which makes Keras' up to 30 times larger in the first steps;
    that matters for FILM's small gradients. `dtype` is m's.
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


def base_optimizer(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """One of `OPTIMIZERS` with weight decay and learning rate."""
    momentum, decay, dtype = config.momentum, config.weight_decay, config.momentum_dtype
    mask = partial(decayed, config.no_decay)
    if config.name == "adam":
        return keras_adam(schedule, 0.9 if momentum is None else momentum, dtype=dtype)
    if config.name == "adamw":
        b1 = 0.9 if momentum is None else momentum
        return optax.adamw(schedule, b1, mu_dtype=dtype, weight_decay=decay, mask=mask)
    if config.name == "adafactor":
        return optax.adafactor(
            schedule,
            multiply_by_parameter_scale=config.parameter_scale,
            clipping_threshold=config.update_clip or None,
            momentum=momentum or None,
            dtype_momentum=dtype,
            weight_decay_rate=(lambda step: decay * schedule(step)) if decay else None,
            weight_decay_mask=mask,
        )

    def kernel_dimensions(x):  # (all inputs) x outputs; None: Adam
        return contrib.MuonDimensionNumbers(tuple(range(x.ndim - 1)), x.ndim - 1) if x.ndim >= 2 else None

    return contrib.muon(
        schedule,
        beta=0.95 if momentum is None else momentum,
        mu_dtype=dtype,
        weight_decay=decay,
        weight_decay_mask=mask if config.no_decay else None,  # Adam's are not decayed
        adam_learning_rate=lambda step: MUON_ADAM * schedule(step),
        muon_weight_dimension_numbers=partial(jax.tree.map, kernel_dimensions),
    )


def parameter_paths(params: PyTree) -> PyTree:
    """A tree like `params` that holds each leaf's path."""
    return tree_map_with_path(lambda path, _: keystr(path, simple=True, separator="/"), params)


def factors(multipliers: Multipliers, params: PyTree) -> PyTree:
    """A tree like `params` (arrays or shapes) that holds each leaf's multiplier, 0 where they are frozen."""

    def first(path: str) -> float:
        return next((factor for expression, factor in multipliers if re.search(expression, path)), 1.0)

    return jax.tree.map(first, parameter_paths(params))


def stop_frozen_gradients(multipliers: Multipliers, params: PyTree) -> PyTree:
    """`params` with the frozen ones behind `stop_gradient`: their backward pass is left out of the program."""
    return jax.tree.map(lambda x, f: x if f else jax.lax.stop_gradient(x), params, factors(multipliers, params))


def decayed(no_decay: Sequence[str], params: PyTree) -> PyTree:
    """A tree like `params` that is True where weights decay: two and more dimensions, and no expression found."""

    def decays(x: Any, path: str) -> bool:
        return x.ndim >= 2 and not any(re.search(expression, path) for expression in no_decay)

    return jax.tree.map(decays, params, parameter_paths(params))


def check_expressions(multipliers: Multipliers, no_decay: Sequence[str], params: PyTree) -> None:
    """Raises ValueError for an expression that decides over none of `params`, and if all of them are frozen."""
    paths = jax.tree.leaves(parameter_paths(params))
    shown = paths[:: max(1, len(paths) // 5)][:5]
    examples = ", ".join(shown) + (f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else "")
    undecided = paths
    for name, expressions in (("multipliers", [expression for expression, _ in multipliers]), ("no_decay", no_decay)):
        for expression in expressions:
            if not any(re.search(expression, path) for path in paths):
                raise ValueError(f"optim.{name}: {expression!r} is found in no path; paths are {examples}")
    for expression, _ in multipliers:
        rest = [path for path in undecided if not re.search(expression, path)]
        if len(rest) == len(undecided):
            raise ValueError(f"optim.multipliers: earlier expressions decide every path of {expression!r}; move it up")
        undecided = rest
    if not any(jax.tree.leaves(factors(multipliers, params))):
        raise ValueError(f"optim.multipliers freeze every parameter; give some a factor above 0: {examples}")


def read_multipliers(multipliers: Sequence[Any]) -> tuple[tuple[str, float], ...]:
    """The pairs of a config as tuples. Raises ValueError for one that is not (expression, factor >= 0)."""
    pairs = []
    for pair in multipliers:
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"optim.multipliers: {pair!r} is not a pair; write [expression, factor]")
        expression, factor = pair
        if isinstance(factor, str) or not 0 <= factor < math.inf:
            raise ValueError(f"optim.multipliers: the factor of {expression!r} is {factor!r}; give 0 or more")
        pairs.append((*read_expressions([expression], "multipliers"), float(factor)))
    return tuple(pairs)


def read_expressions(expressions: Sequence[str], name: str) -> tuple[str, ...]:
    """The list of a config as a tuple. Raises ValueError with its `name` for one that is not a regular expression."""
    if isinstance(expressions, str):
        raise ValueError(f"optim.{name} is {expressions!r}: give a list; [] for none")
    for expression in expressions:
        try:
            re.compile(expression)
        except (re.error, TypeError) as error:
            raise ValueError(f"optim.{name}: {expression!r} is not a regular expression ({error})") from error
    return tuple(expressions)
