"""Losses and metrics as named objects that a config lists, each bound by path to what it compares.

    losses:
      l1:    {_target_: common.training.objectives.L1}
      vgg:   {_target_: common.training.objectives.Vgg, weight: {kind: step, corners: [[0, 1.0], [1500000, 0.25]]}}
    metrics:
      psnr:  {_target_: common.training.objectives.Psnr}

A term reads its inputs from a `Scope` by path: `output.image` is a field of what the network returned, `batch.y` an
entry of the batch. So a new loss needs no change of a task, and a task none of the trainer. `total` adds the losses up,
each times its weight at this step, and reports every term's own value; metrics are reported and weigh nothing.

Terms that compare in a perceptual network's features name the network; the task loads it (`common/perceptual/vgg_weights.py`)
and the scope computes the features of a pair once, however many terms ask for them.

A weight is a number or a schedule over the steps, written in one of three ways:

    1.0                                                     always 1
    [[0, 1.0], [5000, 1.0], [7500, 0.0]]                    corners (step, value), straight lines between them
    {kind: step, corners: [[0, 1.0], [1500000, 0.25]]}      the old value up to and including step 1,500,000, then 0.25

The last is TensorFlow's PiecewiseConstantDecay, which FILM's loss weights use: the step named still has the old value.
Outside the corners a schedule stays at the first or the last value. Steps are compared and subtracted as integers, which
optax's piecewise schedules do not: float32 has no odd number above 2^24 = 16,777,216 and would switch late.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from common import losses
from common.training.task import Batch, Context, Metrics

KINDS = ("linear", "step")
LAST_STEP = 2**31 - 1  # steps are int32 on the device
DTYPES = jnp.int32, jnp.float32  # of a schedule's steps and values


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number by step.

    Attributes:
      corners: list of (step, value), steps strictly rising in [0, 2^31); becomes a tuple of tuples.
      kind: "linear" between the corners, or "step": a corner's value holds after its step, up to and including the
        next corner's.
      name: what errors call it, such as the config's key.
    """

    corners: Any
    kind: str = "linear"
    name: str = dataclasses.field(default="schedule", compare=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: {self.kind!r} is no kind of schedule; choose {' or '.join(KINDS)}")
        object.__setattr__(self, "corners", tuple(self._corner(corner) for corner in self.corners))
        steps = [step for step, _ in self.corners]
        if not steps:
            raise ValueError(f"{self.name} has no corners; give [[step, value], ...] or a number")
        falling = [f"{b} follows {a}" for a, b in itertools.pairwise(steps) if b <= a]
        if falling:
            raise ValueError(f"{self.name}: steps have to rise from corner to corner, but {falling[0]}")

    def _corner(self, corner: Any) -> tuple[int, float]:
        try:
            step, value = corner
            whole, value = int(step), float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self.name}: {corner!r} is no corner; write [step, value]") from error
        if whole != step or not 0 <= whole <= LAST_STEP or not math.isfinite(value):
            raise ValueError(f"{self.name}: corner {corner!r} needs a whole step in [0, 2^31) and a finite value")
        return whole, value

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The value at `step`, an int32 scalar that may be traced."""
        steps, values = (jnp.array(x, t) for x, t in zip(zip(*self.corners, strict=True), DTYPES, strict=True))
        if self.kind == "step":
            return values[jnp.sum(step > steps[1:])]
        last = len(self.corners) - 1
        left = jnp.clip(jnp.sum(step >= steps) - 1, 0, last)
        right = jnp.minimum(left + 1, last)
        # Differences of integers are exact; only their quotient is rounded.
        part = jnp.maximum(step - steps[left], 0) / jnp.maximum(steps[right] - steps[left], 1)
        return jnp.where(left == last, values[last], values[left] * (1 - part) + values[right] * part)

    def at(self, step: int) -> float:
        """The value at a step that is known on the host, without JAX: for data pipelines and their processes."""
        steps = [corner for corner, _ in self.corners]
        after = bisect.bisect_left(steps, step) if self.kind == "step" else bisect.bisect_right(steps, step)
        (left, low), right = self.corners[max(after - 1, 0)], self.corners[min(after, len(steps) - 1)]
        if self.kind == "step" or step <= left or right[0] == left:
            return low
        return low + (right[1] - low) * (step - left) / (right[0] - left)


def as_schedule(value: Any, name: str = "schedule") -> Schedule:
    """The schedule that a config's `value` means; `name` is what errors call it.

    Raises ValueError if `value` is none of the three ways of the module's docstring.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, int | float):
        return Schedule(((0, value),), name=name)
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - {"kind", "corners"})
        if unknown or "corners" not in value:
            raise ValueError(f"{name}: a schedule has the keys corners and kind, not {', '.join(map(str, value))}")
        return Schedule(**value, name=name)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} is {value!r}: write a number, or [[step, value], ...]")
    return Schedule(value, name=name)


