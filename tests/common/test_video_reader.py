"""Clips made by PyAV in every odd form are read as a player shows them, or refused in one line."""

import gc
import resource
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from drawn_clips import NTSC, SOURCE, encoded, gradient
from refusal import refused

from common.io.colour import Colour
from common.io.video_reader import prefetch, probe, read_video


def remuxed(source, path, kind, **options):
    """The first stream of this kind, alone and as it is."""
    with av.open(str(source)) as whole, av.open(str(path), "w", **options) as target:
        origin = getattr(whole.streams, kind)[0]
        stream = target.add_stream_from_template(origin, opaque=True)
        for packet in whole.demux(origin):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return path


def error(image, expected):
    return np.abs(image * 255 - expected).mean()


def test_times_and_lengths_are_exact(tmp_path):
    path = encoded(tmp_path / "a.mp4", [gradient(i) for i in range(9)], NTSC)
    info, frames = probe(path), list(read_video(path))
    assert (info.width, info.height, info.rate, info.frames) == (64, 48, NTSC, 9)
    assert (info.duration, info.bits, info.audio, info.variable) == (9 / NTSC, 8, (), False)
    assert [frame.time for frame in frames] == [i / NTSC for i in range(9)]
    assert [frame.duration for frame in frames] == [1 / NTSC] * 9
    assert frames[0].image.dtype == np.float32
    assert max(error(frame.image, gradient(i)) for i, frame in enumerate(frames)) < 3


@pytest.mark.parametrize("name", ["a.mkv", "a.webm"])
def test_coarse_times_are_kept_and_the_rate_is_named(tmp_path, name):
    codec = "libx264" if name == "a.mkv" else "libvpx-vp9"
    path = encoded(tmp_path / name, [gradient(i) for i in range(9)], 2 * NTSC, codec)
    frames = list(read_video(path))
    assert probe(path).rate == 2 * NTSC
    assert [frame.time for frame in frames] == [Fraction(round(1000 * i / (2 * NTSC)), 1000) for i in range(9)]
    assert frames[-1].duration == 1 / (2 * NTSC)


def test_variable_rate(tmp_path):
    times = [0, 1, 2, 6, 7, 20]
    path = encoded(tmp_path / "a.mp4", [gradient(i) for i in range(6)], Fraction(30), times=times)
    frames = list(read_video(path))
    assert probe(path).variable
    assert [frame.time * 30 for frame in frames] == times
    assert [frame.duration * 30 for frame in frames][:-1] == np.diff(times).tolist()


