"""Losses and metrics as named objects in a config, each bound by path to its inputs.

    losses:
      l1:    {_target_: common.training.objectives.L1}
      vgg:   {_target_: common.training.objectives.Vgg, weight: {kind: step, corners: [[0, 1.0], [1500000, 0.25]]}}
    metrics:
      psnr:  {_target_: common.training.objectives.Psnr}

A term reads its inputs from a `Scope` by path: `output.image` is a field of the network's output, `batch.y` an entry of
the batch. `total` sums the losses, each times its weight at this step, and reports the value of every term; metrics
have no weight. Terms in the features of a perceptual network name one that the task loads
(`common/perceptual/vgg_weights.py`); the features of a pair are computed once for all terms.

A weight is a number or a schedule over the steps:

    1.0                                                     constant
    [[0, 1.0], [5000, 1.0], [7500, 0.0]]                    corners (step, value), straight lines between them
    {kind: step, corners: [[0, 1.0], [1500000, 0.25]]}      1.0 up to and including step 1,500,000, then 0.25

The last is TensorFlow's PiecewiseConstantDecay, as in FILM's recipe. Outside the corners a schedule keeps its first or
last value. Steps are compared and subtracted as integers, unlike in optax's piecewise schedules: float32 has no odd
number above 2^24 = 16,777,216 and would switch late.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from common import losses
from common.training.task import Batch, Context, Metrics

KINDS = ("linear", "step")
LAST_STEP = 2**31 - 1  # steps are int32 on the device


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number by step."""

    corners: Any  # (step, value) pairs, steps strictly rising in [0, 2^31)
    kind: str = "linear"  # between the corners, or "step": a value holds from after its step to the next corner's
    name: str = dataclasses.field(default="schedule", compare=False)  # config key, for errors

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: {self.kind!r} is not a kind of schedule; choose {' or '.join(KINDS)}")
        try:
            steps, values = zip(*[(step, float(value)) for step, value in self.corners], strict=True)
            rising = all(a < b for a, b in itertools.pairwise((-1, *steps, LAST_STEP + 1)))
            if not rising or any(step != int(step) for step in steps) or not all(map(math.isfinite, values)):
                raise ValueError("whole steps rise in [0, 2^31), and values are finite")
        except (TypeError, ValueError, OverflowError) as error:
            given = f"a number, or corners [[step, value], ...], not {self.corners!r} ({error})"
            raise ValueError(f"{self.name}: write {given}") from error
        object.__setattr__(self, "corners", tuple(zip(map(int, steps), values, strict=True)))

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The value at `step`, an int32 scalar that may be traced."""
        steps = jnp.array([step for step, _ in self.corners], jnp.int32)
        values = jnp.array([value for _, value in self.corners], jnp.float32)
        if self.kind == "step":
            return values[jnp.sum(step > steps[1:])]
        last = len(self.corners) - 1
        left = jnp.clip(jnp.sum(step >= steps) - 1, 0, last)
        right = jnp.minimum(left + 1, last)
        # Differences of integers are exact; only their quotient is rounded.
        part = jnp.maximum(step - steps[left], 0) / jnp.maximum(steps[right] - steps[left], 1)
        return jnp.where(left == last, values[last], values[left] * (1 - part) + values[right] * part)


def as_schedule(value: Any, name: str = "schedule") -> Schedule:
    """The schedule that `value` of a config stands for. Raises ValueError with its `name` for any other value."""
    if isinstance(value, Schedule):
        return value
    if isinstance(value, int | float):
        return Schedule(((0, value),), name=name)
    if isinstance(value, Mapping):
        if not {"corners"} <= set(value) <= {"corners", "kind"}:
            raise ValueError(f"{name} has the keys {[*value]}: a schedule has corners and kind")
        return Schedule(**value, name=name)
    return Schedule(value, name=name)


Weight = int | float | Sequence[Sequence[int | float]] | Mapping[str, Any] | Schedule


class Scope:
    """The inputs of terms: `output` of the network, `batch`, `context`, and features, computed once."""

    def __init__(self, output: Any, batch: Batch, context: Context):
        self.roots = {"output": output, "batch": batch}
        self.context = context
        self._features: dict[tuple[str, str, str], tuple[losses.Features, losses.Features]] = {}

    def __getitem__(self, path: str) -> Any:
        """The value at `path`, such as "output.image". Raises ValueError with the names that exist."""
        value: Any = self.roots
        for name in path.split("."):
            named = value._asdict() if hasattr(value, "_asdict") else value
            fields = named if isinstance(named, Mapping) else vars(named)
            if name not in fields:
                raise ValueError(f"there is no {path!r}: {name!r} is not one of {', '.join(sorted(fields))}")
            value = fields[name]
        return value

    def features(self, network: str, prediction: str, target: str) -> tuple[losses.Features, losses.Features]:
        """`common.losses.perceptual_features` of the images at two paths, by `context.frozen[network]`."""
        key = network, prediction, target
        if key not in self._features:
            if network not in self.context.frozen:
                raise ValueError(f"no network {network!r} among {sorted(self.context.frozen)}: add it to task.networks")
            pair = self[prediction], self[target]
            self._features[key] = losses.perceptual_features(*pair, self.context.frozen[network])
        return self._features[key]


@runtime_checkable
class Term(Protocol):
    """A loss or a metric: a number for a scope. Metrics ignore `weight`."""

    @property
    def weight(self) -> Weight: ...

    def __call__(self, scope: Scope) -> Float[Array, ""]: ...


class Weighted:
    """Base of terms: their `weight` becomes a schedule."""

    weight: Weight

    def __post_init__(self):
        object.__setattr__(self, "weight", as_schedule(self.weight, f"weight of {type(self).__name__}"))


@dataclasses.dataclass(frozen=True)
class Pair(Weighted):
    """Compares the values at two paths by `function`; the subclasses are the functions of `common.losses`."""

    function: ClassVar[Callable]
    prediction: str = "output.image"
    target: str = "batch.y"
    weight: Weight = 1.0

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return type(self).function(scope[self.prediction], scope[self.target])


class L1(Pair):
    function = staticmethod(losses.l1)


class L2(Pair):
    function = staticmethod(losses.l2)


class Psnr(Pair):
    """In dB: a metric."""

    function = staticmethod(losses.psnr)


class Ssim(Pair):
    """A metric; as a loss give it a negative weight."""

    function = staticmethod(losses.ssim)


@dataclasses.dataclass(frozen=True)
class Charbonnier(Pair):
    epsilon: float = 1e-3  # the difference at which the parabola turns into a line

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.charbonnier(scope[self.prediction], scope[self.target], self.epsilon)


@dataclasses.dataclass(frozen=True)
class Vgg(Pair):
    """Differences of features."""

    function = staticmethod(losses.feature_distance)
    network: str = "vgg"  # one of the task's

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return type(self).function(*scope.features(self.network, self.prediction, self.target))


class Style(Vgg):
    """Differences of Gram matrices of the same features."""

    function = staticmethod(losses.style_distance)


def total(
    terms: Mapping[str, Term], scope: Scope, metrics: Mapping[str, Term] | None = None
) -> tuple[Float[Array, ""], Metrics]:
    """The weighted sum of `terms`; the value of each, that of each of `metrics` with another name, and as `weight_NAME`
    each weight that changes with the step."""
    values = {name: term(scope) for name, term in {**(metrics or {}), **terms}.items()}
    schedules = {name: as_schedule(term.weight) for name, term in terms.items()}
    weights = {name: schedule(scope.context.step) for name, schedule in schedules.items()}
    changing = {f"weight_{name}": weights[name] for name, schedule in schedules.items() if len(schedule.corners) > 1}
    return jnp.stack([weights[name] * values[name] for name in terms]).sum(), values | changing
