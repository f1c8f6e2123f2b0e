"""What a run of `film` will read and write, checked before anything is computed.

Needs no JAX, so that a mistyped name is an error at once. A source, `Photos` or a `Movie`, gives timed frames of one
size; `film.timeline` says which moments of them the output shows.

Each photo is opened once: its file is kept, encoded, up to `MAX_CACHE` bytes for all of them; of the photos beyond that
only the size is kept, and they are opened again when they are decoded, when the network needs them. So only a few
decoded images are ever in memory.

A photo that was cut short while it was copied has a valid header, and would end hours of work half-way. So a file
without the end mark of its format is decoded at once (a whole file may lack it where a program has appended data).
Other damage, inside a photo, is found when it is decoded; then, too, nothing is left of the output.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from jaxtyping import Float

from common import terminal
from common.io.audio import Audio
from common.io.clip_limits import ANIMATIONS, MOVIES, Encoding, Rate, check_output, is_folder, not_held, parse_fps
from common.io.colour import Colour
from common.io.files import check_output_file, require_file
from common.io.images import READABLE, check_writable, find_images, image_size, read_encoded, read_image
from common.io.video_reader import TimedFrame, VideoInfo, probe, read_video
from film.config import MOST_TIMES
from film.photos import Preparation, parse_size, place, prepare
from film.shots import without_duplicates
from film.timeline import Timeline, of_movie, snapped

Name = str | Path  # of a file or folder
SMALLEST = 2  # pixels a side
MAX_CACHE = 512 << 20  # bytes of encoded photos in memory
END_MARKS = {b"\xff\xd8": b"\xff\xd9", b"\x89PNG": b"IEND\xaeB`\x82"}  # JPEG, PNG: first and last bytes of a file
PHOTOS_RATE, PHOTOS_BETWEEN = Fraction(30), 31
BEFORE = 2  # seconds before the time wanted at which a video is read


Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


def option(metavar: str, default: str, **more: Any) -> Any:
    """How an option that may be left out stands in the help."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})", **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    fps: Annotated[Rate | None, option("RATE", "photos 30, a video as --factor says", constructor=str)] = None
    """Frames per second: 60, 23.976 or 30000/1001. A video keeps its duration."""
    size: Annotated[str | None, option("SIZE", "as the input")] = None
    """Scale to lines (1080p), a longer side (1280) or 1280x720."""
    fit: Annotated[Literal["crop", "pad", "resize"] | None, option("crop|pad|resize", "sizes must be equal")] = None
    """How photos of different sizes, or another shape of --size, become one."""
    codec: Annotated[str | None, option("NAME", "h264; vp9 in .webm")] = None
    """h264, hevc, av1 or vp9."""
    quality: Annotated[int | None, option("CRF", "looks lossless")] = None
    """Of the codec: from 0, the best, to 51 (h264, hevc) or 63."""
    bits: Annotated[int | None, option("8|10|16", "as a video, else 8")] = None
    """Per sample: 8, 10 in movies, 16 in PNGs and .apng."""
    chroma: Annotated[Literal["420", "444"], option("420|444", "420")] = "420"
    """Colour resolution of a movie; few players show 444."""
    resume: Flag = False
    """Go on where the same command was stopped."""
    overwrite: Flag = False
    """Replace outputs that exist."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotoOptions:
    frames: Annotated[int | None, option("N", "31")] = None
    """New frames between two neighbours."""
    times: Annotated[int | None, option("N", "5")] = None
    """In place of --frames: how often each gap is halved, up to 16; 5 make 31 frames."""
    ease: Flag = False
    """Slow in and slow out at each photo."""
    loop: Flag = False
    """Go on from the last to the first, so that the clip repeats without a jump."""
    align: Flag = False
    """Undo the shake of the hand, and keep what all photos show."""
    match_exposure: Flag = False
    """Make all as bright as the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoOptions:
    factor: Annotated[Rate | None, option("NUMBER", "2", constructor=str)] = None
    """So many times the frames, at so many times the rate: 2, 2.5 or 5/2."""
    slow_motion: Flag = False
    """Keep the rate, and last --factor times as long."""
    retime: Flag = False
    """Drop repeated frames, and let motion go on through their time."""
    audio: Annotated[Literal["keep", "stretch", "none"] | None, option("keep|stretch|none", "keep if it fits")] = None
    """Sound: copied without loss, stretched to the new duration, or left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    memory: Annotated[str | None, option("SIZE", "what is free")] = None
    """Most memory to use, as 2GB; larger images are computed in windows."""
    ensemble: Flag = False
    """Average over both directions of time and both mirror images: four times the work for steadier frames."""
    flow_scale: Annotated[str | None, option("1/N", "1, or by --memory")] = None
    """Begin to estimate flow in the image at 1/2, 1/4, 1/8 or 1/16 of its size: for large motion in large images."""
    precision: Annotated[Literal["float32", "bfloat16"], option("float32|bfloat16", "float32")] = "float32"
    """Of the activations."""
    batch: Annotated[int | None, option("N", "by image size and device")] = None
    """Most pairs computed at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionOptions:
    compare: Flag = False
    """Show the plain cross-fade at the left of each frame."""
    sheet: Annotated[str | None, option("IMAGE", "none")] = None
    """Also write a contact sheet of nine frames."""
    inspect: Annotated[str | None, option("IMAGE", "none")] = None
    """Also write a sheet of the first gap: flow, warped inputs, what was taken from which."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(OutputOptions, PhotoOptions, VideoOptions, NetworkOptions, InspectionOptions):
    """How a clip is made; `film.convert` takes the same names."""


def refuse(options: Options, kind: type, reason: str) -> None:
    """ValueError for an option of the group `kind` that was given."""
    for field in dataclasses.fields(kind):
        if getattr(options, field.name) != field.default:
            raise ValueError(f"--{field.name.replace('_', '-')} {reason}")


@dataclasses.dataclass(frozen=True)
class Photos:
    """Photos in order, one unit of time apart."""

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
    """A video file."""

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
        return f"{self.path.name} {self.info.width}x{self.info.height} at {_rate(self.info.rate)} fps"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will read and write."""

    source: Photos | Movie
    size: tuple[int, int]  # width, height of a frame
    timeline: Timeline
    rate: Fraction  # of the output
    frames: int | None  # of the output; None: the container does not say
    output: Name  # as given: a folder may be told from a file by a slash at its end
    options: Options
    encoding: Encoding
    colour: Colour | None = None
    audio: Audio | None = None
    captions: Path | None = None  # the video whose subtitles and chapters are copied
    sheets: tuple[Path, ...] = ()
    memory: float | None = None  # bytes for the whole process; None: what is free
    flow_scale: int | None = None
    note: str = ""  # about sound, subtitles and chapters

    def __str__(self) -> str:
        frames = "" if self.frames is None else f" {self.frames} frames"
        length = "" if self.frames is None else f", {float(self.frames / self.rate):.2f} s"
        return (
            f"{self.source} ->{frames} {self.size[0]}x{self.size[1]} at {_rate(self.rate)} fps{length} -> {self.output}"
            + f"; {self.note}" * bool(self.note)
        )

    @property
    def per_gap(self) -> Fraction:
        """Output frames from one frame of the source to the next; on average, if its rate varies."""
        rate = self.source.info.rate if isinstance(self.source, Movie) else Fraction(1)
        return self.timeline.rate * self.timeline.stretch / rate

    def in_betweens(self, frames: int) -> int:
        """Of so many output frames, those that are no frames of the source; roughly, if its rate varies."""
        return frames - math.ceil(frames / self.per_gap.numerator)  # one of so many is a source frame

    @property
    def job(self) -> str:
        """A name of the work, apart from the network, that is the same in a run that resumes it."""
        paths = self.source.paths if isinstance(self.source, Photos) else (self.source.path,)
        files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
        options = dataclasses.replace(
            self.options, resume=False, overwrite=False, batch=None, memory=None, sheet=None, inspect=None
        )
        return hashlib.sha256(repr((files, options)).encode()).hexdigest()


