"""Sound, subtitles and chapters of a clip, taken from the video that it was made from.

    Audio("holiday.mp4")                                   # its packets as they are: nothing is lost
    Audio("holiday.mp4", "stretch", Fraction(4))           # four times as long at the same pitch

Copied sound keeps its timing: the first frame of the clip plays with the sound of the first frame of the video.
Stretched sound is slowed down by FFmpeg's atempo, and encoded as AAC, or Opus for WebM. All audio streams are taken,
with their language. Subtitles and chapters are copied to a clip that lasts as long as the video.
"""

import contextlib
import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypeVar

import av
import av.filter
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Stream

from common.io.video_reader import codec_name, filtered, probe

Packets = Generator[Packet, None, None]
S = TypeVar("S", bound=Stream)

_APART = 10  # seconds between neighbouring packets of different streams in a file, at most
_OPUS_RATE = 48000
_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)


@dataclass(frozen=True)
class Audio:
    """Sound of the video file `path`: "copy" as it is, or "stretch" to `factor` times its length."""

    path: str | Path
    mode: Literal["copy", "stretch"] = "copy"
    factor: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        least, most = {"copy": (1, 1), "stretch": (Fraction(1, 100), 100)}.get(self.mode, (1, 0))  # (1, 0): none
        if not least <= self.factor <= most:
            raise ValueError(f"audio is {self.mode!r} by {self.factor}; give copy by 1, or stretch by 1/100 to 100")


@contextlib.contextmanager
def side_packets(
    audio: Audio | None, captions: str | Path | None, output: OutputContainer, end: Fraction | None
) -> Iterator[list[Iterator[Packet]]]:
    """Adds to `output`, whose header is not yet written, streams of sound, and of the video `captions` the chapters and
    the subtitles that the container can hold. Yields the packets of each, on the clock of the clip, before `end`."""
    with contextlib.ExitStack() as stack:
        parts: list[Packets] = []
        if audio is not None:
            source, start = stack.enter_context(_open(audio.path)), probe(audio.path).start
            if audio.mode == "copy":
                parts.append(_copied(source, source.streams.audio, output, start))
            else:
                targets = [_encoder(output, stream) for stream in source.streams.audio]
                parts += [_stretched(audio, number, target, start) for number, target in enumerate(targets)]
        if captions is not None:
            source, start = stack.enter_context(_open(captions)), probe(captions).start
            texts = [stream for stream in source.streams.subtitles if codec_name(stream) in output.supported_codecs]
            parts.append(_copied(source, texts, output, start))
            chapters = source.chapters()
            for chapter in chapters:
                for side in ("start", "end"):
                    chapter[side] = max(0, chapter[side] - round(start / (chapter["time_base"] or 1)))
            output.set_chapters(chapters)
        for part in parts:
            stack.callback(part.close)
        yield [_until(part, end) for part in parts]


def dts_seconds(packet: Packet) -> Fraction:
    """When a packet is decoded: the order of packets in a file."""
    return (packet.dts or 0) * packet.time_base


def _until(packets: Iterator[Packet], end: Fraction | None) -> Iterator[Packet]:
    for packet in packets:
        if end is not None and dts_seconds(packet) > end + _APART:
            return  # not the rest of a long file, after Ctrl-C
        if end is None or (packet.pts or 0) * packet.time_base < end:
            yield packet


def _open(path: str | Path) -> InputContainer:
    return av.open(str(path), metadata_errors="replace")


def _copied(source: InputContainer, streams: Sequence[Stream], output: OutputContainer, start: Fraction) -> Packets:
    copies = {stream.index: _labelled(stream, output.add_stream_from_template(stream)) for stream in streams}

    def packets() -> Packets:
        for packet in source.demux(*streams) if streams else ():
            if packet.dts is not None:  # the last one of a stream is empty
                packet = _shifted(packet, -start)
                packet.stream = copies[packet.stream_index]
                yield packet

    return packets()


def _encoder(output: OutputContainer, source: AudioStream) -> AudioStream:
    if output.format.name == "webm":
        target = output.add_stream("libopus", rate=_OPUS_RATE)
    else:
        target = output.add_stream("aac", rate=source.rate if source.rate in _AAC_RATES else _OPUS_RATE)
    target.layout = source.layout
    target.bit_rate = 96_000 * source.layout.nb_channels
    return _labelled(source, target)


def _labelled(source: Stream, target: S) -> S:
    target.disposition = source.disposition
    if source.language:
        target.metadata["language"] = source.language
    return target


def _stretched(audio: Audio, number: int, target: AudioStream, start: Fraction) -> Packets:
    """Decoder -> atempo (a chain, since one alone takes 1/2 to 2) -> encoder."""
    steps = max(1, math.ceil(abs(math.log2(audio.factor))))
    tempo = float(1 / audio.factor) ** (1 / steps)
    with _open(audio.path) as source:
        stream = source.streams.audio[number]
        graph = av.filter.Graph()
        tempos = [graph.add("atempo", f"{tempo:.12f}") for _ in range(steps)]
        graph.link_nodes(graph.add_abuffer(template=stream), *tempos, graph.add("abuffersink")).configure()
        shift = None
        for frame in itertools.chain(source.decode(stream), [None]):
            if shift is None and frame is not None:
                first = (frame.pts or 0) * (frame.time_base or 0)
                shift = audio.factor * (first - start) - first
            for slowed in itertools.chain(filtered(graph, frame), [None] if frame is None else []):
                for packet in target.encode(slowed):
                    yield _shifted(packet, shift or Fraction(0))


def _shifted(packet: Packet, seconds: Fraction) -> Packet:
    ticks = round(seconds / packet.time_base)
    packet.pts = None if packet.pts is None else packet.pts + ticks
    packet.dts = None if packet.dts is None else packet.dts + ticks
    return packet