Weight = int | float | Sequence[Sequence[int | float]] | Mapping[str, Any] | Schedule  # what a config may write for one


class Scope:
    """What a term may read: `output` (a network's result), `batch`, `context`, and features, computed once."""

    def __init__(self, output: Any, batch: Batch, context: Context):
        self.roots: dict[str, Any] = {"output": output, "batch": batch}
        self.context = context
        self._features: dict[tuple[str, str, str], tuple[losses.Features, losses.Features]] = {}

    def __getitem__(self, path: str) -> Any:
        """The value at `path`, such as "output.image". Raises ValueError naming what there is."""
        value: Any = self.roots
        for part in path.split("."):
            known = _names(value)
            if part not in known:
                raise ValueError(f"there is no {path!r}: {part!r} is not one of {', '.join(known)}")
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        return value

    def features(self, network: str, prediction: str, target: str) -> tuple[losses.Features, losses.Features]:
        """`common.losses.perceptual_features` of the pictures at two paths, in `context.frozen[network]`."""
        key = network, prediction, target
        if key not in self._features:
            if network not in self.context.frozen:
                known = ", ".join(sorted(self.context.frozen)) or "none"
                raise ValueError(
                    f"the network {network!r} of a loss is not loaded ({known} is): add it to task.networks"
                )
            pair = self[prediction], self[target]
            self._features[key] = losses.perceptual_features(*pair, self.context.frozen[network])
        return self._features[key]


@runtime_checkable
class Term(Protocol):
    """A loss or a metric: a number for a scope. `weight` counts only among the losses."""

    @property
    def weight(self) -> Weight: ...

    def __call__(self, scope: Scope) -> Float[Array, ""]: ...


@dataclasses.dataclass(frozen=True)
class Pair:
    """A term that compares the values at two paths.

    Attributes:
      prediction, target: paths of what is compared.
      weight: a number, or a schedule over the steps.
    """

    prediction: str = "output.image"
    target: str = "batch.y"
    weight: Weight = 1.0

    def __post_init__(self):
        object.__setattr__(self, "weight", as_schedule(self.weight, f"weight of {type(self).__name__}"))


@dataclasses.dataclass(frozen=True)
class L1(Pair):
    """`common.losses.l1`."""

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.l1(scope[self.prediction], scope[self.target])


@dataclasses.dataclass(frozen=True)
class L2(Pair):
    """`common.losses.l2`."""

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.l2(scope[self.prediction], scope[self.target])


@dataclasses.dataclass(frozen=True)
class Charbonnier(Pair):
    """`common.losses.charbonnier`; `epsilon` is where it turns from a parabola to a line."""

    epsilon: float = 1e-3

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.charbonnier(scope[self.prediction], scope[self.target], self.epsilon)


@dataclasses.dataclass(frozen=True)
class Psnr(Pair):
    """`common.losses.psnr`, dB: a metric."""

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.psnr(scope[self.prediction], scope[self.target])


@dataclasses.dataclass(frozen=True)
class Ssim(Pair):
    """`common.losses.ssim`: a metric; as a loss give it a negative weight."""

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.ssim(scope[self.prediction], scope[self.target])


@dataclasses.dataclass(frozen=True)
class Vgg(Pair):
    """`common.losses.vgg`: differences of features; `network` is its name among the task's networks."""

    network: str = "vgg"

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.feature_distance(*scope.features(self.network, self.prediction, self.target))


@dataclasses.dataclass(frozen=True)
class Style(Pair):
    """`common.losses.style`: differences of Gram matrices of the same features."""

    network: str = "vgg"

    def __call__(self, scope: Scope) -> Float[Array, ""]:
        return losses.style_distance(*scope.features(self.network, self.prediction, self.target))


def total(terms: Mapping[str, Term], scope: Scope) -> tuple[Float[Array, ""], Metrics]:
    """The weighted sum of `terms`, the value of each, and as `weight_NAME` the weights that change with the step."""
    taken = {"loss", "grad_norm", "update_norm"} & terms.keys()
    if taken:
        raise ValueError(f"a loss is called {taken.pop()!r}, as a number that the trainer logs: give it another name")
    values = {name: term(scope) for name, term in terms.items()}
    schedules = {name: as_schedule(term.weight) for name, term in terms.items()}
    weights = {name: schedule(scope.context.step) for name, schedule in schedules.items()}
    changing = {f"weight_{name}": weights[name] for name, schedule in schedules.items() if len(schedule.corners) > 1}
    return jnp.stack([weights[name] * value for name, value in values.items()]).sum(), values | changing


def report(terms: Mapping[str, Term], scope: Scope) -> Metrics:
    """The value of each term."""
    return {name: term(scope) for name, term in terms.items()}


def _names(value: Any) -> Sequence[str]:
    if isinstance(value, Mapping):
        return sorted(value)
    return getattr(value, "_fields", ()) or [field.name for field in dataclasses.fields(value)]
