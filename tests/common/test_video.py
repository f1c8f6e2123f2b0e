"""Clips are decoded again and compared: images, colours, rates, counts; failures leave nothing behind."""

import itertools
import tracemalloc
from fractions import Fraction
from unittest import mock

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange
from decoded_clips import packets, probe, read_frames
from drawn_clips import BLACK, NTSC, filmed, moving
from PIL import Image
from refusal import refused

from common.io import video_reader
from common.io.clip_limits import Encoding, check_output, parse_fps
from common.io.colour import Colour
from common.io.images import read_image, to_uint8
from common.io.movies import SEGMENT
from common.io.video import Audio, open_clip, write_clip, write_gif
from common.io.video_reader import read_video

PRIMARIES = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)]
COLOURS = np.array([*PRIMARIES, (128, 128, 128), (200, 120, 40), (20, 90, 180)], np.float32)


def patches(height=64, tile=32):
    """Flat colours side by side, each `tile` wide."""
    return (COLOURS / 255).repeat(tile, axis=0)[None].repeat(height, axis=0)


def patch_values(image, tile=32):
    """Colours at the centres of the patches, 0..255."""
    return image[image.shape[0] // 2, tile // 2 :: tile][: len(COLOURS)] * 255


def gif_delays(path) -> list[int]:
    with Image.open(path) as picture:
        assert picture.info["loop"] == 0
        delays = []
        for index in range(picture.n_frames):
            picture.seek(index)
            delays.append(picture.info["duration"])
    return delays


@pytest.mark.parametrize(("suffix", "fps"), [
    (".mp4", "30000/1001"), (".mp4", 12.5), (".mov", 24), (".mkv", Fraction(1, 3)), (".mp4", "0.01")
])  # fmt: skip
def test_a_movie_is_decoded_again(tmp_path, suffix, fps):
    path = tmp_path / "new" / f"clip{suffix}"
    assert write_clip(path, moving(7), fps) == 7
    info = probe(path)
    assert (info.fps, info.width, info.height) == (Fraction(str(fps)), 64, 48)
    assert info.seconds == pytest.approx(7 / Fraction(str(fps)), abs=2e-3)
    data = path.read_bytes()
    assert suffix == ".mkv" or 0 < data.index(b"moov") < data.index(b"mdat")  # plays before it has arrived
    decoded = list(read_frames(path))
    assert len(decoded) == 7
    for image, frame in zip(decoded, moving(7), strict=True):
        assert image.dtype == np.float32
        assert np.abs(image - frame).mean() < 0.015  # the neighbour in time is 0.03 away
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_colour_tags_agree_with_the_conversion_done_by_hand(tmp_path):
    """BT.709, limited range: Y' = 16 + 219 (0.2126 R + 0.7152 G + 0.0722 B), from ITU-R BT.709 section 3."""
    write_clip(tmp_path / "a.mp4", [patches()], 25)
    with av.open(str(tmp_path / "a.mp4")) as container:
        frame = next(container.decode(video=0))
        luma = frame.to_ndarray()[32, 16::32][: len(COLOURS)].astype(float)
    assert (frame.colorspace, frame.color_primaries, frame.color_trc) == (1, 1, 1)
    assert frame.color_range == ColorRange.MPEG
    assert frame.format.name == "yuv420p"
    assert np.abs(luma - (16 + 219 * COLOURS / 255 @ [0.2126, 0.7152, 0.0722])).max() <= 2
    for image in read_frames(tmp_path / "a.mp4"):
        assert np.abs(patch_values(image) - COLOURS).max() <= 3
        assert np.abs(patch_values(image) - COLOURS).mean() <= 1


@pytest.mark.parametrize(("height", "width"), [(47, 63), (1, 1)])
def test_odd_sides_grow_by_repeating_the_edge(tmp_path, height, width):
    image = np.zeros((height, width, 3), np.float32) + np.linspace(0.2, 0.9, height, dtype=np.float32)[:, None, None]
    write_clip(tmp_path / "a.mp4", [image] * 2, 25)
    decoded = next(read_frames(tmp_path / "a.mp4"))
    assert decoded.shape == (height + height % 2, width + width % 2, 3)
    assert np.abs(decoded[:height, :width] - image).max() < 0.03
    assert np.abs(decoded[-1, -1] - image[-1, -1]).max() < 0.03


def test_frame_rates_are_exact():
    names = {29.97: "30000/1001", "23.976": "24000/1001", 23.98: "24000/1001", "2997/100": "2997/100"}
    for fps, rate in {**names, Fraction(2997, 100): "2997/100", 24.0: "24", 12.5: "25/2"}.items():
        assert parse_fps(fps) == Fraction(rate)


@pytest.mark.parametrize(
    "fps", [0, -1, "fast", "1/0", float("nan"), float("inf"), 1001, "", "1e999999999", "1e-999999999", 0.009, 10**400]
)
def test_bad_frame_rates(tmp_path, fps):
    assert str(fps) in refused(ValueError, write_clip, tmp_path / "new" / "a.mp4", moving(1), fps)
    assert list(tmp_path.iterdir()) == []


def test_a_gif_is_decoded_again(tmp_path):
    path = tmp_path / "a.gif"
    assert write_gif(path, moving(9), 15) == 9
    for image, frame in zip(read_frames(path), moving(9), strict=True):
        assert np.abs(image - frame).mean() < 0.02
    delays = gif_delays(path)
    assert sum(delays) == 600 and set(delays) == {60, 70}


def test_limits_of_a_gif(tmp_path, monkeypatch):
    """Equal frames are stored once with their delays summed, and a delay has two bytes; all frames are in memory."""
    path = tmp_path / "a.gif"
    assert "655 s" in refused(ValueError, write_gif, path, [BLACK] * 700, 1)
    monkeypatch.setattr("common.io.clip_limits.MAX_GIF_BYTES", 8 * 8 * 3 * 10)
    taken = []
    endless = (taken.append(1) or np.full((8, 8, 3), i % 2, np.float32) for i in itertools.count())
    assert "11 of 8x8" in refused(ValueError, write_gif, path, endless, 30)
    assert len(taken) < 15 and list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert write_gif(path, [BLACK] * 600, 1) == 600


def test_an_error_of_the_encoder_names_the_output(tmp_path, monkeypatch):
    monkeypatch.setattr("common.io.movies.from_rgb", mock.Mock(side_effect=av.error.ExternalError(1, "no space")))
    message = refused(OSError, write_clip, tmp_path / "a.mp4", moving(2), 30)
    assert str(tmp_path / "a.mp4") in message and "no space" in message and "partial" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fps", "kept"), [(50, 30), (60, 25), (100, 16), (240, 7), ("30000/1001", 30)])
def test_no_delay_is_shorter_than_browsers_play(tmp_path, fps, kept):
    count = write_gif(tmp_path / "a.gif", moving(30, width=128), fps)
    delays = gif_delays(tmp_path / "a.gif")
    assert count == len(delays) == kept and min(delays) >= 20
    assert abs(sum(delays) - 1000 * 30 / Fraction(fps)) <= (5 if Fraction(fps) <= 50 else 20)


def test_a_gifs_colours(tmp_path):
    """Few colours are exact. Red frames, then blue ones: a palette of the first alone would show grey or red last."""
    ramp = np.linspace(0, 1, 64, dtype=np.float32)[None, :, None].repeat(8, 0)
    flat, ramps = patches(16, 8), [ramp * np.array(c, np.float32) for c in ([1, 0, 0], [0, 0, 1])]
    for frames, most in (([flat, flat[:, ::-1].copy()], 0), (ramps, 0.01)):
        write_gif(tmp_path / "a.gif", frames, 10, overwrite=True)
        for image, frame in zip(read_frames(tmp_path / "a.gif"), frames, strict=True):
            assert np.abs(image - to_uint8(frame) / np.float32(255)).mean() <= most


def test_a_folder_of_frames(tmp_path):
    """A dot in its name needs a slash at the end, until it exists."""
    path = tmp_path / "take.v2"
    assert ".v2" in refused(ValueError, check_output, path)
    assert write_clip(f"{path}/", moving(3), 25) == 3
    check_output(path, overwrite=True)
    assert sorted(p.name for p in path.iterdir()) == [f"frame_0000{i}.png" for i in range(3)]
    for index, frame in enumerate(moving(3)):
        assert np.abs(read_image(path / f"frame_0000{index}.png") - frame).max() < 1 / 255


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "frames"])
def test_bad_frames_leave_nothing_behind(tmp_path, name):
    def source(*frames):
        yield from frames
        if len(frames) == 1:
            raise KeyboardInterrupt

    first = np.zeros((4, 6, 3), np.float32)
    for frames, kind, values in [
        ([first, np.zeros((6, 4, 3), np.float32)], ValueError, ["frame 1", "4x6", "6x4"]),
        ([first, np.zeros((4, 6), np.float32)], ValueError, ["frame 1", "(4, 6)"]),
        ([first, np.full((4, 6, 3), np.nan, np.float32)], ValueError, ["frame 1", "NaN"]),
        ([first, np.zeros((4, 6, 3), np.uint8)], ValueError, ["frame 1", "uint8"]),
        ([], ValueError, [name]),
        ([first], KeyboardInterrupt, []),
    ]:
        message = refused(kind, write_clip, tmp_path / "new" / name, source(*frames), 25)
        assert all(value in message for value in values) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "frames"])
