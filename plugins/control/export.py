"""A trained control taken elsewhere: as a program that needs nothing of this project, or as the features of a picture.

    data = to_stablehlo(network, 512, 512)                     # one file: program and weights
    features = read_stablehlo("plugin.stablehlo")(pictures)    # b 512 512 3 in [0, 1] -> a feature per level
    data = to_onnx(network, 512, 512)                          # the same for onnxruntime and phones, see onnx_graph.py
    save_features("edges.safetensors", network, edges)         # for the PyTorch library's T2I-Adapter hook

Only what runs once per picture can leave like this: a MediaPipe plugin, a T2I-Adapter. A ControlNet is the half of a
UNet, called in every step with what the UNet is called with; it goes where the UNet goes, as a folder of diffusers.

**StableHLO.** The file is `jax.export`'s: the program as portable StableHLO (in `.mlir_module_serialized`, for readers
other than JAX), with its shapes and the platforms it is for (cpu, cuda, tpu). The weights are constants in it. Height
and width are fixed, the number of pictures is not. A depthwise filter has two ways of being computed (`layers.py`): the
file holds both, and where it runs the faster one is taken, whichever platform wrote it.

**Features.** What the hook (`down_intrablock_additional_residuals` of diffusers' UNet2DConditionModel) takes: a tensor
per level, finest first, `b c h w`, the strength already in them. diffusers adds one at the end of each level with
transformers, before the downsampler, and to a last level without: where ours are added (`unet_blocks.py`). In a level
without transformers that is not the last it adds behind the downsampler, where the shape does not fit; Stable
Diffusion has none. `docs/portable.md` has the lines for both kinds of UNet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from common.io.files import atomic_output, require_file
from plugins.control.contract import ControlNetwork, check_settings, encode
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.onnx_graph import onnx_model
from plugins.control.t2i_adapter import T2IAdapter
from plugins.diffusion.request import check_images

PLATFORMS = ("cpu", "cuda", "tpu")
Program = Callable[[Any], tuple[jax.Array, ...]]


def to_stablehlo(
    network: ControlNetwork,
    height: int,
    width: int,
    batch: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> bytes:
    """The network as one file, for pictures of that size.

    Args:
      network: a MediaPipe plugin or a T2I-Adapter.
      height, width: of the pictures.
      batch: how many at once; None for any number.
      platforms: some of cpu, cuda, rocm, tpu. With several, the program's first argument is the number of the one it
        runs on, which JAX fills in; with one it takes pictures alone, which is best for readers other than JAX.

    Raises ValueError for a ControlNet and for sides that are no multiples of the network's reduction."""
    check_once(network, height, width)
    graph, params = nnx.split(network)
    constants = nnx.to_pure_dict(params)
    rows = jax.export.symbolic_shape("b")[0] if batch is None else batch
    program = jax.jit(lambda picture: nnx.merge(graph, constants).encode(picture))
    picture = jax.ShapeDtypeStruct((rows, height, width, 3), jnp.float32)
    return bytes(jax.export.export(program, platforms=tuple(platforms))(picture).serialize())


def to_onnx(network: ControlNetwork, height: int, width: int) -> bytes:
    """The network as an ONNX file (`onnx_graph.py`), for pictures of that size, any number at once.

    Raises ValueError as `to_stablehlo`; ImportError without the package onnx."""
    return onnx_model(check_once(network, height, width), height, width, feature_names(network))


def read_stablehlo(path: str | Path) -> Program:
    """The program in a file of `to_stablehlo`: pictures, `b h w 3` in [0, 1], to features, finest first.

    Raises FileNotFoundError; ValueError for another file."""
    data = require_file(path).read_bytes()
    try:
        return jax.jit(jax.export.deserialize(bytearray(data)).call)
    except Exception as error:  # the reader of its format raises whatever its bytes lead to
        raise ValueError(
            f"{path} is no program of `plugins export` ({type(error).__name__}); export it again"
        ) from error


def save_features(
    path: str | Path, network: ControlNetwork, picture: Any, strength: int | float = 1.0, *, overwrite: bool = False
) -> Path:
    """Write what the network adds for a picture, `h w 3` or `b h w 3` in [0, 1], times `strength`; returns the path.

    Raises ValueError as `to_stablehlo`; FileExistsError."""
    pictures = check_images(picture)
    _, height, width, _ = pictures.shape
    check_once(network, height, width)
    check_settings(strength, (1.0,) * network.places, (0, 1), network.places)
    graph, params = nnx.split(network)
    features = encode(graph, nnx.to_pure_dict(params), jnp.asarray(pictures))
    tensors = {
        name: np.ascontiguousarray(strength * np.asarray(feature, np.float32).transpose(0, 3, 1, 2), np.float32)
        for name, feature in zip(feature_names(network), features, strict=True)
    }
    about = {"format": "pt", "network": type(network).__name__, "strength": str(float(strength))}
    about |= {"picture": f"{width}x{height}", "shapes": json.dumps([tensor.shape for tensor in tensors.values()])}
    with atomic_output(path, overwrite) as temporary:
        safetensors.numpy.save_file(tensors, temporary, about)
    return Path(path)


def feature_names(network: ControlNetwork) -> list[str]:
    """Of the tensors in files, finest first."""
    return [f"feature_{level}" for level in range(network.places)]


def check_once(network: ControlNetwork, height: int, width: int) -> MediaPipePlugin | T2IAdapter:
    """The network. Raises ValueError in one line unless it runs once per picture, and on pictures of that size."""
    if isinstance(network, MediaPipePlugin):
        unit = network.config.reduction
    elif isinstance(network, T2IAdapter):
        unit = network.config.downscale_factor
    else:
        raise ValueError(
            f"a {type(network).__name__} is no program by itself, it runs in every step beside the UNet; export a"
            " MediaPipePlugin or a T2IAdapter, which run once per picture"
        )
    if height < 1 or width < 1 or height % unit or width % unit:
        raise ValueError(f"a picture of {width}x{height}: this network takes sides that are multiples of {unit}")
    return network
