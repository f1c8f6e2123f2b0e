"""A movie written in segments, so that a stopped job can go on.

    segment 0: frames 0..23        segment 1: frames 24..47        ...        -> clip.mp4

Each segment is a small MP4 file in the `workspace` of the output, made by an encoder of its own. So its packets depend
on its frames alone, and a resumed job, which keeps the whole segments, gives the packets of an uninterrupted one. At
the end the packets of all segments are put into the final container, with the sound; nothing is encoded again. A kill
costs at most the frames of one segment; a key frame each 24 frames costs some percent of size.
"""

import contextlib
import heapq
import math
import os
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.container import OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream
from jaxtyping import Float

from common.io.audio import Audio, dts_seconds, side_packets
from common.io.clip_limits import CODECS, MOVIES, Encoding
from common.io.colour import Colour, from_rgb

SEGMENT = 24  # frames
PATIENCE = 1  # seconds for an unfinished segment after Ctrl-C


class Movie:
    """The segments in `folder`; `count` is the number of frames written, at first of those found there."""

    def __init__(self, folder: Path, size: tuple[int, int], rate: Fraction, encoding: Encoding, colour: Colour) -> None:
        self.folder, self.size, self.rate, self.encoding, self.colour = folder, size, rate, encoding, colour
        self.pixel_format = f"yuv{encoding.chroma}p" + ("10le" if encoding.bits == 10 else "")
        self._output: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._deadline = math.inf
        whole = 0
        while (path := self._segment(whole)).exists() and _length(path) == SEGMENT:
            whole += 1
        for path in folder.glob("[0-9]*.mp4"):  # the last one of a run that was stopped
            if int(path.stem) >= whole:
                path.unlink()
        self.count = whole * SEGMENT

    def add(self, image: Float[np.ndarray, "h w 3"]) -> None:
        if self._output is None:
            self._open()
        assert self._output is not None and self._stream is not None
        height, width = image.shape[:2]
        if self.encoding.chroma == "420":
            image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        frame = from_rgb(image, self.pixel_format, self.colour)
        frame.pts, frame.time_base, frame.duration = self.count % SEGMENT, 1 / self.rate, 1
        self._output.mux(self._stream.encode(frame))
        self.count += 1
        if self.count % SEGMENT == 0:
            self._close()

    def hurry(self) -> None:
        """From now on the open segment is dropped if it takes more than PATIENCE and is not the first; another thread
        may be at it."""
        self._deadline = time.monotonic() + PATIENCE

    def finish(self, path: Path, suffix: str, audio: Audio | None, captions: str | Path | None, partial: bool) -> None:
        """Writes the movie of all frames so far to `path`. A `partial` one has copied sound up to its end, but none
        that is stretched, and no index in front: both take time."""
        if self._output is not None:
            self._close()
        container, _ = MOVIES[suffix]
        index_first = container in ("mp4", "mov") and not partial  # plays while it loads
        options = {"movflags": "+faststart"} if index_first else {}
        if partial and audio is not None and audio.mode == "stretch":
            audio = None
        with av.open(str(path), "w", format=container, options=options) as output:
            with av.open(str(self._segment(0))) as first:
                stream = output.add_stream_from_template(first.streams.video[0], opaque=True)
                stream.codec_context.framerate = self.rate
                if self.encoding.codec == "hevc" and container in ("mp4", "mov"):
                    stream.codec_context.codec_tag = "hvc1"  # the form that Apple's players take
            end = Fraction(self.count) / self.rate if partial else None
            with side_packets(audio, captions, output, end) as others:
                for packet in heapq.merge(self._packets(stream), *others, key=dts_seconds):
                    output.mux(packet)

    def abort(self) -> None:
        if self._output is not None:
            with contextlib.suppress(FFmpegError):
                self._output.close()

    def _segment(self, index: int) -> Path:
        return self.folder / f"{index:06d}.mp4"

    def _open(self) -> None:
        os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 prints its settings otherwise
        codec = CODECS[str(self.encoding.codec)]
        output = self._output = av.open(str(self.folder / ".open.mp4"), "w", format="mp4")
        stream = self._stream = cast(VideoStream, output.add_stream(codec.encoder, rate=self.rate))
        even = 2 if self.encoding.chroma == "420" else 1
        stream.width, stream.height = (-(-side // even) * even for side in self.size)
        stream.pix_fmt = self.pixel_format
        stream.options = {"crf": str(self.encoding.quality), **dict(codec.options)}
        context = stream.codec_context
        context.colorspace, context.color_range = self.colour.matrix, self.colour.range
        context.color_primaries, context.color_trc = self.colour.primaries, self.colour.transfer

    def _close(self) -> None:
        """Finishes the open segment; it may be the last one, and shorter."""
        assert self._output is not None and self._stream is not None
        output, self._output, index = self._output, None, (self.count - 1) // SEGMENT
        for packet in self._stream.codec_context.encode_lazy(None):
            packet.stream = self._stream
            output.mux(packet)
            if index and time.monotonic() > self._deadline:
                self.count = index * SEGMENT
                return
        output.close()
        (self.folder / ".open.mp4").rename(self._segment(index))

    def _packets(self, target: VideoStream) -> Iterator[Packet]:
        for index in range(-(-self.count // SEGMENT)):
            with av.open(str(self._segment(index))) as segment:
                stream = segment.streams.video[0]
                for packet in segment.demux(stream):
                    if packet.dts is None or packet.pts is None:  # the end
                        continue
                    shift = int(index * SEGMENT / (self.rate * packet.time_base))
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = target
                    yield packet


def _length(path: Path) -> int:
    try:
        with av.open(str(path)) as segment:
            return segment.streams.video[0].frames
    except (FFmpegError, IndexError):
        return 0