@pytest.mark.parametrize("start", [Fraction(1, 25), Fraction(3, 2), Fraction(61, 25), Fraction(239, 100), Fraction(9)])
def test_a_start_skips_and_changes_nothing(tmp_path, start):
    def groups(stream):
        stream.codec_context.gop_size = 12

    path = encoded(tmp_path / "a.mp4", [gradient(i) for i in range(75)], prepare=groups)
    wanted = [frame for frame in read_video(path) if frame.time >= start]
    found = list(read_video(path, start))
    assert [(f.time, f.duration) for f in found] == [(f.time, f.duration) for f in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.parametrize(("degrees", "flip"), [(90, False), (180, False), (-90, False), (0, True), (90, True)])
def test_rotation_and_mirroring(tmp_path, degrees, flip):
    prepare = lambda stream: stream.set_display_rotation(degrees, hflip=flip)  # noqa: E731
    path = encoded(tmp_path / "a.mp4", [gradient()] * 2, prepare=prepare)
    plain = next(read_video(encoded(tmp_path / "b.mp4", [gradient()] * 2))).image
    image = next(read_video(path)).image
    turned = np.rot90(plain, degrees // 90)  # counterclockwise
    np.testing.assert_array_equal(image, turned[:, ::-1] if flip else turned)
    info = probe(path)
    assert (info.height, info.width) == image.shape[:2]


def test_pixels_become_square(tmp_path):
    path = encoded(tmp_path / "a.mp4", [gradient()] * 2, sample_aspect_ratio=Fraction(4, 3))
    info = probe(path)
    assert (info.width, info.height) == (85, 48) and next(read_video(path)).image.shape == (48, 85, 3)


@pytest.mark.parametrize(("matrix", "limits"), [(1, 1), (1, 2), (6, 1), (6, 2), (9, 1)])
def test_matrix_and_range_of_the_tags(tmp_path, matrix, limits):
    colours = np.array([(255, 255, 255), (0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 120, 40)], np.uint8)
    image = colours.repeat(16, 0)[None].repeat(32, 0)
    path = encoded(tmp_path / "a.mp4", [image] * 2, colorspace=matrix, color_range=limits)
    decoded = next(read_video(path)).image[16, 8::16] * 255
    assert np.abs(decoded - colours).max() < 4
    assert probe(path).colour == Colour(matrix, limits, 2, 2)


def test_untagged_video_is_taken_as_players_take_it(tmp_path):
    images = [np.full((height, width, 3), (200, 30, 30), np.uint8) for height, width in ((64, 64), (64, 1280))]
    for image, matrix in zip(images, (6, 1), strict=True):
        path = encoded(tmp_path / f"{matrix}.mp4", [image], colorspace=matrix)
        with av.open(str(path)) as source, av.open(str(tmp_path / "raw.mkv"), "w") as target:
            frame = next(source.decode(video=0))
            stream = target.add_stream("ffv1", rate=25)
            stream.height, stream.width, stream.pix_fmt = *image.shape[:2], "yuv420p"
            frame.colorspace, frame.color_range, frame.pts, frame.time_base = 2, 0, 0, Fraction(1, 25)
            target.mux(stream.encode(frame))
            target.mux(stream.encode())
        assert probe(tmp_path / "raw.mkv").colour.matrix == matrix
        assert error(next(read_video(tmp_path / "raw.mkv")).image, image) < 2


def test_ten_bits_are_kept(tmp_path):
    ramp = np.linspace(20000, 24000, 64).astype(np.uint16)[None, :, None].repeat(16, 0).repeat(3, 2)
    path = encoded(tmp_path / "a.mp4", [ramp] * 2, pixels="yuv444p10le")
    image = next(read_video(path)).image
    assert probe(path).bits == 10
    assert len(np.unique(image[8, :, 0])) > 40  # 16 in 8 bits
    assert np.abs(image[..., 1] - ramp[..., 1] / 65280).max() < 2 / 1023


def test_alpha_is_over_white(tmp_path):
    image = np.zeros((16, 16, 4), np.uint8)
    image[:, :8] = (255, 0, 0, 255)
    image[:, 8:, 3] = 128
    path = encoded(tmp_path / "a.mov", [image] * 2, codec="qtrle", pixels="argb")
    decoded = next(read_video(path)).image
    assert decoded.shape == (16, 16, 3)
    np.testing.assert_allclose(decoded[8, 4], (1, 0, 0), atol=0.005)
    np.testing.assert_allclose(decoded[8, 12], 1 - 128 / 255, atol=0.005)


def test_fields_become_frames(tmp_path):
    """A bar that moves from field to field is a comb in the stored frames, and none in what is read."""
    fields = [np.zeros((64, 96, 3), np.uint8) for _ in range(12)]
    for index, field in enumerate(fields):
        field[:, 6 * index : 6 * index + 20] = 255
    images = []
    for top, bottom in zip(fields[::2], fields[1::2], strict=True):
        images.append(top.copy())
        images[-1][1::2] = bottom[1::2]

    def interlace(stream):
        stream.options = {**SOURCE, "flags": "+ildct+ilme", "x264-params": "tff=1"}

    path = encoded(tmp_path / "a.mp4", images, prepare=interlace)
    frames = list(read_video(path))
    assert [frame.time for frame in frames] == [Fraction(i, 25) for i in range(6)]
    assert frames[-1].duration == Fraction(1, 25)
    comb = lambda image: np.abs(np.diff(image[8:-8, :, 0], axis=0)).mean()  # noqa: E731
    assert max(comb(frame.image) for frame in frames) < 0.25 * comb(images[2] / 255)


def test_sound_is_named_and_its_clock_is_known(tmp_path):
    path = encoded(tmp_path / "a.mp4", [gradient(i) for i in range(5)], times=range(10, 15), sound=1)
    info = probe(path)
    assert info.audio == ("aac",) and info.start == Fraction(10, 25) and info.duration == Fraction(5, 25)
    assert [frame.time for frame in read_video(path)] == [Fraction(i, 25) for i in range(5)]


@pytest.mark.parametrize(("name", "codec", "pixels"), [("a.gif", "gif", "rgb8"), ("a.apng", "apng", "rgb24")])
def test_animations(tmp_path, name, codec, pixels):
    path = encoded(tmp_path / name, [gradient(i) for i in range(6)], Fraction(15), codec, pixels)
    info, frames = probe(path), list(read_video(path))
    assert (info.rate, info.frames, len(frames)) == (15, 6, 6)
    assert float(info.duration) == pytest.approx(0.4, abs=1e-3)
    assert float(frames[-1].time + frames[-1].duration) == pytest.approx(0.4, abs=0.01)
    assert error(frames[3].image, gradient(3)) < (30 if name == "a.gif" else 0.5)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_a_file_that_is_cut_short_gives_what_it_has_and_one_line(tmp_path, name):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(50)]
    path = encoded(tmp_path / "whole.mkv", images, prepare=lambda stream: setattr(stream, "gop_size", 10))
    remuxed(path, tmp_path / name, "video", options={"movflags": "+faststart"} if name == "a.mp4" else {})
    whole = list(read_video(tmp_path / name))
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 6 // 10])
    lines, found = [], []
    found.extend(read_video(tmp_path / name, on_damage=lines.append))
    assert 15 < len(found) < 45 and len(lines) == 1 and name in lines[0]
    for one, other in zip(found, whole, strict=False):
        assert one.time == other.time
        np.testing.assert_array_equal(one.image, other.image)
    assert name in refused(ValueError, list, read_video(tmp_path / name))


def test_what_is_no_video(tmp_path):
    encoded(tmp_path / "tail.mp4", [gradient(i) for i in range(9)])
    data = (tmp_path / "tail.mp4").read_bytes()
    (tmp_path / "tail.mp4").write_bytes(data[: data.index(b"moov") - 4])
    assert "moov" in refused(ValueError, probe, tmp_path / "tail.mp4")
    encoded(tmp_path / "both.mp4", [gradient()], sound=0.2)
    alone = remuxed(tmp_path / "both.mp4", tmp_path / "a.m4a", "audio", format="mp4")
    assert "sound" in refused(ValueError, probe, alone)
    (tmp_path / "text.mp4").write_text("no video" * 100)
    (tmp_path / "text.txt").write_text("no video" * 100)
    (tmp_path / "empty.mp4").touch()
    encoded(tmp_path / "still.png", [gradient()], codec="png", pixels="rgb24")
    for name in ("text.mp4", "text.txt", "empty.mp4", "still.png"):
        assert name in refused(ValueError, probe, tmp_path / name)
        assert name in refused(ValueError, list, read_video(tmp_path / name))
    refused(FileNotFoundError, probe, tmp_path / "missing.mp4")
    refused(IsADirectoryError, probe, tmp_path)


def test_prefetch_keeps_order_and_errors_and_stops(tmp_path):
    closed = threading.Event()

    def numbers():
        try:
            yield from range(5)
            raise ValueError("six")
        finally:
            closed.set()

    ahead = prefetch(numbers(), 3)
    assert [next(ahead) for _ in range(5)] == list(range(5))
    refused(ValueError, next, ahead, match="six")
    closed.clear()
    ahead = prefetch(numbers())
    assert next(ahead) == 0
    ahead.close()
    assert closed.is_set()


def test_decoded_frames_are_freed_at_once(tmp_path):
    """Not at Python's next collection of cycles: 200 frames of 115 kB are 23 MB."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    path = encoded(tmp_path / "a.mp4", [gradient(1, 240, 320)] * 240)
    gc.collect()
    gc.disable()
    try:
        for count, _ in enumerate(read_video(path)):
            if count == 40:
                before = resident()
        assert resident() - before < 12_000_000
    finally:
        gc.enable()
