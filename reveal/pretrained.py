"""Paths of the shipped weights and memory (`reveal/weights/countries/`). Needs no JAX."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent / "weights" / "countries"
WEIGHTS, MEMORY = "weights.safetensors", "memory"


def weights() -> Path:
    """The file. Raises FileNotFoundError if it is not installed."""
    path = DATA / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError("no weights come with the program: name a file, or a run's folder, with --weights")
    return path


def memory() -> Path:
    """The folder. Raises FileNotFoundError if it is not installed."""
    path = DATA / MEMORY
    if not (path / "manifest.json").is_file():
        raise FileNotFoundError("no memory comes with the program: build one, and name it with --memory")
    return path
