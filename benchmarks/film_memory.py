"""The memory model of `film.planning` beside measured peaks: `python -m benchmarks.film_memory`.

Each row is a process of its own, which makes a clip of a pair of photos with `film.convert`, whole, with three new
frames. `model` is the plan's peak. Below the table are the constants that fit the peaks best, by least squares of the
relative error:

    peak - photos - parameters = BASE + pixels * (PER_PIXEL + SHARE * bytes of an encoded pixel)
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from benchmarks.film_reference import pair
from common import terminal
from film.config import FilmConfig
from film.planning import FRAME, encoded_bytes, make_compute_plan, parameters

MUCH = 1e12  # bytes: the image is computed whole
FEWEST_PRESETS = 2  # PER_PIXEL and SHARE cannot be told apart with one


def make_clip(name: str, width: int, height: int) -> int:
    """The peak of this process in bytes."""
    from flax import nnx

    import film
    from common.io.images import write_image
    from common.runtime import setup
    from film.cli import MOST_KEPT

    setup(most_kept=MOST_KEPT)
    model = film.Film(getattr(FilmConfig, name)(), rngs=nnx.Rngs(0))
    with tempfile.TemporaryDirectory() as folder:
        photos = [Path(folder) / f"{number}.png" for number in (0, 1)]
        for photo, frame in zip(photos, pair(height, width), strict=True):
            write_image(photo, frame)
        film.convert(photos, Path(folder) / "clip.mp4", model, memory="1000GB", frames=3)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fit(rows: list[tuple[FilmConfig, int, float]]) -> tuple[float, float, float]:
    """BASE, PER_PIXEL and SHARE from (config, pixels, peak)."""
    inputs = np.array([[1, pixels, pixels * encoded_bytes(config)] for config, pixels, _ in rows])
    peaks = np.array([peak for *_, peak in rows])
    rest = np.array([peak - 3 * FRAME * pixels - 4 * parameters(config) for config, pixels, peak in rows])
    base, per_pixel, share = np.linalg.lstsq(inputs / peaks[:, None], rest / peaks, rcond=None)[0]
    return float(base), float(per_pixel), float(share)


def main(
    models: tuple[str, ...] = ("paper", "small"),
    sizes: tuple[str, ...] = ("256x256", "512x512", "1280x720", "1920x1080"),
    case: Annotated[str | None, tyro.conf.arg(help="Print the peak of MODEL:WIDTHxHEIGHT in this process.")] = None,
) -> None:
    """Print the table and the best constants."""
    if case:
        name, size = case.split(":")
        print(json.dumps(make_clip(name, *map(int, size.split("x")))))
        return
    rows = []
    print("| model | size | peak GB | model GB | model by peak |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name in models:
        config = getattr(FilmConfig, name)()
        for size in sizes:
            width, height = map(int, size.split("x"))
            command = [sys.executable, "-m", "benchmarks.film_memory", "--case", f"{name}:{size}"]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            peak = json.loads(run.stdout.splitlines()[-1])
            plan = make_compute_plan(config, (height, width), memory=MUCH)
            rows.append((config, plan.padded[0] * plan.padded[1], peak))
            print(
                f"| {name} | {size} | {peak / 1e9:.2f} | {plan.memory / 1e9:.2f} | {plan.memory / peak:.2f} |",
                flush=True,
            )
    if len(models) >= FEWEST_PRESETS:
        base, per_pixel, share = fit(rows)
        print(f"\nBASE = {base / 1e9:.2f}e9, PER_PIXEL = {per_pixel:.0f}, SHARE = {share:.2f}")


if __name__ == "__main__":
    terminal.program(main)
