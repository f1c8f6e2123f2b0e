"""Exports a trained control network: as a program that needs nothing of this project, or as the features of an image.

    program = control_program(network, 512, 512)               # for stablehlo, onnx and litert of `plugins/formats`
    features = read_stablehlo("plugin.stablehlo")(images)      # b 512 512 3 in [0, 1] -> a feature per level
    save_features("edges.safetensors", network, edges)         # for the PyTorch library's T2I-Adapter hook

Only a network that runs once per image can be exported. **Features** are the input of diffusers' hook
(`down_intrablock_additional_residuals` of UNet2DConditionModel): a tensor per level, finest first, `b c h w`, times the
strength. diffusers adds it where this project does (`unet_blocks.py`), except in a level without transformers that is
not the last, where the shape does not fit; Stable Diffusion has no such level. `docs/portable.md` has the code.
"""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from common.io.files import atomic_output
from common.io.tensor_files import write_tensors
from common.nn.init import split
from plugins.control.contract import ControlNetwork, encode
from plugins.diffusion.programs import FEATURE
from plugins.formats.program import Input, Program

IMAGE = "picture"
ABOUT = "picture: RGB in [0, 1]; feature_i is added at the end of the UNet's level i, before its downsampler"


def control_program(network: ControlNetwork, height: int, width: int) -> Program:
    """The network as a program: `picture`, images of that size, to `feature_0`, ..., finest first. Raises ValueError
    for a ControlNet, and for sides that are not multiples of the network's reduction."""
    _check_exportable(network, height, width)
    names = [FEATURE.format(level) for level in range(network.num_outputs)]
    inputs = {IMAGE: Input((height, width, 3))}
    return Program(lambda picture: tuple(network.encode(picture)), inputs, names, ABOUT)


def save_features(
    path: str | Path, network: ControlNetwork, picture: Any, strength: int | float = 1.0, *, overwrite: bool = False
) -> Path:
    """Write the features of an image in [0, 1] times `strength`. Errors as `control_program`; raises
    FileExistsError."""
    images = network.on(picture, strength=strength).picture
    _, height, width, _ = images.shape
    _check_exportable(network, height, width)
    features = encode(*split(network), jnp.asarray(images))
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
        found = f"a {type(network).__name__} runs in every step beside the UNet and is no program by itself"
        raise ValueError(f"{found}; export a MediaPipePlugin or a T2IAdapter, which run once per image")
    unit = network.reduction
    if height < 1 or width < 1 or height % unit or width % unit:
        raise ValueError(f"the image is {width}x{height}: this network takes sides that are multiples of {unit}")
