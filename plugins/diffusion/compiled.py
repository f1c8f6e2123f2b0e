"""The compiled functions of a pipeline: text -> states, image -> latents, noise -> latents, latents -> image.

Each is a function of a network's graph, parameters and arrays under `jax.jit`, compiled once per graph and shape, for
all pipelines of these networks. `CompiledFunctions` holds them with one pipeline's graphs, and its parameters in the
type and on the devices of the last call.

`Layout` splits a request into batches of the UNet and chunks of the autoencoder that fit into memory, all of one size
and so of one compilation; the last is padded with copies of its last image. With `tile` the autoencoder takes
overlapping tiles (`common/nn/tiling.py`). Its norms and its attention then see a tile instead of the image, so colours
differ: `python -m benchmarks.diffusion --only tiles` measures by how much.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key

from common.nn.init import split
from common.nn.text_encoder import TextStates
from common.nn.tiling import Tiling
from common.weights.porting import is_float
from common.weights.torch_names import dtype_name
from plugins.diffusion.io.porting import network_dtype
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import MARGIN, OVERLAP, Autoencoder
from plugins.diffusion.samplers import Sampler, starting_noise
from plugins.diffusion.steering import Conditioning, StaticControl, steered

Tree = Mapping[Any, Any]
DENOISED = 8 * 64 * 64  # latent pixels of a batch, per device, at most: eight images of 512 pixels a side
DECODED = 2 * 512 * 512  # pixels that a device decodes at once, at most: a VAE takes about 1 GB for them
MAX_CONTROLS = 8  # control networks whose placed parameters are cached


class Layout(NamedTuple):
    """Batches of a request."""

    batches: list[Int[np.ndarray, " b"]]  # indices of each batch's images; the last index of all pads the last batch
    chunk: int  # number of images that the autoencoder takes at once
    split: NamedSharding | None  # sharding of a batch's rows; None: all on the default device
    window: tuple[int, int]  # height and width of the autoencoder's tiles in pixels; the image's: it is not tiled


def make_layout(
    total: int, height: int, width: int, unit: int, batch: int | None, mesh: Mesh | None, tile: int | None = None
) -> Layout:
    """The layout of `total` images of height x width pixels, `unit` pixels per latent pixel and side; `tile` is the
    side of the autoencoder's tiles, in pixels; None: it takes whole images. `batch` is the batch size, a multiple of
    the number of devices; None: even batches of at most `DENOISED`. Raises ValueError for another batch size."""
    split = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    devices = 1 if mesh is None else mesh.devices.size
    if batch is None:
        largest = devices * max(1, DENOISED // (height * width // unit**2))
        batches = -(-total // largest)
        batch = devices * -(-total // (batches * devices))
    elif isinstance(batch, bool) or batch < 1 or batch % devices:
        rule = f"a multiple of the {devices} devices" if devices > 1 else "1 or more"
        raise ValueError(f"batch={batch} has to be {rule}; leave it out to let the program choose")
    indices = [_padded(start, batch, total) for start in range(0, total, batch)]
    window = (height, width) if tile is None else (min(tile, height), min(tile, width))
    return Layout(indices, chunk_size(batch, window[0] * window[1], devices), split, window)


def chunk_size(batch: int, pixels: int, devices: int = 1) -> int:
    """Number of images that the autoencoder takes at once: a multiple of `devices`."""
    return devices * min(-(-batch // devices), max(1, DECODED // pixels))


def in_chunks(
    function: Callable[[Any], Array], rows: Float[np.ndarray, "n ..."], size: int, split: NamedSharding | None
) -> Float[np.ndarray, "n ..."]:
    """`function` of all rows, `size` at a time."""
    outputs = []
    for start in range(0, len(rows), size):
        chunk = jax.device_put(rows[_padded(start, size, len(rows))], split)
        outputs.append(np.asarray(function(chunk))[: len(rows) - start])
    return np.concatenate(outputs)


def in_tiles(
    function: Callable[[Any], Array],
    rows: Float[np.ndarray, "n h w c"],
    layout: Layout,
    unit: int,
    size: tuple[int, int],
) -> Float[np.ndarray, "n h2 w2 c2"]:
    """`function`, the autoencoder's one way or the other, of all rows, tile by tile; `size` is the output's height and
    width."""
    decoding = rows.shape[1] < size[0]
    grid = unit if decoding else 1  # output pixels per latent pixel
    window = (layout.window[0] * grid // unit, layout.window[1] * grid // unit)
    if window == size:
        return in_chunks(function, rows, layout.chunk, layout.split)
    output: Any = None
    for down, across, weights in Tiling(size, window, OVERLAP * grid, MARGIN * grid, grid).windows():
        y, x = (slice(side.start * unit // grid**2, side.stop * unit // grid**2) for side in (down, across))
        tile = in_chunks(function, rows[:, y, x], layout.chunk, layout.split)
        if output is None:
            output = np.zeros((len(rows), *size, tile.shape[-1]), tile.dtype)
        output[:, down, across] += weights * tile
    return output


def _padded(start: int, size: int, total: int) -> Int[np.ndarray, " size"]:
    """`size` indices from `start` on; the last of all replaces those past the end."""
    return np.minimum(np.arange(start, start + size), total - 1)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("skip", "penultimate"))
def encode_text(
    graph: Any, params: Tree, tokens: Int[Array, "b n"], *, skip: int, penultimate: bool = False
) -> tuple[Float[Array, "b n d"], Float[Array, "b p"]]:
    """The UNet's context, and the pooled states; `penultimate` as SDXL: one layer early, without the final norm."""
    states: TextStates = nnx.merge(graph, params)(tokens, skip=skip)
    return states.hidden[-2 - skip] if penultimate else states.last, states.pooled


