"""What the files of control networks call their tensors -> the names of diffusers, which are ours.

A folder of diffusers tells in its config.json what it holds. A single file tells by its names:

| network | known by | first release -> diffusers |
| --- | --- | --- |
| ControlNet | `zero_convs.0.0` | with or without `control_model.`; the encoder as a UNet's single file has it |
| | `controlnet_cond_embedding.conv_in` | diffusers' own |
| T2I-Adapter, full | `body.0.block1` | residual blocks in one row: `body.5.block1` is level 2's second |
| T2I-Adapter, light | `body.0.body.0.block1` | `body.2.body.1.block1` is level 2's second |
| | `adapter.body.0. ...` | diffusers' own |
| MediaPipe plugin | `stem.weight` | ours |

A whole checkpoint may hold a base beside a ControlNet (`model.diffusion_model.` and so on): only the names under
`control_model.` are looked at. A name that no rule knows is passed on as it is, and porting reports it. Control-LoRAs
and files of differences from a base are networks only together with that base, and are refused by name.

The architecture is then read off the shapes, as for a base (`plugins/diffusion/io/single_file.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from plugins.control import controlnet_config, mediapipe_config, t2i_adapter_config
from plugins.control.t2i_adapter_config import FULL, LIGHT, XL
from plugins.diffusion.io import tensor_names
from plugins.diffusion.io.single_file import infer_config
from plugins.diffusion.io.tensor_names import Origin

CONTROLNET, ADAPTER = controlnet_config.ARCHITECTURE, t2i_adapter_config.ARCHITECTURE
PLUGIN = mediapipe_config.ARCHITECTURE
WHOLE = "control_model."
MARKS = {  # a tensor that only this kind of file has
    f"{WHOLE}zero_convs.0.0.weight": CONTROLNET,
    "zero_convs.0.0.weight": CONTROLNET,
    "controlnet_cond_embedding.conv_in.weight": CONTROLNET,
    "body.0.block1.weight": ADAPTER,
    "body.0.body.0.block1.weight": ADAPTER,
    "adapter.body.0.resnets.0.block1.weight": ADAPTER,
    "stem.weight": PLUGIN,
}
PARTIAL = {  # networks that are none without their base
    "lora_controlnet": "a Control-LoRA",
    "difference": "the differences from a base",
}
FACTOR_XL = 16  # pixels per latent pixel of the XL adapters; all others have 8
Shapes = Mapping[str, tuple[int, ...]]


def architecture_of(keys: Collection[str]) -> str | None:
    """Which network a single file holds; None: none that is known. Raises ValueError for half a network."""
    for mark, what in PARTIAL.items():
        if mark in keys or f"{WHOLE}{mark}" in keys:
            raise ValueError(f"expected a whole network, found {what} ({mark!r}); merge it with its base first")
    return next((architecture for mark, architecture in MARKS.items() if mark in keys), None)


def from_single_file(architecture: str, keys: Collection[str]) -> dict[str, Origin]:
    """{diffusers name: where it lies} of the control network in a single file."""
    if architecture == CONTROLNET and not any(key.startswith("controlnet_") for key in keys):
        return _controlnet(keys)
    if architecture == ADAPTER and not any(key.startswith("adapter.") for key in keys):
        return _adapter(keys)
    return {key: Origin(key) for key in keys}


def infer(architecture: str, shapes: Shapes) -> dict[str, Any]:
    """Shapes by diffusers' names -> config.json, as far as it is not the default.

    Raises ValueError if they are of no network that is built here, or the architecture cannot be told from shapes."""
    if architecture == CONTROLNET:
        return _controlnet_config(shapes)
    if architecture == ADAPTER:
        return _adapter_config(shapes)
    raise ValueError(f"expected config.json beside a {architecture}, found none; copy it too")


def _controlnet(keys: Iterable[str]) -> dict[str, Origin]:
    """The encoder is renamed as a UNet's; its hint encoder's convolutions have every second number."""
    prefix = WHOLE if any(key.startswith(WHOLE) for key in keys) else ""
    found = tensor_names.from_single_file("unet", keys, prefix)
    hints = [int(match[1]) for name in found if (match := re.match(r"input_hint_block\.(\d+)\.", name))]
    return {_controlnet_name(name, max(hints, default=0)): origin for name, origin in found.items()}


def _controlnet_name(name: str, last: int) -> str:
    match = re.fullmatch(r"(input_hint_block|zero_convs|middle_block_out)\.(\d+)(?:\.0)?\.(weight|bias)", name)
    if not match:
        return name
    part, number, leaf = match[1], int(match[2]), match[3]
    if part == "zero_convs":
        return f"controlnet_down_blocks.{number}.{leaf}"
    if part == "middle_block_out":
        return f"controlnet_mid_block.{leaf}"
    ends = {0: "conv_in", last: "conv_out"}
    return f"controlnet_cond_embedding.{ends.get(number, f'blocks.{number // 2 - 1}')}.{leaf}"


def _adapter(keys: Collection[str]) -> dict[str, Origin]:
    rename = _light_name if "body.0.body.0.block1.weight" in keys else _full_name(keys)
    return {f"adapter.{rename(key)}": Origin(key) for key in keys}


def _light_name(key: str) -> str:
    return re.sub(r"^(body\.\d+)\.body\.", r"\1.resnets.", key)


def _full_name(keys: Iterable[str]) -> Callable[[str], str]:
    """A level begins where an `in_conv` widens, first after the first level's blocks: two in the release."""
    starts = [int(match[1]) for key in keys if (match := re.match(r"body\.(\d+)\.in_conv\.", key))]
    depth = max(1, min(starts, default=2))

    def rename(key: str) -> str:
        match = re.fullmatch(r"body\.(\d+)\.(block1|block2|in_conv)\.(.*)", key)
        if not match:
            return key
        level, place = divmod(int(match[1]), depth)
        inner = (
            f"resnets.{place}.{match[2]}" if match[2] != "in_conv" else "in_conv" if place == 0 else f"in_conv{place}"
        )
        return f"body.{level}.{inner}.{match[3]}"

    return rename


