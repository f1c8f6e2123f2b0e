"""The frame of all samplers: coefficients planned in float64 before tracing, then one scan over the model calls.

A sampler is two functions to hold beside its paper:

    plan(schedule, steps, start, **options) -> Plan                timesteps, and all coefficients of each call
    update(x, prediction, row, history, noise) -> (x, history)     one call's prediction moves the sample

`Sampler` joins them into `sampler(model, x, schedule, steps=...)`. The model is any traceable function
`model(x, step) -> output` with a `Step`, with guidance, controls and text in it. Row i of the plan is call i of the
model: most samplers make one call a step, Heun two, PLMS one more than steps. The one `lax.scan` contains the model
once, so compiling takes no longer for more steps. The sample stays float32 whatever the model computes in.

Noise depends on an image's own key and the number of the draw alone: fold_in(key, 0) is the initial noise, call i uses
fold_in(key, 1 + i). So an image does not change with its batch, its place in it, or the number of devices. A single key
for a batch is split into fold_in(key, 0), fold_in(key, 1), ... for its images.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from plugins.diffusion.samplers.schedules import Schedule, check_choice

KINDS = ("epsilon", "v_prediction", "sample", "flow")
Sample = Float[Array, "b ..."]
Row = Mapping[str, Array]  # the coefficients of one call
History = tuple[Array, ...]  # arrays like x that a sampler carries from call to call
State = tuple[Sample, History]


class Prediction(NamedTuple):
    """A model's output, and the x_0 and eps that it implies."""

    output: Float[Array, "*s"]
    x0: Float[Array, "*s"]
    eps: Float[Array, "*s"]


Update = Callable[[Sample, Prediction, Row, History, Any], State]


