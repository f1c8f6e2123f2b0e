"""Folders of small published networks, written from the fixtures' names and shapes (`tests/data/published`)."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import safetensors.numpy

DATA = Path(__file__).parents[1] / "data" / "published"
_spec = importlib.util.spec_from_file_location("seeded_weights", DATA / "seeded_weights.py")
assert _spec and _spec.loader
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
seeded_weights = _module.seeded_weights


def fields(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


def tensors(name: str) -> dict[str, np.ndarray]:
    """Of "clip", "siglip", "t5" or "vit", by transformers' names."""
    return seeded_weights(fields(name)["shapes"])


def outputs(name: str) -> dict[str, np.ndarray]:
    """Inputs and transformers' outputs."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: value.astype(np.int32) if value.dtype == np.int64 else value for key, value in arrays.items()}


def folder(name: str, place: Path, weights: dict[str, np.ndarray] | None = None) -> Path:
    """A transformers folder of the network; `weights` replaces its tensors."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(fields(name)["config"]), "utf-8")
    data = safetensors.numpy.save(tensors(name) if weights is None else weights, metadata={"format": "pt"})
    (place / "model.safetensors").write_bytes(data)
    return place
