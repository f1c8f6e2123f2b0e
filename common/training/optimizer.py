"""Optimiser, learning rate and parameter groups, all from one config.

    gradient -> clip by its global norm -> optimiser, weight decay, learning rate -> multiplier of the parameter group

    adam       Keras', as in FILM's reference; no weight decay
    adamw      Adam with decoupled weight decay (Loshchilov & Hutter 2019), equal to PyTorch's
    adafactor  factored second moments, steps relative to the size of a parameter (Shazeer & Stern 2018, algorithm 4):
               nearly no memory, for large language models
    muon       orthogonalised momentum for kernels (inputs x outputs), Adam for the rest

Parameter groups are regular expressions over paths such as `fusion/convs/3/kernel`:

    multipliers:
      - ["^encoder/", 0]         # frozen: no bit changes, nothing decays, and there is no optimiser state
      - ["^heads/.*bias$", 2.0]  # twice the step, weight decay included
      - ["^heads/", 0.3]

The first expression found in a path (`re.search`) decides; without one the multiplier is 1. The clipped norm excludes
the gradients of frozen parameters. An expression that decides over no parameter is an error, so that a renamed layer is
not silently trained.
"""

import dataclasses
import operator
import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import PyTree
from optax import contrib

from common.checked import (
    Above0,
    AtLeast0,
    Checked,
    Dtype,
    NotNegative,
    Positive,
    PositiveShare,
    Rule,
    Share,
    is_expression,
    real,
)

Expression = Annotated[str, Rule(is_expression, "a regular expression")]
PAIR = Rule(
    lambda pair: len(pair) == 2 and is_expression(pair[0]) and real(0).holds(pair[1]),
    "[regular expression, factor], the factor a finite number at least 0",
)
Multipliers = Sequence[Annotated[Sequence[Any], PAIR]]
Decay = Annotated[float | int, real(0, below=1)]  # of a running mean
Optimizer = Literal["adam", "adamw", "adafactor", "muon"]
MUON_ADAM = 0.05  # of `lr`, for biases: a Muon step bounds the gain of a kernel, which is far larger


@dataclasses.dataclass(frozen=True)
class OptimConfig(Checked):
    """Optimiser settings. Steps are those of the optimiser: one per batch, however many microbatches it is split into.

    Arrays of fewer than two dimensions, biases and norms, never decay. (optax's own Adafactor decays per step.)"""

    name: Optimizer = "adam"
    lr: Above0 = 1e-4  # the peak; Adafactor's is relative to the size of a parameter (`parameter_scale`)
    schedule: Literal["constant", "staircase", "cosine", "linear", "rsqrt"] = "constant"  # after the warm-up
    warmup: NotNegative = 0  # steps of the linear rise from 0
    final_lr: Share = 0.0  # `cosine` and `linear` end at `final_lr * lr` at the last step
    decay_every: Positive = 750_000  # `staircase` multiplies by `decay_rate` every `decay_every` steps
    decay_rate: PositiveShare = 0.464158
    timescale: Positive = 10_000  # `rsqrt` falls as `sqrt(timescale / (timescale + step))`
    cooldown: NotNegative = 0  # last steps of the run, over which any schedule is multiplied by a line from 1 to 0
    clip: AtLeast0 = 0.0  # bound on the global norm of the gradient; 0 for none
    weight_decay: AtLeast0 = 0.0  # fraction of a parameter subtracted per unit of learning rate; `adam` has none
    no_decay: Sequence[Expression] = ()  # expressions for further paths that do not decay, such as stacked biases
    multipliers: Multipliers = ()  # (expression, factor) pairs of the module's docstring
    momentum: Decay | None = None  # decay of the first moment; None: adam(w) 0.9, muon 0.95, adafactor none
    momentum_dtype: Dtype = "float32"  # of the first moment; second moments stay float32
    update_clip: AtLeast0 = 1.0  # Adafactor's bound on the root mean square of an update, d in the paper; 0 for none
    parameter_scale: bool = True  # Adafactor's step is `lr` times the root mean square of the parameter, at least 1e-3
    ema: Decay = 0.0  # decay of the averaged parameters that are evaluated and exported; 0 for none
    ema_power: AtLeast0 = 0.0  # growth of the decay to `ema` (`state.ema_decay`): 0: TensorFlow's, above: diffusers'

    def rules(self):
        yield self.name != "adam" or not self.weight_decay, "adam has no weight_decay: choose name=adamw"

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
        way = f"a {config.schedule} schedule of {steps} steps; raise trainer.steps, or lower them"
        raise ValueError(f"{both}: too long for {way}")
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

        def groups(params: PyTree) -> PyTree:  # their names are in checkpoints
            return jax.tree.map(lambda factor: "trained" if factor else "frozen", factors_of(params))

        tx = optax.partition({"trained": tx, "frozen": optax.set_to_zero()}, groups)

    def init(params: optax.Params) -> optax.OptState:
        check_expressions(config.multipliers, config.no_decay, params)
        return tx.init(params)

    return optax.GradientTransformation(init, tx.update)


