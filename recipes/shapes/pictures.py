"""Procedural captioned pictures: one coloured shape on white.

    python -m recipes.shapes.pictures data/shapes64

writes a folder in the format of `recipes.captioned_pictures`. The caption ("red circle") names the shape; its position,
size and rotation follow only from a condition. So control is measurable: the generated outline must be that of the
picture from which the condition was made.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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
RADII = (0.16, 0.30)  # of the circumcircle, in sides of the picture
OVERSAMPLED = 8  # for antialiased edges
TOKENS = 550  # all that 18 labels give


@dataclass(frozen=True)
class Settings:
    """What is drawn."""

    train: int = 3000  # Pictures of the split train
    unseen: int = 128  # Pictures of the split unseen
    size: int = 64  # Side in pixels
    seed: int = 0


def prepare(folder: str | Path, settings: Settings | None = None) -> None:
    """Writes the folder. Raises FileExistsError."""
    settings = settings or Settings()
    rng, total = np.random.default_rng(settings.seed), settings.train + settings.unseen
    drawn = [draw(rng, settings.size) for _ in range(total)]
    with atomic_folder(folder) as part:
        np.save(part / "images.npy", np.stack([image for image, _ in drawn]))
        labels = [label for _, label in drawn]
        captions = [f"{colour} {shape}" for colour in COLOURS for shape in CORNERS]
        write_tokenizer(part / "tokenizer", *train_bpe(captions, TOKENS))
        splits = ["train"] * settings.train + ["unseen"] * settings.unseen
        entries = [
            dict(label=label, style="", tags=[], mirror=True, split=split)
            for label, split in zip(labels, splits, strict=True)
        ]
        (part / "index.json").write_text(json.dumps({"pictures": entries}) + "\n", "utf-8")


def draw(rng: np.random.Generator, size: int) -> tuple[UInt8[np.ndarray, "s s 3"], str]:
    colour, shape = str(rng.choice(list(COLOURS))), str(rng.choice(list(CORNERS)))
    radius = rng.uniform(*RADII)
    centre, turn = rng.uniform(radius, 1 - radius, 2), rng.uniform(0, 2 * math.pi)
    cover = polygon(CORNERS[shape], centre, radius, turn, size)[..., None]
    image = (1 - cover) + cover * np.asarray(COLOURS[colour], np.float32)
    return np.rint(255 * image).astype(np.uint8), f"{colour} {shape}"


def polygon(
    corners: int, centre: Float[np.ndarray, " 2"], radius: float, turn: float, size: int
) -> Float[np.ndarray, "s s"]:
    """Coverage of each pixel by a regular polygon; lengths in sides of the picture."""
    angles = turn + 2 * math.pi * np.arange(corners) / corners
    points = (centre + radius * np.stack([np.cos(angles), np.sin(angles)], 1)) * size * OVERSAMPLED
    fine = np.zeros((size * OVERSAMPLED, size * OVERSAMPLED), np.float32)
    cv2.fillPoly(fine, [np.rint(points).astype(np.int32)], 1.0)
    return cv2.resize(fine, (size, size), interpolation=cv2.INTER_AREA)


def main(
    folder: tyro.conf.Positional[Path] = Path("data/shapes64"),
    settings: Annotated[Settings, tyro.conf.arg(name="")] = Settings(),
) -> None:
    """Draw captioned shapes into FOLDER, a new one."""
    prepare(folder, settings)


if __name__ == "__main__":
    terminal.program(main)
