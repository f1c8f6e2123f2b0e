"""Plug-and-Play: keep an image's layout by injecting its features into the run of another prompt (2211.12572).

(Tumanyan et al., "Plug-and-Play Diffusion Features for Text-Driven Image-to-Image Translation".) Nothing is trained:

1. *Inversion* (DDIM backwards, empty prompt): the noise from which the base generates this very image.
2. *Reconstruction* from that noise, which gives the image's latents at each step of the coming run.
3. *Generation* from the same noise with the new prompt. In each call the image's latents are a row of their own, the
   source, whose values on the UNet's way up replace those of the other rows: a residual block's last convolution in the
   first 80 % of the steps (the layout), queries and keys of self-attention in the first 50 % (which regions belong
   together).

The release takes the fifth of twelve residual blocks on the way up, and attention from there on; in other networks it
is the block a third of the way up. What the block adds to its input is replaced (`conv2`); each row keeps its own
input, which the block's shortcut passes on.

    image = pipeline("a silver horse", controls=[PlugAndPlay(photo)], sampler="ddim")

Cost: one row more in every call (half as much again with guidance), and once per image `inversion` + steps calls. It
needs DDIM, whose inversion is known. All seeds give the same image, because the noise is the source image's.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from common.checked import Checked, Positive, Share
from plugins.control.contract import check_condition, check_settings
from plugins.diffusion.compiled import in_tiles, report_call, reporting
from plugins.diffusion.networks.unet_config import UP_TYPES, UNetConfig
from plugins.diffusion.request import check_images
from plugins.diffusion.samplers import Sampler, Step
from plugins.diffusion.samplers.discrete import ddim, ddim_inversion
from plugins.diffusion.steering import COND, IMAGE, UNCOND, Conditioning, Effect, Rows, steered

INVERSION = 200  # steps; the release takes 999, the error of the round trip falls as one over their number


class InjectionLayer(NamedTuple):
    names: tuple[str, ...]  # of the values that are replaced, as a tap sees them
    until: float  # share of the run in which they are


@dataclasses.dataclass(frozen=True, eq=False)
class PlugAndPlay(Checked):
    """A source image whose layout the output keeps. Raises ValueError for settings out of range."""

    picture: Any  # the source, `h w 3` for all outputs or `b h w 3`, one each, in [0, 1]
    features: Share = 0.8  # share of the run in which the residual block's convolution is replaced
    attention: Share = 0.5  # share of the run in which queries and keys are replaced
    inversion: Positive = INVERSION  # steps from the image to its noise, up to 999 in Stable Diffusion
    strength: int | float = 1.0  # 1 replaces values, 0 keeps them, in between they are mixed
    levels: Sequence[int | float] | None = None  # factors on `strength`, one for each of `injection_layers`
    steps: Sequence[int | float] = (0.0, 1.0)  # the interval of the run in which it is applied at all
    prompt_only: bool = False  # applied to the conditional half of guidance only
    _cache: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    has_source: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "picture", check_images(self.picture))
        check_settings(self.strength, self.levels or (), self.steps, len(self.levels or ()))

    def injection_layers(self, unet: UNetConfig) -> list[InjectionLayer]:
        """The layers of that UNet: the residual block first, then each self-attention."""
        blocks = [(level, i) for level in range(unet.levels) for i in range(unet.layers_per_block + 1)]
        blocks = blocks[len(blocks) // 3 :]
        level, i = blocks[0]
        layers = [InjectionLayer((f"up_blocks.{level}.resnets.{i}.conv2",), self.features)]
        for level, i in blocks:
            if unet.up_block_types[level] == UP_TYPES[0]:
                for depth in range(unet.depths[::-1][level]):
                    attention = f"up_blocks.{level}.attentions.{i}.transformer_blocks.{depth}.attn1"
                    layers.append(InjectionLayer((f"{attention}.to_q", f"{attention}.to_k"), self.attention))
        return layers

    def check(self, base: Any, request: Any) -> None:
        """Raises ValueError unless it fits the base and the request."""
        check_condition(self.picture, request)
        if base.unet.in_channels != base.unet.out_channels or base.distilled:
            raise ValueError(f"Plug-and-Play needs a base that makes images of text, not {base.task}; use another")
        count = len(self.injection_layers(base.unet))
        if self.levels is not None and len(self.levels) != count:
            raise ValueError(f"levels has {len(self.levels)} factors; Plug-and-Play has {count} layers in this base")
        if request.sampler.name != ddim.name or dict(request.sampler.options).get("eta", 0):
            raise ValueError(f"Plug-and-Play needs DDIM with eta 0, not {request.sampler.name}; use the sampler ddim")
        if request.image is not None:
            raise ValueError("Plug-and-Play starts from its source image's noise; give no initial image")
        ddim_inversion.plan(base.schedule, self.inversion)  # raises for a schedule without an inversion

    def prepare(self, run: Any, indices: np.ndarray) -> "tuple[Injection, Arrays]":
        """For these images of a run: the static and the array arguments of its compiled function."""
        layers = self.injection_layers(run.pipeline.base.unet)
        branches = (COND,) if self.prompt_only or not run.request.guided else (UNCOND, IMAGE, COND)
        gains = [self.strength * level for level in self.levels or (1.0,) * len(layers)]
        settings = (gains, [layer.until for layer in layers], self.steps)
        arrays = Arrays(self._trajectory(run, indices), *(jnp.asarray(values, jnp.float32) for values in settings))
        return Injection(tuple(layer.names for layer in layers), branches), arrays

    def initial_latents(self, run: Any, indices: np.ndarray) -> Float[Array, "b h w c"]:
        """The noise of the source image."""
        noise = self._trajectory(run, indices)[0]
        return jnp.broadcast_to(noise, (len(indices), *noise.shape[1:]))

    def calls_before(self, run: Any, batches: Sequence[np.ndarray]) -> list[int]:
        """Calls of the UNet that `prepare` makes for each of these batches, if its trajectory is not cached."""
        keys = [self._key(run, indices) for indices in batches]
        new = [key not in self._cache and key not in keys[:i] for i, key in enumerate(keys)]
        return [each * (self.inversion + run.request.steps) for each in new]

    def _key(self, run: Any, indices: np.ndarray) -> tuple:
        """What a trajectory is cached by, as long as the networks are the same."""
        indices = np.zeros(1, int) if len(self.picture) == 1 else indices
        networks, cached, request = list(run.params.values()), self._cache.get("networks", []), run.request
        if len(networks) != len(cached) or any(a is not b for a, b in zip(networks, cached, strict=True)):
            self._cache.clear()
            self._cache["networks"] = networks
        read = (request.clip_skip, request.original, request.crop)  # with the empty prompt
        return (run.pipeline.schedule, request.sampler, request.steps, request.tile, *read, tuple(map(int, indices)))

    def _trajectory(self, run: Any, indices: np.ndarray) -> Float[Array, "steps b h w c"]:
        """The source's latents before each step and after the last; cached."""
        key, request = self._key(run, indices), run.request
        if key not in self._cache:
            compiled, unit = run.pipeline.compiled, run.pipeline.base.unit
            encode = functools.partial(compiled.encode_image, run.params["vae"])
            size = (request.height // unit, request.width // unit)
            latents = jnp.asarray(in_tiles(encode, self.picture[list(key[-1])], run.layout, unit, size))
            latents = latents if len(self.picture) == 1 else run.shared(latents)
            unet = compiled.graphs["unet"], run.params["unet"]
            settings = {"schedule": run.pipeline.schedule, "sampler": request.sampler, "steps": request.steps}
            first = self.inversion + request.steps  # the sampler's calls follow
            report = None if run.report is None else lambda index: run.report(index - first)
            with reporting(report, None) as callbacks:
                settings |= {name: callbacks[name] for name in ("number", "progress")}
                conditioning = run.conditioning([""])
                self._cache[key] = reconstruct(*unet, latents, conditioning, inversion=self.inversion, **settings)
        return self._cache[key]


class Arrays(NamedTuple):
    """What may change without a new compilation."""

    trajectory: Float[Array, "steps b h w c"]
    gains: Float[Array, " layers"]
    until: Float[Array, " layers"]
    interval: Float[Array, " 2"]


class Injection(NamedTuple):
    """Plug-and-Play's effect on a call of the UNet (`steering.StaticControl`)."""

    names: tuple[tuple[str, ...], ...]  # of each layer
    branches: tuple[str, ...]  # the rows that it is applied to

    def source(self, arrays: Arrays, step: Step) -> Float[Array, "b h w c"]:
        return arrays.trajectory[step.index]

    def effect(self, arrays: Arrays, rows: Rows) -> Effect:
        active = rows.step.within(arrays.interval[0], arrays.interval[1])
        gains = {}
        for i, names in enumerate(self.names):
            gain = jnp.where(active & rows.step.within(0.0, arrays.until[i]), arrays.gains[i], 0)
            gains |= dict.fromkeys(names, gain)
        targets = np.array([branch in self.branches for branch in rows.branches])

        def tap(name: str, value: Array) -> Array:
            return inject(value, gains[name], targets) if name in gains else value

        return Effect(self.branches, tap=tap)


def inject(value: Float[Array, "rows ..."], gain: Float[Array, ""], targets: np.ndarray) -> Float[Array, "rows ..."]:
    """Mix the first row of each image, its source, into the `targets` among its rows."""
    grouped = value.reshape(-1, len(targets), *value.shape[1:])
    share = (gain * targets).astype(value.dtype).reshape(1, -1, *(1,) * (value.ndim - 1))
    return (share * grouped[:, :1] + (1 - share) * grouped).reshape(value.shape)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("schedule", "sampler", "inversion", "steps", "progress"))
def reconstruct(
    graph: Any,
    params: Any,
    latents: Float[Array, "b h w c"],
    empty: Conditioning,
    *,
    schedule: Any,
    sampler: Sampler,
    inversion: int,
    steps: int,
    number: Int[Array, ""] | int = 0,
    progress: bool = False,
) -> Float[Array, "steps b h w c"]:
    """Latents to their noise in `inversion` steps and back in `steps` of `sampler`, with the `empty` prompt: the
    samples before each step and after the last. `progress`: the run of this `number` (`reporting`) hears of each
    call."""

    def observe(start: int, index: Int[Array, ""], x0: Any) -> None:
        if progress:
            jax.debug.callback(report_call, number, start + index)

    dtype = jax.tree.leaves(params)[0].dtype
    rows = jax.tree.map(lambda array: jnp.broadcast_to(array, (len(latents), *array.shape[1:])), empty)
    model = steered(nnx.merge(graph, params), dtype, {COND: rows}, jnp.float32(1))
    noise = ddim_inversion(model, latents, schedule, steps=inversion, observe=functools.partial(observe, 0))
    back = functools.partial(observe, inversion)
    _, samples = sampler(model, noise, schedule, steps=steps, observe=back, trajectory=True)
    return samples
