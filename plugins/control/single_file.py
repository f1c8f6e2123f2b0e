"""Single files of control networks: which network it is, its tensor names as diffusers has them, its architecture.

The tensor names tell the network:

| network | known by | first release -> diffusers |
| --- | --- | --- |
| ControlNet | `zero_convs.0.0` | with or without `control_model.`; the encoder as in a UNet's single file |
| | `controlnet_cond_embedding.conv_in` | diffusers' own |
| T2I-Adapter, full | `body.0.block1` | residual blocks in one list: `body.5.block1` is level 2's second |
| T2I-Adapter, light | `body.0.body.0.block1` | `body.2.body.1.block1` is level 2's second |
| | `adapter.body.0. ...` | diffusers' own |
| MediaPipe plugin | `stem.weight` | ours |

A whole checkpoint may hold a base beside a ControlNet: only the names under `control_model.` are read. A name without a
rule is kept, and porting reports it. Control-LoRAs and differences from a base are refused by name. The architecture is
inferred from shapes, as a base's is (`plugins/diffusion/io/single_file.py`).
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from plugins.control.controlnet import ControlNetConfig
from plugins.control.mediapipe import MediaPipeConfig
from plugins.control.t2i_adapter import FULL, LIGHT, XL, T2IAdapterConfig
from plugins.diffusion.io import single_file
from plugins.diffusion.io.porting import Origin

CONTROLNET, ADAPTER = ControlNetConfig.architecture, T2IAdapterConfig.architecture
PREFIX = "control_model."  # of a ControlNet in a whole checkpoint
MARKS = {  # a tensor that only this kind of file has, and the `_class_name` of its network
    f"{PREFIX}zero_convs.0.0.weight": CONTROLNET,
    "zero_convs.0.0.weight": CONTROLNET,
    "controlnet_cond_embedding.conv_in.weight": CONTROLNET,
    "body.0.block1.weight": ADAPTER,
    "body.0.body.0.block1.weight": ADAPTER,
    "adapter.body.0.resnets.0.block1.weight": ADAPTER,
    "stem.weight": MediaPipeConfig.architecture,
}
INCOMPLETE = {"lora_controlnet": "a Control-LoRA", "difference": "the differences from a base"}
XL_FACTOR = 16  # pixels per latent pixel of the XL adapters; all others have 8
Shapes = Mapping[str, tuple[int, ...]]


def class_name(keys: Collection[str]) -> str | None:
    """The network's `_class_name`, or None for an unknown file. Raises ValueError for an incomplete network."""
    for mark, name in INCOMPLETE.items():
        if mark in keys or f"{PREFIX}{mark}" in keys:
            raise ValueError(f"expected a whole network, found {name} ({mark!r}); merge it with its base first")
    return next((name for mark, name in MARKS.items() if mark in keys), None)


def origins(network: str, keys: Collection[str]) -> dict[str, Origin]:
    """{diffusers name: its tensor in the file} of the control network of that `_class_name`."""
    if network == CONTROLNET and not any(key.startswith("controlnet_") for key in keys):
        return _controlnet(keys)
    if network == ADAPTER and not any(key.startswith("adapter.") for key in keys):
        light = functools.partial(re.sub, r"^(body\.\d+)\.body\.", r"\1.resnets.")
        rename = light if "body.0.body.0.block1.weight" in keys else _full_adapter(keys)
        return {f"adapter.{rename(key)}": Origin(key) for key in keys}
    return {key: Origin(key) for key in keys}


def infer_config(network: str, shapes: Shapes) -> dict[str, Any]:
    """Shapes by diffusers' names -> config.json, as far as it is not the default. Raises ValueError for the shapes of
    another network, or if shapes do not determine the architecture."""
    if network not in (CONTROLNET, ADAPTER):
        raise ValueError(f"expected config.json beside a {network}, found none; copy it too")
    return _controlnet_config(shapes) if network == CONTROLNET else _adapter_config(shapes)


