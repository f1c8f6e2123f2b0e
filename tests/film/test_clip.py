"""Plans: everything that can go wrong beforehand does so beforehand, once, and costs little."""

from collections import namedtuple
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import film.io.plan
from common.io import clip_limits
from common.io.images import read_image, verify_image, write_image
from film.io.plan import find_photos, frame_count, make_plan, verify_photos

FPS = Fraction(30)
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def photos(tmp_path, monkeypatch) -> list[str]:
    """Four photos of 24x16 in the working folder."""
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.png" for number in range(4)]
    for name, pixels in zip(names, np.random.default_rng(0).random((4, 16, 24, 3)), strict=True):
        write_image(name, pixels.astype(np.float32))
    return names


def refused(*words, **options) -> str:
    with pytest.raises((ValueError, OSError)) as error:
        make_plan(*words, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_plan_counts_and_says_so(photos):
    plan = make_plan(photos, "clip.mp4", 16, FPS)
    assert plan.frames == frame_count(4, 16) == 3 * 65536 + 1
    assert str(plan) == "4 photos 24x16 -> 196609 frames at 30 fps, 6553.63 s -> clip.mp4"


@pytest.mark.parametrize("times", [-1, 17, 30, 10**400])
def test_times_have_an_end(photos, times):
    said = refused(photos, "clip.mp4", times, FPS)
    assert said.startswith(f"--times {times}:") and "0 to 16" in said


def test_each_photo_is_decoded_once_and_in_order(photos, monkeypatch):
    decoded = []
    monkeypatch.setattr(film.io.plan, "verify_image", lambda path: decoded.append(str(path)))
    monkeypatch.setattr(film.io.plan.os, "cpu_count", lambda: 1)
    make_plan([*photos, photos[0], photos[1]], "clip.mp4", 1, FPS)
    assert decoded == photos


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_first_damaged_photo_is_named(photos, monkeypatch, cores):
    monkeypatch.setattr(film.io.plan.os, "cpu_count", lambda: cores)
    for name in photos[2:]:
        Path(name).write_bytes(Path(name).read_bytes()[:-30])
    assert refused(photos, "clip.mp4", 1, FPS).startswith("2.png is damaged or cut short")


def test_large_pictures_are_decoded_by_fewer_threads(photos, monkeypatch):
    """They are all in memory at once."""
    asked = []
    pool = film.io.plan.ThreadPoolExecutor
    monkeypatch.setattr(film.io.plan, "ThreadPoolExecutor", lambda threads: asked.append(threads) or pool(threads))
    monkeypatch.setattr(film.io.plan.os, "cpu_count", lambda: 64)
    plan = make_plan(photos, "clip.mp4", 1, FPS)
    monkeypatch.setattr(film.io.plan, "MAX_PIXELS", 24 * 16 * 2)
    verify_photos(plan)
    monkeypatch.setattr(film.io.plan, "MAX_PIXELS", 5)
    verify_photos(plan)
    assert asked == [8, 2, 1]


def test_sizes_are_compared_before_anything_is_decoded(photos, monkeypatch):
    write_image("wide.png", np.zeros((16, 25, 3), np.float32))
    monkeypatch.setattr(film.io.plan, "verify_image", lambda path: pytest.fail("decoded"))
    assert "wide.png is 25x16" in refused([*photos, "wide.png"], "clip.mp4", 1, FPS)


def test_a_gif_past_memory_is_refused_beforehand(photos, monkeypatch):
    monkeypatch.setattr(clip_limits, "MAX_GIF_BYTES", 24 * 16 * 3 * 100)
    assert make_plan(photos, "clip.gif", 5, FPS).frames == 97
    assert "193 of 24x16" in refused(photos, "clip.gif", 6, FPS)
    assert make_plan(photos, "clip.gif", 6, Fraction(100)).frames == 193  # every other frame is left out
    assert make_plan(photos, "clip.mp4", 6, FPS).frames == 193


def test_frames_past_the_disk_are_refused_beforehand(photos, monkeypatch):
    usage = Usage(10**9, 0, 97 * 24 * 16 * 3 // 4)
    monkeypatch.setattr(clip_limits.shutil, "disk_usage", lambda place: usage)
    assert make_plan(photos, "new/frames", 5, FPS).frames == 97
    assert "the disk has 0.0 GB left" in refused(photos, "new/frames", 6, FPS)
    assert make_plan(photos, "clip.mp4", 6, FPS).frames == 193
    monkeypatch.setattr(clip_limits.shutil, "disk_usage", lambda place: Usage(0, 0, 0))
    assert make_plan(photos, "new/frames", 6, FPS).frames == 193  # a file system that does not tell


def test_pictures_past_the_format_are_refused_beforehand(photos, monkeypatch):
    monkeypatch.setattr(clip_limits, "MAX_SIDE", 23)
    assert "24x16 is past 23" in refused(photos, "clip.mp4", 1, FPS)
    assert make_plan(photos, "frames", 1, FPS).size == (24, 16)


def test_a_plan_leaves_no_trace(photos):
    before = sorted(Path().iterdir())
    make_plan(photos, "new/clip.mp4", 1, FPS, sheet="other/sheet.png")
    assert sorted(Path().iterdir()) == before


def test_outputs_beside_the_inputs_are_fine(photos):
    Path("photos").mkdir()
    for name in photos:
        Path(name).rename(f"photos/{name}")
    for output in ("photos/clip.mp4", "photos/frames", "photos.mp4"):
        assert make_plan(["photos"], output, 1, FPS, sheet="photos/sheet.jpg").output == Path(output)


def test_names_with_brackets_are_names_first(photos):
    Path(photos[0]).rename("scan[1].png")
    assert find_photos(["scan[1].png", photos[1]]) == [Path("scan[1].png"), Path(photos[1])]
    assert verify_image("scan[1].png") is None and read_image("scan[1].png").shape == (16, 24, 3)
