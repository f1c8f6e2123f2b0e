"""The memory of the `film` command at its limits: `python -m benchmarks.film_limits [--rows FILE]`.

| row | what runs, with the default weights |
| --- | --- |
| pair | two photos of 3840x2160, `--memory 2GB` |
| photos | two photos of 24 megapixels without an option, where 8 GB of address space are all there is (`ulimit -v`) |
| clip | a clip of 60 frames doubled, and one of 600: memory does not grow with length |

Each is a process of its own; `budget` is what its plan may take, or all there is.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.film_reference import pair
from benchmarks.measuring import RowLog
from common import terminal
from common.io.images import write_image
from common.io.video import write_clip

MACHINE = 8_000_000_000  # bytes of address space of the `photos` row


def measured(command: list[str], address_space: int | None = None) -> dict[str, Any]:
    """Peak in bytes, seconds and CPU seconds of a command. Raises CalledProcessError. The kernel counts what this
    process has in memory when it starts another one as that one's too, so JAX is not imported here."""
    if address_space is not None:
        command = ["bash", "-c", f'ulimit -v {address_space // 1024}; exec "$@"', "limited", *command]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.perf_counter() - start
    return {"peak": used.ru_maxrss * 1024, "seconds": seconds, "cpu": used.ru_utime + used.ru_stime}


def photos(folder: Path, size: str) -> list[str]:
    width, height = map(int, size.split("x"))
    names = [str(folder / f"{size}_{number}.jpg") for number in (0, 1)]
    for name, frame in zip(names, pair(height, width), strict=True):
        write_image(name, frame)
    return names


def clip(folder: Path, size: str, frames: int) -> str:
    """A pattern that moves to and fro."""
    width, height = map(int, size.split("x"))
    wide, name = pair(height, width + 32)[0], str(folder / f"{frames}.mp4")
    starts = (abs(number % 32 - 16) for number in range(frames))
    write_clip(name, (np.ascontiguousarray(wide[:, start : start + width]) for start in starts), Fraction(24000, 1001))
    return name


def main(
    pair_size: str = "3840x2160",
    photo_size: str = "6000x4000",
    clip_size: str = "256x144",
    lengths: tuple[int, ...] = (60, 600),
    rows: Path | None = None,
) -> None:
    """Print the table.

    Args:
        pair_size, photo_size, clip_size: WIDTHxHEIGHT.
        lengths: frames of each clip.
        rows: a file of JSON lines to go on with.
    """
    log = RowLog(rows)
    program = [sys.executable, "-m", "film"]
    print("| row | budget GB | peak GB | s | CPU s |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), ["-o", f"{name}/out.mp4", "--overwrite"]
        one = [*out, "--frames", "1"]
        cases: dict[str, tuple[float | None, Callable[[], list[str]]]] = {
            f"pair of {pair_size}": (2e9, lambda: [*photos(folder, pair_size), *one, "--memory", "2GB"]),
            f"photos of {photo_size}": (MACHINE, lambda: [*photos(folder, photo_size), *one]),
        }
        for length in lengths:
            cases[f"clip of {length} frames"] = None, lambda length=length: [clip(folder, clip_size, length), *out]
        for case, (most, words) in cases.items():
            space = MACHINE if most == MACHINE else None
            row = log.row({"case": case}, lambda: {"budget": most, "found": measured([*program, *words()], space)})  # noqa: B023
            budget = "" if row["budget"] is None else f"{row['budget'] / 1e9:.1f}"
            peak, seconds, cpu = row["found"]["peak"] / 1e9, row["found"]["seconds"], row["found"]["cpu"]
            print(f"| {case} | {budget} | {peak:.2f} | {seconds:.0f} | {cpu:.0f} |", flush=True)


if __name__ == "__main__":
    terminal.program(main)
