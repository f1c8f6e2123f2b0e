"""The compiled functions of a pipeline: text -> states, image -> latents, noise -> latents, latents -> image.

Each is a plain function of parameters and arrays under `jax.jit`, compiled once for each shape; `CompiledFunctions` keeps them
with the networks' graphs and with the parameters in the type and on the devices that were last asked for.

Guidance asks the UNet twice about every sample, without and with the prompt, in one call on twice the rows. A picture's
rows lie next to each other (without, with, without, with, ...), so that they stay together on one device when the batch
is split over several (`steering.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key

from common.weights.porting import is_float
from plugins.diffusion.io.porting import dtype_name, network_dtype
from plugins.diffusion.networks.text_encoder import TextEncoder
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import AutoencoderKL
from plugins.diffusion.samplers import Sampler, starting_noise
from plugins.diffusion.steering import Acts, steered

Tree = Mapping[Any, Any]
CONTROLS = 8  # networks whose parameters are kept as the last runs needed them
Heard = Callable[[Any], None]  # what a run calls with the index of each finished call of the UNet


def encode_text(graph: Any, params: Tree, tokens: Int[Array, "b n"], *, skip: int) -> Float[Array, "b n d"]:
    """The states that the UNet reads."""
    return nnx.merge(graph, params)(tokens, skip=skip).last


def encode_image(graph: Any, params: Tree, image: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
    """Pictures in [0, 1] to scaled latents: the encoder's mode, so that nothing is drawn. No graph: pixels."""
    pixels = 2 * image - 1
    if graph is None:
        return pixels
    vae: AutoencoderKL = nnx.merge(graph, params)
    return vae.to_latents(vae.encode(pixels.astype(_dtype(params))).mode.astype(jnp.float32))


def decode(graph: Any, params: Tree, latents: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 3"]:
    """Scaled latents to pictures in [0, 1], clipped. No graph: pixels."""
    if graph is not None:
        vae: AutoencoderKL = nnx.merge(graph, params)
        latents = vae.decode(vae.from_latents(latents).astype(_dtype(params))).astype(jnp.float32)
    return jnp.clip((latents + 1) / 2, 0, 1)


def denoise(
    graph: Any,
    params: Tree,
    keys: Key[Array, " b"],
    states: Float[Array, "b n d"],
    negative: Float[Array, "b n d"] | None,
    image: Float[Array, "b h w c"] | None,
    scale: Float[Array, ""],
    steering: Sequence[Any] = (),
    empty: Float[Array, "1 n d"] | None = None,
    begin: Float[Array, "b h w c"] | None = None,
    *,
    sampler: Sampler,
    schedule: Any,
    steps: int,
    strength: float,
    rescale: float,
    shape: tuple[int, int, int],
    progress: Heard | None,
    acts: tuple[Acts, ...] = (),
) -> Float[Array, "b h w c"]:
    """A whole run, from each picture's key (and latents of `image`) to its latents; float32.

    `acts` with `steering` are the controls (`steering.py`), `empty` what their sources read, `begin` a sample to start
    from in place of noise.
    """
    if begin is None:
        noise = starting_noise(keys, (len(keys), *shape))
        begin = sampler.start(noise, schedule, steps=steps, image=image, strength=strength)
    controls = list(zip(acts, steering, strict=True))
    model = steered(nnx.merge(graph, params), _dtype(params), states, negative, scale, rescale, controls, empty)
    return sampler(model, begin, schedule, steps=steps, strength=strength, key=keys, progress=progress)


class CompiledFunctions:
    """The four functions for one pipeline's networks, jitted."""

    def __init__(self, unet: UNet, vae: AutoencoderKL | None, text_encoder: TextEncoder):
        self._own: dict[str, Tree] = {}
        self.graphs = graphs = {}
        for name, network in (("unet", unet), ("vae", vae), ("text_encoder", text_encoder)):
            graphs[name], self._own[name] = (None, {}) if network is None else _split(network)
        self._listener: Heard | None = None
        self._placed: tuple[Any, dict[str, Tree]] | None = None
        self._controls: dict[tuple, tuple[Tree, Tree]] = {}
        self.encode_text = _jitted(encode_text, graphs["text_encoder"], "skip")
        self.encode_image = _jitted(encode_image, graphs["vae"])
        self.decode = _jitted(decode, graphs["vae"])
        static = ("sampler", "schedule", "steps", "strength", "rescale", "shape", "progress", "acts")
        self.denoise = _jitted(denoise, graphs["unet"], *static)

    def params(self, dtype: Any = None, mesh: Mesh | None = None) -> dict[str, Tree]:
        """Parameters by network, as `dtype` (None: as they are), on every device of the mesh.

        Copies of the last other type or mesh are kept, and of no others. Raises ValueError for an unknown dtype."""
        if dtype is None and mesh is None:
            return self._own
        wanted = (None if dtype is None else dtype_name(dtype), mesh)
        if self._placed is None or self._placed[0] != wanted:
            self._placed = None  # its memory goes before the next is made
            self._placed = (wanted, {name: _place(name, tree, *wanted) for name, tree in self._own.items()})
        return self._placed[1]

    def control(self, network: nnx.Module, dtype: Any, mesh: Mesh | None) -> tuple[Any, Tree]:
        """A control's graph and parameters, in the type and on the devices of a run; kept for the last few."""
        graph, own = _split(network)
        key = (id(network), dtype, mesh)
        known = self._controls.get(key)
        if known is None or not _same(known[0], own):  # it may have learnt since
            self._controls.pop(key, None)
            while len(self._controls) >= CONTROLS:
                self._controls.pop(next(iter(self._controls)))
            placed = _place("control", own, None if dtype is None else dtype_name(dtype), mesh)
            known = self._controls[key] = (own, placed)
        return graph, known[1]

    @contextmanager
    def listening(self, listener: Heard | None) -> Iterator[Heard | None]:
        """What to give as `progress`: one and the same function for all listeners, so that nothing is compiled anew."""
        self._listener = listener
        try:
            yield None if listener is None else self._hear
            jax.effects_barrier()  # calls may still be on their way
        finally:
            self._listener = None

    def _hear(self, index: Any) -> None:
        if self._listener is not None:
            self._listener(int(index))


def _split(network: nnx.Module) -> tuple[Any, Tree]:
    graph, state = nnx.split(network)
    return graph, nnx.to_pure_dict(state)


def _jitted(function: Callable, graph: Any, *static: str) -> Any:
    bound: Any = functools.partial(function, graph)
    bound.__name__ = function.__name__  # what logs of compilation show
    return jax.jit(bound, static_argnames=static)


def _same(a: Tree, b: Tree) -> bool:
    """Whether these are the very same arrays."""
    leaves = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(leaves[0]) == len(leaves[1]) and all(x is y for x, y in zip(*leaves, strict=True))


def _dtype(params: Tree) -> Any:
    return jax.tree.leaves(params)[0].dtype


def _place(name: str, tree: Tree, dtype: str | None, mesh: Mesh | None) -> Tree:
    if dtype is not None:
        number = jnp.dtype(network_dtype(name, dtype))
        tree = jax.tree.map(lambda leaf: leaf.astype(number) if is_float(leaf.dtype) else leaf, tree)
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
