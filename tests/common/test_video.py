"""Clips are decoded again and compared: pictures, colours, rates, counts; failures leave nothing behind."""

import itertools
import struct
import wave
import weakref
from fractions import Fraction

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace
from PIL import Image

from common.io.images import read_image, to_uint8, write_image
from common.io.video import check_output, parse_fps, probe, read_frames, write_clip, write_frames, write_gif, write_mp4

COLOURS = np.array(
    [
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (255, 255, 255),
        (0, 0, 0),
        (128, 128, 128),
        (200, 120, 40),
        (20, 90, 180),
    ],
    np.float32,
)


def moving(count, height=48, width=64):
    """A red square that moves 3 pixels a frame over a gradient."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    for index in range(count):
        frame = np.stack([x / width, y / height, np.full_like(x, 0.5)], axis=-1)
        frame[10:30, 3 * index : 3 * index + 20] = (1, 0.2, 0.1)
        yield frame


def patches(height=64, tile=32):
    """Flat colours side by side, each `tile` wide."""
    return (COLOURS / 255).repeat(tile, axis=0)[None].repeat(height, axis=0)


def patch_values(image, tile=32):
    """Colours at the centres of the patches, 0..255."""
    return image[image.shape[0] // 2, tile // 2 :: tile][: len(COLOURS)] * 255


def one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text


# ---- movies


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("fps", [24, "30000/1001", 12.5, Fraction(1, 3)])
def test_a_movie_is_decoded_again(tmp_path, suffix, fps):
    path = tmp_path / "new" / f"clip{suffix}"
    assert write_clip(path, moving(7), fps) == 7
    info = probe(path)
    assert (info.fps, info.width, info.height) == (Fraction(str(fps)), 64, 48)
    assert info.frames in (7, None if suffix == ".mkv" else 7)
    assert info.seconds == pytest.approx(7 / Fraction(str(fps)), abs=2e-3)
    decoded = list(read_frames(path))
    assert len(decoded) == 7
    for image, frame in zip(decoded, moving(7), strict=True):
        assert image.dtype == np.float32
        assert np.abs(image - frame).mean() < 0.015  # the neighbour in time is 0.03 away
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_flat_colours_survive_h264(tmp_path):
    write_mp4(tmp_path / "a.mp4", [patches()] * 3, 25)
    for image in read_frames(tmp_path / "a.mp4"):
        assert np.abs(patch_values(image) - COLOURS).max() <= 3
        assert np.abs(patch_values(image) - COLOURS).mean() <= 1


def test_colour_tags_agree_with_the_conversion_done_by_hand(tmp_path):
    """BT.709, limited range: Y' = 16 + 219 (0.2126 R + 0.7152 G + 0.0722 B), from ITU-R BT.709 section 3."""
    write_mp4(tmp_path / "a.mp4", [patches()], 25)
    with av.open(str(tmp_path / "a.mp4")) as container:
        frame = next(container.decode(video=0))
        luma = frame.to_ndarray()[32, 16::32][: len(COLOURS)].astype(float)
    assert (frame.colorspace, frame.color_primaries, frame.color_trc) == (1, 1, 1)
    assert frame.color_range == ColorRange.MPEG
    assert frame.format.name == "yuv420p"
    assert np.abs(luma - (16 + 219 * COLOURS / 255 @ [0.2126, 0.7152, 0.0722])).max() <= 2


def test_a_movie_starts_to_play_before_it_has_arrived(tmp_path):
    write_mp4(tmp_path / "a.mp4", moving(3), 25)
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize(("height", "width"), [(47, 63), (1, 1), (48, 63)])
def test_odd_sides_grow_by_repeating_the_edge(tmp_path, height, width):
    image = np.zeros((height, width, 3), np.float32) + np.linspace(0.2, 0.9, height, dtype=np.float32)[:, None, None]
    write_mp4(tmp_path / "a.mp4", [image] * 2, 25, crf=4)
    decoded = next(read_frames(tmp_path / "a.mp4"))
    assert decoded.shape == (height + height % 2, width + width % 2, 3)
    assert np.abs(decoded[:height, :width] - image).max() < 0.03
    assert np.abs(decoded[-1, -1] - image[-1, -1]).max() < 0.03


def test_crf_trades_size_for_quality(tmp_path):
    noise = np.random.default_rng(0).random((64, 64, 3), dtype=np.float32)
    for crf in (10, 40):
        write_mp4(tmp_path / f"{crf}.mp4", [noise] * 2, 25, crf=crf)
    assert (tmp_path / "10.mp4").stat().st_size > 3 * (tmp_path / "40.mp4").stat().st_size


