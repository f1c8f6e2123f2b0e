"""Read the weights of a perceptual distance, whatever program wrote them.

| file | backbone | told by |
| --- | --- | --- |
| .safetensors of `python -m recipes.downloads.lpips` | in its header | its suffix |
| alex_shift_tolerant.pth, vgg_shift_tolerant.pth (`stlpips-pytorch`) | st-alex, st-vgg | tensors `....filt` |
| `torch.save(lpips.LPIPS(...).state_dict(), ...)` | alex, vgg | tensors `net.slice...` |
| lpips/weights/v0.1/alex.pth, vgg.pth: heads; torchvision's alexnet or vgg16 .pth beside it | alex, vgg | neither |

PyTorch numbers the members of a `Sequential`, poolings and ReLUs included; `places` counts as it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.io.torch_file import read_torch
from common.perceptual.lpips import BACKBONES, SCALE, SHIFT, Params, shapes
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import OIHW_TO_HWIO, Entry, Table, port, unflatten_like

KIND = "lpips"
FIXED = {"scaling_layer.shift": SHIFT, "scaling_layer.scale": SCALE}
BLUR = np.outer((1, 2, 1), (1, 2, 1)) / 16


def load_lpips(path: str | Path, backbone: str | Path | None = None) -> tuple[str, Params]:
    """(name of the backbone, parameters) of a file of the table above; `backbone` is torchvision's, for heads only.

    Raises FileNotFoundError, and ValueError for a file of another kind or with other tensors than expected.
    """
    if Path(path).suffix == ".safetensors":
        params, header = load_weights(path, expect_kind=KIND)
        name = header.config.get("backbone")
        if name not in BACKBONES:
            raise ValueError(f"{path}: backbone {name!r} is unknown; there are {', '.join(BACKBONES)}")
        return name, unflatten_like(params, shapes(name))
    tensors = read_torch(path)
    if any(key.startswith("net.") for key in tensors):
        return from_torch(tensors)
    if backbone is None:
        raise ValueError(f"{path} holds heads only: name torchvision's AlexNet or VGG-16 file as `backbone`, too")
    return from_torch({**tensors, **read_torch(backbone)})


def save_lpips(path: str | Path, name: str, params: Params, metadata: Mapping[str, Any]) -> Path:
    """Writes what `load_lpips` reads, in float32."""
    return save_weights(path, params, kind=KIND, config={"backbone": name}, metadata=metadata)


def from_torch(tensors: Mapping[str, np.ndarray]) -> tuple[str, Params]:
    """(name, parameters) of a state dict, every tensor accounted for. Raises ValueError that lists what is not."""
    last = max((int(key.split(".")[-2]) for key in tensors if _is_conv(key)), default=0)
    family = "vgg" if last > 14 else "alex"  # the last convolution: 10 or 13 in AlexNets, 28 or 32 in VGGs
    name = f"st-{family}" if any(key.endswith(".filt") for key in tensors) else family
    _check_fixed(tensors)
    whole = any(key.startswith("net.") for key in tensors)
    target = shapes(name)
    flat = port(tensors, table(name, whole), target, ignore=_is_no_weight)
    return name, unflatten_like(flat, target)


def table(name: str, whole: bool = True) -> Table:
    """Our leaves -> their keys. `whole`: the distance's own state dict; else torchvision's backbone and heads."""
    lines: dict[str, Entry] = {}
    for stage, conv, place in places(name):
        source = f"net.slice{stage}.{place}" if whole else f"features.{place}"
        lines[f"stage{stage}_conv{conv}.kernel"] = Entry(f"{source}.weight", OIHW_TO_HWIO)
        lines[f"stage{stage}_conv{conv}.bias"] = Entry(f"{source}.bias")
    for i in range(len(BACKBONES[name])):
        lines[f"head{i + 1}.kernel"] = Entry(f"lin{i}.model.1.weight", OIHW_TO_HWIO)
    return lines


def places(name: str) -> list[tuple[int, int, int]]:
    """(stage, convolution, its index in PyTorch's list of layers); the first two from 1."""
    found, place = [], 0
    for i, stage in enumerate(BACKBONES[name], 1):
        place += bool(stage.pool) + stage.blur
        for j, conv in enumerate(stage.convs, 1):
            found.append((i, j, place))
            place += 2 + conv.blur  # itself, its blur and its ReLU
    return found


def _is_conv(key: str) -> bool:
    return key.startswith(("net.slice", "features.")) and key.endswith(".weight")


def _is_no_weight(key: str) -> bool:
    """Constants (checked by `_check_fixed`), torchvision's classifier, and the second name of the heads in `lpips`."""
    return key in FIXED or key.endswith(".filt") or key.startswith(("classifier.", "lins."))


def _check_fixed(tensors: Mapping[str, np.ndarray]) -> None:
    for key, value in tensors.items():
        expected = BLUR if key.endswith(".filt") else np.reshape(FIXED.get(key, 0), (1, -1, 1, 1))
        if _is_constant(key) and not np.allclose(value, expected, atol=1e-6):
            raise ValueError(f"{key} is not the constant that this distance is defined with: another version's file?")


def _is_constant(key: str) -> bool:
    return key in FIXED or key.endswith(".filt")
