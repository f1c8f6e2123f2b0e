"""The small networks of the tests: the reference's fixtures with their files, and smaller ones with odd sizes."""

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from common.nn.init import blank
from common.weights import porting
from common.weights.torch_names import table
from plugins.diffusion.io.components import load_component
from plugins.diffusion.networks.unet import UNet, UNetConfig

DATA = Path(__file__).parents[1] / "data" / "plugins"
WEIGHTS = "diffusion_pytorch_model.safetensors"
FILES = {"unet": WEIGHTS, "vae": WEIGHTS, "text_encoder": "model.safetensors"}  # of a base

# Two levels, one without attention; odd numbers of everything that may be odd.
SMALL = UNetConfig(
    in_channels=3, out_channels=5, block_out_channels=(8, 12), layers_per_block=1, norm_num_groups=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=6, attention_head_dim=(1, 3), use_linear_projection=True,
)  # fmt: skip


@functools.cache
def _place() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="networks-")  # removed when the process ends


@functools.cache
def folder(kind) -> Path:
    """The network as the library saves it: config.json and the drawn weights. Not to be written to."""
    place = Path(_place().name) / kind
    place.mkdir()
    shutil.copy(DATA / kind / "config.json", place)
    safetensors.numpy.save_file(drawn.tensors(kind), place / FILES.get(kind, WEIGHTS))
    return place


@functools.cache
def lora(writer: str) -> Path:
    """The LoRA in a file, as "kohya" or "diffusers_peft" name its tensors."""
    tensors, place = drawn.tensors("lora"), Path(_place().name) / f"{writer}.safetensors"
    if writer == "kohya":
        safetensors.numpy.save_file(drawn.kohya(tensors), place)
    else:
        config = {f"{kind}.{key}": value for kind in FILES for key, value in (("r", 4), ("lora_alpha", drawn.ALPHA))}
        safetensors.numpy.save_file(tensors, place, {"lora_adapter_metadata": json.dumps(config)})
    return place


def stored(kind) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder(kind) / FILES.get(kind, WEIGHTS))


def parameters(module) -> dict[str, np.ndarray]:
    leaves = porting.flatten(nnx.to_pure_dict(nnx.state(module)))
    return {path: np.asarray(leaf) for path, leaf in leaves.items()}


def assert_same(module, other):
    ours, theirs = parameters(module), parameters(other)
    assert ours.keys() == theirs.keys() and module.config == other.config
    for path, value in ours.items():
        assert value.dtype == theirs[path].dtype
        np.testing.assert_array_equal(value, theirs[path], path)


def copy(kind, place: Path) -> Path:
    return Path(shutil.copytree(folder(kind), place, dirs_exist_ok=True))


def rewrite(kind, folder: Path, tensors, name=None) -> Path:
    """A folder with the network's config and other tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / kind / "config.json", folder)
    contiguous = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    safetensors.numpy.save_file(contiguous, folder / (name or FILES[kind]))
    return folder


@functools.cache
def network(kind):
    """One of them, as its folder gives it."""
    return load_component(kind, folder(kind))


def stored_json(kind) -> dict:
    return json.loads((DATA / kind / "config.json").read_text())


def stored_shapes(network: type, config: Any) -> dict[str, tuple[int, ...]]:
    """{the library's name: shape in its files} of a network's tensors; nothing is allocated."""
    params = blank(network, config)[1]
    leaves, shapes = porting.flatten(params), {}
    for path, entry in table(params).items():
        shape, axes = leaves[path].shape, entry.layout.axes
        shapes[entry.source] = shape if axes is None else tuple(shape[axis] for axis in np.argsort(axes))
    return shapes


def small_unet() -> UNet:
    """SMALL with random parameters."""
    return random(UNet, SMALL)


def random(network: type, config: Any) -> Any:
    """Parameters as random as they come, so that every term matters: scales of norms near 1, biases of deviation 1."""
    graph, params = blank(network, config)
    rng = np.random.default_rng(7)

    def draw(path: tuple, leaf: Any) -> jax.Array:
        value = normal(rng, *leaf.shape)
        if value.ndim > 1:
            value = value / np.sqrt(np.prod(value.shape[:-1]))
        elif path[-1].key == "scale":
            value = 1 + 0.1 * value
        return jax.device_put(value)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, params))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def fixture(name: str) -> dict[str, jax.Array]:
    """The inputs and outputs of a network: whole as b h w c, or sampled (`drawn.sampled`)."""
    arrays = {key: drawn.given(key) for key in drawn.INPUTS} | {"t": np.array([981, 20])}
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as outputs:
        return {key: jnp.asarray(nhwc(value)) for key, value in (arrays | dict(outputs)).items()}


def assert_near(ours, theirs, err_msg="", **tolerances):
    """`theirs` is an output of a fixture, whole or sampled."""
    ours = np.asarray(ours)
    ours = ours if ours.ndim == theirs.ndim else drawn.sampled(ours)
    np.testing.assert_allclose(ours, theirs, err_msg=err_msg, **tolerances)


def nhwc(array: np.ndarray) -> np.ndarray:
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def avals(jaxpr):
    """Shapes of every value in a jaxpr, those of its loops and branches included."""
    for equation in jaxpr.eqns:
        yield from (v.aval.shape for v in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from avals(inner)
