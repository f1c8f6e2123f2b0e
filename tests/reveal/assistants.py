"""A little network with everything that the `reveal` command needs, on the disk. As a program: a build that dies."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
from flax import nnx
from little_world import NETWORK, WORLD

from common.io.images import from_uint8, write_image
from recipes.small_world.facts import SOURCES
from recipes.small_world.vocabulary import WorldVocabulary
from reveal.network import weights
from reveal.network.model import Reveal

RECIPE = {"sources": list(SOURCES), "item_length": 16, "text_length": 12, "answer_length": 3}


def network(seed: int = 0, **changes) -> Reveal:
    """At random."""
    return Reveal(dataclasses.replace(NETWORK, **changes), rngs=nnx.Rngs(seed))


def save(folder: Path, model: Reveal, data: dict | None = None, more: dict | None = None) -> Path:
    """Weights with the metadata that `train.py` would write: by default those of the little world."""
    state = nnx.to_pure_dict(nnx.state(model))
    metadata = {"processor": WORLD.processor()} if data is None else {"recipe": {"data": data}}
    return weights.save(folder / "weights.safetensors", state, model.config, metadata=metadata | (more or {}))


def items(folder: Path, count: int = 150, start: int = 0) -> Path:
    """The first items of the little world as items.jsonl with pictures."""
    lines = []
    for item in WORLD.memory_items()[start : start + count]:
        entry = {"id": item.id, "source": item.source, **item.fields}
        if item.picture is not None:
            entry["image"] = f"{item.id}.png"
            write_image(folder / entry["image"], from_uint8(np.asarray(item.picture)), overwrite=True)
        lines.append(json.dumps(entry) + "\n")
    (folder / "items.jsonl").write_text("".join(lines))
    return folder / "items.jsonl"


def workplace(folder: Path) -> Path:
    """Weights, items and a picture to ask about."""
    folder.mkdir(exist_ok=True)
    save(folder, network())
    items(folder)
    write_image(folder / "asked.png", WORLD.evaluation("held_out", 1)["image"][0])
    return folder


def vocabulary(folder: Path) -> Path:
    WorldVocabulary.of_world().save(folder / "vocabulary.json")
    return folder / "vocabulary.json"


if __name__ == "__main__":  # a build that dies when it has written some batches
    from reveal.cli.main import main
    from reveal.memory.builder import Builder

    add, calls = Builder.add, []

    def dying(self, *arguments):
        calls.append(1)
        if len(calls) > 2:
            os._exit(9)
        add(self, *arguments)

    Builder.add = dying
    main(sys.argv[1:])
