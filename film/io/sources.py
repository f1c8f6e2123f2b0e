"""The two sources of a run, `Photos` and a `Movie`: timed frames of one size.

Each photo is opened once: its file is kept, encoded, up to `MAX_CACHE` bytes for all of them; of the photos beyond that
only the size is kept. They are decoded when the network needs them, so only a few decoded images are ever in memory.

A photo that was cut short while it was copied has a valid header, and would end hours of work half-way. So a file
without the end mark of its format is decoded at once (a whole file may lack it where a program has appended data).
"""

import dataclasses
import glob
import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import Float

from common import terminal
from common.io.clip_limits import MOVIES
from common.io.files import require_file
from common.io.images import READABLE, find_images, image_size, place, read_encoded, read_image
from common.io.video_reader import TimedFrame, VideoInfo, read_video
from common.weights.remote import is_address
from film.photos import Preparation
from film.shots import without_duplicates
from film.timeline import snapped

Name = str | Path  # of a file or folder
MAX_CACHE = 512 << 20  # bytes of encoded photos in memory
END_MARKS = {b"\xff\xd8": b"\xff\xd9", b"\x89PNG": b"IEND\xaeB`\x82"}  # JPEG, PNG: first and last bytes of a file
BEFORE = 2  # seconds before the time wanted at which a video is read


@dataclasses.dataclass(frozen=True)
class Photos:
    paths: tuple[Path, ...]
    preparation: Preparation
    loop: bool = False
    encoded: Mapping[Path, bytes] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def frames(self, step: Fraction, start: Fraction = Fraction(0)) -> Iterator[TimedFrame]:
        """Each photo from the one shown at `start` on, for one unit of time, the last one for `step`; with `loop` the
        first one, for none, ends it."""
        count = len(self.paths)
        for number in range(min(int(start), count + self.loop - 1), count + self.loop):
            path = self.paths[number % count]
            last = number == count + self.loop - 1
            image = self.preparation.apply(number % count, self.read(path))
            yield TimedFrame(Fraction(number), image, Fraction(0 if self.loop else step) if last else Fraction(1))

    def read(self, path: Path) -> Float[np.ndarray, "h w 3"]:
        """Decodes a photo, RGB in [0, 1]; raises as `read_image`."""
        return read_image(self.encoded.get(path, path), str(path))

    def __str__(self) -> str:
        done = str(self.preparation)
        return f"{len(self.paths)} photos" + f" ({done})" * bool(done)


@dataclasses.dataclass(frozen=True)
class Movie:
    path: Path
    info: VideoInfo
    size: tuple[int, int]  # width, height of the output
    fit: str | None = None
    retime: bool = False

    def frames(self, step: Fraction, start: Fraction = Fraction(0)) -> Iterator[TimedFrame]:
        """From a frame shown at or before `start` on; from the first one if repeated frames are dropped, since what is
        repeated depends on those before."""
        for begin in (Fraction(0) if self.retime else max(Fraction(0), start - BEFORE), Fraction(0)):
            read = read_video(self.path, begin, on_damage=lambda line: terminal.complain(f"warning: {line}"))
            first = next(read, None)
            if first is not None and snapped(first.time, self.info.rate) <= start:
                break  # else a frame stays for longer than `BEFORE`
        read = read if first is None else itertools.chain([first], read)
        for frame in without_duplicates(read) if self.retime else read:
            start, end = (snapped(time, self.info.rate) for time in (frame.time, frame.time + frame.duration))
            yield TimedFrame(start, place(frame.image, self.size, self.fit), end - start)

    def __str__(self) -> str:
        return f"{self.path.name} {self.info.width}x{self.info.height} at {float(self.info.rate):.6g} fps"


def find_inputs(inputs: Sequence[Name]) -> list[Path]:
    """Photos in the order given, or those of a folder or glob, sorted; or one video. FileNotFoundError, ValueError."""
    if not inputs:
        raise ValueError("no images given: name two or more, a folder, a quoted pattern as 'shot_*.png', or a video")
    if "" in inputs:
        raise ValueError("'' is an empty name: check that the variables of the shell are set")
    if addresses := [name for name in inputs if is_address(name)]:
        raise ValueError(f"{addresses[0]}: an address is for weights; download photos and videos first")
    first = Path(inputs[0])
    if len(inputs) > 1:
        if videos := [name for name in inputs if Path(name).suffix.lower() in MOVIES]:
            raise ValueError(f"{videos[0]} is a video beside other inputs: name one video, or photos")
        return [Path(name) for name in inputs]
    if first.is_dir() or (glob.has_magic(str(first)) and not first.is_file()):
        photos = find_images(first)
    else:
        photos = [require_file(first)]
        if first.suffix.lower() not in READABLE:
            return photos
    if len(photos) < 2:
        raise ValueError(f"{photos[0]} is one image: interpolation needs at least two; name another one, or a video")
    return photos


def read_photos(photos: Sequence[Path]) -> tuple[dict[Path, tuple[int, int]], dict[Path, bytes]]:
    """(width, height) of each photo, and the files of those that fit into MAX_CACHE."""
    sizes, cache, left = {}, {}, MAX_CACHE
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
