"""Exports a trained control network: as a program that needs nothing of this project, or as the features of an image.

    data = to_stablehlo(network, 512, 512)                     # one file: program and weights
    features = read_stablehlo("plugin.stablehlo")(images)      # b 512 512 3 in [0, 1] -> a feature per level
    data = to_onnx(network, 512, 512)                          # for onnxruntime and phones, see onnx_graph.py
    save_features("edges.safetensors", network, edges)         # for the PyTorch library's T2I-Adapter hook

Only a network that runs once per image can be exported: a MediaPipe plugin or a T2I-Adapter. A ControlNet is called in
every step with the UNet's inputs; it is saved as a folder of diffusers, as the UNet is.

**StableHLO.** The file is `jax.export`'s: portable StableHLO (in `.mlir_module_serialized`, for readers other than JAX)
with its shapes and its platforms. The weights are constants in it. Height and width are fixed, the number of images is
not. The file holds both methods of the depthwise convolution (`mediapipe.py`) and runs the platform's faster one.

**Features.** The input of diffusers' hook (`down_intrablock_additional_residuals` of UNet2DConditionModel): a tensor
per level, finest first, `b c h w`, times the strength. diffusers adds it at the end of each level with transformers,
before the downsampler, and of a last level without: where this project adds it (`unet_blocks.py`). In a level without
transformers that is not the last, diffusers adds behind the downsampler, where the shape does not fit; Stable Diffusion
has no such level. `docs/portable.md` has the code for both kinds of UNet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.io.files import atomic_output, require_file
from common.io.tensor_files import write_tensors
from plugins.control.contract import ControlNetwork, encode
from plugins.control.onnx_graph import onnx_model

PLATFORMS = ("cpu", "cuda", "tpu")
FEATURE = "feature_{}"  # names of tensors in files, by level, finest first


def to_stablehlo(
    network: ControlNetwork, height: int, width: int, batch: int | None = None, platforms: Sequence[str] = PLATFORMS
) -> bytes:
    """The network as a StableHLO file for `batch` images of that size, None for any number.

    `platforms` are some of cpu, cuda, rocm, tpu. With several, the program's first argument is the index of the one it
    runs on, which JAX fills in; a program for one takes images only, which suits readers other than JAX. Raises
    ValueError for a ControlNet, and for sides that are not multiples of the network's reduction."""
    _check_exportable(network, height, width)
    graph, params = nnx.split(network)
    constants = nnx.to_pure_dict(params)
    rows = jax.export.symbolic_shape("b")[0] if batch is None else batch
    program = jax.jit(lambda images: nnx.merge(graph, constants).encode(images))
    images = jax.ShapeDtypeStruct((rows, height, width, 3), jnp.float32)
    return bytes(jax.export.export(program, platforms=tuple(platforms))(images).serialize())


def read_stablehlo(path: str | Path) -> Callable[[Any], tuple[jax.Array, ...]]:
    """The program of a StableHLO file: images `b h w 3` in [0, 1] -> features, finest first.

    Raises FileNotFoundError; ValueError for another file."""
    data = require_file(path).read_bytes()
    try:
        return jax.jit(jax.export.deserialize(bytearray(data)).call)
    except Exception as error:  # the deserializer raises errors of many types
        raise ValueError(f"{path} is no file of `plugins export` ({type(error).__name__}); export it again") from error


def to_onnx(network: ControlNetwork, height: int, width: int) -> bytes:
    """The network as an ONNX file for images of that size, any number of them; errors as `to_stablehlo`.

    Raises ImportError without the package onnx."""
    _check_exportable(network, height, width)
    return onnx_model(network, height, width, [FEATURE.format(level) for level in range(network.num_outputs)])


def save_features(
    path: str | Path, network: ControlNetwork, picture: Any, strength: int | float = 1.0, *, overwrite: bool = False
) -> Path:
    """Write the features of an image, `h w 3` or `b h w 3` in [0, 1], times `strength`; returns the path.

    Errors as `to_stablehlo`; raises FileExistsError."""
    images = network.on(picture, strength=strength).picture
    _, height, width, _ = images.shape
    _check_exportable(network, height, width)
    graph, params = nnx.split(network)
    features = encode(graph, nnx.to_pure_dict(params), jnp.asarray(images))
    tensors = {
        FEATURE.format(level): np.ascontiguousarray(strength * np.asarray(feature, np.float32).transpose(0, 3, 1, 2))
        for level, feature in enumerate(features)
    }
    metadata = {"format": "pt", "network": type(network).__name__, "strength": str(float(strength))}
    metadata |= {"picture": f"{width}x{height}", "shapes": json.dumps([tensor.shape for tensor in tensors.values()])}
    with atomic_output(path, overwrite, durable=True) as temporary:
        write_tensors(temporary, tensors, metadata)
    return Path(path)


def _check_exportable(network: ControlNetwork, height: int, width: int) -> None:
    if network.every_step:
        raise ValueError(
            f"a {type(network).__name__} runs in every step beside the UNet and is no program by itself; export a"
            " MediaPipePlugin or a T2IAdapter, which run once per image"
        )
    unit = network.reduction
    if height < 1 or width < 1 or height % unit or width % unit:
        raise ValueError(f"the image is {width}x{height}: this network takes sides that are multiples of {unit}")