def _controlnet(keys: Iterable[str]) -> dict[str, Origin]:
    """The encoder is renamed as a UNet's; every second number of the hint encoder is a convolution."""
    prefix = PREFIX if any(key.startswith(PREFIX) for key in keys) else ""
    found = single_file.from_single_file("unet", keys, prefix)
    last = max((int(match[1]) for name in found if (match := re.match(r"input_hint_block\.(\d+)\.", name))), default=0)
    hint = {0: "conv_in", **{n: f"blocks.{n // 2 - 1}" for n in range(2, last, 2)}, last: "conv_out"}
    stems = {f"input_hint_block.{n}": f"controlnet_cond_embedding.{name}" for n, name in hint.items()}
    stems |= {f"zero_convs.{n}.0": f"controlnet_down_blocks.{n}" for n in range(len(found))}
    stems["middle_block_out.0"] = "controlnet_mid_block"

    def rename(name: str) -> str:
        stem, _, leaf = name.rpartition(".")
        return f"{stems.get(stem, stem)}.{leaf}"

    return {rename(name): origin for name, origin in found.items()}


def _full_adapter(keys: Iterable[str]) -> Callable[[str], str]:
    """The first `in_conv` follows the first level's blocks, two in the release; each level has as many."""
    starts = [int(match[1]) for key in keys if (match := re.match(r"body\.(\d+)\.in_conv\.", key))]
    depth = max(1, min(starts, default=2))

    def rename(key: str) -> str:
        match = re.fullmatch(r"body\.(\d+)\.(block1|block2|in_conv)\.(.*)", key)
        level, place = divmod(int(match[1]), depth) if match else (0, 0)
        if not match or (match[2] == "in_conv" and place > 0):
            return key
        part = "in_conv" if match[2] == "in_conv" else f"resnets.{place}.{match[2]}"
        return f"body.{level}.{part}.{match[3]}"

    return rename


def _controlnet_config(shapes: Shapes) -> dict[str, Any]:
    needed = ("conv_in.weight", "down_blocks.0.resnets.0.conv1.weight", "controlnet_cond_embedding.conv_in.weight")
    if missing := [name for name in needed if name not in shapes]:
        found = f"{missing[0]} is missing"
        raise ValueError(f"expected a ControlNet of Stable Diffusion 1.x, 2.x or XL, found another network: {found}")
    encoder = single_file.infer_config("unet", {**shapes, "conv_out.weight": shapes["conv_in.weight"]})
    widening = r"controlnet_cond_embedding\.(conv_in|blocks\.\d*[13579])\.bias"
    hints = sorted((_number(name), shape[0]) for name, shape in shapes.items() if re.fullmatch(widening, name))
    shared = {key: encoder[key] for key in encoder.keys() - {"out_channels", "up_block_types", "_class_name"}}
    return {**shared, "conditioning_embedding_out_channels": [width for _, width in hints]}


def _adapter_config(shapes: Shapes) -> dict[str, Any]:
    """The unshuffled image has 8x8 or 16x16 times three channels or one: a power of 2 is never a multiple of 3."""
    full = "adapter.conv_in.weight" in shapes
    first = "adapter.conv_in.weight" if full else "adapter.body.0.in_conv.weight"
    if first not in shapes:
        raise ValueError(f"expected a T2I-Adapter, found another network: {first} is missing")
    unshuffled = shapes[first][1]
    in_channels = 3 if unshuffled % 3 == 0 else 1
    factor = round((unshuffled // in_channels) ** 0.5)
    width = r"adapter\.body\.\d+\." + (r"resnets\.0\.block1\.bias" if full else r"out_conv\.bias")
    widths = dict(sorted((_number(name), shape[0]) for name, shape in shapes.items() if re.fullmatch(width, name)))
    return {
        "in_channels": in_channels,
        "channels": list(widths.values())[: None if full else -1],
        "num_res_blocks": sum(bool(re.fullmatch(r"adapter\.body\.0\.resnets\.\d+\.block1\.bias", k)) for k in shapes),
        "downscale_factor": factor,
        "adapter_type": (XL if factor == XL_FACTOR else FULL) if full else LIGHT,
    }


def _number(name: str) -> int:
    """The first number in a name, -1 where there is none."""
    match = re.search(r"\.(\d+)\.", name)
    return int(match[1]) if match else -1
