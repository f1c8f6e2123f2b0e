"""The tiny networks of the fixtures, and helpers to run them as single programs: compiling is what costs."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from plugins.diffusion.porting import fill
from plugins.diffusion.unet import UNet, UNetConfig
from plugins.diffusion.vae import AutoencoderKL, VAEConfig

DATA = Path(__file__).parents[1] / "data" / "plugins"
# Two levels, one without attention; odd numbers of everything that may be odd.
SMALL = UNetConfig(
    in_channels=3,
    out_channels=5,
    block_out_channels=(8, 12),
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    layers_per_block=1,
    cross_attention_dim=6,
    attention_head_dim=(1, 3),
    norm_num_groups=4,
    use_linear_projection=True,
    transformer_layers_per_block=2,
)


def stored_json(name: str) -> dict:
    return json.loads((DATA / name / "config.json").read_text())


def stored_unet() -> UNet:
    config = UNetConfig.from_json(stored_json("unet"))
    weights = load_file(DATA / "unet" / "diffusion_pytorch_model.safetensors")
    return fill(UNet, config, weights)


def stored_vae() -> AutoencoderKL:
    config = VAEConfig.from_json(stored_json("vae"))
    weights = load_file(DATA / "vae" / "diffusion_pytorch_model.safetensors")
    return fill(AutoencoderKL, config, weights)


def abstract(make):
    """The network of `make` with shapes for parameters: nothing is allocated."""
    return nnx.eval_shape(make)


def small_unet() -> UNet:
    """SMALL with random parameters: norms near 1, biases near 0 but not there, so that every term matters."""
    graphdef, state = nnx.split(abstract(lambda: UNet(SMALL, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(0)

    def parameter(path, leaf):
        value = normal(rng, *leaf.shape)
        if value.ndim > 1:
            return jnp.asarray(value / np.sqrt(np.prod(value.shape[:-1])))
        return jnp.asarray(0.1 * value + (path[-1].key == "scale"))

    return nnx.merge(graphdef, jax.tree_util.tree_map_with_path(parameter, nnx.to_pure_dict(state)))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def fixture(name: str) -> dict[str, jax.Array]:
    """All arrays of a fixture, maps as b h w c."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: jnp.asarray(nhwc(arrays[key])) for key in arrays.files}


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