def make_plan(inputs: Sequence[Name], output: Name | None = None, options: Options = Options()) -> Plan:
    """Checks everything that can be checked beforehand. Raises FileNotFoundError, FileExistsError, other OSErrors, and
    ValueError: each one line that names the value, the rule and the way out."""
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch {options.batch}: give 1 or more, or leave it out to choose by image size and device")
    files = find_inputs(inputs)
    movie = files[0] if len(files) == 1 else None
    target = default_output(files[0], movie is not None) if output is None else output
    sheets = tuple(Path(sheet) for sheet in (options.sheet, options.inspect) if sheet is not None)
    check_apart(files, target, sheets)
    encoding = Encoding(options.codec, options.quality, options.bits or 8, options.chroma)
    check_output(target, options.overwrite, encoding=encoding, resume=options.resume)
    for sheet in sheets:
        check_writable(sheet)
        check_output_file(sheet, options.overwrite)
    common: dict[str, Any] = dict(
        output=target,
        options=options,
        sheets=sheets,
        memory=None if options.memory is None else parse_memory(options.memory),
        flow_scale=None if options.flow_scale is None else parse_scale(options.flow_scale),
    )
    plan = _of_movie(movie, encoding, **common) if movie else _of_photos(files, encoding, **common)
    width, height = plan.size
    if min(width, height) < SMALLEST:
        raise ValueError(f"{files[0]} is {width}x{height}: sides are at least {SMALLEST} pixels; give a larger image")
    shown = (2 * width + 2, height) if options.compare else plan.size
    check_output(
        target,
        options.overwrite,
        size=shown,
        frames=plan.frames or 0,
        fps=plan.rate,
        encoding=plan.encoding,
        sound=plan.source.info.audio
        if isinstance(plan.source, Movie) and plan.audio and plan.audio.mode == "copy"
        else (),
        resume=options.resume,
    )
    return plan


