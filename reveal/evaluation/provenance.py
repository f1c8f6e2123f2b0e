"""What a number is of: the weights and what they began from, and the memory that was looked in.

Scores of one network from two starting points differ by tens of points, and a memory that has the evaluation's own
pictures by more. So a score is printed with both, from what the files say of themselves:

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
class StartingPoint:
    """Weights, as their header tells; None where it does not.

    Attributes:
      weights: the file.
      encoder: fingerprint of its parameters.
      experiment: name of the run. steps: that it took.
      objective: what it was asked for in training.
      start_from: the weights that it began with.
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
    def of(cls, file: Path, header: Metadata, encoder: str) -> StartingPoint:
        """From the header of a weights file."""
        told = header.metadata
        task, data = (recipe_of(header).get(part) for part in ("task", "data"))
        steps = told.get("steps")
        return cls(
            str(file),
            encoder,
            _text(told, "experiment"),
            steps if isinstance(steps, int) else None,
            _text(data, "objective"),
            _text(task, "start_from"),
            header.git_commit,
        )

    def __str__(self) -> str:
        told = [] if self.experiment is None else [f"experiment {self.experiment}"]
        told += [] if self.steps is None else [f"step {self.steps:,}"]
        told += [] if self.objective is None else [f"objective {self.objective}"]
        if told:
            told.append("begun at random" if self.start_from is None else f"begun from {self.start_from}")
        return f"{self.weights} ({', '.join(told) or 'its file does not say how it was made'})"


@dataclasses.dataclass(frozen=True)
class Looked:
    """A memory.

    Attributes:
      memory: its folder.
      items: that it has. sources: of each source.
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
    def of(cls, folder: str | Path, memory: Memory) -> Looked:
        """As it is now."""
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


def _text(told: Any, name: str) -> str | None:
    value = told.get(name) if isinstance(told, Mapping) else None
    return value if isinstance(value, str) else None
