"""Provenance of a score: the weights with what they were initialised from, and the memory that was searched.

Scores of one network from two initialisations differ by tens of points, and a memory that has the evaluation's own
images by more. So a score is printed with both, from what the files say of themselves:

    runs/mine/weights.safetensors (experiment mine, step 5,865, objective vqa, begun from runs/warm/weights.safetensors)
    facts (4,000 items: wiki 3,000, web 1,000; version 3, encoder 1f0c..., contents 9ab2...)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.weights.model_file import Metadata
from reveal.memory.memory import Memory


@dataclasses.dataclass(frozen=True)
class WeightsProvenance:
    """Weights, as their header describes them; None where it does not."""

    weights: str  # the file
    encoder: str  # fingerprint of its parameters
    experiment: str | None  # name of the run
    steps: int | None
    objective: str | None
    start_from: str | None  # the weights that training was initialised from
    git_commit: str  # of the code that wrote the file

    @classmethod
    def of(cls, file: Path, header: Metadata, encoder: str) -> WeightsProvenance:
        def known(values: Any, name: str, kind: type) -> Any:
            value = values.get(name) if isinstance(values, Mapping) else None
            return value if isinstance(value, kind) else None

        recipe, about = recipe_of(header), header.metadata
        experiment, steps = known(about, "experiment", str), known(about, "steps", int)
        objective, start = known(recipe.get("data"), "objective", str), known(recipe.get("task"), "start_from", str)
        return cls(str(file), encoder, experiment, steps, objective, start, header.git_commit)

    def __str__(self) -> str:
        parts = [] if self.experiment is None else [f"experiment {self.experiment}"]
        parts += [] if self.steps is None else [f"step {self.steps:,}"]
        parts += [] if self.objective is None else [f"objective {self.objective}"]
        if parts:
            parts.append("begun at random" if self.start_from is None else f"begun from {self.start_from}")
        return f"{self.weights} ({', '.join(parts) or 'its file does not say how it was made'})"


@dataclasses.dataclass(frozen=True)
class MemoryProvenance:
    """A memory as it is now."""

    memory: str  # its folder
    items: int
    sources: Mapping[str, int]  # items of each
    version: int
    encoder: str  # fingerprint of the network that made its keys
    contents: str  # hash of the manifest

    @classmethod
    def of(cls, folder: str, memory: Memory) -> MemoryProvenance:
        encoder, contents = memory.layout.encoder, memory.manifest.hash()
        return cls(folder, len(memory), memory.sources, memory.version, encoder, contents)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in self.sources.items())
        about = f"version {self.version}, encoder {self.encoder}, contents {self.contents[:16]}"
        return f"{self.memory} ({self.items:,} items: {counts}; {about})"


def recipe_of(header: Metadata) -> Mapping[str, Any]:
    """The recipe that training wrote; {} without one."""
    recipe = header.metadata.get("recipe")
    return recipe if isinstance(recipe, Mapping) else {}
