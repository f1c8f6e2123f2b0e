"""Limits of each kind of clip, checked from a name and a few numbers before any frame is computed.

| output | limit |
| --- | --- |
| .mp4 .mov .mkv (H.264) | 16,384 pixels a side |
| .gif | 65,535 pixels a side; all frames in memory (one palette for the whole clip) |
| a folder of PNGs | free space on the disk |

Frame rates are exact fractions: 29.97 means 30000/1001.
"""

import math
import shutil
from fractions import Fraction
from pathlib import Path

from common.io.files import check_output_file, check_output_folder

MOVIES = (".mp4", ".mov", ".mkv")
MAX_SIDE = 16384  # of libx264
MAX_GIF_SIDE = 65535
MAX_GIF_BYTES = 2_000_000_000  # of frames in memory: 1080p for 11 s at 30 fps
PNG_RATIO = 4  # photos hardly ever compress further
MIN_FPS, MAX_FPS = Fraction(1, 100), Fraction(1000)  # FFmpeg refuses longer frames, a GIF's delay ends at 655 s
_NTSC = tuple(Fraction(n * 1000, 1001) for n in (24, 30, 48, 60, 120, 240))

Rate = Fraction | float | int | str


def parse_fps(fps: Rate) -> Fraction:
    """An exact frame rate from 24, 29.97, "30000/1001" or Fraction(25); decimal names of NTSC rates (23.976, ...)
    give their fraction. Raises ValueError unless 0.01 <= fps <= 1000."""
    try:
        if isinstance(fps, str) and "/" not in fps and not 0 < float(fps) <= MAX_FPS:
            rate = Fraction(0)  # before `Fraction` writes out the digits of 1e999999999
        else:
            rate = fps if isinstance(fps, Fraction) else Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not MIN_FPS <= rate <= MAX_FPS:
        raise ValueError(f"fps is {fps}; it must be a number or a fraction like 30000/1001, from 0.01 to 1000")
    if not (isinstance(fps, Fraction) or "/" in str(fps) or rate.denominator == 1):
        rate = next((ntsc for ntsc in _NTSC if abs(ntsc - rate) < Fraction(5, 1000)), rate)
    return rate.limit_denominator(1_000_000)


def check_output(
    path: str | Path, overwrite: bool = False, *, size: tuple[int, int] | None = None, frames: int = 0, fps: Rate = 30
) -> None:
    """Raises the errors of writing a clip to `path` that are known before; with its `size` (width, height), `frames`
    and `fps` also for a clip too large for the format, the disk (PNGs) or the memory (a GIF)."""
    folder = is_folder(path)
    (check_output_folder if folder else check_output_file)(path, overwrite)
    if size is None:
        return
    if folder:
        place, needed = Path(path).resolve(), frames * math.prod(size) * 3 // PNG_RATIO
        disk = shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.exists()))
        if needed > disk.free and disk.total:  # some file systems report 0 of 0
            sizes = f"PNGs of about {_gigabytes(needed)} or more on a disk with {_gigabytes(disk.free)} left"
            raise ValueError(f"{place}: {sizes}; make fewer frames, or write .mp4")
    elif Path(path).suffix.lower() == ".gif":
        check_gif(path, size, math.ceil(frames * min(1, 50 / parse_fps(fps))))  # `write_gif` drops the others
    else:
        check_side(path, size, MAX_SIDE)


def is_folder(path: str | Path) -> bool:
    """Whether a clip of this name is a folder of PNGs. Raises ValueError for an unknown suffix."""
    suffix, name = Path(path).suffix.lower(), Path(path).name
    if suffix in (*MOVIES, ".gif"):
        return False
    if name.lower() in (*MOVIES, ".gif"):
        raise ValueError(f"cannot write {path}: that is a suffix without a name; give one such as clip{name}")
    if not suffix or str(path).endswith("/") or Path(path).is_dir():
        return True
    known = " ".join((*MOVIES, ".gif"))
    raise ValueError(f"cannot write {path}: {suffix!r} is none of {known}; a name without suffix gives PNGs")


def check_gif(path: str | Path, size: tuple[int, int], frames: int) -> None:
    """Raises ValueError if the frames of `size` (width, height) are too many for the memory of a GIF's writer."""
    check_side(path, size, MAX_GIF_SIDE)
    needed = frames * math.prod(size) * 3
    if needed > MAX_GIF_BYTES:
        limit = f"past {_gigabytes(MAX_GIF_BYTES)}, and a GIF keeps them in memory; write .mp4"
        raise ValueError(f"cannot write {path}: {frames} of {size[0]}x{size[1]} are {limit}")


def check_side(path: str | Path, size: tuple[int, int], limit: int) -> None:
    """Raises ValueError if a side of `size` (width, height) exceeds the `limit` of H.264 or GIF."""
    if max(size) > limit:
        kind = "H.264" if limit == MAX_SIDE else "GIF"
        raise ValueError(f"cannot write {path}: {size[0]}x{size[1]} is past {limit} of {kind}; write PNGs")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