def test_existing_output_needs_overwrite_before_any_frame_is_drawn(tmp_path, name):
    path = tmp_path / name
    check_output(path)
    write_clip(path, moving(3), 25)

    def never():
        pytest.fail("a frame was drawn")
        yield

    assert str(path) in refused(FileExistsError, check_output, path)
    refused(FileExistsError, write_clip, path, never(), 25)
    check_output(path, overwrite=True)
    assert write_clip(path, moving(2), 25, overwrite=True) == 2
    assert len(sorted(path.iterdir()) if path.is_dir() else list(read_frames(path))) == 2


@pytest.mark.parametrize(("name", "kind", "value"), [
    ("a.avi", ValueError, ".avi"),
    (".mp4", ValueError, ".mp4"),
    ("sub/.MKV", ValueError, ".MKV"),
    ("file", NotADirectoryError, "file"),
    ("file/a.mp4", NotADirectoryError, "file/a.mp4"),
    ("", FileExistsError, "'file'"),  # foreign files are never replaced
    ("/proc/a.mp4", OSError, "/proc/a.mp4"),
])  # fmt: skip
def test_bad_outputs(tmp_path, name, kind, value):
    for foreign in ("file", "photo.png"):
        (tmp_path / foreign).touch()
    for overwrite in (False, True):
        assert value in refused(kind, check_output, tmp_path / name, overwrite)
        assert value in refused(kind, write_clip, tmp_path / name, moving(1), 25, overwrite)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "photo.png"]


