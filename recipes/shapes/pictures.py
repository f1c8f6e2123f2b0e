"""Procedural pictures with captions: one coloured shape on white, for proofs and tests that need no download.

    python -m recipes.shapes.pictures data/shapes64

writes a folder of captioned pictures like the one of `recipes.captioned_pictures`, so that everything that reads those reads
these. What a picture shows is its caption ("red circle"); where, how large and how turned it is, only a condition can
tell. That makes control measurable: the outline drawn must be that of the picture which the condition was made of.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import tyro
from jaxtyping import Float, UInt8

from common import terminal
from common.io.files import atomic_folder
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

COLOURS = {
    "red": (0.86, 0.16, 0.14),
    "green": (0.16, 0.62, 0.22),
    "blue": (0.15, 0.30, 0.84),
    "yellow": (0.96, 0.80, 0.12),
    "purple": (0.52, 0.20, 0.70),
    "black": (0.10, 0.10, 0.10),
}
CORNERS = {"circle": 48, "square": 4, "triangle": 3}
RADII = (0.16, 0.30)  # of the circle around a shape, in sides of the picture
FINER = 8  # edges are averages over that many pixels a side
TOKENS = 550  # all that 18 labels give


@dataclass(frozen=True)
class Settings:
    """How many pictures, of what size.

    Attributes:
      train, unseen: pictures in each split.
      size: side in pixels.
      seed: other pictures.
    """

    train: int = 3000
    unseen: int = 128
    size: int = 64
    seed: int = 0


def prepare(folder: str | Path, settings: Settings | None = None) -> None:
    """Writes the folder. Raises FileExistsError."""
    settings = settings or Settings()
    rng, total = np.random.default_rng(settings.seed), settings.train + settings.unseen
    drawn = [draw(rng, settings.size) for _ in range(total)]
    with atomic_folder(folder) as part:
        np.save(part / "images.npy", np.stack([image for image, _ in drawn]))
        labels = [label for _, label in drawn]
        every = [f"{colour} {shape}" for colour in COLOURS for shape in CORNERS]
        write_tokenizer(part / "tokenizer", *train_bpe(every, TOKENS))
        entries = [
            {
                "label": label,
                "style": "",
                "tags": [],
                "mirror": True,
                "split": "train" if i < settings.train else "unseen",
            }
            for i, label in enumerate(labels)
        ]
        (part / "index.json").write_text(json.dumps({"pictures": entries}) + "\n", "utf-8")


def draw(rng: np.random.Generator, size: int) -> tuple[UInt8[np.ndarray, "s s 3"], str]:
    """A picture and its label."""
    colour, shape = str(rng.choice(list(COLOURS))), str(rng.choice(list(CORNERS)))
    radius = rng.uniform(*RADII)
    centre, turn = rng.uniform(radius, 1 - radius, 2), rng.uniform(0, 2 * math.pi)
    cover = polygon(CORNERS[shape], centre, radius, turn, size)[..., None]
    image = (1 - cover) + cover * np.asarray(COLOURS[colour], np.float32)
    return np.rint(255 * image).astype(np.uint8), f"{colour} {shape}"


def polygon(
    corners: int, centre: Float[np.ndarray, " 2"], radius: float, turn: float, size: int
) -> Float[np.ndarray, "s s"]:
    """How much of each pixel a regular polygon covers; lengths in sides of the picture."""
    angles = turn + 2 * math.pi * np.arange(corners) / corners
    points = (centre + radius * np.stack([np.cos(angles), np.sin(angles)], 1)) * size * FINER
    fine = np.zeros((size * FINER, size * FINER), np.float32)
    cv2.fillPoly(fine, [np.rint(points).astype(np.int32)], 1.0)
    return cv2.resize(fine, (size, size), interpolation=cv2.INTER_AREA)


@dataclass(frozen=True)
class Command(Settings):
    """Draw captioned shapes."""

    folder: tyro.conf.Positional[str] = "data/shapes64"
    """A new folder."""


def main() -> None:
    command = tyro.cli(Command, prog="python -m recipes.shapes.pictures")
    with terminal.exits("recipes.shapes.pictures", out_of_memory="draw fewer: --train 1000"):
        prepare(command.folder, command)


if __name__ == "__main__":
    main()
