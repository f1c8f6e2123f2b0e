"""Animated pictures: GIF by Pillow, WebP and PNG by FFmpeg. All loop forever.

| | colours | times | memory |
| --- | --- | --- | --- |
| .gif | 256 for the whole clip, dithered | 1/100 s, at least 2/100 | all frames, as uint8 |
| .webp | 8 bits, lossy, each frame by itself | 1/1000 s | constant |
| .apng | 8 or 16 bits, lossless | exact | constant |
"""

import contextlib
import itertools
import math
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from jaxtyping import Float, UInt8
from PIL import Image

from common.io.clip_limits import Encoding, check_gif
from common.io.colour import Colour, from_rgb
from common.io.images import to_uint8


class Gif:
    """One palette for the whole clip (no flicker), dithered.

    Delays are whole 1/100 s, rounded so that the running total is right. Browsers slow delays under 2/100 s down to a
    tenth of a second, so above 50 fps frames are dropped instead. `count` is the number of frames kept."""

    def __init__(self, path: str | Path, rate: Fraction) -> None:
        self.path, self.rate = path, rate
        self._kept: list[UInt8[np.ndarray, "h w 3"]] = []
        self._starts: list[int] = []
        self._given = 0

    @property
    def count(self) -> int:
        return len(self._kept)

    def add(self, image: Float[np.ndarray, "h w 3"]) -> None:
        """A frame starts at the nearest 1/100 s, or later if the one before needs its 2/100 s; it is dropped when more
        than 1/100 s late."""
        due = 100 * self._given / self.rate
        start = max(_nearest(due), self._starts[-1] + 2) if self._starts else 0
        self._given += 1
        if start - due <= 1:
            self._kept.append(to_uint8(image))
            self._starts.append(start)
            check_gif(self.path, (image.shape[1], image.shape[0]), len(self._kept))

    def finish(self, path: Path) -> None:
        end = max(_nearest(100 * self._given / self.rate), self._starts[-1] + 2)
        milliseconds = [10 * (after - before) for before, after in itertools.pairwise([*self._starts, end])]
        # The palette comes from up to 16 frames, thinned to about 160 pixels a side. Maximum coverage keeps rare
        # colours, which median cut merges into wrong hues; k-means then refines.
        picks = np.unique(np.linspace(0, len(self._kept) - 1, 16).round().astype(int))
        step = max(1, round(max(self._kept[0].shape[:2]) / 160))
        sample = Image.fromarray(np.concatenate([self._kept[i][::step, ::step] for i in picks]))
        palette = sample.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1)
        first, *rest = (Image.fromarray(frame).quantize(palette=palette) for frame in self._kept)
        try:
            first.save(path, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
        except (OverflowError, struct.error) as error:  # of Pillow, which joins equal images
            reason = "one of its images stays for more than 655 s; write .mp4"
            raise ValueError(f"cannot write {self.path}: {reason}") from error

    def abort(self) -> None:
        self._kept.clear()


class Animation:
    """A .webp or .apng in `folder`, frame by frame."""

    def __init__(self, folder: Path, suffix: str, size: tuple[int, int], rate: Fraction, encoding: Encoding) -> None:
        self.rate, self.count, self._path = rate, 0, folder / f".open{suffix}"
        if suffix == ".webp":
            encoder, loop, self._pixels, options = "libwebp", "loop", "bgra", {"quality": str(encoding.quality)}
        else:
            encoder, loop, self._pixels, options = "apng", "plays", "rgb24" if encoding.bits == 8 else "rgb48be", {}
        self._output = av.open(str(self._path), "w", format=suffix[1:], options={loop: "0"})
        self._stream = self._output.add_stream(encoder, rate=rate, options=options)
        self._stream.width, self._stream.height = size
        self._stream.pix_fmt = self._pixels

    def add(self, image: Float[np.ndarray, "h w 3"]) -> None:
        frame = from_rgb(image, self._pixels, Colour())
        frame.pts, frame.time_base, frame.duration = self.count, 1 / self.rate, 1
        self._output.mux(self._stream.encode(frame))
        self.count += 1

    def finish(self, path: Path) -> None:
        self._output.mux(self._stream.encode())
        self._output.close()
        self._path.rename(path)

    def abort(self) -> None:
        with contextlib.suppress(FFmpegError):
            self._output.close()


def _nearest(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))