def _of_photos(files: Sequence[Path], encoding: Encoding, options: Options, **common: Any) -> Plan:
    refuse(options, VideoOptions, "is for a video; photos take --frames and --fps")
    if options.frames is not None and options.times is not None:
        raise ValueError(f"--frames {options.frames} and --times {options.times} both set the in-betweens: give one")
    if options.times is not None and not 0 <= options.times <= MOST_TIMES:
        raise ValueError(
            f"--times {options.times}: each gap is halved 0 to {MOST_TIMES} times; for a longer clip lower --fps"
        )
    if options.frames is not None and not 0 <= options.frames < 2**MOST_TIMES:
        raise ValueError(
            f"--frames {options.frames}: give 0 to {2**MOST_TIMES - 1} new frames; for a longer clip lower --fps"
        )
    between = 2**options.times - 1 if options.times is not None else options.frames
    between = PHOTOS_BETWEEN if between is None else between
    sizes, encoded = read_photos(files)
    kept = Photos(tuple(files), Preparation((0, 0), (0, 0)), options.loop, encoded)
    preparation = prepare(
        [sizes[path] for path in files],
        files,
        map(kept.read, files) if options.align or options.match_exposure else (),
        fit=options.fit,
        size=options.size,
        align=options.align,
        match_exposure=options.match_exposure,
    )
    rate = PHOTOS_RATE if options.fps is None else parse_fps(options.fps)
    gaps = len(files) - 1 + options.loop
    return Plan(
        dataclasses.replace(kept, preparation=preparation),
        preparation.size,
        Timeline(Fraction(between + 1), ease=options.ease),
        rate,
        gaps * (between + 1) + (not options.loop),
        encoding=encoding,
        options=options,
        **common,
    )


def _of_movie(path: Path, encoding: Encoding, options: Options, output: Name, **common: Any) -> Plan:
    refuse(options, PhotoOptions, "is for photos; a video takes --factor or --fps")
    info = probe(path)
    if info.frames == 1:
        raise ValueError(f"{path} is a video of one frame: interpolation needs at least two; name a longer one")
    if info.duration is None and options.sheet is not None:
        raise ValueError(f"--sheet {options.sheet}: {path} does not say how long it is; leave --sheet out")
    fps = None if options.fps is None else parse_fps(options.fps)
    timeline = of_movie(info.rate, parse_factor(options.factor), fps, options.slow_motion)
    size = (info.width, info.height) if options.size is None else parse_size(options.size, (info.width, info.height))
    if options.bits is None and info.bits > 8 and Path(output).suffix.lower() not in (".gif", ".webp"):
        encoding = dataclasses.replace(encoding, bits=10)
    audio, sound = _sound(path, info, timeline.stretch, output, options.audio)
    captions, text = _captions(path, info, timeline.stretch, output)
    return Plan(
        Movie(path, info, size, options.fit or "resize", options.retime),
        size,
        timeline,
        timeline.rate,
        None if info.duration is None else timeline.frames(snapped(info.duration, info.rate)),
        output=output,
        encoding=encoding,
        options=options,
        colour=info.colour,
        audio=audio,
        captions=captions,
        note=", ".join(filter(None, (sound, text))),
        **common,
    )


