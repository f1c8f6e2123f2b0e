"""Video files -> images with their times.

    info = probe("clip.mp4")                        # size, exact rate, length, colour, sound
    for frame in read_video("clip.mp4"):            # in the order shown, one at a time
        frame.time, frame.duration, frame.image     # Fraction seconds from the first frame; RGB in [0, 1]

Stages: packets -> FFmpeg's decoder (threaded) -> bwdif for interlaced frames -> square pixels and RGB by
`common.io.colour` -> upright by the display matrix. Animated GIF and PNG are read too; animated WebP is not, since
FFmpeg has no decoder for it.

Times are those of the file, exact in its time base. A frame lasts until the next; the last one until the end of the
stream. A frame whose time is not after the one before is dropped.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar, cast

import av
import av.filter
import numpy as np
from av.buffer import Buffer
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from jaxtyping import Float

from common.io.colour import Colour, frame_colour, to_rgb
from common.io.files import require_file
from common.io.images import most_pixels
from common.io.movie_claims import check_frames, check_samples, no_frame

T = TypeVar("T")

_NOT_VIDEO = ("image2", "tty")  # FFmpeg takes pictures and plain text for video
_ANIMATIONS = ("gif", "apng")
_SEEK_BACK = 1  # seconds before the wanted frame: bwdif looks at the frame before
_SLACK = Fraction(1, 2)  # seconds that a stream may end before its header says


@dataclass(frozen=True)
class VideoInfo:
    """What a file says of its main video stream; None where it does not say."""

    width: int  # as shown, after pixel shape and rotation
    height: int
    rate: Fraction  # average frames a second
    duration: Fraction | None  # seconds
    frames: int | None
    bits: int  # of a sample, 8 or more
    colour: Colour  # guessed where there are no tags
    audio: tuple[str, ...]  # the codec of each stream
    variable: bool | None  # whether frames last unequally
    start: Fraction  # seconds of the first frame on the clock that the sound uses
    subtitles: tuple[str, ...] = ()  # the codec of each stream
    chapters: int = 0


@dataclass(frozen=True)
class TimedFrame:
    """`image`: RGB in [0, 1]; `time`: seconds from the first frame; `duration`: seconds until the next, or the end."""

    time: Fraction
    image: Float[np.ndarray, "h w 3"]
    duration: Fraction


def probe(path: str | Path) -> VideoInfo:
    """Reads the header and the first frame; of a GIF or animated PNG all packets. Raises FileNotFoundError,
    IsADirectoryError, PermissionError; ValueError for a file that is no video, or damaged before its first frame."""
    with open_video(path) as (container, stream):
        frame = next(iter(_Decoder(container, stream)), None)
        if frame is None:
            raise ValueError(no_frame(path))
        size = _square(frame, stream)
        a, b, *_ = _display_matrix(frame)
        width, height = size[::-1] if abs(b) > abs(a) else size
        if container.format.name in _ANIMATIONS:
            frames, duration, rate, variable = _animation(path, stream)
        else:
            frames, duration, rate, variable = stream.frames or None, _end(stream), _rate(stream), _is_variable(stream)
            if duration is not None:
                duration -= (stream.start_time or 0) * (stream.time_base or 0)
            elif container.duration:
                duration = Fraction(container.duration, av.time_base)
        return VideoInfo(
            width,
            height,
            rate,
            duration,
            frames,
            frame.format.components[0].bits,
            frame_colour(frame),
            tuple(map(codec_name, container.streams.audio)),
            variable,
            _stamp(frame) or Fraction(0),
            tuple(map(codec_name, container.streams.subtitles)),
            len(container.chapters()),
        )


def codec_name(stream: Stream) -> str:
    """As containers list what they hold."""
    return "unknown" if stream.codec_context is None else stream.codec_context.codec.canonical_name


def read_video(
    path: str | Path, start: Fraction = Fraction(0), on_damage: Callable[[str], None] | None = None
) -> Iterator[TimedFrame]:
    """The frames from the first whose time is at or after `start` seconds: the same ones as without `start`, and those
    long before are not decoded.

    Of a file that is cut short or damaged the frames before the damage come; then one line goes to `on_damage`, or is
    raised as a ValueError if there is none. Other errors as `probe`, with the first frame.
    """
    if start > _SEEK_BACK:
        with open_video(path) as (container, stream):
            origin = next(map(_stamp, _Decoder(container, stream)), None)
            if origin is not None and stream.time_base:
                container.seek(int((origin + start - _SEEK_BACK) / stream.time_base), stream=stream)
                decoder = _Decoder(container, stream)
                decoded = iter(decoder)
                landed = next(decoded, None)
                stamp = landed and _stamp(landed)
                if landed is not None and stamp is not None and stamp < origin + start:
                    decoded = itertools.chain([landed], decoded)
                    yield from _timed(path, stream, decoder, decoded, origin, start, on_damage)
                    return
    with open_video(path) as (container, stream):  # no `start`, or a file in which one cannot seek
        decoder = _Decoder(container, stream)
        yield from _timed(path, stream, decoder, iter(decoder), None, start, on_damage)


def prefetch(items: Iterable[T], depth: int = 2, *, wait: bool = True) -> Generator[T, None, None]:
    """The same items, up to `depth` of them computed ahead in a thread. An error comes where its item would. When the
    consumer stops early (`close`, an exception), the source is closed as soon as its current item is done; with `wait`
    not before that."""
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(1, "prefetch")
    pending = deque(thread.submit(next, iterator, end) for _ in range(depth))
    try:
        while (item := pending.popleft().result()) is not end:
            pending.append(thread.submit(next, iterator, end))
            yield item  # type: ignore[misc]
    finally:
        for future in pending:
            future.cancel()
        closed = thread.submit(iterator.close) if isinstance(iterator, Generator) else None
        thread.shutdown(wait)
        if closed is not None and wait:
            closed.result()


# Playlists and patterns, which read whatever files they name; devices.
_OF_OTHER_FILES = {"hls", "dash", "concat", "image2", "imf", "webm_dash_manifest", "rtsp", "sdp", "lavfi"}


@contextlib.contextmanager
def open_video(path: str | Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The opened file and its main video stream; errors inside become one line, as in `probe`."""
    path = require_file(path)
    check_samples(path)
    pixels = {"max_pixels": str(most_pixels(path.stat().st_size))}
    formats = ",".join(sorted(av.formats_available - _OF_OTHER_FILES))
    options = pixels | {"protocol_whitelist": "file", "format_whitelist": formats}
    absolute = str(path.absolute())  # which names no protocol
    with _one_line_errors(path), av.open(absolute, options=options, metadata_errors="replace") as container:
        name = container.format.name
        if name.endswith("_pipe") or name in _NOT_VIDEO:
            raise ValueError(f"{path} is no video ({name}); give a video file")
        covers = Disposition.attached_pic | Disposition.timed_thumbnails
        streams = [stream for stream in container.streams.video if not stream.disposition & covers]
        if not streams:
            what = "only sound" if container.streams.audio else "nothing to see"
            raise ValueError(f"{path} has no video in it, {what}; give a video file")
        best = container.streams.best("video")
        stream = next((stream for stream in streams if best and stream.index == best.index), streams[0])
        if stream.codec_context is None:
            raise ValueError(f"{path} is of a codec that FFmpeg cannot decode here; convert it to H.264")
        check_frames(path, stream.width, stream.height, stream.frames)
        stream.codec_context.options = pixels  # for what the frames themselves say
        stream.thread_type = "AUTO"
        yield container, stream


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise
    except FFmpegError as error:
        with contextlib.suppress(OSError), path.open("rb") as file:
            if file.read(8)[4:] == b"ftyp":
                advice = "it was cut short while it was recorded or copied; copy it again, or repair it with untrunc"
                raise ValueError(f"{path} has no readable index (moov): {advice}") from error
        raise ValueError(f"{path} is no video, or damaged ({error.strerror}); copy or convert it again") from error