@functools.partial(jax.jit, static_argnums=0)
def encode_image(graph: Any, params: Tree, image: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
    """Images in [0, 1] to scaled latents: the mode of the encoder's distribution. No graph: pixels."""
    pixels = 2 * image - 1
    if graph is None:
        return pixels
    vae: Autoencoder = nnx.merge(graph, params)
    return vae.to_latents(vae.encode(pixels.astype(_dtype(params))).mean.astype(jnp.float32))


@functools.partial(jax.jit, static_argnums=0)
def decode(graph: Any, params: Tree, latents: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 3"]:
    """Scaled latents to images in [0, 1], clipped. No graph: pixels."""
    if graph is not None:
        vae: Autoencoder = nnx.merge(graph, params)
        latents = vae.decode(vae.from_latents(latents).astype(_dtype(params))).astype(jnp.float32)
    return jnp.clip((latents + 1) / 2, 0, 1)


STATIC = ("sampler", "schedule", "steps", "strength", "rescale", "shape", "progress")  # keyword-only ones of `denoise`
STATIC += ("static_controls", "preview_graph", "previews")


@functools.partial(jax.jit, static_argnums=0, static_argnames=STATIC)
def denoise(
    graph: Any,
    params: Tree,
    keys: Key[Array, " b"],
    branches: Mapping[str, Conditioning],
    image: Float[Array, "b h w c"] | None,
    scale: Float[Array, ""],
    control_arrays: Sequence[Any] = (),
    begin: Float[Array, "b h w c"] | None = None,
    image_scale: Float[Array, ""] | None = None,
    preview_params: Tree | None = None,
    number: Int[Array, ""] | int = 0,
    *,
    sampler: Sampler,
    schedule: Any,
    steps: int,
    strength: float,
    rescale: float,
    shape: tuple[int, int, int],
    progress: bool,
    static_controls: tuple[StaticControl, ...] = (),
    preview_graph: Any = None,
    previews: bool = False,
) -> Float[Array, "b h w c"]:
    """A whole run, from each image's key (and latents of `image`) to its latents; float32. `branches`, scales and
    controls as `steering.steered`; `begin` is an initial sample in place of noise. `progress` and `previews`: the
    callbacks of `reporting` for this `number` hear of each call, `show` with images of what it predicts, by the decoder
    of `preview_graph`."""

    def observe(index: Int[Array, ""], x0: Float[Array, "b h w c"]) -> None:
        if progress:
            jax.debug.callback(report_call, number, index)
        if previews:
            jax.debug.callback(report_call, number, index, decode(preview_graph, preview_params or {}, x0))

    if begin is None:
        noise = starting_noise(keys, (len(keys), *shape))
        begin = sampler.start(noise, schedule, steps=steps, image=image, strength=strength)
    network: UNet = nnx.merge(graph, params)
    distilled = network.config.time_cond_proj_dim is not None
    unet = functools.partial(network, guidance=scale) if distilled else network
    controls = list(zip(static_controls, control_arrays, strict=True))
    model = steered(unet, _dtype(params), branches, scale, rescale, controls, image_scale)
    return sampler(model, begin, schedule, steps=steps, strength=strength, key=keys, observe=observe)


# What runs in progress call on the host, by the run's number: `report(index)`, and `show(index, images)`.
_CALLBACKS: dict[int, tuple[Callable[[int], None] | None, Callable[[int, np.ndarray], None] | None]] = {}
_NUMBERS = itertools.count()


@contextmanager
def reporting(
    report: Callable[[int], None] | None, show: Callable[[int, np.ndarray], None] | None
) -> Iterator[dict[str, Any]]:
    """The arguments of `denoise` by which it calls these. A run's number is an array, because JAX keeps static
    arguments with all that they hold, and compiles anew for others."""
    number = next(_NUMBERS)
    _CALLBACKS[number] = report, show
    try:
        yield {"number": np.int32(number), "progress": report is not None, "previews": show is not None}
        jax.effects_barrier()  # calls may still be pending
    finally:
        del _CALLBACKS[number]


def report_call(number: Any, index: Any, images: Any = None) -> None:
    """On the host: tells the run with this number that its call of this index is done, or shows its images."""
    report, show = _CALLBACKS.get(int(number), (None, None))
    if images is not None and show is not None:
        show(int(index), np.asarray(images))
    elif images is None and report is not None:
        report(int(index))


class CompiledFunctions:
    """The four functions with one pipeline's networks."""

    def __init__(self, networks: Mapping[str, nnx.Module | None]):
        self._own: dict[str, Tree] = {}
        self.graphs = graphs = {}
        for name, network in networks.items():
            graphs[name], self._own[name] = (None, {}) if network is None else split(network)
        self._placed: tuple[Any, dict[str, Tree]] | None = None
        self._controls: weakref.WeakKeyDictionary[nnx.Module, tuple[tuple, Tree, Tree]] = weakref.WeakKeyDictionary()
        texts = [name for name in graphs if name.startswith("text_encoder") and graphs[name] is not None]
        self.encode_text = {name: functools.partial(encode_text, graphs[name]) for name in texts}
        self.encode_image = functools.partial(encode_image, graphs["vae"])
        self.decode = functools.partial(decode, graphs["vae"])
        self.denoise = functools.partial(denoise, graphs["unet"])

    def params(self, dtype: Any = None, mesh: Mesh | None = None) -> dict[str, Tree]:
        """Parameters by network, as `dtype` (None: their own), on every device of the mesh; the last copies are
        cached."""
        if dtype is None and mesh is None:
            return self._own
        wanted = (None if dtype is None else dtype_name(dtype), mesh)
        if self._placed is None or self._placed[0] != wanted:
            self._placed = None  # frees its memory before the next copy is made
            self._placed = (wanted, {name: _place(name, tree, *wanted) for name, tree in self._own.items()})
        return self._placed[1]

    def control(self, network: nnx.Module, dtype: Any, mesh: Mesh | None) -> tuple[Any, Tree]:
        """A control network's graph and parameters, in the type and on the devices of a run; the last are cached while
        it lives."""
        graph, own = split(network)
        where = (None if dtype is None else dtype_name(dtype), mesh)
        wanted = (*where, *map(id, jax.tree.leaves(own)))  # the very arrays: it may have been trained since
        cached = self._controls.get(network)
        if cached is None or cached[0] != wanted:
            self._controls.pop(network, None)
            while len(self._controls) >= MAX_CONTROLS:
                self._controls.pop(next(iter(self._controls)))
            cached = self._controls[network] = (wanted, own, _place("control", own, *where))
        return graph, cached[2]


def _dtype(params: Tree) -> Any:
    return jax.tree.leaves(params)[0].dtype


def _place(name: str, tree: Tree, dtype: str | None, mesh: Mesh | None) -> Tree:
    if dtype is not None:
        number = jnp.dtype(network_dtype(name, dtype))
        tree = jax.tree.map(lambda leaf: leaf.astype(number) if is_float(leaf.dtype) else leaf, tree)
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
