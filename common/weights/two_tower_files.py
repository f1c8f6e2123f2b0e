"""CLIP and SigLIP from the folders that people have: `config.json`, and `model.safetensors` or `pytorch_model.bin`.

    towers = load_two_towers("clip-vit-base-patch32")

Files are transformers', single or in shards; a `.bin` is read by the restricted reader, which runs no code of the file.
"""

from __future__ import annotations

import re
from pathlib import Path

import jax.numpy as jnp

from common.io.tensor_files import about, open_folder, read_json
from common.nn.two_towers import TwoTowerConfig, TwoTowers
from common.weights.torch_names import fill

BUFFERS = re.compile(r".*\.position_ids")  # of old files, no weights


def load_two_towers(folder: str | Path) -> TwoTowers:
    """Both towers, float32. Raises FileNotFoundError; ValueError for another model, and one that lists every tensor
    that is missing, left over or of another shape."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} has no config.json: give a folder of a CLIP or SigLIP that transformers wrote")
    with about(path):
        config = TwoTowerConfig.from_json(read_json(path / "config.json"))
        stored = open_folder(path)
        tensors = {name: stored[name] for name in stored if not BUFFERS.fullmatch(name)}
        return fill(TwoTowers, config, tensors, jnp.float32)
