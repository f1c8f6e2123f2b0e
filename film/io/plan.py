"""What a run of `film` will read and write, checked before anything is computed.

Needs no JAX, so that a mistyped name is an error at once. Numbers and names are checked first, then photos and outputs.
Each photo is opened once: its file is kept, encoded, up to `MAX_CACHE` bytes for all of them; of the photos beyond that
only the size is kept, and they are opened again when they are decoded. Each is decoded once, when the network needs it,
so only a few decoded images are ever in memory.

A photo that was cut short while it was copied has a valid header, and would end hours of work half-way. So a file
without the end mark of its format is decoded at once (a whole file may lack it where a program has appended data).
Other damage, inside a photo, is found when it is decoded; then, too, nothing is left of the output.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import Float

from common.io.clip_limits import check_output
from common.io.files import check_output_file
from common.io.images import check_same_size, check_writable, find_images, image_size, read_encoded, read_image
from film.config import MOST_TIMES

Name = str | Path  # of a file or folder
SMALLEST = 2  # pixels a side
MAX_CACHE = 512 << 20  # bytes of encoded photos in memory
END_MARKS = {b"\xff\xd8": b"\xff\xd9", b"\x89PNG": b"IEND\xaeB`\x82"}  # JPEG, PNG: first and last bytes of a file


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will read and write."""

    photos: tuple[Path, ...]
    size: tuple[int, int]  # width, height
    times: int
    fps: Fraction
    output: Path
    sheet: Path | None = None
    encoded: Mapping[Path, bytes] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def read(self, photo: Path) -> Float[np.ndarray, "h w 3"]:
        """Decodes a photo, RGB in [0, 1]; raises as `read_image`."""
        return read_image(self.encoded.get(photo, photo), str(photo))

    @property
    def frames(self) -> int:
        return (len(self.photos) - 1) * 2**self.times + 1

    def __str__(self) -> str:
        width, height = self.size
        return (
            f"{len(self.photos)} photos {width}x{height} -> {self.frames} frames at {float(self.fps):g} fps, "
            f"{float(self.frames / self.fps):.2f} s -> {self.output}"
        )


def make_plan(
    inputs: Sequence[Name], output: Name, times: int, fps: Fraction, overwrite: bool = False, sheet: Name | None = None
) -> Plan:
    """Checks everything that can be checked beforehand; errors as of `find_photos`, `read_image`, `check_output`."""
    if not 0 <= times <= MOST_TIMES:
        raise ValueError(f"--times {times}: each gap is halved 0 to {MOST_TIMES} times; for a longer clip lower --fps")
    if fps <= 0:
        raise ValueError(f"--fps {float(fps):g}: frames per second are more than 0")
    photos = find_photos(inputs)
    check_apart(photos, output, sheet)
    sizes, encoded = read_photos(photos)
    check_same_size([sizes[path] for path in photos], photos)
    width, height = sizes[photos[0]]
    if min(width, height) < SMALLEST:
        raise ValueError(f"{photos[0]} is {width}x{height}: sides are at least {SMALLEST} pixels; give a larger image")
    sheet = None if sheet is None else Path(sheet)
    plan = Plan(tuple(photos), (width, height), times, fps, Path(output), sheet, encoded)
    check_output(output, overwrite, size=plan.size, frames=plan.frames, fps=fps)
    if sheet is not None:
        check_writable(sheet)
        check_output_file(sheet, overwrite)
    return plan


def find_photos(inputs: Sequence[Name]) -> list[Path]:
    """Files in the order given, or the images of one folder or glob, sorted; FileNotFoundError or ValueError."""
    if not inputs:
        raise ValueError("no images given: name two or more, a folder, or a quoted pattern such as 'shot_*.png'")
    if "" in inputs:
        raise ValueError("'' is an empty name: check that the variables of the shell are set")
    if len(inputs) == 1 and (Path(inputs[0]).is_dir() or glob.has_magic(str(inputs[0]))):
        photos = find_images(inputs[0])
    else:
        photos = [Path(name) for name in inputs]
    if len(photos) < 2:
        raise ValueError(f"{inputs[0]} is one image: interpolation needs at least two; name another one")
    return photos


def check_apart(photos: Sequence[Path], output: Name, sheet: Name | None) -> None:
    """ValueError if an output would replace an input, or the sheet would be among the clip's frames; links are
    resolved."""
    if not str(output):
        return  # an empty name: `check_output` raises
    clip = Path(os.path.realpath(output))
    overview = None if sheet is None else Path(os.path.realpath(sheet))
    for photo in photos:
        path = Path(os.path.realpath(photo))
        if clip in (path, path.parent):
            raise ValueError(f"{output}: the clip would replace or join its input {photo}; give another folder")
        if overview == path:
            raise ValueError(f"{sheet} is an input, and the contact sheet would replace it; give another name")
    if overview is not None and clip in (overview, *overview.parents):
        raise ValueError(f"{sheet}: the contact sheet cannot be in {output}, which is the clip; give another name")


def read_photos(photos: Sequence[Path]) -> tuple[dict[Path, tuple[int, int]], dict[Path, bytes]]:
    """(width, height) of each photo, and the files of those that fit into MAX_CACHE."""
    sizes: dict[Path, tuple[int, int]] = {}
    cache: dict[Path, bytes] = {}
    left = MAX_CACHE
    for path in dict.fromkeys(photos):
        data = read_encoded(path)
        sizes[path] = image_size(data, str(path))
        marks = [end for start, end in END_MARKS.items() if data.startswith(start)]
        if marks and not data.rstrip(b"\0").endswith(marks[0]):
            read_image(data, str(path))
        if len(data) <= left:
            cache[path] = data
            left -= len(data)
    return sizes, cache
