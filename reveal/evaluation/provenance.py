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
    """Weights, as their header describes them; None where it does not.

    Attributes:
      weights: the file.
      encoder: fingerprint of its parameters.
      experiment: name of the run. steps: of its training. objective: of its training.
      start_from: the weights that training was initialised from.
      git_commit: of the code that wrote the file.
    """

    weights: str
    encoder: str
    experiment: str | None
    steps: int | None
    objective: str | None
    start_from: str | None
    git_commit: str

    @classmethod
    def of(cls, file: Path, header: Metadata, encoder: str) -> WeightsProvenance:
        """From the header of a weights file."""

        def known(values: Any, name: str, kind: type) -> Any:
            value = values.get(name) if isinstance(values, Mapping) else None
            return value if isinstance(value, kind) else None

        recipe = recipe_of(header)
        return cls(
            weights=str(file),
            encoder=encoder,
            experiment=known(header.metadata, "experiment", str),
            steps=known(header.metadata, "steps", int),
            objective=known(recipe.get("data"), "objective", str),
            start_from=known(recipe.get("task"), "start_from", str),
            git_commit=header.git_commit,
        )

    def __str__(self) -> str:
        parts = [] if self.experiment is None else [f"experiment {self.experiment}"]
        parts += [] if self.steps is None else [f"step {self.steps:,}"]
        parts += [] if self.objective is None else [f"objective {self.objective}"]
        if parts:
            parts.append("begun at random" if self.start_from is None else f"begun from {self.start_from}")
        return f"{self.weights} ({', '.join(parts) or 'its file does not say how it was made'})"


@dataclasses.dataclass(frozen=True)
class MemoryProvenance:
    """A memory as it is now.

    Attributes:
      memory: its folder.
      items: their number. sources: of each source.
      version, contents: the manifest's.
      encoder: fingerprint of the network that made its keys.
    """

    memory: str
    items: int
    sources: Mapping[str, int]
    version: int
    encoder: str
    contents: str

    @classmethod
    def of(cls, folder: str | Path, memory: Memory) -> MemoryProvenance:
        store = memory.store
        about = memory.version, store.layout.encoder, store.manifest.hash()
        return cls(str(folder), len(memory), memory.sources, *about)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in self.sources.items())
        about = f"version {self.version}, encoder {self.encoder}, contents {self.contents[:16]}"
        return f"{self.memory} ({self.items:,} items: {counts}; {about})"


def recipe_of(header: Metadata) -> Mapping[str, Any]:
    """The recipe that training wrote; {} without one."""
    recipe = header.metadata.get("recipe")
    return recipe if isinstance(recipe, Mapping) else {}
