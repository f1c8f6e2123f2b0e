"""Clips on disk <-> streams of frames.

A frame is a picture as in `common.io.images`: ``h w 3``, RGB, float32, in [0, 1]. Readers are iterators and
writers take one, so that a film of any length passes through constant memory (a GIF apart: its palette is
chosen from the whole clip, so it keeps uint8 frames). Every writer is atomic: an error leaves nothing behind.

    write_clip(path, frames, fps)     .mp4 .mov .mkv: H.264;  .gif;  no suffix: a folder of numbered PNGs
    read_frames(path), probe(path)    whatever FFmpeg decodes

Colour. Video stores Y'CbCr: a matrix, a range and 4:2:0 chroma (one colour sample for 2x2 pixels). Players
use the matrix that the file is tagged with, so conversion and tags must agree: written clips are BT.709,
limited range, and say so in all four tags. Untagged input is guessed as players do: BT.709 for HD (long side
1280 or more, or short side over 576), else BT.601. Transfer curves are left alone: an HDR source (PQ, HLG)
keeps its flat-looking values, nothing is tone-mapped.

Time. Frame rates are exact fractions: 29.97 means 30000/1001. Timestamps of variable-rate input are not kept.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from av.video.stream import VideoStream
from jaxtyping import Float, UInt8
from PIL import Image

from common.io.clip_limits import MAX_SIDE, MOVIES, Rate, check_gif, check_side, is_folder, parse_fps
from common.io.clip_limits import check_output as check_output
from common.io.files import atomic_folder, atomic_output, require_file
from common.io.images import check_writable, to_uint8, write_image

Frame = Float[np.ndarray, "_ _ 3"]

# Without these swscale cuts corners: white decodes as 253, flat colours are off by up to 5/255 (measured).
_SCALER = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
_BT709 = 1  # the number of both its primaries and its transfer curve (ITU-T H.273)


@dataclass(frozen=True)
class VideoInfo:
    """What a file says of its first video stream; width and height as shown, after rotation."""

    fps: Fraction
    width: int
    height: int
    frames: int | None  # None: the container does not say
    seconds: float | None


# ---- writing


def write_clip(
    path: str | Path,
    frames: Iterable[Frame],
    fps: Rate,
    overwrite: bool = False,
    crf: int = 18,
    bits: int = 8,
) -> int:
    """Write `frames` as `path` asks: a movie, a GIF, or a folder of PNGs. Returns the number of frames.

    A folder is a name without suffix, an existing folder, or a name that ends in a slash.
    `crf` is for movies, `bits` (8 or 16) for PNGs; `fps` is checked for a folder too, but not stored.
    """
    fps = parse_fps(fps)
    if is_folder(path):
        return write_frames(path, frames, overwrite, bits)
    if bits != 8:
        raise ValueError(f"cannot write {path} with {bits} bits a channel; give a folder name for 16-bit PNGs")
    if Path(path).suffix.lower() == ".gif":
        return write_gif(path, frames, fps, overwrite)
    return write_mp4(path, frames, fps, crf, overwrite)


def write_mp4(
    path: str | Path,
    frames: Iterable[Frame],
    fps: Rate,
    crf: int = 18,
    overwrite: bool = False,
) -> int:
    """H.264, 4:2:0, BT.709, for every browser and player; the suffix (.mp4 .mov .mkv) picks the container.

    An odd width or height grows by one by repeating the edge, because 4:2:0 needs even sides. `crf`: 1 (huge)
    to 51 (ugly); 18 looks lossless. Returns the number of frames.
    Raises: ValueError (no frames, frames of several sizes, fps, crf), FileExistsError, other OSErrors.
    """
    rate, suffix = parse_fps(fps), Path(path).suffix.lower()
    if suffix not in MOVIES:
        raise ValueError(f"cannot write {path}: suffix {suffix!r} is not one of {' '.join(MOVIES)}")
    if not 1 <= crf <= 51:
        raise ValueError(f"crf is {crf}; it must be from 1 (best) to 51 (worst)")
    options = {} if suffix == ".mkv" else {"movflags": "+faststart"}  # index first: plays while it loads
    count = 0
    with atomic_output(path, overwrite) as temporary:
        first, frames = _peek(path, frames)
        check_side(path, (first.shape[1], first.shape[0]), MAX_SIDE)
        with _encoder_errors(path), av.open(str(temporary), "w", options=options) as container:
            stream = container.add_stream("libx264", rate=rate)
            _configure(stream, first, crf)
            for count, frame in enumerate(frames, start=1):
                container.mux(stream.encode(_to_yuv(frame, count - 1, rate)))
            container.mux(stream.encode())
    return count


@contextlib.contextmanager
def _encoder_errors(path: str | Path) -> Iterator[None]:
    """FFmpeg speaks of the temporary file, in many classes of which some are no OSErrors; a full disk is one."""
    try:
        yield
    except FFmpegError as error:
        raise OSError(
            f"cannot write {path}: {error.strerror or 'unknown error'}; give another place or kind"
        ) from error


def _configure(stream: VideoStream, first: Frame, crf: int) -> None:
    height, width = first.shape[:2]
    stream.width, stream.height, stream.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
    stream.options = {"crf": str(crf), "preset": "medium"}
    context = stream.codec_context
    context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
    context.color_primaries, context.color_trc = _BT709, _BT709


def _to_yuv(image: Frame, index: int, rate: Fraction) -> VideoFrame:
    height, width = image.shape[:2]
    even = np.pad(to_uint8(image), ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    frame = VideoFrame.from_ndarray(even, "rgb24").reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
        interpolation=_SCALER,
    )
    frame.pts, frame.time_base, frame.duration = index, 1 / rate, 1
    return frame


def write_gif(
    path: str | Path,
    frames: Iterable[Frame],
    fps: Rate,
    overwrite: bool = False,
    max_colors: int = 256,
) -> int:
    """A GIF that loops for ever: one palette for the whole clip (no flicker), dithered.

    Delays are whole 1/100 s: each is rounded so that the running total is right. Browsers slow delays under
    2/100 s down to a tenth of a second, so above 50 fps frames are left out instead. A run of equal frames is
    stored once, with their delays summed. Returns the number of frames kept.
    """
    rate = parse_fps(fps)
    if Path(path).suffix.lower() != ".gif":
        raise ValueError(f"cannot write {path}: the suffix of a GIF is .gif")
    if not 2 <= max_colors <= 256:
        raise ValueError(f"max_colors is {max_colors}; it must be from 2 to 256")
    with atomic_output(path, overwrite) as temporary:
        _, frames = _peek(path, frames)
        kept, delays = _timed(path, map(to_uint8, frames), rate)
        palette = _shared_palette(kept, max_colors)
        dither = Image.Dither.FLOYDSTEINBERG
        first, *rest = (Image.fromarray(frame).quantize(palette=palette, dither=dither) for frame in kept)
        milliseconds = [10 * delay for delay in delays]
        try:
            first.save(temporary, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
        except OverflowError as error:
            raise ValueError(
                f"cannot write {path}: a GIF shows one picture for 655 s at most, and here one stays longer; write .mp4"
            ) from error
    return len(kept)


def _timed(
    path: str | Path, frames: Iterable[UInt8[np.ndarray, "h w 3"]], rate: Fraction
) -> tuple[list[UInt8[np.ndarray, "h w 3"]], list[int]]:
    """The frames to keep and their delays in 1/100 s; their sum is right (above 50 fps, to 2/100 s).

    A frame goes to the nearest 1/100 s, or later if the one before needs its 2/100 s; it is left out when
    that would make it more than 1/100 s late.
    """
    kept, starts, count = [], [], 0
    for count, frame in enumerate(frames, start=1):
        due = 100 * (count - 1) / rate
        start = max(_nearest(due), starts[-1] + 2) if starts else 0
        if start - due <= 1:
            kept.append(frame)
            check_gif(path, (frame.shape[1], frame.shape[0]), len(kept))  # for callers who did not plan
            starts.append(start)
    end = max(_nearest(100 * count / rate), starts[-1] + 2)
    return kept, [after - before for before, after in itertools.pairwise([*starts, end])]


def _nearest(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def _shared_palette(frames: list[UInt8[np.ndarray, "h w 3"]], colors: int) -> Image.Image:
    """The palette of up to 16 frames spread evenly over the clip, each thinned to about 160 pixels a side.

    Maximum coverage keeps rare colours, which median cut merges into wrong hues; k-means then refines.
    """
    picks = np.unique(np.linspace(0, len(frames) - 1, 16).round().astype(int))
    step = max(1, round(max(frames[0].shape[:2]) / 160))
    sample = Image.fromarray(np.concatenate([frames[i][::step, ::step] for i in picks]))
    return sample.quantize(colors, method=Image.Quantize.MAXCOVERAGE, kmeans=1)


def write_frames(
    folder: str | Path,
    frames: Iterable[Frame],
    overwrite: bool = False,
    bits: int = 8,
    suffix: str = ".png",
    start: int = 0,
) -> int:
    """Write frame_00000.png, frame_00001.png, ... from number `start`; returns their count.

    Five digits, more when the length of `frames` is known and needs them (so that names sort as numbers do).
    """
    check_writable(f"frame{suffix}", bits)
    if start < 0:
        raise ValueError(f"start is {start}; it must be 0 or more")
    digits = max(5, len(str(start + len(frames) - 1))) if isinstance(frames, Sized) else 5
    count = 0
    with atomic_folder(folder, overwrite, rf"frame_\d+{re.escape(suffix)}") as temporary:
        _, frames = _peek(folder, frames)
        for count, frame in enumerate(frames, start=1):
            write_image(temporary / f"frame_{start + count - 1:0{digits}d}{suffix}", frame, bits=bits)
    return count


def _peek(path: str | Path, frames: Iterable[Frame]) -> tuple[Frame, Iterator[Frame]]:
    """The first frame, and a stream of all frames that checks each one as it passes."""
    checked = _checked(path, frames)
    first = next(checked, None)
    if first is None:
        raise ValueError(f"cannot write {path}: there are no frames; give at least one")
    return first, itertools.chain([first], checked)


def _checked(path: str | Path, frames: Iterable[Frame]) -> Iterator[Frame]:
    first = None
    for index, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.size == 0:
            raise ValueError(f"cannot write {path}: frame {index} has shape {frame.shape}, not (height, width, 3)")
        if not np.issubdtype(frame.dtype, np.floating) or np.isnan(frame).any():
            raise ValueError(f"cannot write {path}: frame {index} is {frame.dtype} or has NaN; give floats in [0, 1]")
        first = frame.shape if first is None else first
        if frame.shape != first:
            sizes = f"{frame.shape[1]}x{frame.shape[0]}, frame 0 is {first[1]}x{first[0]}"
            raise ValueError(f"cannot write {path}: frame {index} is {sizes}; resize or crop them to one size")
        yield frame


# ---- reading


def probe(path: str | Path) -> VideoInfo:
    """Frame rate, shown size, frame count and length of the first video stream. Raises: as `read_frames`."""
    path = require_file(path)
    with _one_line_errors(path), av.open(str(path)) as container:
        stream = _video_stream(path, container)
        frame = next(container.decode(stream), None)
        rate = _gif_rate(path) if container.format.name == "gif" else stream.average_rate or stream.guessed_rate
        if frame is None or not rate:
            raise ValueError(f"{path} holds no picture that can be decoded; copy or convert it again")
        sideways = frame.rotation % 180 != 0
        width, height = (frame.height, frame.width) if sideways else (frame.width, frame.height)
        return VideoInfo(rate, width, height, stream.frames or None, _seconds(container, stream))


def read_frames(path: str | Path) -> Iterator[Float[np.ndarray, "h w 3"]]:
    """The frames of the first video stream in the order shown, upright, one at a time.

    Sources of more than 8 bits keep their precision. Pixels are taken as square, fields as one frame.
    Raises: FileNotFoundError, IsADirectoryError at the call; ValueError while iterating (no video, damaged,
    cut short; a cut .mkv is not noticed, because an unfinished recording looks the same).
    """
    return _decode(require_file(path))


def _decode(path: Path) -> Iterator[Float[np.ndarray, "h w 3"]]:
    count = 0
    with _one_line_errors(path), av.open(str(path)) as container:
        stream = _video_stream(path, container)
        stream.thread_type = "AUTO"
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise ValueError(f"{path} is damaged after frame {count}; copy or convert it again")
            for frame in packet.decode():
                count += 1
                yield np.ascontiguousarray(np.rot90(_to_rgb(frame), k=frame.rotation // 90))
    if not count:
        raise ValueError(f"{path} holds no picture that can be decoded; copy or convert it again")


def _to_rgb(frame: VideoFrame) -> Float[np.ndarray, "h w 3"]:
    deep = frame.format.components[0].bits > 8
    options = {"format": "rgb48le" if deep else "rgb24", "interpolation": _SCALER}
    if frame.format.is_rgb or frame.format.name == "pal8":
        white = 65535 if deep else 255
    else:
        white = 65280 if deep else 255  # swscale widens 8-bit white 255 by a shift, not to 65535 (measured)
        full = frame.color_range == ColorRange.JPEG or frame.format.name.startswith(("yuvj", "gray"))
        options |= {
            "src_colorspace": _matrix(frame),
            "src_color_range": ColorRange.JPEG if full else ColorRange.MPEG,
            "dst_color_range": ColorRange.JPEG,
        }
    return np.minimum(frame.to_ndarray(**options).astype(np.float32) / white, 1)


def _matrix(frame: VideoFrame) -> Colorspace:
    tagged = {  # MatrixCoefficients of ITU-T H.273
        1: Colorspace.ITU709,
        4: Colorspace.FCC,
        5: Colorspace.ITU601,
        6: Colorspace.ITU601,
        7: Colorspace.SMPTE240M,
        9: Colorspace.BT2020,
        10: Colorspace.BT2020,
    }
    short, long = sorted((frame.width, frame.height))
    guess = Colorspace.ITU709 if long >= 1280 or short > 576 else Colorspace.ITU601
    return tagged.get(frame.colorspace, guess)


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    if not container.streams.video:
        raise ValueError(f"{path} has no video in it; give a video file")
    stream = container.streams.video[0]
    # FFmpeg plays the rest of a cut .mp4 without a word, but the index still names the bytes that are gone.
    needed = max((entry.pos + entry.size for entry in stream.index_entries), default=0)
    if path.is_file() and needed > path.stat().st_size:
        raise ValueError(f"{path} is cut short ({path.stat().st_size} of {needed} bytes); copy it again")
    return stream


def _gif_rate(path: Path) -> Fraction:
    """Frames over length. Delays in 1/100 s cannot say 15 fps, so a whole rate that fits is preferred."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        delays = [packet.duration or 0 for packet in container.demux(stream) if packet.size]
        length = sum(delays) * (stream.time_base or Fraction(1, 100))
    rate = len(delays) / max(length, Fraction(1, 100))
    whole = Fraction(max(1, round(rate)))
    return whole if abs(len(delays) / whole - length) <= Fraction(1, 200) else rate


def _seconds(container: InputContainer, stream: VideoStream) -> float | None:
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else None


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FFmpegError as error:
        reason = error.strerror or "unknown error"
        raise ValueError(f"{path} is no video, or damaged ({reason}); copy or convert it again") from error
