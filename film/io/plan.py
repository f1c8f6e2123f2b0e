"""What a run of `film` will read and write, checked before anything is computed.

Needs no JAX, so that a mistyped name is an error at once. A source (`film.io.sources`) gives timed frames;
`film.timeline` says which moments of them the output shows.
"""

import dataclasses
import hashlib
import math
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from common.io.audio import Audio
from common.io.clip_limits import ANIMATIONS, MOVIES, Encoding, check_output, is_folder, not_held, parse_fps
from common.io.colour import Colour
from common.io.files import check_output_file
from common.io.images import check_writable
from common.io.video_reader import VideoInfo, probe
from film.config import MOST_TIMES
from film.io.options import Options, PhotoOptions, VideoOptions, parse_factor, parse_memory, parse_scale, refuse
from film.io.sources import Movie, Name, Photos, find_inputs, read_photos
from film.photos import SMALLEST, Preparation, prepare, scaled_size
from film.timeline import Timeline, of_movie, snapped

PHOTOS_RATE, PHOTOS_BETWEEN = Fraction(30), 31


@dataclasses.dataclass(frozen=True)
class Plan:
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
        shown = f"{self.size[0]}x{self.size[1]} at {float(self.rate):.6g} fps"
        if self.frames is not None:
            shown = f"{self.frames} frames {shown}, {float(self.frames / self.rate):.2f} s"
        return f"{self.source} -> {shown} -> {self.output}" + f"; {self.note}" * bool(self.note)

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height of the clip: with `compare`, of two frames and a line between them."""
        return (2 * self.size[0] + 2, self.size[1]) if self.options.compare else self.size

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
    """Checks all that can be beforehand. OSError or ValueError: one line that names the value, the rule and the way
    out."""
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch {options.batch}: give 1 or more, or leave it out to choose by image size and device")
    files = find_inputs(inputs)
    movie = files[0] if len(files) == 1 else None
    suffix = movie.suffix if movie and movie.suffix.lower() in MOVIES else ".mp4"
    target = files[0].with_name(f"{files[0].stem}_film{suffix}") if output is None else output  # a.jpg: a_film.mp4
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
    if min(plan.size) < SMALLEST:
        size = f"{plan.size[0]}x{plan.size[1]}"
        raise ValueError(f"{files[0]} is {size}: sides are at least {SMALLEST} pixels; give a larger image")
    sound = (
        plan.source.info.audio if isinstance(plan.source, Movie) and plan.audio and plan.audio.mode == "copy" else ()
    )
    check_output(
        target,
        options.overwrite,
        size=plan.shown,
        frames=plan.frames or 0,
        fps=plan.rate,
        encoding=plan.encoding,
        sound=sound,
        resume=options.resume,
    )
    return plan


def _of_photos(files: Sequence[Path], encoding: Encoding, options: Options, **common: Any) -> Plan:
    refuse(options, VideoOptions, "is for a video; photos take --frames and --fps")
    if options.frames is not None and options.times is not None:
        raise ValueError(f"--frames {options.frames} and --times {options.times} both set the in-betweens: give one")
    for name, most in (("times", MOST_TIMES), ("frames", 2**MOST_TIMES - 1)):
        if (given := getattr(options, name)) is not None and not 0 <= given <= most:
            raise ValueError(f"--{name} {given}: give 0 to {most}; for a longer clip lower --fps")
    between = PHOTOS_BETWEEN if options.frames is None else options.frames
    if options.times is not None:
        between = 2**options.times - 1
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
    if options.fit is not None and options.size is None:
        raise ValueError(f"--fit {options.fit}: without --size a video keeps its size; give --size too")
    fps = None if options.fps is None else parse_fps(options.fps)
    timeline = of_movie(info.rate, parse_factor(options.factor), fps, options.slow_motion)
    shown = info.width, info.height
    size = shown if options.size is None else scaled_size(options.size, shown, options.fit, path)
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


def check_apart(files: Sequence[Path], output: Name, sheets: Sequence[Path]) -> None:
    """ValueError if an output would replace an input or another output, or a sheet join the clip's frames."""
    if not str(output):
        return  # an empty name: `check_output` raises
    clip = Path(os.path.realpath(output))
    overviews = [Path(os.path.realpath(sheet)) for sheet in sheets]
    for file in files:
        path = Path(os.path.realpath(file))
        if clip in (path, path.parent):
            raise ValueError(f"{output}: the clip would replace or join its input {file}; give another name")
        if path in overviews:
            raise ValueError(f"{file} is an input, and a sheet would replace it; give another name")
    for overview in overviews:
        if clip in (overview, *overview.parents) or overviews.count(overview) > 1:
            raise ValueError(f"{overview}: a sheet would be in the clip {output} or in another sheet; rename one")
