"""Weights and inputs of the diffusion fixtures, drawn anew from their names; numpy alone.

`tests/data/plugins/make_networks.py` computes the PyTorch library's outputs for them, the tests compute ours. The
CRC-32 of a name seeds its draw. Kernels have variance 1 / fan-in, scales are near 1 and biases near 0 but not there.
Convolutions that training would start at zero are drawn as all others, so that every term matters.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "plugins"
RANK, ALPHA = 4, 2.0  # of the LoRA files
EVERY = 7  # element of a large output is stored; no number of channels is divisible by 7, so all channels are there
INPUTS = {
    "x": (2, 4, 16, 8),
    "x_rect": (1, 4, 8, 24),
    "ctx": (2, 11, 32),
    "cond": (2, 3, 128, 64),
    "cond2": (2, 3, 128, 64),
    "image": (2, 3, 64, 48),
    "noise": (2, 4, 8, 6),
}


def normal(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)


def given(name: str) -> np.ndarray:
    """An input of the fixtures, channels first: conditions in [0, 1], the autoencoder's image in [-1, 1]."""
    value = normal(name, INPUTS[name])
    if name in ("cond", "cond2"):
        value = (np.sin(value) + 1) / 2
    return (np.sin(value) if name == "image" else value).astype(np.float32)


def sampled(value: np.ndarray) -> np.ndarray:
    """What the fixtures hold of a large output, channels last."""
    return value.ravel()[::EVERY]


def picture(name: str, height: int, width: int) -> np.ndarray:
    """An image in [0, 1], `h w 3` float32."""
    value = normal(name, (1, 3, height, width)).astype(np.float32)
    return ((np.sin(value) + 1) / 2)[0].transpose(1, 2, 0)


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    value = normal(name, shape)
    if len(shape) > 1:
        table = "embedding.weight" in name  # rows are looked up: no fan-in
        return (value * (0.5 if table else 1 / np.sqrt(np.prod(shape[1:])))).astype(np.float32)
    return (0.1 * value + name.endswith("weight")).astype(np.float32)


@functools.cache
def shapes() -> dict[str, dict[str, tuple[int, ...]]]:
    """Network -> the library's names of its tensors -> shape, channels first."""
    return json.loads((DATA / "networks.json").read_text())


def tensors(kind: str) -> dict[str, np.ndarray]:
    """The state dict of "unet", "controlnet", "t2i_adapter", "vae" or "text_encoder", or the LoRA as PEFT names it."""
    return {name: tensor(f"{kind}/{name}", tuple(shape)) for name, shape in shapes()[kind].items()}


def kohya(peft: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same LoRA as kohya's scripts name it, with an alpha for each layer."""
    renamed = {}
    for name, value in peft.items():
        network, path = name.split(".", 1)
        layer, end = path.rsplit(".lora_", 1)
        prefix = "lora_te_text_model_" if network == "text_encoder" else "lora_unet_"
        stem = prefix + layer.replace(".", "_")
        renamed[f"{stem}.lora_{'down' if end[0] == 'A' else 'up'}.weight"] = value
        renamed[f"{stem}.alpha"] = np.array(ALPHA, np.float32)
    return renamed
