"""Streams of frames -> clips on disk.

    write_clip("clip.mp4", frames, fps=30)                                  # all or nothing

    with open_clip("clip.mp4", (1920, 1080), Fraction(60), job=key, resume=True) as clip:
        for image in frames_from(clip.done):                                # the first that are not there yet
            clip.write(image)

A frame is an image as in `common.io.images`. Frames are encoded in a thread while the caller computes the next, and
pass through constant memory (a GIF keeps them all). The name decides the format: a movie, an animated picture, or a
folder of numbered PNGs (docs/video.md).

Outputs appear whole or not at all, with one exception: a job that has a name (`job`) and is stopped by Ctrl-C leaves
the frames so far as a playable file. The same job, of a movie or of PNGs, can be resumed, after a kill too; the result
has the same packets as that of an uninterrupted one.
"""

import contextlib
import itertools
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.error import FFmpegError
from jaxtyping import Float

from common.io.animations import Animation, Gif
from common.io.audio import Audio as Audio
from common.io.clip_limits import (
    DEFAULT_ENCODING,
    MOVIES,
    Encoding,
    Rate,
    check_output,
    check_sound,
    checked_encoding,
    is_folder,
    parse_fps,
)
from common.io.colour import Colour
from common.io.files import atomic_folder, is_unfinished, mark_shown, move_into_place, workspace
from common.io.images import write_image
from common.io.movies import Movie
from common.io.video_reader import probe
from common.terminal import stopping

Frame = Float[np.ndarray, "_ _ 3"]

AHEAD = 2  # frames that wait for the encoder
GOES_ON = "the same command with --resume goes on"


def write_clip(
    path: str | Path, frames: Iterable[Frame], fps: Rate, overwrite: bool = False, encoding: Encoding = DEFAULT_ENCODING
) -> int:
    """Writes a movie, an animated picture, or a folder of PNGs and returns the number of frames in it. Raises
    ValueError for no frames, frames of several sizes, fps, and as `open_clip`."""
    rate = parse_fps(fps)
    check_output(path, overwrite, encoding=encoding)
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError(f"cannot write {path}: there are no frames; give at least one")
    _check_frame(path, 0, first)
    with open_clip(path, first.shape[1::-1], rate, encoding, overwrite=overwrite) as clip:
        for frame in itertools.chain([first], frames):
            clip.write(frame)
    return clip.count


def write_gif(path: str | Path, frames: Iterable[Frame], fps: Rate, overwrite: bool = False) -> int:
    """`write_clip` for a GIF."""
    if Path(path).suffix.lower() != ".gif":
        raise ValueError(f"cannot write {path}: the suffix of a GIF is .gif")
    return write_clip(path, frames, fps, overwrite)


class ClipWriter:
    """What `open_clip` gives. `done`: the number of frames that an earlier run has written; `count`: of those that are
    in the clip now (a GIF drops frames above 50 fps)."""

    def __init__(self, path: str | Path, size: tuple[int, int], sink: "Movie | Pictures | Gif | Animation") -> None:
        self._path, self._size, self._sink = path, size, sink
        self._thread = ThreadPoolExecutor(1, "encode")
        self._waiting: deque[Future[None]] = deque()
        self._given = self.done = sink.count
        self._failed = False

    @property
    def count(self) -> int:
        return self._sink.count

    def write(self, image: np.ndarray) -> None:
        """Adds a frame, float ``height width 3`` in [0, 1]; waits while AHEAD frames do. Raises ValueError for another
        shape or type, OSError for the encoder's errors, also those of earlier frames."""
        image = np.asarray(image)
        _check_frame(self._path, self._given, image)
        if (size := image.shape[1::-1]) != self._size:
            sizes = f"{size[0]}x{size[1]}, the clip is {self._size[0]}x{self._size[1]}"
            raise ValueError(f"cannot write {self._path}: frame {self._given} is {sizes}; resize or crop it")
        self._given += 1
        self._waiting.append(self._thread.submit(self._add, image))
        del image
        self._flush(AHEAD)

    def _add(self, image: Frame) -> None:
        if self._failed:  # a later frame must not take the place of one that failed
            return
        try:
            self._sink.add(image)
        except BaseException:
            self._failed = True
            raise

    def _flush(self, most: int = 0) -> None:
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _stop(self) -> None:
        """Drops the frames that wait; the one in work is finished."""
        if isinstance(self._sink, Movie):
            self._sink.hurry()
        self._thread.shutdown(cancel_futures=True)


