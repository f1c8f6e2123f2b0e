"""The contract of all controls: what a network that steers a diffusion model is, and how it is put to use.

A control network looks at a *condition picture* (edges, a face mesh, depth) and adds something inside the UNet:

    network = control.load("canny-plugin")                       # or MediaPipePlugin.for_unet(unet.config, rngs=...)
    images = pipeline("a red apple", controls=[network.on(edges, strength=0.8)])
    images = pipeline("a red apple", controls=[network.on(edges), other.on(depth, steps=(0, 0.5))])   # both, added

Its work is in two halves:

    encode(picture) -> encoded           once per picture: a MediaPipe plugin or T2I-Adapter does all its work here
    act(encoded, x, t, context) -> Added in each call of the UNet: a ControlNet runs here

so that inside the sampling loop everything that does not change is a constant, computed once for both halves of
guidance, all steps, and with the same `Control` for all prompts and seeds too.

What every control understands:

- `strength`: a factor on everything it adds; 0 is as if it were not there, 1 as it was trained.
- `levels`: a factor for each tensor it adds, finest first (`network.places` of them).
- `steps`: the part of the run in which it acts, (0, 1) for all of it.
- `prompt_only`: it acts on the half with the prompt and not on the one without, "guess mode".

The base network may be any of the same shape, with LoRAs merged into it or not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.request import check_images
from plugins.diffusion.samplers import Step
from plugins.diffusion.steering import WITH, WITHOUT, Effect, Rows

GUESSES = ("diffusers", "original")


class Added(NamedTuple):
    """What a control network adds to a call of the UNet, one row each (or one for all)."""

    level_features: tuple[Float[Array, "b h w c"], ...] = ()
    skip_residuals: tuple[Float[Array, "b h w c"], ...] = ()
    mid_residual: Float[Array, "b h w c"] | None = None

    def tensors(self) -> list[Array]:
        """All of them, finest first, the middle last."""
        return [*self.level_features, *self.skip_residuals, *([] if self.mid_residual is None else [self.mid_residual])]

    def times(self, gains: Float[Array, " n"]) -> Added:
        """Each tensor times its factor."""
        leaves, shape = jax.tree.flatten(self)
        return jax.tree.unflatten(shape, [leaf * gains[i].astype(leaf.dtype) for i, leaf in enumerate(leaves)])


class ControlNetwork(nnx.Module):
    """Base class of the networks. `config` says their shape; it is written beside their weights."""

    config: Any
    every_step: ClassVar[bool] = False  # whether `act` computes, or only hands on what `encode` found

    @property
    def places(self) -> int:
        """How many tensors it adds."""
        raise NotImplementedError

    @property
    def prompt_only(self) -> bool:
        """Whether it is meant for the half of guidance with the prompt alone; `on` can say otherwise."""
        return False

    def check(self, unet: UNetConfig, unit: int) -> None:
        """Raises ValueError in one line unless it fits that UNet, with `unit` pixels per latent pixel and side."""
        raise NotImplementedError

    def encode(self, picture: Float[Array, "b h w 3"]) -> Any:
        """The condition picture, in [0, 1] and of the image's size, as `act` wants it: arrays with b rows."""
        raise NotImplementedError

    def act(
        self, encoded: Any, x: Float[Array, "b h w c"], t: Array, context: Float[Array, "b n d"], remat: bool = False
    ) -> Added:
        """What it adds for these noisy latents; without `every_step` the latents are not looked at.

        remat: a gradient keeps only what enters each block that computes here, and computes the rest again."""
        raise NotImplementedError

    def on(
        self,
        picture: Any,
        *,
        strength: int | float = 1.0,
        levels: Sequence[int | float] | None = None,
        steps: Sequence[int | float] = (0.0, 1.0),
        prompt_only: bool | None = None,
    ) -> Control:
        """This network, looking at a picture: `h w 3` for all images or `b h w 3`, one each, in [0, 1].

        Raises ValueError in one line for settings that make no sense."""
        factors = (1.0,) * self.places if levels is None else tuple(map(float, levels))
        half = self.prompt_only if prompt_only is None else prompt_only
        return Control(self, check_images(picture), float(strength), factors, tuple(map(float, steps)), half)