def test_bad_settings(tmp_path):
    wide = iter([np.zeros((1, 16386, 3), np.float32)])
    assert "16386x1" in refused(ValueError, write_clip, tmp_path / "a.mp4", wide, 25)
    refused(ValueError, write_gif, tmp_path / "a.mp4", moving(1), 25)
    assert list(tmp_path.iterdir()) == []


def test_a_doubled_clip_keeps_its_sound_bit_for_bit(tmp_path):
    source, path = filmed(tmp_path / "source.mp4"), tmp_path / "double.mp4"
    with open_clip(path, (64, 48), 2 * NTSC, audio=Audio(source)) as clip:
        for frame in read_video(source):
            clip.write(frame.image)
            clip.write(frame.image)
    before, after = video_reader.probe(source), video_reader.probe(path)
    assert (after.rate, after.frames, after.duration) == (2 * before.rate, 2 * before.frames, before.duration)
    assert [frame.time for frame in read_video(path)] == [i / (2 * NTSC) for i in range(120)]
    heard, kept = packets(source, "audio"), packets(path, "audio")
    assert [packet[-1] for packet in kept] == [packet[-1] for packet in heard]
    shift = Fraction(heard[0][0] - kept[0][0], 48000)
    assert abs(shift - (before.start - after.start)) <= Fraction(1, 48000)
    assert len({before[0] - after[0] for before, after in zip(heard, kept, strict=True)}) == 1


