"""Clips are decoded again and compared: images, colours, rates, counts; failures leave nothing behind."""

import itertools
import math
import weakref
from fractions import Fraction
from unittest import mock

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange
from decoded_clips import probe, read_frames
from PIL import Image, ImageSequence
from refusal import refused

from common.io.clip_limits import check_output, parse_fps
from common.io.images import read_image, to_uint8
from common.io.video import write_clip, write_gif, write_mp4

PRIMARIES = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)]
COLOURS = np.array([*PRIMARIES, (128, 128, 128), (200, 120, 40), (20, 90, 180)], np.float32)
BLACK = np.zeros((8, 8, 3), np.float32)


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


def gif_delays(path) -> list[int]:
    with Image.open(path) as picture:
        assert picture.info["loop"] == 0
        return [frame.info["duration"] for frame in ImageSequence.Iterator(picture)]


@pytest.mark.parametrize(
    ("suffix", "fps"),
    [(".mp4", "30000/1001"), (".mp4", 12.5), (".mov", 24), (".mkv", Fraction(1, 3)), (".mp4", "0.01")],
)
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
    write_mp4(tmp_path / "a.mp4", [patches()], 25)
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
    write_mp4(tmp_path / "a.mp4", [image] * 2, 25)
    decoded = next(read_frames(tmp_path / "a.mp4"))
    assert decoded.shape == (height + height % 2, width + width % 2, 3)
    assert np.abs(decoded[:height, :width] - image).max() < 0.03
    assert np.abs(decoded[-1, -1] - image[-1, -1]).max() < 0.03


@pytest.mark.parametrize("name", ["a.mp4", "frames"])
def test_frames_stream_through_constant_memory(tmp_path, name):
    alive, most = [], 0

    def source():
        nonlocal most
        for frame in moving(30):
            alive.append(weakref.ref(frame))
            most = max(most, sum(one() is not None for one in alive))
            yield frame

    assert write_clip(tmp_path / name, source(), 25) == 30
    assert most <= 4


def test_frame_rates_are_exact():
    names = {29.97: "30000/1001", "23.976": "24000/1001", 23.98: "24000/1001", "2997/100": "2997/100"}
    for fps, rate in {**names, Fraction(2997, 100): "2997/100", 24.0: "24", 12.5: "25/2"}.items():
        assert parse_fps(fps) == Fraction(rate)
    invalid = [0, -1, "fast", "1/0", math.nan, math.inf, 1001, "", "1e999999999", "1e-999999999", 0.009, 10**400]
    for fps in invalid:
        assert str(fps) in refused(ValueError, parse_fps, fps)


def test_limits_of_a_gif(tmp_path, monkeypatch):
    """Equal frames are stored once with their delays summed, and a delay has two bytes; all frames are in memory."""
    path = tmp_path / "a.gif"
    assert "655 s" in refused(ValueError, write_gif, path, [BLACK] * 700, 1)
    monkeypatch.setattr("common.io.clip_limits.MAX_GIF_BYTES", 8 * 8 * 3 * 10)
    taken = []
    endless = (taken.append(1) or np.full((8, 8, 3), i % 2, np.float32) for i in itertools.count())
    assert "11 of 8x8" in refused(ValueError, write_gif, path, endless, 30)
    assert len(taken) < 13 and list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert write_gif(path, [BLACK] * 600, 1) == 600


def test_an_error_of_the_encoder_names_the_output(tmp_path, monkeypatch):
    monkeypatch.setattr("common.io.video._to_yuv", mock.Mock(side_effect=av.error.ExternalError(1, "no space")))
    message = refused(OSError, write_mp4, tmp_path / "a.mp4", moving(2), 30)
    assert str(tmp_path / "a.mp4") in message and "no space" in message and "partial" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fps", "kept"), [(15, 30), (50, 30), (60, 25), (240, 7), ("30000/1001", 30)])
def test_a_gif_is_decoded_again_and_no_delay_is_shorter_than_browsers_play(tmp_path, fps, kept):
    path, frames = tmp_path / "a.gif", list(moving(30, width=128))
    count, delays = write_gif(path, frames, fps), gif_delays(path)
    assert count == len(delays) == kept and min(delays) >= 20
    assert abs(sum(delays) - 1000 * 30 / Fraction(fps)) <= (5 if Fraction(fps) <= 50 else 20)
    assert fps != 15 or set(delays) == {60, 70}
    for image, frame in zip(read_frames(path), frames, strict=False):
        assert kept < 30 or np.abs(image - frame).mean() < 0.02


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
    write_clip(path, moving(3), 25)

    def never():
        pytest.fail("a frame was drawn")
        yield

    assert str(path) in refused(FileExistsError, check_output, path)
    refused(FileExistsError, write_clip, path, never(), 25)
    check_output(path, overwrite=True)
    assert write_clip(path, moving(2), 25, overwrite=True) == 2


def test_bad_outputs(tmp_path):
    for foreign in ("file", "photo.png"):
        (tmp_path / foreign).touch()
    for name, kind, value in [
        ("a.avi", ValueError, ".avi"),
        (".mp4", ValueError, ".mp4"),
        ("sub/.MKV", ValueError, ".MKV"),
        ("file", NotADirectoryError, "file"),
        ("file/a.mp4", NotADirectoryError, "file/a.mp4"),
        ("", FileExistsError, "'file'"),  # foreign files are never replaced
        ("/proc/a.mp4", OSError, "/proc/a.mp4"),
    ]:
        for overwrite in (False, True):
            assert value in refused(kind, check_output, tmp_path / name, overwrite)
            assert value in refused(kind, write_clip, tmp_path / name, moving(1), 25, overwrite)
    wide = iter([np.zeros((1, 16386, 3), np.float32)])
    assert "16386x1" in refused(ValueError, write_mp4, tmp_path / "a.mp4", wide, 25)
    for write, name in ((write_mp4, "a.gif"), (write_gif, "a.mp4")):
        refused(ValueError, write, tmp_path / name, moving(1), 25)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "photo.png"]
