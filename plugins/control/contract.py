"""The contract of all control networks: what a network computes, and how a pipeline applies it.

A control network reads a *condition image* (edges, a face mesh, depth) and adds tensors inside the UNet, in two stages:

    encode(image) -> encoded                           once per image: all of a MediaPipe plugin or a T2I-Adapter
    network(encoded, x, t, context) -> ControlOutput   in each call of the UNet: a ControlNet's copy of the encoder

`encoded` is a constant of the sampling loop, computed once for both halves of guidance and all steps, and with the same
`Control` for all prompts and seeds. The base may have LoRAs merged into it or not. Settings of every control:

    images = pipeline("a red apple", controls=[network.on(edges), other.on(depth, steps=(0, 0.5))])   # both are added

- `strength`: conditioning scale, a factor on all outputs, of magnitude 10 at most; 0 disables the control, 1 is the
  trained strength.
- `levels`: a further factor for each output, finest first (`network.num_outputs` of them).
- `steps`: the interval of the run in which the control is applied; (0, 1) is the whole run.
- `prompt_only`: guess mode, the control is applied to the conditional half of guidance only.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from plugins.diffusion.networks.layers import Conv
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.request import check_images
from plugins.diffusion.samplers import Step
from plugins.diffusion.steering import COND, IMAGE, UNCOND, Effect, Rows

STRONGEST = 10  # a larger factor is taken for a typing error


class ControlOutput(NamedTuple):
    """What a network adds to a call of the UNet, named as the UNet's arguments; a row each, or one for all."""

    level_features: tuple[Float[Array, "b h w c"], ...] = ()
    skip_residuals: tuple[Float[Array, "b h w c"], ...] = ()
    mid_residual: Float[Array, "b h w c"] | None = None

    def scaled(self, gains: Float[Array, " n"]) -> "ControlOutput":
        """Each tensor times its factor: finest first, the middle last."""
        leaves, structure = jax.tree.flatten(self)
        return jax.tree.unflatten(structure, [leaf * gains[i].astype(leaf.dtype) for i, leaf in enumerate(leaves)])


class ControlNetwork(nnx.Module):
    """Base class of the networks. A subclass sets the first four attributes in its constructor."""

    config: Any  # the architecture, of `config_class`; saved beside the weights
    num_outputs: int  # how many tensors the network adds
    reduction: int  # pixels of the condition image per latent pixel and side
    prompt_only: bool = False  # trained for the conditional half of guidance only; the default of `on`
    every_step: ClassVar[bool] = False  # a call computes; else it returns what `encode` has computed
    config_class: ClassVar[Any]

    @classmethod
    def for_unet(cls: Any, unet: UNetConfig, reduction: int = 8, *, rngs: nnx.Rngs) -> Any:
        """A new network for that UNet; arguments as `for_unet` of the config."""
        return cls(cls.config_class.for_unet(unet, reduction), rngs=rngs)

    def check(self, unet: UNetConfig, reduction: int) -> None:
        """Raises ValueError unless it fits that UNet, with `reduction` pixels per latent pixel and side."""
        raise NotImplementedError

    def encode(self, image: Float[Array, "b h w 3"]) -> Any:
        """The condition image, in [0, 1] and of the output's size, as arrays of b rows."""
        raise NotImplementedError

    def __call__(self, encoded: Any, x: Array, t: Array, context: Array, *options: Any, **added: Any) -> ControlOutput:
        """What it adds for these noisy latents, arguments as `ControlNet`'s; without `every_step` that is `encoded`."""
        return ControlOutput(level_features=encoded)

    def on(
        self,
        picture: Any,
        *,
        strength: int | float = 1.0,
        levels: Sequence[int | float] | None = None,
        steps: Sequence[int | float] = (0.0, 1.0),
        prompt_only: bool | None = None,
    ) -> "Control":
        """This network with a condition image in [0, 1], `h w 3` for all outputs or `b h w 3`, one each. Raises
        ValueError."""
        factors = (1.0,) * self.num_outputs if levels is None else tuple(map(float, levels))
        only = self.prompt_only if prompt_only is None else prompt_only
        return Control(self, check_images(picture), float(strength), factors, tuple(map(float, steps)), only)


@dataclasses.dataclass(frozen=True, eq=False)
class Control:
    """A control network with its condition image and settings; made by `network.on(...)`."""

    network: ControlNetwork
    picture: Float[np.ndarray, "b h w 3"]
    strength: float
    levels: tuple[float, ...]
    steps: tuple[float, ...]
    prompt_only: bool
    _cache: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    has_source: ClassVar[bool] = False

    def __post_init__(self):
        check_settings(self.strength, self.levels, self.steps, self.network.num_outputs)

    def check(self, base: Any, request: Any) -> None:
        """Raises ValueError unless it fits the base and the request."""
        self.network.check(base.unet, base.unit)
        check_condition(self.picture, request)

    def prepare(self, run: Any, indices: np.ndarray) -> "tuple[StaticNetwork, Arrays]":
        """For these images of a run: the static and the array arguments of its compiled function."""
        branches = (COND,) if self.prompt_only or not run.request.guided else (UNCOND, IMAGE, COND)
        graph, params = run.placed(self.network)
        encoded = encoded_for(run, self._cache, self.network, self.picture, indices)
        gains = jnp.asarray([self.strength * level for level in self.levels], jnp.float32)
        arrays = Arrays(params, encoded, gains, *map(jnp.float32, self.steps))
        return StaticNetwork(graph, branches, self.steps == (0.0, 1.0)), arrays