def _controlnet_config(shapes: Shapes) -> dict[str, Any]:
    needed = ("conv_in.weight", "down_blocks.0.resnets.0.conv1.weight", "controlnet_cond_embedding.conv_in.weight")
    missing = [name for name in needed if name not in shapes]
    sdxl = [name for name in shapes if name.startswith(("label_emb.", "add_embedding."))]
    if missing or sdxl:
        found = f"{sdxl[0]}, which SDXL has" if sdxl else f"{missing[0]} is missing"
        raise ValueError(f"expected a ControlNet of Stable Diffusion 1.x or 2.x, found another network: {found}")
    encoder = infer_config("unet", {**shapes, "conv_out.weight": shapes["conv_in.weight"]})
    wider = r"controlnet_cond_embedding\.(conv_in|blocks\.\d*[13579])\.bias"
    hints = sorted((_number(name), shape[0]) for name, shape in shapes.items() if re.fullmatch(wider, name))
    kept = {key: value for key, value in encoder.items() if key not in ("out_channels", "up_block_types")}
    return {**kept, "_class_name": CONTROLNET, "conditioning_embedding_out_channels": [width for _, width in hints]}


def _adapter_config(shapes: Shapes) -> dict[str, Any]:
    """Blocks of pixels, 8x8 or 16x16, of three channels or one: a power of 2 is never a multiple of 3."""
    full = "adapter.conv_in.weight" in shapes
    first = "adapter.conv_in.weight" if full else "adapter.body.0.in_conv.weight"
    end = "resnets.0.block1.bias" if full else "out_conv.bias"
    if first not in shapes:
        raise ValueError(f"expected a T2I-Adapter, found another network: {first} is missing")
    unshuffled = shapes[first][1]
    channels = 3 if unshuffled % 3 == 0 else 1
    widths = {_number(k): s[0] for k, s in shapes.items() if re.fullmatch(rf"adapter\.body\.\d+\.{re.escape(end)}", k)}
    listed = [widths[level] for level in sorted(widths)]
    factor = round((unshuffled // channels) ** 0.5)
    blocks = {k.split(".")[4] for k in shapes if re.fullmatch(r"adapter\.body\.0\.resnets\.\d+\.block1\.bias", k)}
    return {
        "_class_name": ADAPTER,
        "in_channels": channels,
        "channels": listed if full else listed[:-1],
        "num_res_blocks": len(blocks),
        "downscale_factor": factor,
        "adapter_type": (XL if factor == FACTOR_XL else FULL) if full else LIGHT,
    }


def _number(name: str) -> int:
    """The first number in a name, -1 where there is none."""
    match = re.search(r"\.(\d+)\.", name)
    return int(match[1]) if match else -1
