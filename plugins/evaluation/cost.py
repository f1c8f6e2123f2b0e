"""Cost of a control method: parameters, arithmetic and time, each next to the base alone.

A run calls the model `calls` times, and each call has a row for both halves of guidance. A method adds to that

    once       before the first call: an image encoder; for Plug-and-Play inversion to noise and back
    call       in every call: a ControlNet, sums in the UNet, a third row for Plug-and-Play

so its run takes once + calls x call, where `call` is the work of the steered model (`steering.py`): base, control and
guidance together. Both are counted on shapes (`flops.py`). Text encoder, decoder and the sampler's own sums are left
out, as they are the same for all methods.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from common.nn.init import split
from plugins.control import contract, plug_and_play
from plugins.control.contract import ControlNetwork, StaticNetwork
from plugins.control.plug_and_play import Injection, PlugAndPlay, reconstruct
from plugins.diffusion.compiled import encode_image
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import Autoencoder
from plugins.diffusion.request import GUIDANCE
from plugins.diffusion.samplers import Step
from plugins.diffusion.samplers.discrete import ddim
from plugins.diffusion.steering import COND, SOURCE, UNCOND, Conditioning, StaticControl, steered
from plugins.evaluation.flops import Work, count


class Cost(NamedTuple):
    """The cost of one image."""

    parameters: int  # the method's own
    once: Work
    call: Work  # includes the base

    def run(self, calls: int) -> Work:
        return self.once.plus(self.call.times(calls))


class Setting(NamedTuple):
    """A request to a base: an image of `height` x `width` latents, `tokens` of text, with guidance or without."""

    unet: UNet  # the networks may be abstract (`common.nn.init.blank`)
    vae: Autoencoder | None  # None: latents are pixels
    height: int
    width: int
    tokens: int
    guided: bool
    sizes: int = 0  # numbers that SDXL's networks read beside the pooled text (`Base.sizes`)

    @property
    def latents(self) -> Any:
        return shape(1, self.height, self.width, self.unet.config.in_channels)

    @property
    def picture(self) -> Any:
        unit = 1 if self.vae is None else self.vae.config.reduction
        return shape(1, self.height * unit, self.width * unit, 3)

    @property
    def states(self) -> Conditioning:
        config = self.unet.config
        context = shape(1, self.tokens, config.cross_attention_dim)
        if not self.sizes:
            return Conditioning(context)
        pooled = config.projection_class_embeddings_input_dim or 0
        pooled -= self.sizes * (config.addition_time_embed_dim or 0)
        return Conditioning(context, shape(1, pooled), shape(1, self.sizes))

    def branches(self, prompt_only: bool) -> tuple[str, ...]:
        """The rows of a call that a control acts on."""
        return (UNCOND, COND) if self.guided and not prompt_only else (COND,)


def base_cost(setting: Setting) -> Cost:
    return Cost(0, Work(), _call_work(setting))


def network_cost(setting: Setting, network: ControlNetwork) -> Cost:
    """The cost with a ControlNet, a T2I-Adapter or a plugin."""
    graph, params = split(network)
    once = count(functools.partial(contract.encode, graph), params, setting.picture)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Cost(parameters, once, _call_work(setting, *network_parts(setting, network)))


def plug_and_play_cost(setting: Setting, control: PlugAndPlay, schedule: Any, steps: int) -> Cost:
    """The cost with Plug-and-Play; `once` encodes its image, inverts it to noise, and takes `steps` back from there."""
    graph, params = split(setting.unet)
    encoder, weights = (None, {}) if setting.vae is None else split(setting.vae)
    settings = {"schedule": schedule, "sampler": ddim, "inversion": control.inversion, "steps": steps}
    path = functools.partial(reconstruct, graph, **settings)
    encoded = count(functools.partial(encode_image, encoder), weights, setting.picture)
    once = encoded.plus(count(path, params, setting.latents, setting.states))
    return Cost(0, once, _call_work(setting, *plug_and_play_parts(setting, control, steps)))


def network_parts(setting: Setting, network: ControlNetwork) -> tuple[StaticControl, contract.Arrays]:
    """The static part of a steered call, and its arrays: the network's own parameters, else shapes."""
    graph, params = split(network)
    encoded = jax.eval_shape(functools.partial(contract.encode, graph), params, setting.picture)
    static = StaticNetwork(graph, setting.branches(network.prompt_only), True)
    return static, contract.Arrays(params, encoded, shape(network.num_outputs), shape(), shape())


def plug_and_play_parts(
    setting: Setting, control: PlugAndPlay, steps: int
) -> tuple[StaticControl, plug_and_play.Arrays]:
    """As `network_parts`, for Plug-and-Play; all of its arrays are shapes."""
    layers = control.injection_layers(setting.unet.config)
    static = Injection(tuple(layer.names for layer in layers), setting.branches(control.prompt_only))
    trajectory = shape(steps + 1, *setting.latents.shape)
    return static, plug_and_play.Arrays(trajectory, shape(len(layers)), shape(len(layers)), shape(2))


def one_call(
    graph: Any,
    params: Any,
    x: Float[Array, "b h w c"],
    branches: Mapping[str, Conditioning],
    control_arrays: tuple[Any, ...] = (),
    *,
    static_controls: tuple[StaticControl, ...] = (),
) -> Float[Array, "b h w c"]:
    """One call of the model of a run, in the type of `x`: counted here, timed by a benchmark."""
    controls = list(zip(static_controls, control_arrays, strict=True))
    network: UNet = nnx.merge(graph, params)
    scale = jnp.float32(GUIDANCE)
    unet = network if network.config.time_cond_proj_dim is None else functools.partial(network, guidance=scale)
    model = steered(unet, x.dtype, branches, scale, 0.0, controls)
    return model(x, Step(jnp.float32(500), jnp.int32(0), jnp.float32(0), jnp.float32(0.02)))


def interleaved(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in `rounds` turns, so that a machine that slows down does so for all of them; a first call of
    each, for compilation, is not counted."""
    for run in runs.values():
        jax.block_until_ready(run())
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def overhead(value: int | float, base: int | float) -> float:
    """How far `value` exceeds the base, in percent."""
    return 100 * (value / base - 1)


def shape(*sides: int) -> Any:
    """An abstract float32 array."""
    return jax.ShapeDtypeStruct(sides, jnp.float32)


def _call_work(setting: Setting, static: StaticControl | None = None, arrays: Any = None) -> Work:
    graph, params = split(setting.unet)
    branches = dict.fromkeys((SOURCE, UNCOND, COND) if setting.guided else (SOURCE, COND), setting.states)
    call = functools.partial(one_call, graph, static_controls=() if static is None else (static,))
    return count(call, params, setting.latents, branches, () if static is None else (arrays,))