class Arrays(NamedTuple):
    """What may change without a new compilation."""

    params: Any
    encoded: Any
    gains: Float[Array, " outputs"]
    start: Float[Array, ""]
    end: Float[Array, ""]


class StaticNetwork(NamedTuple):
    """A control network's effect on a call of the UNet (`steering.StaticControl`)."""

    graph: Any
    branches: tuple[str, ...]  # the rows that it is applied to
    always: bool  # `steps` is the whole run

    def source(self, arrays: Arrays, step: Step) -> None:
        return None

    def effect(self, arrays: Arrays, rows: Rows) -> Effect:
        network: ControlNetwork = nnx.merge(self.graph, arrays.params)
        rows = rows.chosen(self.branches)
        active = rows.step.within(arrays.start, arrays.end)
        if network.every_step:
            output = self._computed(network, arrays.encoded, rows, active)
        else:
            output = ControlOutput(jax.tree.map(lambda feature: feature[:, None], arrays.encoded))
        output = output.scaled(arrays.gains if self.always else jnp.where(active, arrays.gains, 0))
        return Effect(self.branches, *output)

    def _computed(self, network: ControlNetwork, encoded: Any, rows: Rows, active: Array) -> ControlOutput:
        """The output for these latents, `b k h w c`; zeros without any computation outside of the interval."""
        b, k = rows.x.shape[:2]

        def call() -> ControlOutput:
            flat = jax.tree.map(lambda array: array.reshape(b * k, *array.shape[2:]), (rows.x, rows.conditioning))
            repeated = jax.tree.map(lambda e: e if len(e) == 1 else jnp.repeat(e, k, axis=0), encoded)
            output = network(repeated, flat[0], rows.step.t, flat[1].context, **flat[1].added)
            return jax.tree.map(lambda tensor: tensor.reshape(b, k, *tensor.shape[1:]), output)

        if self.always:
            return call()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(call))
        return lax.cond(active, call, lambda: zeros)


def guess_levels(count: int, mode: str = "diffusers") -> tuple[float, ...]:
    """`levels` of a ControlNet in guess mode, to go with `prompt_only`, where fine levels count less: from 0.1 to 1 in
    equal ratios ("diffusers"), or 0.825 to the power of the distance from the middle ("original")."""
    modes = {"diffusers": np.logspace(-1, 0, count), "original": 0.825 ** np.arange(count)[::-1]}
    return tuple(map(float, modes[mode]))


def zero_conv(inputs: int, outputs: int, size: int = 1, *, padding: int = 0, rngs: nnx.Rngs) -> Conv:
    """A zero convolution (2302.05543, section 3.1): all weights are 0, so a new network changes nothing."""
    conv = Conv(inputs, outputs, size, padding=padding, rngs=rngs)
    conv.kernel = nnx.Param(jnp.zeros_like(conv.kernel[...]))
    return conv


def check_fit(name: str, found: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Raises ValueError, which lists what differs, unless a network of that name has the base's values."""
    if differ := [f"{key} {found[key]} instead of {base[key]}" for key in found if found[key] != base[key]]:
        raise ValueError(f"this {name} does not fit the base: {'; '.join(differ)}; use one trained for this base")


def check_settings(
    strength: int | float, levels: Sequence[int | float], steps: Sequence[int | float], num_outputs: int
) -> None:
    """Raises ValueError for settings of a control that are out of range."""
    if not all(abs(factor) <= STRONGEST for factor in (strength, *levels)):  # False for NaN
        rule = f"factors lie in [-{STRONGEST}, {STRONGEST}]; 1 is the trained strength"
        raise ValueError(f"strength={strength}, levels={tuple(levels)}: {rule}")
    if len(levels) != num_outputs:
        raise ValueError(f"levels has {len(levels)} factors; this control has {num_outputs} outputs, give one for each")
    if len(steps) != 2 or not 0 <= steps[0] < steps[1] <= 1:
        raise ValueError(f"steps={tuple(steps)} is no interval of the run: (0, 1) is all, (0, 0.5) its first half")


def check_condition(image: Float[np.ndarray, "b h w 3"], request: Any) -> None:
    """Raises ValueError unless the condition image has the request's size, and is one for all outputs or one each."""
    _, height, width, _ = image.shape
    if (height, width) != (request.height, request.width):
        size = f"{request.width}x{request.height}"
        raise ValueError(f"the condition is {width}x{height}, the output {size}; resize one of them")
    check_count("conditions", image, request)


def check_count(name: str, images: np.ndarray, request: Any) -> None:
    if len(images) not in (1, len(request.seeds)):
        count = f"{len(images)} {name} for {len(request.seeds)} images"
        raise ValueError(f"{count}; give one for all, or one for each")


@functools.partial(jax.jit, static_argnums=0)
def encode(graph: Any, params: Any, image: Float[Array, "b h w 3"]) -> Any:
    """`encode` of a network, compiled."""
    return nnx.merge(graph, params).encode(image)


def encoded_for(run: Any, cache: dict[str, Any], network: Any, pictures: np.ndarray, indices: np.ndarray) -> Any:
    """What `network` encodes of these images' pictures in a run; of a single one for all it is cached, as long as the
    parameters are the same tree."""
    graph, params = run.placed(network)
    dtype = jax.tree.leaves(params)[0].dtype
    if len(pictures) > 1:
        return encode(graph, params, run.shared(jnp.asarray(pictures[indices], dtype)))
    if cache.get("params") is not params:
        cache.update(params=params, encoded=encode(graph, params, jnp.asarray(pictures, dtype)))
    return cache["encoded"]