@pytest.mark.parametrize("name", ["a.mp4", "frames"])
def test_frames_stream_through_constant_memory(tmp_path, name):
    alive: weakref.WeakSet = weakref.WeakSet()
    most = 0

    class Picture(np.ndarray):  # hashable by identity, so that a WeakSet can hold it
        __hash__ = object.__hash__

    def source():
        nonlocal most
        for frame in moving(30):
            picture = frame.view(Picture)
            alive.add(picture)
            most = max(most, len(alive))
            yield picture

    assert write_clip(tmp_path / name, source(), 25) == 30
    assert most <= 4


@pytest.mark.parametrize(
    ("fps", "rate"),
    [
        (29.97, Fraction(30000, 1001)),
        ("23.976", Fraction(24000, 1001)),
        (23.98, Fraction(24000, 1001)),
        (59.94, Fraction(60000, 1001)),
        ("2997/100", Fraction(2997, 100)),
        (Fraction(2997, 100), Fraction(2997, 100)),
        (30, 30),
        (24.0, 24),
        (12.5, Fraction(25, 2)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_frame_rates_are_exact(fps, rate):
    assert parse_fps(fps) == rate


@pytest.mark.parametrize(
    "fps", [0, -1, "fast", "1/0", float("nan"), float("inf"), 1001, "", "1e999999999", "1e-999999999", 0.009, 10**400]
)
def test_bad_frame_rates(tmp_path, fps):
    with pytest.raises(ValueError) as error:
        write_clip(tmp_path / "new" / "a.mp4", moving(1), fps)
    one_line(error, fps, "30000/1001")
    assert list(tmp_path.iterdir()) == []


# ---- GIF


def test_a_gif_is_decoded_again(tmp_path):
    path = tmp_path / "a.gif"
    assert write_gif(path, moving(9), 15) == 9
    with Image.open(path) as picture:
        assert picture.n_frames == 9
        assert picture.info["loop"] == 0
        delays = []
        for index, frame in enumerate(moving(9)):
            picture.seek(index)
            delays.append(picture.info["duration"])
            image = np.asarray(picture.convert("RGB")) / 255
            assert np.abs(image - frame).mean() < 0.02
    assert sum(delays) == 600
    assert set(delays) == {60, 70}
    assert len(list(read_frames(path))) == 9
    assert (probe(path).fps, probe(path).seconds) == (15, pytest.approx(0.6))


@pytest.mark.parametrize("fps", ["0.01", Fraction(1, 100)])
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_the_slowest_rate_works_everywhere(tmp_path, suffix, fps):
    assert write_clip(tmp_path / f"a{suffix}", moving(3), fps) == 3
    assert probe(tmp_path / f"a{suffix}").seconds == pytest.approx(300)


def test_a_gif_that_stands_still_for_too_long_is_one_line(tmp_path):
    """Equal frames are stored once with their delays summed, and a delay has two bytes."""
    still = [np.zeros((8, 8, 3), np.float32)] * 700
    with pytest.raises(ValueError) as error:
        write_gif(tmp_path / "a.gif", still, 1)
    one_line(error, "a.gif", "655 s", ".mp4")
    assert list(tmp_path.iterdir()) == []
    assert write_gif(tmp_path / "a.gif", still[:600], 1) == 600


def test_a_gif_stops_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("common.io.clip_limits.MAX_GIF_BYTES", 8 * 8 * 3 * 10)
    taken = []
    endless = (taken.append(1) or np.full((8, 8, 3), i % 2, np.float32) for i in itertools.count())
    with pytest.raises(ValueError) as error:
        write_gif(tmp_path / "a.gif", endless, 30)
    one_line(error, "a.gif", "11 of 8x8", ".mp4")
    assert len(taken) < 13 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".mp4", ".GIF", "sub/.mkv"])
def test_a_suffix_is_no_name(tmp_path, name):
    for check in (check_output, lambda path: write_clip(path, moving(1), 30)):
        with pytest.raises(ValueError) as error:
            check(tmp_path / name)
        one_line(error, "suffix without a name", f"clip{name.removeprefix('sub/')}")
    assert list(tmp_path.iterdir()) == []


def test_what_the_encoder_refuses_is_one_line_about_the_output(tmp_path, monkeypatch):
    def full(*_, **__):
        raise av.error.ExternalError(1, "no space")

    monkeypatch.setattr("common.io.video._to_yuv", full)
    with pytest.raises(OSError) as error:
        write_mp4(tmp_path / "a.mp4", moving(2), 30)
    one_line(error, tmp_path / "a.mp4", "no space")
    assert "partial" not in str(error.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fps", "kept"), [(50, 30), (60, 25), (100, 16), (240, 7), ("30000/1001", 30)])
def test_no_delay_is_shorter_than_browsers_play(tmp_path, fps, kept):
    count = write_gif(tmp_path / "a.gif", moving(30, width=128), fps)
    with Image.open(tmp_path / "a.gif") as picture:
        delays = []
        for index in range(picture.n_frames):
            picture.seek(index)
            delays.append(picture.info["duration"])
    assert count == len(delays) == kept
    assert min(delays) >= 20
    assert abs(sum(delays) - 1000 * 30 / Fraction(fps)) <= (5 if Fraction(fps) <= 50 else 20)


def test_a_gif_of_few_colours_is_exact(tmp_path):
    frames = [patches(16, 8), patches(16, 8)[:, ::-1].copy()]
    write_gif(tmp_path / "a.gif", frames, 10)
    for image, frame in zip(read_frames(tmp_path / "a.gif"), frames, strict=True):
        assert np.array_equal(to_uint8(image), to_uint8(frame))


def test_a_gif_palette_serves_the_whole_clip(tmp_path):
    """Red frames, then blue ones: a palette from the first frame alone would show grey or red at the end."""
    ramp = np.linspace(0, 1, 64, dtype=np.float32)[None, :, None].repeat(8, 0)
    frames = [ramp * np.array(c, np.float32) for c in ([1, 0, 0], [0, 0, 1])]
    write_gif(tmp_path / "a.gif", frames, 10)
    for image, frame in zip(read_frames(tmp_path / "a.gif"), frames, strict=True):
        assert np.abs(image - frame).mean() < 0.01


def test_max_colors(tmp_path):
    write_gif(tmp_path / "a.gif", moving(2), 10, max_colors=8)
    colours = {tuple(c) for image in read_frames(tmp_path / "a.gif") for c in to_uint8(image).reshape(-1, 3)}
    assert 4 <= len(colours) <= 8
    for bad in (1, 257):
        with pytest.raises(ValueError) as error:
            write_gif(tmp_path / "b.gif", moving(2), 10, max_colors=bad)
        one_line(error, bad, "256")


# ---- folders of frames


def test_a_folder_of_frames(tmp_path):
    assert write_clip(tmp_path / "frames", moving(3), 25, bits=16) == 3
    assert sorted(p.name for p in (tmp_path / "frames").iterdir()) == [f"frame_0000{i}.png" for i in range(3)]
    for index, frame in enumerate(moving(3)):
        assert np.abs(read_image(tmp_path / "frames" / f"frame_0000{index}.png") - frame).max() < 1 / 65535


def test_names_of_frames(tmp_path):
    write_frames(tmp_path / "a", list(moving(2, 4, 4)), start=99_999)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["frame_099999.png", "frame_100000.png"]
    write_frames(tmp_path / "b", moving(1, 4, 4), suffix=".jpg", start=7)
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["frame_00007.jpg"]
    with pytest.raises(ValueError):
        write_frames(tmp_path / "c", moving(1), start=-1)
    with pytest.raises(ValueError):
        write_frames(tmp_path / "c", moving(1), suffix=".gif")


def test_a_folder_with_a_dot_in_its_name(tmp_path):
    with pytest.raises(ValueError) as error:
        check_output(tmp_path / "take.v2")
    one_line(error, ".v2", ".mp4", ".gif", "PNGs")
    write_clip(f"{tmp_path}/take.v2/", moving(1), 25)
    assert (tmp_path / "take.v2" / "frame_00000.png").exists()
    check_output(tmp_path / "take.v2", overwrite=True)


# ---- refusals


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "frames"])
def test_bad_frames_leave_nothing_behind(tmp_path, name):
    def source(second):
        yield np.zeros((4, 6, 3), np.float32)
        if isinstance(second, BaseException):
            raise second
        yield second

    cases = [
        (np.zeros((6, 4, 3), np.float32), ["frame 1", "4x6", "6x4"]),
        (np.zeros((4, 6), np.float32), ["frame 1", "(4, 6)"]),
        (np.full((4, 6, 3), np.nan, np.float32), ["frame 1", "NaN"]),
        (np.zeros((4, 6, 3), np.uint8), ["frame 1", "uint8"]),
    ]
    for second, words in cases:
        with pytest.raises(ValueError) as error:
            write_clip(tmp_path / "new" / name, source(second), 25)
        one_line(error, name, *words)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError) as error:
        write_clip(tmp_path / "new" / name, iter([]), 25)
    one_line(error, name, "no frames")
    with pytest.raises(KeyboardInterrupt):
        write_clip(tmp_path / "new" / name, source(KeyboardInterrupt()), 25)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "frames"])