class _Decoder:
    """Iterates over the decoded frames, progressive ones; ends at the first damage, and says why in `damage`."""

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        self.container, self.stream = container, stream
        self.damage: str | None = None

    def __iter__(self) -> Iterator[VideoFrame]:
        graph = None
        for frame in self._frames():
            if graph is None and frame.interlaced_frame:
                graph = av.filter.Graph()
                source, sink = graph.add_buffer(template=self.stream), graph.add("buffersink")
                graph.link_nodes(source, graph.add("bwdif", "mode=send_frame:deint=interlaced"), sink).configure()
            yield from [frame] if graph is None else filtered(graph, frame)
        if graph is not None:
            yield from filtered(graph, None)

    def _frames(self) -> Iterator[VideoFrame]:
        """A stream that was cut out of another starts with frames that cannot be decoded; those are skipped."""
        seen = False
        try:
            for packet in self.container.demux(self.stream):
                if packet.is_corrupt and packet.size:
                    if not seen:
                        continue
                    self.damage = "the data end inside a frame"
                    break
                try:
                    frames = packet.decode()
                except FFmpegError:
                    if not seen:
                        continue
                    raise
                seen |= bool(frames)
                yield from frames
        except FFmpegError as error:
            if not seen:
                raise
            self.damage = str(error.strerror)
        if self.damage:
            with contextlib.suppress(FFmpegError):
                for frame in self.stream.decode(None):  # what the threads of the decoder still hold
                    frame.time_base = self.stream.time_base
                    yield frame


