"""CLIP and SigLIP from transformers' folders: `config.json`, and `model.safetensors`, `pytorch_model.bin` or shards.

towers = load_two_towers("clip-vit-base-patch32")
tower = load_image_encoder("IP-Adapter/models/image_encoder")         # CLIPVisionModelWithProjection alone
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from common.io.tensor_files import about, open_folder, read_json
from common.nn.two_towers import TwoTowerConfig, TwoTowers
from common.nn.vision_transformer import ImageEncoder, VisionConfig
from common.weights.torch_names import fill

BUFFERS = re.compile(r".*\.position_ids")  # of old files, no weights


def load_two_towers(folder: str | Path) -> TwoTowers:
    """Both towers, float32. Raises FileNotFoundError; ValueError for another model, and one that lists every tensor
    that is missing, left over or of another shape."""
    return _filled(TwoTowers, TwoTowerConfig.from_json, Path(folder), jnp.float32)


def load_image_encoder(folder: str | Path, dtype: Any = jnp.float32) -> ImageEncoder:
    """CLIP's vision tower with its projection; errors as `load_two_towers`."""
    return _filled(ImageEncoder, VisionConfig.from_json, Path(folder), dtype)


def _filled(network: type, read: Callable[[Mapping[str, Any]], Any], path: Path, dtype: Any) -> Any:
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} has no config.json: give a folder of a CLIP or SigLIP that transformers wrote")
    with about(path):
        config = read(read_json(path / "config.json"))
        stored = open_folder(path)
        tensors = {name: stored[name] for name in stored if not BUFFERS.fullmatch(name)}
        return fill(network, config, tensors, dtype)