@pytest.mark.parametrize(("name", "codec", "lead"), [("a.mp4", "aac", 0), ("a.webm", "opus", 2 / NTSC)])
def test_stretched_sound_is_as_long_as_the_clip(tmp_path, name, codec, lead):
    """In MP4 the sound before the first frame is there, but an edit list skips it."""
    source, factor = filmed(tmp_path / "source.mkv", 30), Fraction(15, 4)
    with open_clip(tmp_path / name, (64, 48), NTSC / factor, audio=Audio(source, "stretch", factor)) as clip:
        for image in moving(30):
            clip.write(image)
    info = video_reader.probe(tmp_path / name)
    assert info.audio == (codec,) and float(info.start) == pytest.approx(factor * lead, abs=0.01)
    with av.open(str(tmp_path / name)) as container:
        lasts = sum(Fraction(frame.samples, frame.rate) for frame in container.decode(audio=0))
    assert float(lasts) == pytest.approx(float((30 / NTSC + lead) * factor), abs=0.1)


def test_sound_that_cannot_be_kept_is_refused_before_a_frame_is_drawn(tmp_path):
    source = filmed(tmp_path / "source.mp4", 3)
    for name in ("a.webm", "a.gif", "frames"):
        with pytest.raises(ValueError, match=name), open_clip(tmp_path / name, (8, 8), NTSC, audio=Audio(source)):
            pytest.fail("it was opened")
    opus = Audio(filmed(tmp_path / "opus.mkv", 3, tone="libopus"))
    with open_clip(tmp_path / "a.webm", (8, 8), NTSC, audio=opus) as clip:
        clip.write(BLACK)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("name", "encoding", "codec", "pixels"), [
    ("a.mp4", Encoding("hevc", bits=10), "hevc", "yuv420p10le"),
    ("a.mov", Encoding("h264", bits=10, chroma="444"), "h264", "yuv444p10le"),
    ("a.webm", Encoding(bits=10), "av1", "yuv420p10le"),
    ("a.webm", Encoding(), "vp9", "yuv420p"),
    ("a.mkv", Encoding("hevc", chroma="444"), "hevc", "yuv444p"),
])  # fmt: skip
def test_codecs_depths_and_colours(tmp_path, name, encoding, codec, pixels):
    """More segments than one, the tags of the source, and colours right in each."""
    path, colour = tmp_path / name, Colour(6, 2, 6, 6) if codec != "hevc" else Colour(9, 1, 9, 16)
    with open_clip(path, (256, 64), NTSC, encoding, colour=colour) as clip:
        for _ in range(SEGMENT + 3):
            clip.write(patches())
    info, frames = video_reader.probe(path), list(read_video(path))
    assert (info.rate, info.colour, len(frames)) == (NTSC, colour, SEGMENT + 3)
    for frame in frames[:: SEGMENT + 2]:
        assert np.abs(patch_values(frame.image) - COLOURS).max() <= 5
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.codec.canonical_name == codec
        assert container.streams.video[0].format.name == pixels


