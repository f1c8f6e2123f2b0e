"""What a control adds to a run at Stable Diffusion 1.5's size: the article's overheads, measured and counted.

    python -m benchmarks.control                                  all methods; 5.2 GB of weights, and activations
    python -m benchmarks.control --size tiny                      small networks through the same code, as a check
    python -m benchmarks.control --kinds plugin t2i_adapter

Random weights, float32, 512x512 (64x64 latents), 77 tokens, guidance (two rows a call). Timed in turns after a warm-up,
medians of `--repeats`: the model's call alone (`call`) and with each method, what a method computes once (`once`: the
condition's encoding; of Plug-and-Play `inversion` + steps calls of one row, of which one is timed), and what in each
call beside the UNet (`added`: scaling and sums of features or residuals, a ControlNet's forward pass; none of
Plug-and-Play, which adds a third row). A run of 50 steps follows from them, and the overhead is over the base's:

    base                   steps x call
    by parts               once + steps x (call + added)
    by calls               once + steps x (call with it)       with the noise of whole calls

**A run counts by parts where `added` is less than the spread of the base's calls, else by calls**: a plugin's sums take
milliseconds, calls take seconds that vary by more. Parts are programs of their own, which XLA fuses into a call at a
lower cost. GFLOP, counted from shapes (`plugins/evaluation/cost.py`), are the overhead without noise.

The plugin and the T2I-Adapter add tensors of the same shapes, so they share the program of a call, and its time.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

from benchmarks.diffusion import TOKENS, unet_config
from benchmarks.measuring import heading, line
from common.nn.init import blank
from common.runtime import keep_freed_memory, return_compilers_memory
from plugins import control, diffusion
from plugins.control import contract
from plugins.control.plug_and_play import INVERSION
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.steering import COND, SOURCE, UNCOND
from plugins.evaluation import cost
from plugins.evaluation.cost import Cost, Setting

NETWORKS: dict[str, type[control.ControlNetwork]] = {
    "plugin": control.MediaPipePlugin,
    "t2i_adapter": control.T2IAdapter,
    "controlnet": control.ControlNet,
}
Kind = Literal["plugin", "t2i_adapter", "controlnet", "layout"]
BASE, FEATURES, LAYOUT = "base", "features", "layout"
UNIT = 8  # pixels per latent pixel and side
# Columns and the formats of their numbers.
COLUMNS = {"": "", "parameters": ",", "once s": ".3f", "added s": ".4f", "call s": ".3f", "run s": ",.1f"}
COLUMNS |= {"overhead %": "+.3f", "by parts %": "+.3f", "by calls %": "+.2f", "GFLOP": ",.1f", "of GFLOP %": "+.4f"}


@dataclass
class Options:
    size: Literal["sd15", "tiny"] = "sd15"  # Stable Diffusion 1.5's networks, or small ones with all their parts
    kinds: tuple[Kind, ...] = get_args(Kind)  # Methods to compare with the base; layout is Plug-and-Play
    steps: int = 50  # Steps of the run that the numbers are for
    repeats: int = 3  # Timed calls per number; the median counts
    inversion: int = INVERSION  # Steps of Plug-and-Play from an image to its noise


def prepare(options: Options) -> tuple[dict[str, Callable[[], Any]], dict[str, Cost]]:
    """Programs by name ("base", "features", "controlnet", "plugin once", ...), compiled at their first call; and each
    method's arithmetic."""
    small = options.size == "tiny"
    unet = random(diffusion.UNet, unet_config(small))
    config = diffusion.VAEConfig(block_out_channels=4 * (32,)) if small else diffusion.VAEConfig.sd()
    vae = nnx.merge(*blank(diffusion.AutoencoderKL, config))  # it is only counted
    setting = Setting(unet, vae, unet.config.sample_size, unet.config.sample_size, TOKENS, True)
    graph, params = cost.split(unet)
    x, negative, states, picture = filled([setting.latents, setting.states, setting.states, setting.picture])

    def call(static_controls: Any = (), control_arrays: Any = (), guided: bool = True) -> Callable[[], Any]:
        program = jax.jit(partial(cost.one_call, graph, static_controls=static_controls))
        branches = {SOURCE: states, COND: states} | ({UNCOND: negative} if guided else {})
        return partial(program, params, x, branches, control_arrays)

    runs, costs = {BASE: call()}, {BASE: cost.base_cost(setting)}
    for kind in options.kinds:
        if kind == LAYOUT:
            layout = control.PlugAndPlay(np.zeros(picture.shape, np.float32), inversion=options.inversion)
            static, arrays = cost.plug_and_play_parts(setting, layout, options.steps)
            runs |= {LAYOUT: call((static,), (filled(arrays),)), f"{LAYOUT} once": call(guided=False)}
            costs[kind] = cost.plug_and_play_cost(setting, layout, Schedule(), options.steps)
            continue
        cls = NETWORKS[kind]
        network = random(cls, cls.config_class.for_unet(unet.config, UNIT))
        encoder, weights = cost.split(network)
        static, arrays = cost.network_parts(setting, network)
        arrays = filled(arrays)
        runs[f"{kind} once"] = partial(contract.encode, encoder, weights, picture)
        runs[f"{kind} added"] = addition(
            encoder, arrays, jnp.repeat(x, 2, 0), jnp.concatenate([negative.context, states.context])
        )
        runs.setdefault(program_name(kind), call((static,), (arrays,)))
        costs[kind] = cost.network_cost(setting, network)
    return runs, costs


