"""Streams of frames -> clips on disk.

A frame is an image as in `common.io.images`. Writers take an iterator, so that a film of any length passes through
constant memory (except a GIF, whose palette needs all its frames, kept as uint8), and are atomic.

    write_clip(path, frames, fps)     .mp4 .mov .mkv: H.264;  .gif;  no suffix: a folder of numbered PNGs

Video stores Y'CbCr: a matrix, a range and 4:2:0 chroma (one colour sample for 2x2 pixels). Players use the matrix of
the file's tags, so conversion and tags must agree: clips are BT.709, limited range, in all four tags.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from jaxtyping import Float, UInt8
from PIL import Image

from common.io.clip_limits import MAX_SIDE, MOVIES, Rate, check_gif, check_side, is_folder, parse_fps
from common.io.files import atomic_folder, atomic_output
from common.io.images import to_uint8, write_image

Frame = Float[np.ndarray, "_ _ 3"]

# Without these swscale is inexact: white decodes as 253, flat colours are off by up to 5/255 (measured).
_SCALER = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
CRF = 18  # from 1 (largest) to 51 (worst); looks lossless
_BT709 = 1  # the number of both its primaries and its transfer curve (ITU-T H.273)


def write_clip(path: str | Path, frames: Iterable[Frame], fps: Rate, overwrite: bool = False) -> int:
    """Writes a movie, a GIF, or a folder of frame_00000.png, frame_00001.png, ... (no suffix, an existing folder, or a
    slash at the end) and returns the number of frames. Raises ValueError for no frames, frames of several sizes, and
    fps."""
    fps = parse_fps(fps)
    if not is_folder(path):
        write = write_gif if Path(path).suffix.lower() == ".gif" else write_mp4
        return write(path, frames, fps, overwrite)
    count = 0
    with atomic_folder(path, overwrite) as temporary:
        _, frames = _peek(path, frames)
        for count, frame in enumerate(frames, start=1):
            write_image(temporary / f"frame_{count - 1:05d}.png", frame)
    return count


def write_mp4(path: str | Path, frames: Iterable[Frame], fps: Rate, overwrite: bool = False) -> int:
    """H.264, 4:2:0, BT.709, for every browser and player; the suffix (.mp4 .mov .mkv) picks the container. An odd width
    or height grows by one by repeating the edge, because 4:2:0 needs even sides. Returns and raises as `write_clip`."""
    rate, suffix = parse_fps(fps), Path(path).suffix.lower()
    if suffix not in MOVIES:
        raise ValueError(f"cannot write {path}: suffix {suffix!r} is not one of {' '.join(MOVIES)}")
    options = {} if suffix == ".mkv" else {"movflags": "+faststart"}  # index first: plays while it loads
    count = 0
    with atomic_output(path, overwrite) as temporary:
        first, frames = _peek(path, frames)
        height, width = first.shape[:2]
        check_side(path, (width, height), MAX_SIDE)
        try:
            with av.open(str(temporary), "w", options=options) as container:
                stream = container.add_stream("libx264", rate=rate)
                stream.width, stream.height, stream.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
                stream.options = {"crf": str(CRF), "preset": "medium"}
                context = stream.codec_context
                context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
                context.color_primaries, context.color_trc = _BT709, _BT709
                for count, frame in enumerate(frames, start=1):
                    container.mux(stream.encode(_to_yuv(frame, count - 1, rate)))
                container.mux(stream.encode())
        except FFmpegError as error:  # of the temporary file, and not always an OSError; a full disk is one
            reason = error.strerror or "unknown error"
            raise OSError(f"cannot write {path}: {reason}; give another place or kind") from error
    return count


def _to_yuv(image: Frame, index: int, rate: Fraction) -> VideoFrame:
    height, width = image.shape[:2]
    even = np.pad(to_uint8(image), ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    colours = dict(dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG)
    frame = VideoFrame.from_ndarray(even, "rgb24").reformat(format="yuv420p", interpolation=_SCALER, **colours)
    frame.pts, frame.time_base, frame.duration = index, 1 / rate, 1
    return frame


def write_gif(path: str | Path, frames: Iterable[Frame], fps: Rate, overwrite: bool = False) -> int:
    """A GIF that loops forever: one palette for the whole clip (no flicker), dithered. Returns the frames kept.

    Delays are whole 1/100 s, rounded so that the running total is right. Browsers slow delays under 2/100 s down to a
    tenth of a second, so above 50 fps frames are dropped instead. A run of equal frames is stored once, with the sum of
    their delays.
    """
    rate = parse_fps(fps)
    if Path(path).suffix.lower() != ".gif":
        raise ValueError(f"cannot write {path}: the suffix of a GIF is .gif")
    with atomic_output(path, overwrite) as temporary:
        _, frames = _peek(path, frames)
        kept, delays = _timed(path, map(to_uint8, frames), rate)
        # The palette comes from up to 16 frames, thinned to about 160 pixels a side. Maximum coverage keeps rare
        # colours, which median cut merges into wrong hues; k-means then refines.
        picks = np.unique(np.linspace(0, len(kept) - 1, 16).round().astype(int))
        step = max(1, round(max(kept[0].shape[:2]) / 160))
        sample = Image.fromarray(np.concatenate([kept[i][::step, ::step] for i in picks]))
        palette = sample.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1)
        dither = Image.Dither.FLOYDSTEINBERG
        first, *rest = (Image.fromarray(frame).quantize(palette=palette, dither=dither) for frame in kept)
        milliseconds = [10 * delay for delay in delays]
        try:
            first.save(temporary, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
        except OverflowError as error:
            raise ValueError(f"cannot write {path}: one of its images stays for more than 655 s; write .mp4") from error
    return len(kept)


def _timed(
    path: str | Path, frames: Iterable[UInt8[np.ndarray, "h w 3"]], rate: Fraction
) -> tuple[list[UInt8[np.ndarray, "h w 3"]], list[int]]:
    """The frames to keep and their delays in 1/100 s; their sum is right (above 50 fps, to 2/100 s).

    A frame starts at the nearest 1/100 s, or later if the one before needs its 2/100 s; it is dropped when more than
    1/100 s late.
    """
    kept, starts, count = [], [], 0
    for count, frame in enumerate(frames, start=1):
        due = 100 * (count - 1) / rate
        start = max(_nearest(due), starts[-1] + 2) if starts else 0
        if start - due <= 1:
            kept.append(frame)
            check_gif(path, (frame.shape[1], frame.shape[0]), len(kept))
            starts.append(start)
    end = max(_nearest(100 * count / rate), starts[-1] + 2)
    return kept, [after - before for before, after in itertools.pairwise([*starts, end])]


def _nearest(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def _peek(path: str | Path, frames: Iterable[Frame]) -> tuple[Frame, Iterator[Frame]]:
    """The first frame, and a stream of all frames that checks each one."""
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
