"""Draws 48 plain requests for someone who has not read them, to count what a base draws.

    python -m recipes.captioned_pictures.requests runs/diffusion_small/weights out/requests

The folder gets `sheet_1.png`, ...: the images of each request under its number, in random order; `key.json`, the
request of each number; and `named.png`, the first image of each with its request. Let someone who sees the sheets alone
name what each number shows, then compare with the key: "cup" is right for "cup of coffee", "fruit" is wrong for
"banana". The list, which has some held-out labels, was written before any of its images was drawn.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import tyro

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from common.io.images import contact_sheet, write_image
from plugins import diffusion

# fmt: off
REQUESTS = [
    "red apple", "banana", "strawberry", "cherries", "carrot", "mushroom", "pizza", "hamburger", "ice cream",
    "cake", "cup of coffee", "cat face", "dog face", "fish", "butterfly", "bee", "penguin", "tree", "sunflower",
    "red rose", "sun", "moon", "yellow star", "rainbow", "cloud with rain", "snowman", "car", "bus", "bicycle",
    "airplane", "sailboat", "rocket", "house", "castle", "key", "guitar", "umbrella", "clock", "light bulb", "book",
    "pencil", "scissors", "camera", "crown", "balloon", "soccer ball", "red heart", "smiling face",
]
# fmt: on
ROWS = 12  # of a sheet


@dataclass(frozen=True)
class Settings:
    """How the requests are drawn; the rest is `plugins generate`'s defaults."""

    style: str = ""
    """A style behind each request, such as "3d emoji"; none by default."""
    seeds: int = 4  # Images of each request, of the seeds 0, 1, ..
    steps: int = 20
    guidance: float = 4.0
    order: int = 0  # Seed of the order of the rows


def main(base: tyro.conf.Positional[str], folder: tyro.conf.Positional[Path], settings: Settings = Settings()) -> None:
    """Draw the requests with BASE into FOLDER."""
    check_output_folder(folder)
    order = np.random.default_rng(settings.order).permutation(len(REQUESTS))
    wanted = [REQUESTS[index] for index in order]
    prompts = [f"{request}, {settings.style}".rstrip(", ") for request in wanted for _ in range(settings.seeds)]
    seeds = list(range(settings.seeds)) * len(wanted)
    pipeline = diffusion.load(base)
    images = pipeline(prompts, seeds=seeds, steps=settings.steps, guidance=settings.guidance, batch=settings.seeds)
    large = [cv2.resize(image, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC).clip(0, 1) for image in images]
    with atomic_folder(folder) as part:
        size = ROWS * settings.seeds
        for start in range(0, len(large), size):
            labels = [f"{number // settings.seeds + 1}" for number in range(start, min(start + size, len(large)))]
            sheet = contact_sheet(large[start : start + size], columns=settings.seeds * 2, labels=labels)
            write_image(part / f"sheet_{start // size + 1}.png", sheet)
        firsts = dict(zip(wanted, images[:: settings.seeds], strict=True))
        cells = [firsts[request] for request in REQUESTS]
        write_image(part / "named.png", contact_sheet(cells, columns=8, labels=REQUESTS, gap=8, font_size=8))
        key = {number + 1: request for number, request in enumerate(wanted)}
        (part / "key.json").write_text(json.dumps({"base": base, "requests": key}, indent=1) + "\n")


if __name__ == "__main__":
    terminal.program(main)