def _sound(path: Path, info: VideoInfo, stretch: Fraction, output: Name, asked: str | None) -> tuple[Audio | None, str]:
    """The sound of the output, and what a line says of it."""
    if not info.audio or asked == "none":
        return None, "sound left out" if info.audio else ""
    if is_folder(output) or Path(output).suffix.lower() in ANIMATIONS:
        if asked is not None:
            raise ValueError(f"--audio {asked}: {output} holds no sound; write one of {' '.join(MOVIES)}")
        return None, "sound left out"
    if stretch == 1:
        return Audio(path), "sound copied"
    if asked == "keep":
        raise ValueError(f"--audio keep: the clip lasts {float(stretch):g} times as long; give --audio stretch or none")
    if asked == "stretch":
        return Audio(path, "stretch", stretch), "sound stretched"
    return None, "sound left out, as the duration changes (--audio stretch keeps it)"


def _captions(path: Path, info: VideoInfo, stretch: Fraction, output: Name) -> tuple[Path | None, str]:
    """The video whose subtitles and chapters the output gets, and what a line says of them."""
    suffix = Path(output).suffix.lower()
    fits = stretch == 1 and suffix in MOVIES and not is_folder(output)
    refused = not_held(suffix, info.subtitles) if fits else info.subtitles
    copied = ["subtitles"] * (len(refused) < len(info.subtitles)) + ["chapters"] * (fits and info.chapters > 0)
    left = ["subtitles"] * bool(refused) + ["chapters"] * (not fits and info.chapters > 0)
    if fits and refused:
        left = [f"subtitles ({', '.join(dict.fromkeys(refused))}) that {suffix} cannot hold"]
    note = [f"{' and '.join(names)} {verb}" for names, verb in ((copied, "copied"), (left, "left out")) if names]
    return path if copied else None, ", ".join(note)


def parse_factor(factor: Rate | None) -> Fraction | None:
    """An exact factor from 4, 2.5 or "5/2". Raises ValueError for another one."""
    if factor is None:
        return None
    text = str(factor)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?|\d{1,9}/\d{1,9}", text) or text.endswith("/0"):
        raise ValueError(f"--factor {text}: give a number or a fraction, such as 4, 2.5 or 5/2")
    return Fraction(text)


def parse_memory(text: str) -> float:
    """Bytes of 2GB, 1.5G or 800MB (powers of 1,000). Raises ValueError for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([GM])B?", text.strip().upper())
    if not found:
        raise ValueError(f"--memory {text}: give a size such as 2GB or 800MB")
    return float(found[1]) * {"G": 1e9, "M": 1e6}[found[2]]


def parse_scale(text: str) -> int:
    """2 of 1/2. Raises ValueError for another text."""
    found = re.fullmatch(r"(?:1/)?(1|2|4|8|16)", text.strip())
    if not found:
        raise ValueError(f"--flow-scale {text}: give 1, 1/2, 1/4, 1/8 or 1/16")
    return int(found[1])


def default_output(first: Path, movie: bool) -> Path:
    """A name beside the first input: a.jpg becomes a_film.mp4."""
    suffix = first.suffix if movie and first.suffix.lower() in MOVIES else ".mp4"
    return first.with_name(f"{first.stem}_film{suffix}")


def find_inputs(inputs: Sequence[Name]) -> list[Path]:
    """Photos in the order given, or those of one folder or glob, sorted; or one video. Raises FileNotFoundError and
    ValueError."""
    if not inputs:
        raise ValueError(
            "no images given: name two or more, a folder, a quoted pattern such as 'shot_*.png', or a video"
        )
    if "" in inputs:
        raise ValueError("'' is an empty name: check that the variables of the shell are set")
    first = Path(inputs[0])
    if len(inputs) > 1:
        for name in inputs:
            if Path(name).suffix.lower() in MOVIES:
                raise ValueError(f"{name} is a video beside other inputs: name one video, or photos")
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


def check_apart(files: Sequence[Path], output: Name, sheets: Sequence[Path]) -> None:
    """ValueError if an output would replace an input or another output, or a sheet would be among the clip's frames;
    links are resolved."""
    if not str(output):
        return  # an empty name: `check_output` raises
    clip = Path(os.path.realpath(output))
    overviews = [Path(os.path.realpath(sheet)) for sheet in sheets]
    for file in files:
        path = Path(os.path.realpath(file))
        if clip in (path, path.parent):
            raise ValueError(f"{output}: the clip would replace or join its input {file}; give another folder")
        if path in overviews:
            raise ValueError(f"{file} is an input, and a sheet would replace it; give another name")
    for overview in overviews:
        if clip in (overview, *overview.parents) or overviews.count(overview) > 1:
            raise ValueError(
                f"{overview}: a sheet cannot be in the clip {output} or in another sheet; give another name"
            )


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


def _rate(rate: Fraction) -> str:
    return f"{float(rate):.6g}"
