"""Plans: everything that can go wrong beforehand does so beforehand, once, and costs little."""

import sys
from collections import Counter, namedtuple
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import film.io.plan
from common.io.images import read_image, write_image
from film.io.plan import find_photos, make_plan

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


def test_a_plan_counts_and_leaves_no_trace(photos):
    before = sorted(Path().iterdir())
    plan = make_plan(photos, "new/clip.mp4", 16, FPS, sheet="other/sheet.png")
    assert plan.frames == 3 * 65536 + 1
    assert str(plan) == "4 photos 24x16 -> 196609 frames at 30 fps, 6553.63 s -> new/clip.mp4"
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("cache", [film.io.plan.MAX_CACHE, 1500])
def test_each_photo_is_opened_and_decoded_once(photos, monkeypatch, cache):
    """Those that do not fit into memory are opened a second time, and still decoded once."""
    opened, decoded, running = Counter(), Counter(), True

    def count(event, arguments):
        if running and event == "open" and str(arguments[0]).endswith(".png"):
            opened[str(arguments[0])] += 1

    def decode(source, name=""):
        decoded[name or str(source)] += 1
        return read_image(source, name)

    sys.addaudithook(count)  # for good: `running` ends its work
    monkeypatch.setattr(film.io.plan, "MAX_CACHE", cache)
    monkeypatch.setattr(film.io.plan, "read_image", decode)
    plan = make_plan([*photos, photos[0]], "frames.gif", 1, FPS)
    assert not decoded
    images = [plan.read(photo) for photo in plan.photos[:-1]]
    running = False
    assert decoded == dict.fromkeys(photos, 1)
    assert [opened[name] for name in photos] == ([1] * 4 if cache > 1500 else [1, 2, 2, 2])
    np.testing.assert_array_equal(images[2], read_image(photos[2]))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_photo_without_its_end_is_found_at_once(photos, suffix):
    names = [f"{number}.{suffix}" for number in range(4)]
    for name in names:
        write_image(name, read_image(photos[0]), overwrite=True)
    with Path(names[1]).open("ab") as file:
        file.write(b"appended by a phone")  # which is harmless
    for name in names[2:]:
        Path(name).write_bytes(Path(name).read_bytes()[:-30])
    with pytest.raises(ValueError, match=names[2]):
        make_plan(names, "clip.mp4", 1, FPS)
    assert make_plan(names[:2], "clip.mp4", 1, FPS).frames == 3


@pytest.mark.parametrize(
    ("limit", "value", "output"),
    [
        ("MAX_GIF_BYTES", 24 * 16 * 3 * 100, "clip.gif"),
        ("shutil.disk_usage", lambda place: Usage(10**9, 0, 97 * 24 * 16 * 3 // 4), "new/frames"),
    ],
)
def test_what_a_format_or_the_disk_cannot_hold_is_refused_beforehand(photos, monkeypatch, limit, value, output):
    """97 frames fit, 193 do not."""
    monkeypatch.setattr(f"common.io.clip_limits.{limit}", value)
    assert make_plan(photos, output, 5, FPS).frames == 97
    with pytest.raises((ValueError, OSError), match=Path(output).name):
        make_plan(photos, output, 6, FPS)
    assert make_plan(photos, "clip.mp4", 6, FPS).frames == 193
    monkeypatch.setattr("common.io.clip_limits.shutil.disk_usage", lambda place: Usage(0, 0, 0))
    assert make_plan(photos, "new/frames", 6, FPS).frames == 193  # a file system that does not know


def test_outputs_beside_the_inputs_are_fine_and_names_with_brackets_are_names_first(photos):
    Path(photos[0]).rename("scan[1].png")
    assert find_photos(["scan[1].png", photos[1]]) == [Path("scan[1].png"), Path(photos[1])]
    Path("photos").mkdir()
    for name in photos[1:]:
        Path(name).rename(f"photos/{name}")
    for output in ("photos/clip.mp4", "photos/frames", "photos.mp4"):
        assert make_plan(["photos"], output, 1, FPS, sheet="photos/sheet.jpg").output == Path(output)
