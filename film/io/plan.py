"""What a run of `film` will read and write, checked before anything is computed.

Nothing here needs JAX, so a mistyped name is answered at once. Checks go from cheap to dear: numbers, names, headers
and sizes, outputs, and last every picture is decoded to its end, because a photo that was cut short while it was copied
has a perfect header. Each photo is thus read once more than the computation needs. For twelve megapixels of JPEG that
is a few hundredths of a second, on as many threads as there are cores; without it hours of work end half-way.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

from tqdm import tqdm

from common.io.clip_limits import check_output
from common.io.files import check_output_file
from common.io.images import MAX_PIXELS, check_same_size, check_writable, find_images, image_size, verify_image

SMALLEST = 2  # pixels a side
MOST_TIMES = 16  # 65,535 frames in each gap, and neighbours that no 8-bit picture tells apart
MOST_THREADS = 8
PATIENCE = 1.0  # seconds before a progress bar is worth a line


def frame_count(inputs: int, times: int) -> int:
    """Frames of so many inputs when every gap is halved `times` times."""
    return (inputs - 1) * 2**times + 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will read and write."""

    photos: tuple[Path, ...]
    size: tuple[int, int]  # width, height
    times: int
    fps: Fraction
    output: Path
    sheet: Path | None = None

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
    if "" in inputs:
        raise ValueError("'' is no picture: one of the names is empty; is a variable of the shell not set?")
    if len(inputs) == 1 and (Path(inputs[0]).is_dir() or glob.has_magic(str(inputs[0]))):
        photos = find_images(inputs[0])
    else:
        photos = [Path(name) for name in inputs]
    if len(photos) < 2:
        raise ValueError(f"{inputs[0]}: that is one picture, and interpolation needs at least two; name another one")
    return photos


def make_plan(
    inputs: Sequence[str | Path],
    output: str | Path,
    times: int,
    fps: Fraction,
    overwrite: bool = False,
    *,
    sheet: str | Path | None = None,
    progress: bool = False,
) -> Plan:
    """Checks everything that can be checked beforehand; errors as of `find_photos`, `read_image`, `check_output`.

    `progress` shows a bar on stderr while many photos are decoded.
    """
    if not 0 <= times <= MOST_TIMES:
        raise ValueError(f"--times {times}: each gap is halved 0 to {MOST_TIMES} times; for a longer clip lower --fps")
    if fps <= 0:
        raise ValueError(f"--fps {float(fps):g}: frames per second are more than 0")
    photos = find_photos(inputs)
    check_apart(photos, output, sheet)
    sizes = [image_size(path) for path in photos]
    check_same_size(sizes, [str(path) for path in photos])
    width, height = sizes[0]
    if min(width, height) < SMALLEST:
        raise ValueError(f"{photos[0]} is {width}x{height}: no motion to see; sides are at least {SMALLEST} pixels")
    plan = Plan(tuple(photos), (width, height), times, fps, Path(output), None if sheet is None else Path(sheet))
    check_output(output, overwrite, size=plan.size, frames=plan.frames, fps=fps)
    if sheet is not None:
        check_writable(sheet)
        check_output_file(sheet, overwrite)
    verify_photos(plan, progress)
    return plan


def check_apart(photos: Sequence[Path], output: str | Path, sheet: str | Path | None) -> None:
    """ValueError if an output would replace an input, or the sheet would lie among the clip's frames.

    Places are compared as the disk knows them, whatever links lead there.
    """
    if not str(output):
        return  # no name at all: `check_output` says so
    clip = Path(os.path.realpath(output))
    overview = None if sheet is None else Path(os.path.realpath(sheet))
    for photo in photos:
        place = Path(os.path.realpath(photo))
        if clip in (place, place.parent):
            raise ValueError(f"{output}: the clip would lie among its inputs, with {photo}; give another folder")
        if overview == place:
            raise ValueError(f"{sheet} is an input, and the contact sheet would replace it; give another name")
    if overview is not None and clip in (overview, *overview.parents):
        raise ValueError(f"{sheet}: the contact sheet cannot lie in {output}, which is the clip; give another name")


def verify_photos(plan: Plan, progress: bool = False) -> None:
    """Decodes every photo once and keeps none; raises for the first, in their order, that is damaged."""
    different = list(dict.fromkeys(plan.photos))
    width, height = plan.size
    threads = min(MOST_THREADS, os.cpu_count() or 1, max(1, MAX_PIXELS // (width * height)))  # each holds a picture
    with ThreadPoolExecutor(threads) as pool:
        checked = pool.map(verify_image, different)
        disable = None if progress else True
        for _ in tqdm(checked, "checking photos", len(different), delay=PATIENCE, disable=disable, leave=False):
            pass