def test_ten_and_sixteen_bits(tmp_path):
    ramp = np.linspace(0.3, 0.4, 64, dtype=np.float32)[None, :, None].repeat(16, 0).repeat(3, 2)
    for name, bits, levels in (("a.mp4", 10, 60), ("a.apng", 16, 64), ("frames", 16, 64)):
        encoding = Encoding(bits=bits, quality=1 if name == "a.mp4" else None)
        write_clip(tmp_path / name, [ramp] * 2, 25, encoding=encoding)
        if name == "frames":
            image = read_image(tmp_path / name / "frame_00001.png")
        else:
            image = next(read_video(tmp_path / name)).image
        assert len(np.unique(image[8, :, 1])) >= levels and np.abs(image - ramp).max() < 2e-3


@pytest.mark.parametrize("name", ["a.webp", "a.apng"])
def test_animated_pictures_are_decoded_again(tmp_path, name):
    assert write_clip(tmp_path / name, moving(7, 47, 63), NTSC) == 7
    with Image.open(tmp_path / name) as picture:
        assert (picture.n_frames, picture.size, picture.info["loop"]) == (7, (63, 47), 0)
        length = 0
        for index, frame in enumerate(moving(7, 47, 63)):
            picture.seek(index)
            picture.load()
            length += picture.info["duration"]
            error = np.abs(np.asarray(picture.convert("RGB")) / 255 - frame).mean()
            assert error < (0.02 if name == "a.webp" else 0.002)
        assert length == pytest.approx(float(7000 / NTSC), abs=1)


@pytest.mark.parametrize("name", ["a.webp", "a.apng"])
def test_changes_of_a_level_a_frame_arrive(tmp_path, name):
    """An encoder that keeps blocks of the frame before loses slow motion."""
    texture = np.random.default_rng(0).random((64, 64, 1), np.float32).repeat(3, axis=2) / 8 + 0.3
    write_clip(tmp_path / name, [texture + index / 255 for index in range(24)], 30)
    with Image.open(tmp_path / name) as picture:
        picture.seek(23)
        last = np.asarray(picture.convert("RGB")) / 255
    blocks = (last - texture - 23 / 255).reshape(8, 8, 8, 8, 3).mean(axis=(1, 3))
    assert np.abs(blocks).max() < 2 / 255


@pytest.mark.parametrize(("name", "encoding", "value"), [
    ("a.mp4", Encoding("vp8"), "vp8"),
    ("a.webm", Encoding("h264"), "h264"),
    ("a.webm", Encoding("vp9", bits=10), "av1"),
    ("a.webm", Encoding(bits=10, chroma="444"), "10"),
    ("a.mp4", Encoding(bits=12), "12"),
    ("a.mp4", Encoding("av1", chroma="444"), "h264"),
    ("a.mp4", Encoding(quality=52), "52"),
    ("a.webp", Encoding(bits=10), "10"),
    ("a.gif", Encoding("h264"), "h264"),
    ("frames", Encoding(bits=12), "12"),
    ("a.gif", Encoding(quality=3), "3"),
])  # fmt: skip
def test_encodings_that_a_format_lacks(tmp_path, name, encoding, value):
    assert value in refused(ValueError, check_output, tmp_path / name, encoding=encoding)
    assert value in refused(ValueError, write_clip, tmp_path / name, moving(1), 25, encoding=encoding)


def test_memory_does_not_grow_with_length(tmp_path):
    """Of Python's allocations, which the arrays of frames are; FFmpeg's own are bounded by its queues."""

    image = next(moving(1, 64, 96))

    def peak(count):
        write_clip(tmp_path / "source.mp4", itertools.repeat(image, count), NTSC, overwrite=True)
        tracemalloc.start()
        frames = video_reader.prefetch(read_video(tmp_path / "source.mp4"))
        write_clip(tmp_path / "a.mp4", (frame.image for frame in frames), NTSC, overwrite=True)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(5)
    assert peak(300) < peak(60) + 20 * image.nbytes