def test_existing_output_needs_overwrite_before_any_frame_is_drawn(tmp_path, name):
    path = tmp_path / name
    check_output(path)
    write_clip(path, moving(3), 25)

    def never():
        pytest.fail("a frame was asked for")
        yield

    with pytest.raises(FileExistsError) as error:
        check_output(path)
    one_line(error, path, "--overwrite")
    with pytest.raises(FileExistsError):
        write_clip(path, never(), 25)
    check_output(path, overwrite=True)
    assert write_clip(path, moving(2), 25, overwrite=True) == 2
    decoded = sorted(path.iterdir()) if path.is_dir() else list(read_frames(path))
    assert len(decoded) == 2


def test_frames_never_replace_foreign_files(tmp_path):
    (tmp_path / "photo.png").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError) as error:
            write_clip(tmp_path, moving(1), 25, overwrite=overwrite)
        one_line(error, "photo.png")
    assert [p.name for p in tmp_path.iterdir()] == ["photo.png"]


def test_bad_outputs(tmp_path):
    (tmp_path / "file").touch()
    for name, kind, word in [
        ("a.avi", ValueError, ".mp4 .mov .mkv .gif"),
        ("file", NotADirectoryError, "file"),
        ("file/a.mp4", NotADirectoryError, "file/a.mp4"),
    ]:
        with pytest.raises(kind) as error:
            check_output(tmp_path / name)
        one_line(error, word)
        with pytest.raises(kind):
            write_clip(tmp_path / name, moving(1), 25)
    with pytest.raises(OSError) as error:
        check_output("/proc/a.mp4")
    one_line(error, "/proc/a.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_bad_settings(tmp_path):
    for arguments, word in [({"crf": 0}, "1 (best)"), ({"crf": 52}, "52"), ({"bits": 16}, "PNGs")]:
        with pytest.raises(ValueError) as error:
            write_clip(tmp_path / "a.mp4", moving(1), 25, **arguments)
        one_line(error, word)
    with pytest.raises(ValueError) as error:
        write_mp4(tmp_path / "a.mp4", iter([np.zeros((1, 16386, 3), np.float32)]), 25)
    one_line(error, "16386x1", "16384")
    with pytest.raises(ValueError):
        write_mp4(tmp_path / "a.gif", moving(1), 25)
    with pytest.raises(ValueError):
        write_gif(tmp_path / "a.mp4", moving(1), 25)
    assert list(tmp_path.iterdir()) == []


# ---- reading what others wrote


def encode(path, codec, pixel_format, image, matrix, colour_range, tagged):
    """A clip of two frames by another program: its own matrix and range, tagged or not."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = *image.shape[:2], pixel_format
        stream.options = {"crf": "4"} if codec == "libx264" else {}
        if tagged:
            number = {Colorspace.ITU709: 1, Colorspace.ITU601: 6, Colorspace.BT2020: 9}[matrix]
            stream.codec_context.colorspace = number
        if tagged or colour_range == ColorRange.JPEG:
            stream.codec_context.color_range = colour_range
        for index in range(2):
            frame = av.VideoFrame.from_ndarray(to_uint8(image), "rgb24").reformat(
                format=pixel_format, dst_colorspace=matrix, dst_color_range=colour_range
            )
            frame.pts = index
            frame.colorspace = stream.codec_context.colorspace
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.mark.parametrize(
    ("codec", "pixel_format", "size", "matrix", "colour_range", "tagged"),
    [
        ("libx264", "yuv420p", (64, 32), Colorspace.ITU709, ColorRange.MPEG, True),
        ("libx264", "yuv420p", (64, 32), Colorspace.ITU601, ColorRange.MPEG, True),
        ("libx264", "yuv420p", (64, 32), Colorspace.BT2020, ColorRange.MPEG, True),
        ("libx264", "yuv420p", (64, 32), Colorspace.ITU601, ColorRange.MPEG, False),  # SD
        ("libx264", "yuv420p", (720, 160), Colorspace.ITU709, ColorRange.MPEG, False),  # HD
        ("libx264", "yuv420p", (64, 32), Colorspace.ITU709, ColorRange.JPEG, True),
        ("mjpeg", "yuvj420p", (64, 32), Colorspace.ITU601, ColorRange.JPEG, True),
        ("ffv1", "yuv420p10le", (64, 32), Colorspace.ITU709, ColorRange.MPEG, True),
        ("ffv1", "yuv444p", (64, 32), Colorspace.ITU601, ColorRange.MPEG, True),
        ("libx264rgb", "rgb24", (64, 32), Colorspace.ITU709, ColorRange.UNSPECIFIED, False),
        ("ffv1", "bgr0", (64, 32), Colorspace.ITU709, ColorRange.UNSPECIFIED, False),
        ("png", "rgb24", (64, 32), Colorspace.ITU709, ColorRange.UNSPECIFIED, False),
    ],
)
def test_colours_of_other_programs(tmp_path, codec, pixel_format, size, matrix, colour_range, tagged):
    path = tmp_path / ("a.mov" if codec == "png" else "a.mkv")
    encode(path, codec, pixel_format, patches(*size), matrix, colour_range, tagged)
    decoded = list(read_frames(path))
    assert len(decoded) == 2
    error = np.abs(patch_values(decoded[0], size[1]) - COLOURS)
    assert error.max() <= (6 if codec == "mjpeg" else 4)
    assert error.mean() <= 2  # the wrong matrix or range is 8 or more away


def test_ten_bits_are_kept(tmp_path):
    """A ramp of 10-bit grey levels, written exactly: Y' 64..940 is 0..1."""
    levels = np.linspace(64, 940, 876 + 1).round().astype(np.uint16)[:864]
    planes = np.full((96 * 3 // 2, 864), 512, np.uint16)
    planes[:96] = levels
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 864, 96, "yuv420p10le"
        stream.codec_context.color_range = ColorRange.MPEG
        container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, "yuv420p10le")))
        container.mux(stream.encode())
    row = next(read_frames(tmp_path / "a.mkv"))[48, :, 1]
    assert len(np.unique(row)) > 800
    assert np.abs(row - (levels - 64) / 876).max() < 1 / 1023


