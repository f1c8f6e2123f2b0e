"""What all samplers share: a plan of coefficients, made in float64 before tracing, and one scan over its rows.

A sampler is two functions to hold beside its paper:

    plan(schedule, steps, start, **options) -> Plan      which timesteps, and every coefficient
    update(x, known, row, past, noise) -> (x, past)      how one answer of the model moves the sample

`Sampler` joins them into `sampler(model, x, schedule, steps=...)`. The model is any traceable function
`model(x, step) -> prediction` with a `Step`; guidance, control and context are wrapped around it outside. Row i of the
plan is call i of the model: most samplers make one call a step, Heun two, PLMS one more than steps.

The loop is one `lax.scan` in which the model stands once: `jax.jit` around a sampler compiles once per shape, and no
longer for more steps. The sample is kept in float32 whatever the model computes in.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from plugins.diffusion.samplers.draws import image_keys, step_noise
from plugins.diffusion.samplers.plan import Past, Plan, Row, Step
from plugins.diffusion.samplers.predictions import Estimate, estimate
from plugins.diffusion.samplers.schedules import Schedule


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
          key: for samplers that draw, one key or one per image (`draws.py`). Others ignore it.
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