def keras_adam(
    lr: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-7, dtype: str = "float32"
) -> optax.GradientTransformation:
    """Adam of Keras and of the end of the paper's section 2: `lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)`.

    optax adds its epsilon after the bias correction of v: Keras' is up to 30 times larger in the first steps, which
    matters for FILM's small gradients. `dtype` is m's."""

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
    """The `Optimizer` with weight decay and learning rate."""
    decay, dtype, mask = config.weight_decay, config.momentum_dtype, partial(decayed, config.no_decay)
    usual = {"adam": 0.9, "adamw": 0.9, "adafactor": 0.0, "muon": 0.95}[config.name]
    momentum = usual if config.momentum is None else config.momentum
    if config.name == "adam":
        return keras_adam(schedule, momentum, dtype=dtype)
    if config.name == "adamw":
        return optax.adamw(schedule, momentum, mu_dtype=dtype, weight_decay=decay, mask=mask)
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
        beta=momentum,
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
        return next((float(factor) for expression, factor in multipliers if re.search(expression, path)), 1.0)

    return jax.tree.map(first, parameter_paths(params))


def stop_frozen_gradients(multipliers: Multipliers, params: PyTree) -> PyTree:
    """`params` with the frozen ones behind `stop_gradient`: their backward pass is left out of the program."""
    return jax.tree.map(lambda x, f: x if f else jax.lax.stop_gradient(x), params, factors(multipliers, params))


def decayed(no_decay: Sequence[str], params: PyTree) -> PyTree:
    """A tree like `params` that is True where weights decay: two and more dimensions, and no expression found."""
    kept = factors([(expression, 0) for expression in no_decay], params)
    return jax.tree.map(lambda x, factor: x.ndim >= 2 and factor > 0, params, kept)


def check_expressions(multipliers: Multipliers, no_decay: Sequence[str], params: PyTree) -> None:
    """Raises ValueError for an expression that decides over none of `params`, and if all of them are frozen."""
    undecided = paths = jax.tree.leaves(parameter_paths(params))
    examples = f"{', '.join(paths[:: max(1, len(paths) // 5)][:5])}, ... ({len(paths)} in all)"
    for name, expressions in (("multipliers", [expression for expression, _ in multipliers]), ("no_decay", no_decay)):
        for expression in expressions:
            if not any(re.search(expression, path) for path in paths):
                raise ValueError(f"optim.{name}: {expression!r} is found in no path; paths are {examples}")
    for expression, _ in multipliers:
        decided, undecided = len(undecided), [path for path in undecided if not re.search(expression, path)]
        if len(undecided) == decided:
            raise ValueError(f"optim.multipliers: earlier expressions decide every path of {expression!r}; move it up")
    if not any(jax.tree.leaves(factors(multipliers, params))):
        raise ValueError(f"optim.multipliers freeze every parameter; give some a factor above 0: {examples}")