def test_phone_videos_are_turned_upright(tmp_path):
    """A portrait recording is stored on its side with a display matrix in the track header (ISO 14496-12)."""
    path = tmp_path / "a.mp4"
    portrait = next(moving(1, height=64, width=48))
    write_mp4(path, [np.rot90(portrait).copy()], 25, crf=4)  # lying on its left side
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack(">i", 0x40000000), data.index(b"tkhd")) - 32
    one = 0x10000
    data[at : at + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 48 * one, 0, 0x40000000)  # clockwise by 90
    path.write_bytes(data)
    assert (probe(path).width, probe(path).height) == (48, 64)
    decoded = next(read_frames(path))
    assert decoded.shape == (64, 48, 3)
    assert np.abs(decoded - portrait).mean() < 0.02


def test_bad_inputs_are_one_line(tmp_path):
    write_mp4(tmp_path / "whole.mp4", moving(9), 25)
    whole = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: int(len(whole) * 0.9)])
    (tmp_path / "head.mp4").write_bytes(whole[: len(whole) // 5])
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("hello\n" * 99)
    silent_wav(tmp_path / "sound.wav")
    for name, kind, word in [
        ("none.mp4", FileNotFoundError, "does not exist"),
        (".", IsADirectoryError, "folder"),
        ("empty.mp4", ValueError, "empty"),
        ("text.mp4", ValueError, "no video"),
        ("head.mp4", ValueError, "damaged"),
        ("cut.mp4", ValueError, "cut short"),
        ("sound.wav", ValueError, "no video in it"),
    ]:
        for read in (probe, lambda path: list(read_frames(path))):
            with pytest.raises(kind) as error:
                read(tmp_path / name)
            one_line(error, tmp_path / name, word)


def silent_wav(path):
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(1600))


def test_a_film_is_reencoded_while_it_is_read(tmp_path):
    write_mp4(tmp_path / "a.mp4", moving(5), 25)
    assert write_mp4(tmp_path / "b.mp4", read_frames(tmp_path / "a.mp4"), probe(tmp_path / "a.mp4").fps) == 5
    write_image(tmp_path / "still.png", next(read_frames(tmp_path / "b.mp4")))
    assert np.abs(read_image(tmp_path / "still.png") - next(moving(1))).mean() < 0.02