def filtered(graph: av.filter.Graph, frame: Any) -> Iterator[Any]:
    """The frames, of video or sound, that a graph with one input and one output gives after this one; None: the end."""
    graph.push(frame)
    with contextlib.suppress(BlockingIOError, EOFError):
        while True:
            yield graph.pull()


def _timed(
    path: str | Path,
    stream: VideoStream,
    decoder: _Decoder,
    decoded: Iterator[VideoFrame],
    origin: Fraction | None,
    start: Fraction,
    on_damage: Callable[[str], None] | None,
) -> Iterator[TimedFrame]:
    """Frames with their times; one is held back, since it lasts until the next."""
    nominal, held, stamp, matrix = 1 / _rate(stream), None, Fraction(0), None
    for frame in decoded:
        matrix = matrix or _display_matrix(frame)
        following = _stamp(frame)
        if following is None:  # a raw stream
            following = stamp + nominal if held else Fraction(0)
        origin = following if origin is None else origin
        if held is not None and following <= stamp:
            continue
        if held is not None and stamp - origin >= start:
            yield TimedFrame(stamp - origin, _image(held, stream, matrix), following - stamp)
        held, stamp = frame, following
    if held is None or origin is None or matrix is None:
        raise ValueError(no_frame(path))

    tick = held.time_base or Fraction(1, 1000)
    duration = (held.duration or 0) * tick
    if tick <= Fraction(1, 1000) and abs(duration - nominal) <= Fraction(3, 2) * tick:
        duration = nominal  # it was rounded to the time base; a GIF's is meant as it is
    end = _end(stream)
    if end is not None and not decoder.damage:
        if end - stamp > duration + _SLACK:
            decoder.damage = f"its header says {float(end - origin):.2f} s"
        elif tick < Fraction(1, 1000) and end > stamp:
            duration = end - stamp
    if stamp - origin >= start:
        yield TimedFrame(stamp - origin, _image(held, stream, matrix), duration or nominal)
    if decoder.damage:
        line = f"{path} is cut short or damaged after {float(stamp - origin):.2f} s ({decoder.damage}); copy it again"
        if on_damage is None:
            raise ValueError(line)
        on_damage(line)


