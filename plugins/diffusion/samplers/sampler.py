"""What all samplers share: a plan of coefficients, made in float64 before tracing, and one scan over its rows.

A sampler is two functions to hold beside its paper:

    plan(schedule, steps, start, **options) -> Plan      which timesteps, and every coefficient
    update(x, known, row, past, noise) -> (x, past)      how one prediction moves the sample

`Sampler` joins them into `sampler(model, x, schedule, steps=...)`. The model is any traceable function
`model(x, step) -> prediction` with a `Step`; guidance, control and context are wrapped around it outside. Row i of the
plan is call i of the model: most samplers make one call a step, Heun two, PLMS one more than steps.

The loop is one `lax.scan` in which the model stands once: `jax.jit` around a sampler compiles once per shape, and no
longer for more steps. The sample is kept in float32 whatever the model computes in.

Noise depends on an image's own key and the number of the draw, and on nothing else: starting noise comes from
fold_in(key, 0), the noise of call i from fold_in(key, 1 + i). So an image does not change with the batch it is made in,
its place there, or the number of devices. A single key for a batch stands for the keys fold_in(key, 0), fold_in(key, 1),
... of its images.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from plugins.diffusion.samplers.predictions import Estimate, estimate
from plugins.diffusion.samplers.schedules import Schedule


def keys_of_seeds(seeds: Sequence[int]) -> Key[Array, " b"]:
    """One key per image from one whole number per image. Raises ValueError for no seeds or one outside [0, 2^32)."""
    wrong = [seed for seed in seeds if not 0 <= seed < 2**32]
    if wrong or not len(seeds):
        raise ValueError(f"seeds={list(seeds)} have to be one or more whole numbers in [0, 2^32)")
    return jax.vmap(jax.random.key)(jnp.array(list(seeds), jnp.uint32))


def image_keys(key: Shaped[Array, "*k"], batch: int) -> Key[Array, " batch"]:
    """The keys of `batch` images: `key` itself if it is one per image. Raises ValueError for another shape or type."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(f"key is an array of {key.dtype}; make it with jax.random.key(seed) or keys_of_seeds")
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch))
    if key.shape != (batch,):
        raise ValueError(f"keys of shape {key.shape} do not fit {batch} images; give one key, or one per image")
    return key


def starting_noise(key: Shaped[Array, "*k"], shape: Sequence[int]) -> Float[Array, "b ..."]:
    """Standard normal noise of `shape` (b, ...), where a run starts."""
    return normal(image_keys(key, shape[0]), 0, tuple(shape[1:]))


def step_noise(keys: Key[Array, " b"], index: Int[Array, ""], shape: tuple[int, ...]) -> Float[Array, "b ..."]:
    """The noise of call `index` of a run, for images of `shape`."""
    return normal(keys, 1 + index, shape)


def normal(keys: Key[Array, " b"], number: int | Int[Array, ""], shape: tuple[int, ...]) -> Float[Array, "b ..."]:
    """Draw `number` of each key."""
    return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, number), shape))(keys)


Row = Mapping[str, Array]
Past = tuple[Array, ...]


