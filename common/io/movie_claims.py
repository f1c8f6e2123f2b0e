"""What a movie may claim: checked by its size before FFmpeg decodes, or builds an index.

An MP4 of a kilobyte can claim 50 million samples (FFmpeg: 3.5 GB, 20 s), or frames of 30000x30000 pixels. So no file
has more samples than bytes, and frames have as many pixels as an image of its size may (`images.most_pixels`).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from common.io.images import most_pixels

# ISO 14496-12: boxes that hold boxes, and those that count samples
PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
SIZES, RUN, TIMES = (b"stsz", b"stz2"), b"trun", (b"stts", b"ctts")
DEEPEST = 8


def check_samples(path: Path) -> None:
    """Raises ValueError for an MP4 or QuickTime movie whose tables count more samples than the file has bytes."""
    size, runs = path.stat().st_size, 0
    with path.open("rb") as file:
        if file.read(8)[4:] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
            return
        for kind, samples in _counts(file, 0, size, 0):
            runs += samples * (kind == RUN)
            if (most := max(samples, runs)) > size:
                claim = f"it claims {most:,} samples in {size:,} bytes"
                raise ValueError(f"{path} is damaged: {claim}; copy or convert it again")


def check_frames(path: Path, width: int, height: int, frames: int) -> None:
    """Raises ValueError for a stream of more frames than bytes, or of more pixels a frame than the size allows."""
    size = path.stat().st_size
    if frames > size:
        raise ValueError(f"{path} is damaged: it claims {frames:,} frames in {size:,} bytes; copy or convert it again")
    if width * height > (most := most_pixels(size)):
        limit = f"the limit is {most / 1e6:,.0f} megapixels for such a file: convert it to smaller frames"
        raise ValueError(f"{path} claims frames of {width}x{height} in {size:,} bytes; {limit}")


def no_frame(path: str | Path) -> str:
    """What to say of a movie none of whose frames could be decoded: some say their size nowhere else."""
    limit = f"{most_pixels(Path(path).stat().st_size) / 1e6:,.0f} megapixels"
    return f"{path} holds no frame of up to {limit} that can be decoded; copy it again, or convert it to smaller frames"


def _counts(file: BinaryIO, start: int, end: int, depth: int) -> Iterator[tuple[bytes, int]]:
    """(kind, samples) of each box that counts some, between two places in the file."""
    while start + 8 <= end and depth < DEEPEST:
        file.seek(start)
        length, kind = struct.unpack(">I4s", file.read(8))
        inside = start + 8
        if length == 1:
            length, inside = int.from_bytes(file.read(8), "big"), start + 16
        stop = min(start + length, end) if length else end
        if stop <= start:
            return
        if kind in PARENTS:
            yield from _counts(file, inside, stop, depth + 1)
        elif kind in (*SIZES, RUN, *TIMES):
            file.seek(inside + (8 if kind in SIZES else 4))  # after version and flags, and the size of all samples
            count = int.from_bytes(file.read(4), "big")
            if kind in TIMES:
                entries = file.read(min(8 * count, stop - inside))
                count = sum(samples for samples, _ in struct.iter_unpack(">II", entries[: len(entries) // 8 * 8]))
            yield kind, count
        start = stop