class Step(NamedTuple):
    """Model call `index` of n: its timestep, and the share [fraction, until) of the run that it covers."""

    t: Float[Array, ""]
    index: Int[Array, ""]
    fraction: Float[Array, ""]
    until: Float[Array, ""]

    def within(self, start: float | Array, end: float | Array) -> Array:
        """Whether this call lies in that part of the run: a boolean scalar."""
        slack = 1e-6  # index / n is rounded
        return (self.fraction >= start - slack) & (self.until <= end + slack)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The n model calls of a run; the model's input is alpha x_0 + sigma eps."""

    timesteps: Float[np.ndarray, " n"]  # the model's time input
    alpha: Float[np.ndarray, " n"]
    sigma: Float[np.ndarray, " n"]
    columns: Mapping[str, Float[np.ndarray, "n ..."]]  # the sampler's own coefficients, by name
    scale_in: Float[np.ndarray, " n"] | None = None  # the model's input is the sample times this; None: 1
    start_scale: float = 1.0  # deviation of a whole run's initial noise (diffusers' init_noise_sigma)
    sigmas: Float[np.ndarray, " n+1"] | None = None  # sigma / alpha before each call and after the last, where used
    draws: bool = False  # whether calls draw noise

    def rows(self) -> dict[str, Array]:
        """All coefficients as arrays to scan over, float32."""
        index = np.arange(n := len(self.timesteps))
        columns = {"t": self.timesteps, "fraction": index / n, "until": (index + 1) / n, **self.columns}
        columns |= {"alpha": self.alpha, "sigma": self.sigma}
        columns["scale_in"] = np.ones(n) if self.scale_in is None else self.scale_in
        rows = {name: jnp.asarray(column, jnp.float32) for name, column in columns.items()}
        return rows | {"index": jnp.asarray(index, jnp.int32)}


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A sampler; call it as `sampler(model, x, schedule, steps=...)`."""

    name: str  # as in `SAMPLERS` and in errors
    planner: Callable[..., Plan]  # this and `update` are the two functions of the module's docstring
    update: Update
    history: int = 0  # number of arrays like x that `update` carries from call to call, zeros at first
    options: tuple[tuple[str, Any], ...] = ()  # chosen keyword arguments of `planner`, sorted
    runs_on: type = Schedule  # class of the schedule it needs

    def with_options(self, **options: Any) -> "Sampler":
        """The same sampler with other defaults."""
        known = [name for name, p in inspect.signature(self.planner).parameters.items() if p.kind is p.KEYWORD_ONLY]
        if unknown := sorted(set(options) - set(known)):
            raise ValueError(f"{self.name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
        return dataclasses.replace(self, options=tuple(sorted((dict(self.options) | options).items())))

    def plan(self, schedule: Any, steps: int, strength: float = 1.0, **options: Any) -> Plan:
        """Timesteps and coefficients of a run; `strength` in (0, 1] runs only the last share of the steps."""
        if not isinstance(schedule, self.runs_on):
            raise ValueError(f"{self.name} runs on a {self.runs_on.__name__}, not on a {type(schedule).__name__}")
        if not 0 < strength <= 1:
            raise ValueError(f"strength={strength} has to lie in (0, 1]; 1 starts from noise alone")
        run = steps_of(steps, strength)
        if steps >= 1 and run == 0:
            raise ValueError(f"strength={strength} of steps={steps} is less than one step; raise one of them")
        return self.planner(schedule, steps, steps - run, **dict(self.with_options(**options).options))

    def start(
        self,
        noise: Sample,
        schedule: Any,
        *,
        steps: int,
        image: Sample | None = None,
        strength: float = 1.0,
        **options: Any,
    ) -> Sample:
        """The initial sample of a run: scaled standard normal `noise`, or `image` with noise of the first level.
        Image to image passes the same `strength` here and to the run."""
        plan = self.plan(schedule, steps, strength, **options)
        if image is not None:
            scale = 1.0 if plan.scale_in is None else float(plan.scale_in[0])
            return (float(plan.alpha[0]) * image + float(plan.sigma[0]) * noise) / scale
        return noise * plan.start_scale

    def __call__(
        self,
        model: Callable[[Array, Step], Array],
        x: Sample,
        schedule: Any,
        *,
        steps: int,
        strength: float = 1.0,
        key: Shaped[Array, "*k"] | None = None,
        observe: Callable[[Array, Array], None] | None = None,
        trajectory: bool = False,
        **options: Any,
    ) -> Any:
        """Run from `x` to the end; the final sample in x's shape, float32.

        Args:
          model: called with alpha x_0 + sigma eps in float32.
          x: the initial sample, see `start`.
          steps: of a whole run; `strength` < 1 does only the last of them.
          key: for samplers that draw noise, one key or one per image. Others ignore it.
          observe: traced; called with the index of each call and the x_0 that it predicts.
          trajectory: return (final, samples before the first and after each call [n+1, b, ...]) instead.
          options: the sampler's own, see its plan.
        """
        plan = self.plan(schedule, steps, strength, **options)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if plan.draws and key is None:
            raise ValueError(f"{self.name} draws noise at each step; give key=jax.random.key(seed), or one per image")
        keys = None if key is None or not plan.draws else image_keys(key, x.shape[0])

        def call(state: State, row: Row) -> tuple[State, Any]:
            x, history = state
            inputs = x * row["scale_in"]
            output = model(inputs, Step(row["t"], row["index"], row["fraction"], row["until"])).astype(x.dtype)
            prediction = predict(schedule.prediction_type, output, inputs, row["alpha"], row["sigma"])
            prediction = prediction._replace(x0=clip_x0(schedule, prediction.x0))
            eps = None if keys is None else _normal(keys, 1 + row["index"], x.shape[1:]).astype(x.dtype)
            x, history = self.update(x, prediction, row, history, eps)
            if observe is not None:
                observe(row["index"], prediction.x0)
            return (x, history), x if trajectory else None

        (final, _), samples = jax.lax.scan(call, (x, (jnp.zeros_like(x),) * self.history), plan.rows())
        return (final, jnp.concatenate([x[None], samples])) if trajectory else final


def steps_of(steps: int, strength: float) -> int:
    """How many of the steps of a whole run this strength does."""
    return int(steps * strength + 1e-6)


def predict(
    kind: str, output: Float[Array, "*s"], x: Float[Array, "*s"], alpha: Float[Array, "*#s"], sigma: Float[Array, "*#s"]
) -> Prediction:
    """x_0 and eps from a model's output for x = alpha x_0 + sigma eps; the scales broadcast. `kind` is one of

    epsilon        eps; divides by alpha            (DDPM, 2006.11239)
    v_prediction   v = alpha eps - sigma x_0        (progressive distillation, 2202.00512, appendix D)
    sample         x_0; divides by sigma
    flow           eps - x_0, where alpha = 1 - sigma (flow matching)
    """
    check_choice("prediction_type", kind, KINDS)
    if kind == "epsilon":
        return Prediction(output, (x - sigma * output) / alpha, output)
    if kind == "v_prediction":
        return Prediction(output, alpha * x - sigma * output, alpha * output + sigma * x)
    if kind == "sample":
        return Prediction(output, output, (x - alpha * output) / sigma)
    return Prediction(output, x - sigma * output, x + alpha * output)


def clip_x0(schedule: Any, x0: Sample) -> Sample:
    """A predicted image, clipped or dynamically thresholded as the schedule asks."""
    if schedule.thresholding:
        size = jnp.abs(x0).reshape(x0.shape[0], -1)
        bound = jnp.quantile(size, schedule.dynamic_thresholding_ratio, axis=1)
        bound = jnp.clip(bound, 1, schedule.sample_max_value).reshape(-1, *(1,) * (x0.ndim - 1))
        return jnp.clip(x0, -bound, bound) / bound
    if schedule.clip_sample:
        return jnp.clip(x0, -schedule.clip_sample_range, schedule.clip_sample_range)
    return x0


def weighted_sum(weights: Float[Array, " k"], arrays: Sequence[Array]) -> Array:
    return sum((w * array for w, array in zip(weights, arrays, strict=True)), start=jnp.zeros((), jnp.float32))


def keys_of_seeds(seeds: Sequence[int]) -> Key[Array, " b"]:
    """One key per image from one whole number in [0, 2^32) per image."""
    return jax.vmap(jax.random.key)(jnp.array(list(seeds), jnp.uint32))


def image_keys(key: Shaped[Array, "*k"], batch: int) -> Key[Array, " batch"]:
    """The keys of `batch` images: `key` itself if it is one per image. Raises ValueError for another number."""
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch))
    if key.shape != (batch,):
        raise ValueError(f"keys of shape {key.shape} do not fit {batch} images; give one key, or one per image")
    return key


def starting_noise(key: Shaped[Array, "*k"], shape: Sequence[int]) -> Sample:
    """Standard normal noise of `shape` (b, ...) for the start of a run."""
    return _normal(image_keys(key, shape[0]), 0, tuple(shape[1:]))


def _normal(keys: Key[Array, " b"], draw: int | Int[Array, ""], shape: tuple[int, ...]) -> Sample:
    return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, draw), shape))(keys)