class Step(NamedTuple):
    """What a model is told at call `index` of n: the timestep, and that the call covers [fraction, until) of the run.

    A control that acts from `start` to `end` of a run acts where fraction >= start and until <= end.
    """

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
    """A run's n calls.

    Attributes:
      timesteps: what the model is told.
      alpha, sigma: the model's input is alpha x_0 + sigma eps.
      columns: the sampler's own coefficients, by name.
      scale_in: the model's input is the sample times this; None means 1.
      start_scale: standard deviation of the noise that a whole run starts from (init_noise_sigma).
      sigmas: noise levels sigma / alpha before each call and after the last, where the sampler thinks in them.
      draws: whether calls draw noise.
    """

    timesteps: Float[np.ndarray, " n"]
    alpha: Float[np.ndarray, " n"]
    sigma: Float[np.ndarray, " n"]
    columns: Mapping[str, Float[np.ndarray, "n ..."]]
    scale_in: Float[np.ndarray, " n"] | None = None
    start_scale: float = 1.0
    sigmas: Float[np.ndarray, " n+1"] | None = None
    draws: bool = False

    def rows(self) -> dict[str, Array]:
        """All columns as arrays to scan over, float32."""
        n = len(self.timesteps)
        index = np.arange(n)
        columns = {
            "t": self.timesteps,
            "fraction": index / n,
            "until": (index + 1) / n,
            "alpha": self.alpha,
            "sigma": self.sigma,
            "scale_in": np.ones(n) if self.scale_in is None else self.scale_in,
            **self.columns,
        }
        return {name: jnp.asarray(column, jnp.float32) for name, column in columns.items()} | {
            "index": jnp.asarray(index, jnp.int32)
        }

    def noised(self, image: Float[Array, "b ..."], noise: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
        """The sample at the first call of a run that starts from `image`."""
        scale = 1.0 if self.scale_in is None else float(self.scale_in[0])
        return (float(self.alpha[0]) * image + float(self.sigma[0]) * noise) / scale


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A sampler; call it as `sampler(model, x, schedule, steps=...)`.

    Attributes:
      name: what errors call it.
      planner, update: the two functions of the module's docstring.
      memory: how many arrays like x are remembered between calls.
      options: keyword arguments of `planner` that are already chosen, sorted.
      runs_on: the class of schedule that it needs.
    """

    name: str
    planner: Callable[..., Plan]
    update: Callable[..., tuple[Array, Past]]
    memory: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    runs_on: type = Schedule

    def with_options(self, **options: Any) -> Sampler:
        """The same sampler with other defaults. Raises ValueError for an option that it does not have."""
        known = [name for name, p in inspect.signature(self.planner).parameters.items() if p.kind is p.KEYWORD_ONLY]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"{self.name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
        chosen = dict(self.options) | options
        return dataclasses.replace(self, options=tuple(sorted(chosen.items())))

    def plan(self, schedule: Any, steps: int, strength: float = 1.0, **options: Any) -> Plan:
        """The run's timesteps and coefficients. Raises ValueError for settings that make no run."""
        if not isinstance(schedule, self.runs_on):
            raise ValueError(f"{self.name} runs on a {self.runs_on.__name__}, not on a {type(schedule).__name__}")
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise ValueError(f"steps={steps!r} has to be a whole number")
        start = first_step(steps, strength)
        return self.planner(schedule, steps, start, **dict(self.with_options(**options).options))

    def start(
        self,
        noise: Float[Array, "b ..."],
        schedule: Any,
        *,
        steps: int,
        image: Float[Array, "b ..."] | None = None,
        strength: float = 1.0,
        **options: Any,
    ) -> Float[Array, "b ..."]:
        """The sample that a run starts from: scaled standard normal `noise`, or `image` noised to where it starts.

        Image to image passes the same `strength` here and to the run: 1 is nearly all noise, 0.5 half the steps.
        Raises as `plan`, and ValueError for a strength below 1 without an image.
        """
        plan = self.plan(schedule, steps, strength, **options)
        if image is not None:
            return plan.noised(image, noise)
        if strength < 1:
            raise ValueError(f"strength={strength} starts from a picture; give image=, or leave strength at 1")
        return noise * plan.start_scale

    def __call__(
        self,
        model: Callable[[Array, Step], Array],
        x: Float[Array, "b ..."],
        schedule: Any,
        *,
        steps: int,
        strength: float = 1.0,
        key: Shaped[Array, "*k"] | None = None,
        noise: Float[Array, "n b ..."] | None = None,
        progress: Callable[[Any], None] | None = None,
        trajectory: bool = False,
        **options: Any,
    ) -> Any:
        """Run from `x` to the end; the final sample in x's shape, float32.

        Args:
          model: what predicts; `x` it gets is alpha x_0 + sigma eps, float32.
          x: the start, see `start`.
          schedule: what the model was trained on.
          steps: of a whole run; `strength` < 1 does only the last of them.
          key: for samplers that draw, one key or one per image. Others ignore it.
          noise: the draws themselves instead, one for each call of the model.
          progress: called on the host with the index of each finished call, at times out of order; works in jit.
          trajectory: return (final, samples before the first and after each call [n+1, b, ...]) instead.
          options: the sampler's own, see its plan.

        Raises ValueError in one line, before anything is computed, for arguments that make no run.
        """
        plan = self.plan(schedule, steps, strength, **options)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        draw = _source(self.name, plan, x, key, noise)
        body = _body(self, model, schedule, draw, progress, trajectory)
        start = (x, (jnp.zeros_like(x),) * self.memory)
        (final, _), samples = jax.lax.scan(body, start, plan.rows())
        return (final, jnp.concatenate([x[None], samples])) if trajectory else final


def first_step(steps: int, strength: float) -> int:
    """How many of `steps` steps a run of `strength` in (0, 1] leaves out. Raises ValueError if it leaves out all."""
    if not 0 < strength <= 1:
        raise ValueError(f"strength={strength} has to lie in (0, 1]; 1 starts from noise alone")
    done = int(steps * strength + 1e-6)
    if steps >= 1 and done == 0:
        raise ValueError(f"strength={strength} of steps={steps} is less than one step; raise one of them")
    return steps - done


def limit(schedule: Any, sample: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """A predicted picture within the range that the schedule asks for, if it does."""
    if schedule.thresholding:
        size = jnp.abs(sample).reshape(sample.shape[0], -1)
        bound = jnp.quantile(size, schedule.dynamic_thresholding_ratio, axis=1)
        bound = jnp.clip(bound, 1, schedule.sample_max_value).reshape(-1, *(1,) * (sample.ndim - 1))
        return jnp.clip(sample, -bound, bound) / bound
    if schedule.clip_sample:
        return jnp.clip(sample, -schedule.clip_sample_range, schedule.clip_sample_range)
    return sample


def _body(
    sampler: Sampler, model: Callable, schedule: Any, draw: Callable | None, progress: Callable | None, keep: bool
) -> Callable:
    """One call of the model and what follows from it, as a scan wants it."""

    def body(carry: tuple[Array, Past], row: Row):
        x, past = carry
        inputs = x * row["scale_in"]
        raw = model(inputs, Step(row["t"], row["index"], row["fraction"], row["until"])).astype(x.dtype)
        if raw.shape != x.shape:
            raise ValueError(f"the model answered {raw.shape} about {x.shape}; it has to keep the sample's shape")
        known: Estimate = estimate(schedule.prediction_type, raw, inputs, row["alpha"], row["sigma"])
        known = known._replace(sample=limit(schedule, known.sample))
        noise = None if draw is None else draw(row["index"]).astype(x.dtype)
        x, past = sampler.update(x, known, row, past, noise)
        if progress is not None:
            jax.debug.callback(progress, row["index"])
        return (x, past), x if keep else None

    return body


def _source(name: str, plan: Plan, x: Array, key: Array | None, noise: Array | None) -> Callable | None:
    """A function from a call's index to its noise, or None for a run without."""
    if noise is not None:
        shape = (len(plan.timesteps), *x.shape)
        if not plan.draws or key is not None:
            raise ValueError(f"{name}: noise= is for runs that draw, and instead of key=; leave one out")
        if noise.shape != shape:
            raise ValueError(f"{name}: noise has shape {noise.shape}, but the run's {shape[0]} calls need {shape}")
        return lambda index: noise[index]
    if not plan.draws:
        return None
    if key is None:
        raise ValueError(f"{name} draws noise at each step; give key=jax.random.key(seed), or one key per image")
    keys = image_keys(key, x.shape[0])
    return lambda index: step_noise(keys, index, x.shape[1:])
