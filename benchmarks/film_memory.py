"""The memory model of `film.planning` beside measured peaks: `python -m benchmarks.film_memory [--rows FILE]`.

Each row is a process of its own, which makes a clip with one new frame of a pair of photos, as the `film` command does,
compilation included; the image is computed whole, and `kept` encoded frames are kept. `model` is what is planned for.

The last line has the constants that fit the peaks: of those with which no peak is above the model, the ones whose sum
of relative excesses is least. With `--rows` what the file of JSON lines holds is not measured again.
"""

import dataclasses
import math
import resource
import tempfile
from pathlib import Path

import numpy as np
import scipy.optimize

from benchmarks.film_reference import pair
from benchmarks.measuring import NO_CACHE, RowLog, heading, in_process, line
from common import terminal
from film.config import FilmConfig
from film.planning import FRAME, MATCHING_BYTES, encoded_bytes, held_bytes, make_compute_plan, network_bytes, parameters

MUCH = 1e12  # bytes: the image is computed whole
COLUMNS = {"model": "", "size": "", "kept": "", "peak GB": ".2f", "model GB": ".2f", "model by peak": ".2f"}
KEPT = (0, 2)  # encoded frames: without their finest level, and with it


def save_weights(name: str, path: str) -> None:
    """Random weights of a preset; to draw them takes memory that a program which loads them does not need."""
    from flax import nnx

    import film

    film.save_model(path, film.Film(getattr(FilmConfig, name)(), rngs=nnx.Rngs(0)))


def make_clip(weights: str, width: int, height: int, kept: int) -> int:
    """The peak of this process in bytes."""
    import film
    from common.io.images import write_image
    from common.runtime import return_freed_memory, setup
    from film.cli import MOST_KEPT
    from film.clip import run
    from film.io.options import Options
    from film.io.plan import make_plan

    setup(most_kept=MOST_KEPT)
    model = film.load(weights)
    return_freed_memory()  # of reading them
    with tempfile.TemporaryDirectory() as folder:
        photos = [Path(folder) / f"{number}.png" for number in (0, 1)]
        for photo, frame in zip(photos, pair(height, width), strict=True):
            write_image(photo, frame)
        plan = make_plan(photos, Path(folder) / "clip.mp4", Options(frames=1))
        compute = make_compute_plan(model.config, (height, width), memory=MUCH)
        run(model, plan, dataclasses.replace(compute, kept=kept))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fit(rows: list[tuple[FilmConfig, int, int, float]]) -> tuple[float, float, float]:
    """BASE, PER_PARAMETER and SHARE from (config, pixels, kept, peak)."""
    inputs = np.array([[1, parameters(config), pixels * encoded_bytes(config)[0]] for config, pixels, *_ in rows])
    peaks = np.array([peak for *_, peak in rows])
    known = [
        pixels * (3 * FRAME + held_bytes(config, kept) + MATCHING_BYTES * config.matching)
        for config, pixels, kept, _ in rows
    ]
    solved = scipy.optimize.linprog((inputs / peaks[:, None]).sum(axis=0), A_ub=-inputs, b_ub=-(peaks - known))
    base, per_parameter, share = solved.x
    return float(base), float(per_parameter), float(share)


def main(
    models: tuple[str, ...] = ("paper", "small"),
    sizes: tuple[str, ...] = ("256x256", "512x512", "1280x720", "1920x1080"),
    rows: Path | None = None,
) -> None:
    """Print the table and the best constants.

    Args:
        models: presets of FilmConfig; one alone cannot tell BASE from PER_PARAMETER.
        sizes: WIDTHxHEIGHT each.
        rows: a file of JSON lines to go on with.
    """
    log, measured = RowLog(rows), []
    heading("planned and measured", COLUMNS)
    for name in models:
        config = getattr(FilmConfig, name)()
        for size in sizes:
            width, height = map(int, size.split("x"))
            plan = make_compute_plan(config, (height, width), memory=MUCH)
            pixels = plan.padded[0] * plan.padded[1]
            for kept in KEPT:
                key = {"model": name, "size": size, "kept": kept}
                peak = log.row(key, lambda: {"peak": peak_of(**key)})["peak"]  # noqa: B023
                planned = network_bytes(config, pixels, kept=kept) + 3 * FRAME * pixels
                measured.append((config, pixels, kept, peak))
                line(COLUMNS, key | {"peak GB": peak / 1e9, "model GB": planned / 1e9, "model by peak": planned / peak})
    base, *others = fit(measured)
    per_parameter, share = (math.ceil(value * digits) / digits for value, digits in zip(others, (10, 100), strict=True))
    print(f"\nBASE, PER_PARAMETER, SHARE = {math.ceil(base / 1e7) / 100}e9, {per_parameter}, {share}")


def peak_of(model: str, size: str, kept: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        weights = f"{folder}/weights.safetensors"
        in_process(save_weights, model, weights)
        return in_process(make_clip, weights, *map(int, size.split("x")), kept, environment=NO_CACHE)


if __name__ == "__main__":
    terminal.program(main)