@contextlib.contextmanager
def open_clip(
    path: str | Path,
    size: tuple[int, int],
    rate: Fraction,
    encoding: Encoding = DEFAULT_ENCODING,
    *,
    colour: Colour | None = None,
    audio: Audio | None = None,
    captions: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    job: str = "",
) -> Iterator[ClipWriter]:
    """A clip of `size` (width, height) and `rate` frames a second, to write frames to.

    An odd side of a movie grows by one by repeating the edge, since 4:2:0 needs even sides. `colour`: the tags of a
    movie, which the conversion follows; BT.709, limited range, if None or not storable (RGB sources). `captions`: a
    video whose chapters, and whose subtitles as far as the container holds them, a movie gets.

    `job` names the work (a hash of inputs and options). Without it nothing is left after an exception. With it Ctrl-C
    makes the frames so far a playable file and raises KeyboardInterrupt with a line that says so; and what is encoded
    stays in a hidden folder beside `path`, after a kill and any exception but a ValueError, until the next run: with
    `resume` that goes on after the first `clip.done` frames; without, it starts again.

    Raises the errors of `check_output`; ValueError if the parts are of another job."""
    if resume and not job:
        raise ValueError(f"{path}: a job without a name cannot be resumed; give `job`")
    rate, suffix, folder_of_pngs = parse_fps(rate), Path(path).suffix.lower(), is_folder(path)
    sound = probe(audio.path).audio if audio is not None else ()
    copied = sound if audio is not None and audio.mode == "copy" else ()
    check_output(path, overwrite, size=size, frames=0, fps=rate, encoding=encoding, sound=copied, resume=resume)
    if sound and not copied:
        check_sound(path, ("opus" if suffix == ".webm" else "aac",))
    encoding = checked_encoding(path, encoding)
    colour = colour if colour is not None and colour.storable else Colour()
    state = f"{job}\n{size} {rate} {encoding} {colour}\n" if job else ""
    parts = bool(job) and (folder_of_pngs or suffix in MOVIES)  # that can be resumed
    with workspace(path, state, resume) as folder, _encoder_errors(path):
        if folder_of_pngs:
            sink = Pictures(folder, encoding.bits)
        elif suffix in MOVIES:
            sink = Movie(folder, size, rate, encoding, colour)
        else:
            sink = Gif(path, rate) if suffix == ".gif" else Animation(folder, suffix, size, rate, encoding)
        clip = ClipWriter(path, size, sink)

        def publish(partial: bool) -> None:
            replace = overwrite or (resume and is_unfinished(path))
            temporary = folder / f".final{suffix}"
            if isinstance(sink, Pictures):
                return sink.finish(path, replace)
            if isinstance(sink, Movie):
                sink.finish(temporary, suffix, audio, captions, partial)
            else:
                sink.finish(temporary)
            move_into_place(temporary, path, replace)

        unpublished = stopping(f"{path} is not there yet; {GOES_ON}") if parts else contextlib.nullcontext()
        try:
            yield clip
            clip._flush()
        except BaseException as error:
            clip._stop()
            if not (job and isinstance(error, KeyboardInterrupt) and sink.count):
                sink.abort()
                if isinstance(error, ValueError):  # of a frame: with other inputs it is another job
                    for part in folder.glob("[!.]*"):
                        part.unlink()
                raise
            with unpublished:
                publish(partial=True)
            mark_shown(path)
            line = f"{path} holds the first {sink.count} frame{'s' * (sink.count > 1)}" + f"; {GOES_ON}" * parts
            raise KeyboardInterrupt(*(error.args or (2,))[:1], line) from error
        clip._thread.shutdown()
        if not sink.count:
            raise ValueError(f"cannot write {path}: there are no frames; give at least one")
        with unpublished:
            publish(partial=False)


class Pictures:
    """Numbered PNGs in `folder`; `count` is their number, at first of those found there."""

    def __init__(self, folder: Path, bits: int) -> None:
        self.folder, self.bits, self.count = folder, bits, 0
        while self._frame(self.count).exists():
            self.count += 1

    def add(self, image: Frame) -> None:
        write_image(self._frame(self.count), image, overwrite=True, bits=self.bits)
        self.count += 1

    def finish(self, path: str | Path, overwrite: bool) -> None:
        """Links or copies the pictures into the folder `path`: a kill half-way loses none."""
        with atomic_folder(path, overwrite) as temporary:
            for index in range(self.count):
                frame = self._frame(index)
                try:
                    os.link(frame, temporary / frame.name)
                except OSError:  # a disk without links
                    shutil.copyfile(frame, temporary / frame.name)

    def abort(self) -> None:
        pass

    def _frame(self, index: int) -> Path:
        return self.folder / f"frame_{index:05d}.png"


def _check_frame(path: str | Path, index: int, frame: np.ndarray) -> None:
    if frame.ndim != 3 or frame.shape[-1] != 3 or frame.size == 0:
        raise ValueError(f"cannot write {path}: frame {index} has shape {frame.shape}, not (height, width, 3)")
    if not np.issubdtype(frame.dtype, np.floating) or np.isnan(frame).any():
        raise ValueError(f"cannot write {path}: frame {index} is {frame.dtype} or has NaN; give floats in [0, 1]")


@contextlib.contextmanager
def _encoder_errors(path: str | Path) -> Iterator[None]:
    """FFmpeg speaks of temporary files, in classes of which some are no OSErrors; a full disk is one."""
    try:
        yield
    except FFmpegError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; give another place or kind") from error