def addition(graph: Any, arrays: contract.Arrays, x: Any, context: Any) -> Callable[[], Any]:
    """What a network computes in a call beside the UNet: its outputs, scaled and added to maps of both rows."""

    def tensors(arrays: contract.Arrays, x: Any, context: Any) -> list[Any]:
        output = nnx.merge(graph, arrays.params)(arrays.encoded, x, jnp.float32(500), context)
        return jax.tree.leaves(output.scaled(arrays.gains))

    shapes = jax.eval_shape(tensors, arrays, x, context)
    maps = filled([cost.shape(len(x), *tensor.shape[1:]) for tensor in shapes])
    program = jax.jit(lambda maps, *rest: [m + tensor for m, tensor in zip(maps, tensors(*rest), strict=True)])
    return partial(program, maps, arrays, x, context)


def random(network: Any, config: Any) -> Any:
    """A network with small random weights, which takes less time than its own initial values."""
    graph, params = blank(network, config)
    return nnx.merge(graph, filled(params, 0.02))


def filled(tree: Any, scale: float = 1.0) -> Any:
    """The tree with random numbers for its abstract leaves."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return leaf
        return jax.device_put(np.float32(scale) * rng.standard_normal(leaf.shape, np.float32))

    return jax.tree.map(draw, tree)


def program_name(kind: str) -> str:
    """Of a call with that method: the two that add features of the same shapes share one."""
    return FEATURES if kind in ("plugin", "t2i_adapter") else kind


def row(kind: str, seconds: dict[str, list[float]], costs: dict[str, Cost], options: Options) -> dict[str, Any]:
    steps, median = options.steps, {name: statistics.median(several) for name, several in seconds.items()}
    base, work = steps * median[BASE], {name: costs[name].run(steps).total for name in (BASE, kind)}
    once, own = median[f"{kind} once"], median[program_name(kind)]
    once *= options.inversion + steps if kind == LAYOUT else 1
    found = {"": kind, "parameters": costs[kind].parameters, "once s": once, "call s": own, "GFLOP": work[kind] / 1e9}
    run = whole = once + steps * own
    if kind != LAYOUT:
        added = median[f"{kind} added"]
        parts = once + base + steps * added
        run = parts if added < spread(seconds[BASE]) else whole
        found |= {"added s": added, "by parts %": cost.overhead(parts, base)}
    found |= {"run s": run, "overhead %": cost.overhead(run, base), "by calls %": cost.overhead(whole, base)}
    return found | {"of GFLOP %": cost.overhead(work[kind], work[BASE])}


def spread(several: Sequence[float]) -> float:
    return max(several) - min(several)


def main(options: Options) -> None:
    keep_freed_memory()
    return_compilers_memory()
    runs, costs = prepare(options)
    seconds = cost.interleaved(runs, options.repeats)
    cores, device = os.cpu_count(), jax.devices()[0].device_kind
    heading(f"control: {options.size}, {options.steps} steps with guidance, {device}, {cores} cores", COLUMNS)
    call = statistics.median(seconds[BASE])
    gflop = costs[BASE].run(options.steps).total / 1e9
    line(COLUMNS, {"": BASE, "call s": call, "run s": options.steps * call, "GFLOP": gflop})
    for kind in options.kinds:
        line(COLUMNS, row(kind, seconds, costs, options))
    print(f"\nthe base's calls spread over {spread(seconds[BASE]):.3f} s; medians of {options.repeats}\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
