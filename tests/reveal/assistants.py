"""A little network with everything that the `reveal` command needs, on the disk; and the command, called."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import command
import numpy as np
from command import printed
from flax import nnx
from little_worlds import WORLD
from little_worlds import WORLD_NETWORK as NETWORK
from own_files import json_lines
from reveal_networks import drawn

from common.io.images import from_uint8, write_image
from recipes.small_world.facts import SOURCES
from recipes.small_world.items import WorldVocabulary
from reveal.cli.main import main
from reveal.network import weights
from reveal.network.model import Reveal

RECIPE = {"sources": list(SOURCES), "item_length": 16, "text_length": 12, "answer_length": 3}
WEIGHTS = ("--weights", "weights.safetensors")


def network(seed: int = 0, **changes) -> Reveal:
    """At random."""
    return drawn(dataclasses.replace(NETWORK, **changes), seed)


def save(folder: Path, model: Reveal, data: dict | None = None, more: dict | None = None) -> Path:
    """Weights with the metadata that `train.py` would write: by default those of the little world."""
    state = nnx.to_pure_dict(nnx.state(model))
    metadata = {"processor": WORLD.processor()} if data is None else {"recipe": {"data": data}}
    return weights.save(folder / "weights.safetensors", state, model.config, metadata=metadata | (more or {}))


def items(folder: Path, count: int = 150, start: int = 0) -> Path:
    """The first items of the little world as items.jsonl with images; their ids are those of the whole world."""
    lines = []
    for item in WORLD.memory_items()[start : start + count]:
        entry = {"id": item.id, "source": item.source, **item.fields}
        if item.picture is not None:
            entry["image"] = f"{item.id}.png"
            write_image(folder / entry["image"], from_uint8(np.asarray(item.picture)), overwrite=True)
        lines.append(entry)
    return json_lines(folder / "items.jsonl", lines)


def workplace(folder: Path, count: int = 150) -> Path:
    """Weights, items and an image to ask about."""
    folder.mkdir(exist_ok=True)
    save(folder, network())
    items(folder, count)
    write_image(folder / "asked.png", WORLD.evaluation("held_out", 1)["image"][0])
    return folder


def with_memory(folder: Path, count: int) -> Path:
    """A workplace with the memory `facts` of its items."""
    place = workplace(folder, count)
    main(["build", str(place / "items.jsonl"), "-o", str(place / "facts"), "--weights", str(place), "--quiet"])
    return place


def vocabulary(folder: Path) -> Path:
    WorldVocabulary.of_world().save(folder / "vocabulary.json")
    return folder / "vocabulary.json"


def output_of(capsys, *words: str) -> dict:
    return printed(capsys, main, *words)


def mistake(capsys, *words: str) -> str:
    """The line with which a command ends."""
    line = command.mistake(capsys, main, list(words))
    assert line.startswith("reveal: ")
    return line


def program(script: str, words: list[str], code: int) -> str:
    """The errors that a program of its own prints, which ends with `code`."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", script, *words], env=environment, check=False, capture_output=True)
    assert ended.returncode == code, ended.stderr.decode()
    return ended.stderr.decode()