@dataclasses.dataclass(frozen=True, eq=False)
class Control:
    """A control network with its picture and settings; made by `network.on(...)`."""

    network: ControlNetwork
    picture: Float[np.ndarray, "b h w 3"]
    strength: float
    levels: tuple[float, ...]
    steps: tuple[float, ...]
    prompt_only: bool
    _known: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    brings_source: ClassVar[bool] = False

    def __post_init__(self):
        check_settings(self.strength, self.levels, self.steps, self.network.places)

    def check(self, base: Any, request: Any) -> None:
        """Raises ValueError in one line unless it fits the base and the request."""
        self.network.check(base.unet, base.unit)
        check_picture(self.picture, request)

    def prepare(self, run: Any, rows: np.ndarray) -> tuple[NetworkActs, Arrays]:
        """For these images of a run: what becomes part of its program, and the arrays that the program gets."""
        kinds = (WITH,) if self.prompt_only or not run.request.guided else (WITHOUT, WITH)
        graph, params = run.placed(self.network)
        acts = NetworkActs(graph, kinds, self.steps == (0.0, 1.0))
        gains = jnp.asarray([self.strength * level for level in self.levels], jnp.float32)
        start, end = (jnp.float32(part) for part in self.steps)
        return acts, Arrays(params, self._encoded(graph, params, run, rows), gains, start, end)

    def _encoded(self, graph: Any, params: Any, run: Any, rows: np.ndarray) -> Any:
        """What the network makes of the picture; kept, if there is one for all images."""
        one = len(self.picture) == 1
        if one and self._known.get("params") is params:  # the same tree as long as nothing of it has changed
            return self._known["encoded"]
        picture = jnp.asarray(self.picture if one else self.picture[rows], jax.tree.leaves(params)[0].dtype)
        encoded = encode(graph, params, picture if one else run.shared(picture))
        if one:
            self._known.update(params=params, encoded=encoded)
        return encoded


class Arrays(NamedTuple):
    """What may change without a new program."""

    params: Any
    encoded: Any
    gains: Float[Array, " places"]
    start: Float[Array, ""]
    end: Float[Array, ""]


class NetworkActs(NamedTuple):
    """How a control network acts in each call (`steering.Acts`)."""

    graph: Any
    kinds: tuple[str, ...]
    always: bool

    def source(self, arrays: Arrays, step: Step) -> None:
        return None

    def effect(self, arrays: Arrays, rows: Rows) -> Effect:
        network: ControlNetwork = nnx.merge(self.graph, arrays.params)
        chosen = rows.chosen(self.kinds)
        active = chosen.step.within(arrays.start, arrays.end)
        if network.every_step:
            added = self._computed(network, arrays.encoded, chosen, active)
        else:
            added = network.act(arrays.encoded, rows.x[:, 0], rows.step.t, rows.context[:, 0])
            added = jax.tree.map(lambda tensor: tensor[:, None], added)
        added = added.times(arrays.gains if self.always else jnp.where(active, arrays.gains, 0))
        return Effect(self.kinds, added.level_features, added.skip_residuals, added.mid_residual)

    def _computed(self, network: ControlNetwork, encoded: Any, rows: Rows, active: Array) -> Added:
        """From the latents of this call, if it acts in this call at all; b k h w c."""
        b, k = rows.x.shape[:2]

        def run() -> Added:
            x, context = (part.reshape(b * k, *part.shape[2:]) for part in (rows.x, rows.context))
            pictures = jax.tree.map(lambda e: e if len(e) == 1 else jnp.repeat(e, k, axis=0), encoded)
            added = network.act(pictures, x, rows.step.t, context)
            return jax.tree.map(lambda tensor: tensor.reshape(b, k, *tensor.shape[1:]), added)

        if self.always:
            return run()
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(run))
        return lax.cond(active, run, lambda: nothing)


def guess_levels(places: int, kind: str = "diffusers") -> tuple[float, ...]:
    """Factors for a ControlNet that has to guess without a prompt: fine levels count less; to go with `prompt_only`.

    diffusers: from 0.1 to 1 in equal ratios; original: 0.825 to the power of the distance from the middle. Raises
    ValueError for another name."""
    if kind not in GUESSES:
        raise ValueError(f"guess mode {kind!r} is not known; choose {' or '.join(GUESSES)}")
    if kind == "original":
        return tuple(0.825 ** (places - 1 - i) for i in range(places))
    return tuple(map(float, np.logspace(-1, 0, places)))


def check_settings(
    strength: int | float, levels: Sequence[int | float], steps: Sequence[int | float], places: int
) -> None:
    """Raises ValueError in one line."""
    if not (math.isfinite(strength) and all(map(math.isfinite, levels))):
        raise ValueError(f"strength={strength}, levels={tuple(levels)}: these are numbers; 1 is as it was trained")
    if len(levels) != places:
        raise ValueError(f"levels has {len(levels)} factors; this control adds {places} tensors, give one for each")
    if len(steps) != 2 or not 0 <= steps[0] < steps[1] <= 1:
        raise ValueError(f"steps={tuple(steps)} has to be a part of the run: (0, 1) is all, (0, 0.5) its first half")


def check_picture(picture: Float[np.ndarray, "b h w 3"], request: Any) -> None:
    """Raises ValueError in one line unless the condition is of the image's size, and one for all or one each."""
    count, height, width, _ = picture.shape
    if (height, width) != (request.height, request.width):
        asked = f"{request.width}x{request.height}"
        raise ValueError(f"condition is {width}x{height}, the image {asked}; resize one of them")
    if count not in (1, len(request.seeds)):
        raise ValueError(f"{count} conditions for {len(request.seeds)} images; give one for all, or one for each")


def _encode(graph: Any, params: Any, picture: Float[Array, "b h w 3"]) -> Any:
    return nnx.merge(graph, params).encode(picture)


encode = jax.jit(_encode, static_argnums=0)
