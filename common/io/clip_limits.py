"""Formats of clips (docs/video.md) and their limits, checked before any frame is computed.

Frame rates are exact fractions: 29.97 means 30000/1001.
"""

import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from common.io.files import check_output_file, check_output_folder, finished_parts, is_unfinished

MAX_SIDE = 16384  # pixels, of all encoders here


@dataclass(frozen=True)
class Codec:
    """A video codec: FFmpeg's encoder and its options, what it takes (`smallest` side and `height` in pixels), and its
    scale of quality (CRF, 0 is best): a default that looks lossless, and the worst. Look-aheads are short, so that
    encoding stops quickly."""

    encoder: str
    quality: int
    worst: int
    smallest: int = 1
    height: int = MAX_SIDE
    bits: tuple[int, ...] = (8, 10)
    chroma: tuple[str, ...] = ("420", "444")
    options: tuple[tuple[str, str], ...] = ()


CODECS = {
    "h264": Codec("libx264", 18, 51, options=(("preset", "medium"), ("rc-lookahead", "12"))),
    "hevc": Codec("libx265", 20, 51, 16, options=(("x265-params", "log-level=none:rc-lookahead=12"),)),
    "av1": Codec("libsvtav1", 22, 63, 4, 8704, chroma=("420",), options=(("preset", "6"),)),
    "vp9": Codec("libvpx-vp9", 22, 63, bits=(8,), options=(("b", "0"), ("row-mt", "1"), ("cpu-used", "2"))),
}
MOVIES = {  # suffix -> FFmpeg's name of the container, codecs
    ".mp4": ("mp4", ("h264", "hevc", "av1", "vp9")),
    ".mov": ("mov", ("h264", "hevc")),
    ".mkv": ("matroska", ("h264", "hevc", "av1", "vp9")),
    ".webm": ("webm", ("vp9", "av1")),
}
ANIMATIONS = (".gif", ".webp", ".apng")
MAX_GIF_BYTES = 2_000_000_000  # of frames in memory: 1080p for 11 s at 30 fps
PNG_RATIO = 4  # photos hardly ever compress further
MIN_FPS, MAX_FPS = Fraction(1, 100), Fraction(1000)  # FFmpeg refuses longer frames, a GIF's delay ends at 655 s
_NTSC = tuple(Fraction(n * 1000, 1001) for n in (24, 30, 48, 60, 120, 240))

Rate = Fraction | float | int | str


@dataclass(frozen=True)
class Encoding:
    """How pixels are stored."""

    codec: str | None = None  # of a movie: h264, hevc, av1 or vp9; None: the first that stores `bits` and `chroma`
    quality: int | None = None  # CRF of a movie, 0 (best) to 51 or 63; of .webp 0 to 100 (best); None: looks lossless
    bits: int = 8  # or 10 for movies, 16 for .apng and PNGs, where 10 means 16 too
    chroma: str = "420"  # of a movie: one colour sample for 2x2 pixels, which every player takes; "444": one for each


DEFAULT_ENCODING = Encoding()


def parse_fps(fps: Rate) -> Fraction:
    """An exact frame rate from 24, 29.97, "30000/1001" or Fraction(25); decimal names of NTSC rates (23.976, ...)
    give their fraction. Raises ValueError unless 0.01 <= fps <= 1000."""
    try:
        if isinstance(fps, str) and "/" not in fps and not 0 < float(fps) <= MAX_FPS:
            raise ValueError  # before `Fraction` writes out the digits of 1e999999999
        rate = Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not MIN_FPS <= rate <= MAX_FPS:
        raise ValueError(f"fps is {fps}; it must be a number or a fraction like 30000/1001, from 0.01 to 1000")
    if not (isinstance(fps, Fraction) or "/" in str(fps) or rate.denominator == 1):
        rate = next((ntsc for ntsc in _NTSC if abs(ntsc - rate) < Fraction(5, 1000)), rate)
    return rate.limit_denominator(1_000_000)