def _stamp(frame: VideoFrame) -> Fraction | None:
    stamp = frame.dts if frame.pts is None else frame.pts
    return None if stamp is None or frame.time_base is None else stamp * frame.time_base


def _rate(stream: VideoStream) -> Fraction:
    """Average frames a second. A time base of milliseconds blurs it (7001/146 for 48000/1001): a rate that is whole, or
    of the NTSC family, to 1e-5 is taken for that."""
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate or Fraction(25)
    if stream.time_base and stream.time_base >= Fraction(1, 1000):
        for exact in (Fraction(round(rate)), Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)):
            if abs(rate - exact) < rate / 100_000:
                return exact
    return rate


def _end(stream: VideoStream) -> Fraction | None:
    """When the stream ends on the clock of its frames, as the header says. Matroska has it as a tag; its duration is
    that of the file, sound included."""
    with contextlib.suppress(KeyError, ValueError, ZeroDivisionError):
        hours, minutes, seconds = stream.metadata["DURATION"].split(":")
        return 3600 * Fraction(hours) + 60 * Fraction(minutes) + Fraction(seconds)
    if stream.duration and stream.time_base:
        return ((stream.start_time or 0) + stream.duration) * stream.time_base
    return None


def _is_variable(stream: VideoStream) -> bool | None:
    """From the index, if it has all frames; the last may last longer."""
    times = [entry.timestamp for entry in stream.index_entries]
    if not times or len(times) != stream.frames:
        return None
    steps = [after - before for before, after in itertools.pairwise(times)]
    return bool(steps) and max(steps) - min(steps) > 1


def _animation(path: str | Path, stream: VideoStream) -> tuple[int, Fraction, Fraction, bool]:
    """Frames, length, rate and whether it varies. Delays of 1/100 s cannot say 15 frames/s: a rate that fits the length
    is preferred."""
    with av.open(str(path), metadata_errors="replace") as container:
        video = container.streams.video[0]
        delays = [packet.duration or 0 for packet in container.demux(video) if packet.size]
        length = max(sum(delays) * (video.time_base or Fraction(1, 100)), Fraction(1, 100))
    count, measured = len(delays), len(delays) / length
    rates = [rate for rate in (stream.average_rate, Fraction(max(1, round(measured)))) if rate]
    rate = next((rate for rate in rates if abs(count / rate - length) <= Fraction(1, 200)), measured)
    return count, length, rate, max(delays) - min(delays) > 1


def _image(frame: VideoFrame, stream: VideoStream, matrix: tuple[int, int, int, int]) -> Float[np.ndarray, "h w 3"]:
    """Upright RGB with square pixels."""
    image, (a, b, c, d) = to_rgb(frame, _square(frame, stream)), matrix
    across, down = a, d
    if abs(b) > abs(a):  # sideways
        image, across, down = image.transpose(1, 0, 2), c, b
    return np.ascontiguousarray(image[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])


def _square(frame: VideoFrame, stream: VideoStream) -> tuple[int, int]:
    """(width, height) with square pixels: the longer side of a pixel is stretched to, so nothing is lost."""
    shape = stream.sample_aspect_ratio or Fraction(1)
    if not Fraction(1, 10) <= shape <= 10:  # nonsense
        shape = Fraction(1)
    return (round(frame.width * max(shape, 1)), round(frame.height / min(shape, 1)))


def _display_matrix(frame: VideoFrame) -> tuple[int, int, int, int]:
    """(a, b, c, d): the pixel at x, y is shown at a x + c y, b x + d y, but for a shift. To be asked of one frame of a
    stream only: side data and frame refer to each other, which keeps the pixels until Python's next collection."""
    try:
        data = cast(Mapping[str, Buffer], frame.side_data)["DISPLAYMATRIX"]  # PyAV's stub knows one other key only
    except KeyError:
        return 1, 0, 0, 1
    a, b, _, c, d, *_ = np.frombuffer(bytes(data), np.int32).tolist()
    return a, b, c, d
