"""Files in, a clip out: what the `film` command and a notebook both call.

Pictures are read, interpolated and written one by one; only a few are ever in memory. The output's suffix says what is
made: `.mp4`, `.gif`, or none for a folder of numbered PNGs.
"""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from common.files import check_output_file
from common.images import (
    check_same_size,
    check_writable,
    contact_sheet,
    find_images,
    image_size,
    read_image,
    write_image,
)
from common.video import check_output, write_clip
from film.model import Film
from film.recursion import frame_count, interpolate

Frame = Float[np.ndarray, "h w 3"]
SHEET_FRAMES = 9
SMALLEST = 2


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will read and write, known before anything is computed."""

    photos: tuple[Path, ...]
    size: tuple[int, int]  # width, height
    times: int
    fps: Fraction
    output: Path

    @property
    def frames(self) -> int:
        return frame_count(len(self.photos), self.times)

    @property
    def seconds(self) -> float:
        return float(self.frames / self.fps)

    def __str__(self) -> str:
        width, height = self.size
        return (
            f"{len(self.photos)} photos {width}x{height} -> {self.frames} frames at {float(self.fps):g} fps, "
            f"{self.seconds:.2f} s -> {self.output}"
        )


def find_photos(inputs: Sequence[str | Path]) -> list[Path]:
    """The photos that the words of a command line mean: files in the order given, or one folder or glob, sorted.

    Raises FileNotFoundError or ValueError in one line.
    """
    if not inputs:
        raise ValueError("no pictures given: name two or more, a folder, or a quoted pattern such as 'shot_*.png'")
    if len(inputs) == 1 and (Path(inputs[0]).is_dir() or glob.has_magic(str(inputs[0]))):
        photos = find_images(inputs[0])
    else:
        photos = [Path(name) for name in inputs]
    if len(photos) < 2:
        raise ValueError(f"{inputs[0]}: that is one picture, and interpolation needs at least two; name another one")
    return photos


def make_plan(
    inputs: Sequence[str | Path], output: str | Path, times: int, fps: Fraction, overwrite: bool = False
) -> Plan:
    """Checks inputs and output before any work is done; errors as of `find_photos`, `read_image`, `check_output`."""
    if times < 0:
        raise ValueError(f"--times {times}: each gap is halved 0 or more times")
    if fps <= 0:
        raise ValueError(f"--fps {float(fps):g}: frames per second are more than 0")
    photos = find_photos(inputs)
    sizes = [image_size(path) for path in photos]
    check_same_size(sizes, [str(path) for path in photos])
    width, height = sizes[0]
    if min(width, height) < SMALLEST:
        raise ValueError(f"{photos[0]} is {width}x{height}: no motion to see; sides are at least {SMALLEST} pixels")
    check_output(output, overwrite)
    return Plan(tuple(photos), (width, height), times, fps, Path(output))


def make_clip(
    model: Film,
    plan: Plan,
    *,
    overwrite: bool = False,
    sheet: str | Path | None = None,
    progress: bool = False,
    batch: int | None = None,
) -> int:
    """Carries out a plan; returns the number of frames written.

    `sheet` is where to write a contact sheet of frames spread evenly over the clip. Nothing is left behind when
    anything fails.
    """
    frames = interpolate(model, map(read_image, plan.photos), plan.times, batch=batch)
    counted = iter(tqdm(frames, total=plan.frames, unit="frame", disable=None if progress else True))
    if sheet is None:
        return write_clip(plan.output, counted, plan.fps, overwrite=overwrite)
    check_writable(sheet)
    check_output_file(sheet, overwrite)
    kept: list[Frame] = []
    count = write_clip(plan.output, _keep_some(counted, plan.frames, kept), plan.fps, overwrite=overwrite)
    write_image(sheet, contact_sheet(kept, columns=3), overwrite=overwrite)
    return count


def _keep_some(frames: Iterable[Frame], count: int, kept: list[Frame]) -> Iterator[Frame]:
    wanted = {round(i) for i in np.linspace(0, count - 1, min(SHEET_FRAMES, count))}
    for i, frame in enumerate(frames):
        if i in wanted:
            kept.append(frame)
        yield frame