def check_output(
    path: str | Path,
    overwrite: bool = False,
    *,
    size: tuple[int, int] | None = None,
    frames: int = 0,
    fps: Rate = 30,
    encoding: Encoding = DEFAULT_ENCODING,
    sound: Sequence[str] = (),
    resume: bool = False,
) -> None:
    """Raises the errors of writing a clip to `path` that are known before: of its name and place, of `encoding`, of
    `sound` (the codecs of the streams that are copied); with its `size` (width, height), `frames` and `fps` also of one
    too large for the format, the disk (PNGs) or the memory (a GIF). With `resume` an unfinished output may exist."""
    folder, suffix = is_folder(path), Path(path).suffix.lower()
    if resume and not folder and suffix in ANIMATIONS:
        raise ValueError(f"{path}: a {suffix} cannot be resumed; write .mp4 or PNGs, or leave out resume")
    overwrite = overwrite or (resume and is_unfinished(path))
    (check_output_folder if folder else check_output_file)(path, overwrite)
    encoding = checked_encoding(path, encoding)
    check_sound(path, sound)
    if size is None:
        return
    rate = parse_fps(fps)
    if folder:
        left = frames - (finished_parts(path) if resume else 0)
        check_disk(path, left * math.prod(size) * 3 * encoding.bits // 8 // PNG_RATIO)
    elif suffix == ".gif":
        check_gif(path, size, math.ceil(frames * min(1, 50 / rate)))  # the others are dropped
    else:
        check_size(path, size, encoding)


def is_folder(path: str | Path) -> bool:
    """Whether a clip of this name is a folder of PNGs. Raises ValueError for an unknown suffix."""
    suffix, name = Path(path).suffix.lower(), Path(path).name
    suffixes = (*MOVIES, *ANIMATIONS)
    if suffix in suffixes:
        return False
    if name.lower() in suffixes:
        raise ValueError(f"cannot write {path}: that is a suffix without a name; give one such as clip{name}")
    if not suffix or str(path).endswith("/") or Path(path).is_dir():
        return True
    known = f"{' '.join(suffixes)}; a name without suffix gives PNGs"
    raise ValueError(f"cannot write {path}: {suffix!r} is none of {known}")


def checked_encoding(path: str | Path, encoding: Encoding) -> Encoding:
    """`encoding` with the defaults of `path` filled in. Raises ValueError for what its format or codec lacks."""
    suffix, quality, bits = Path(path).suffix.lower(), encoding.quality, encoding.bits
    if suffix not in MOVIES:
        if encoding.codec is not None:
            raise ValueError(f"{path}: codec {encoding.codec!r} is for movies; leave it out, or write .mp4")
        if bits not in (8, 10, 16) or (bits > 8 and suffix in (".gif", ".webp")):
            raise ValueError(f"{path}: {bits} bits cannot be stored; give 8, or write PNGs or .apng with 16")
        if quality is not None and (suffix != ".webp" or not 0 <= quality <= 100):
            raise ValueError(f"{path}: quality {quality} is for movies, and for .webp from 0 to 100; leave it out")
        return replace(encoding, bits=8 if bits == 8 else 16, quality=90 if quality is None else quality)
    names = MOVIES[suffix][1]
    able = [name for name in names if bits in CODECS[name].bits and encoding.chroma in CODECS[name].chroma]
    name = [*able, names[0]][0] if encoding.codec is None else encoding.codec
    if name not in names:
        raise ValueError(f"{path}: codec {name!r} is none of {suffix}, which takes {' '.join(names)}")
    codec = CODECS[name]
    quality = codec.quality if quality is None else quality
    if not 0 <= quality <= codec.worst:
        raise ValueError(f"{path}: quality {quality} of {name} is not from 0 (best) to {codec.worst} (worst)")
    if name not in able:
        way = f"codec {able[0]}" if able else f"{codec.bits[0]} bits and chroma 420"
        raise ValueError(f"{path}: {name} cannot store {bits} bits with chroma {encoding.chroma}; use {way}")
    from av.codec.codec import Codec as Encoder  # slow to load: mistakes in names are told before
    from av.codec.codec import UnknownCodecError

    try:
        Encoder(codec.encoder, "w")
    except UnknownCodecError:
        raise ValueError(f"{path}: PyAV has no encoder {codec.encoder} here; use another codec") from None
    return replace(encoding, codec=name, quality=quality)


def check_sound(path: str | Path, codecs: Sequence[str]) -> None:
    """Raises ValueError if streams of these audio codecs cannot be copied into the container of `path`."""
    suffix = Path(path).suffix.lower()
    refused = not_held(suffix, codecs) if suffix in MOVIES else codecs
    if refused:
        other = ".mkv" if suffix in MOVIES else ".mp4"
        raise ValueError(f"{path}: it cannot hold {refused[0]} sound; write {other}, or leave the sound out")


def not_held(suffix: str, codecs: Sequence[str]) -> list[str]:
    """Those of the codecs (of sound or subtitles) that the container of a movie cannot hold."""
    import av

    with av.open(io.BytesIO(), "w", format=MOVIES[suffix][0]) as container:
        return [codec for codec in codecs if codec not in container.supported_codecs]


def check_disk(folder: str | Path, needed: int) -> None:
    """Raises ValueError if the disk of `folder` (which need not exist yet) has fewer than `needed` bytes left."""
    folder = Path(folder).resolve()
    disk = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists()))
    if needed > disk.free and disk.total:  # some file systems report 0 of 0
        sizes = f"PNGs of about {_gigabytes(needed)} or more on a disk with {_gigabytes(disk.free)} left"
        raise ValueError(f"{folder}: {sizes}; make fewer frames, or write .mp4")


def check_gif(path: str | Path, size: tuple[int, int], frames: int) -> None:
    """Raises ValueError if the frames of `size` (width, height) are too many for the memory of a GIF's writer."""
    check_size(path, size)
    if frames * math.prod(size) * 3 > MAX_GIF_BYTES:
        limit = f"past {_gigabytes(MAX_GIF_BYTES)}, and a GIF keeps them in memory; write .mp4"
        raise ValueError(f"cannot write {path}: {frames} of {size[0]}x{size[1]} are {limit}")


def check_size(path: str | Path, size: tuple[int, int], encoding: Encoding = DEFAULT_ENCODING) -> None:
    """Raises ValueError if a side of `size` (width, height) is out of the limits of the format or codec."""
    kind, (width, height) = Path(path).suffix.lower(), size
    smallest, widest = 1, {".gif": 65535, ".webp": 16383}.get(kind, 2**31 - 1)
    highest = widest
    if kind in MOVIES:
        kind = str(checked_encoding(path, encoding).codec)
        smallest, widest, highest = CODECS[kind].smallest, MAX_SIDE, CODECS[kind].height
    if width > widest or height > highest:
        raise ValueError(f"cannot write {path}: {width}x{height} is past {widest}x{highest} of {kind}; write PNGs")
    if min(width, height) < smallest:
        raise ValueError(f"cannot write {path}: {width}x{height} is under {smallest} a side of {kind}; use codec h264")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
