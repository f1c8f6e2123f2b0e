"""Clips decoded again, by PyAV."""

from collections.abc import Iterator
from types import SimpleNamespace

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation


def probe(path) -> SimpleNamespace:
    with av.open(str(path)) as container:
        stream, seconds = container.streams.video[0], container.duration / av.time_base
        size = dict(width=stream.width, height=stream.height)
        return SimpleNamespace(fps=stream.average_rate, frames=stream.frames, seconds=seconds, **size)


def read_frames(path) -> Iterator[np.ndarray]:
    """RGB float32 in [0, 1]; video is BT.709 in limited range."""
    options = dict(src_colorspace=Colorspace.ITU709, src_color_range=ColorRange.MPEG, dst_color_range=ColorRange.JPEG)
    exact = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            colours = options if frame.format.name.startswith("yuv") else {}
            yield frame.to_ndarray(format="rgb24", interpolation=exact, **colours).astype(np.float32) / 255


def packets(path, kind="video") -> list[tuple]:
    """(pts, dts, duration, whether a key frame, data) of each packet of the first stream of this kind."""
    with av.open(str(path)) as container:
        stream = getattr(container.streams, kind)[0]
        return [(p.pts, p.dts, p.duration, p.is_keyframe, bytes(p)) for p in container.demux(stream) if p.size]
