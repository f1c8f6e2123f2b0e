"""Plans: everything that can go wrong beforehand does so beforehand, once, and costs little."""

import sys
from collections import Counter, namedtuple
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from drawn_clips import NTSC, encoded, gradient
from refusal import refused

import film.io.sources
from common.io.images import read_image, write_image
from film.io.options import Options, parse_factor, parse_memory, parse_scale
from film.io.plan import make_plan
from film.io.sources import find_inputs

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def photos(tmp_path, monkeypatch) -> list[str]:
    """Four photos of 24x16 in the working folder."""
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.png" for number in range(4)]
    for name, pixels in zip(names, np.random.default_rng(0).random((4, 16, 24, 3)), strict=True):
        write_image(name, pixels.astype(np.float32))
    return names


@pytest.fixture
def video(tmp_path, monkeypatch) -> Path:
    """Six frames of 64x48 with sound."""
    monkeypatch.chdir(tmp_path)
    return encoded(Path("a.mkv"), [gradient(i) for i in range(6)], NTSC, sound=0.25)


def test_a_plan_counts_and_leaves_no_trace(photos):
    before = sorted(Path().iterdir())
    assert make_plan(photos, "clip.mp4").frames == 97
    plan = make_plan(photos, "new/clip.mp4", Options(times=16, sheet="other/sheet.png"))
    assert plan.frames == 3 * 65536 + 1 and plan.in_betweens(plan.frames) == 3 * 65535
    assert str(plan) == "4 photos -> 196609 frames 24x16 at 30 fps, 6553.63 s -> new/clip.mp4"
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(("options", "rate", "frames", "sound"), [
    ({}, 2 * NTSC, 12, "copied"),
    ({"factor": "2.5"}, NTSC * Fraction(5, 2), 15, "copied"),
    ({"factor": 4, "slow_motion": True}, NTSC, 24, "left out"),
    ({"factor": 4, "slow_motion": True, "audio": "stretch"}, NTSC, 24, "stretched"),
    ({"fps": 60, "audio": "none"}, 60, 16, "left out"),
])  # fmt: skip
def test_frames_and_sound_of_a_video(video, options, rate, frames, sound):
    plan = make_plan([video], None, Options(**options))
    assert (plan.rate, plan.frames) == (rate, frames) and sound in plan.note and sound in str(plan)
    assert plan.output == Path("a_film.mkv") and (plan.audio is None) == (sound == "left out")


def test_default_names(photos, video):
    assert make_plan(["1.png", "0.png"]).output == Path("1_film.mp4")
    Path("photos").mkdir()
    for name in photos:
        Path(name).rename(f"photos/{name}")
    assert make_plan(["photos"]).output == Path("photos/0_film.mp4")
    encoded(Path("b.avi"), [gradient()] * 2)
    assert make_plan(["b.avi"]).output == Path("b_film.mp4")


@pytest.mark.parametrize(("options", "value"), [
    ({"frames": 3}, "--frames"),
    ({"frames": 0}, "--frames"),
    ({"loop": True}, "--loop"),
    ({"ease": True}, "--ease"),
    ({"match_exposure": True}, "--match-exposure"),
    ({"slow_motion": True}, "--factor"),
    ({"factor": 2, "fps": 60}, "--slow-motion"),
    ({"factor": "fast"}, "fast"),
    ({"factor": 0}, "--factor 0"),
    ({"factor": 1001}, "--factor 1001"),
    ({"factor": 1000}, "fps is"),
    ({"factor": 0.0001}, "fps is"),
    ({"factor": 4, "slow_motion": True, "audio": "keep"}, "--audio keep"),
    ({"factor": 2, "fit": "pad"}, "--fit pad"),
    ({"quality": 99}, "99"),
    ({"chroma": "444", "codec": "av1"}, "444"),
])  # fmt: skip
def test_contradictory_options_of_a_video_are_one_line(video, options, value):
    assert value in refused(ValueError, make_plan, [video], "clip.mp4", Options(**options))
    assert sorted(Path().iterdir()) == [video]


def test_another_shape_of_a_video_needs_a_fit(video):
    assert "--fit" in refused(ValueError, make_plan, [video], "clip.mp4", Options(size="64x32"))
    assert make_plan([video], "clip.mp4", Options(size="64x32", fit="crop")).size == (64, 32)
    assert make_plan([video], "clip.mp4", Options(size="32x24")).size == (32, 24)


def test_what_a_video_cannot_be(video):
    encoded(Path("one.mp4"), [gradient()])
    encoded(Path("raw.h264"), [gradient()] * 3)
    assert "one frame" in refused(ValueError, make_plan, ["one.mp4"])
    assert "--sheet" in refused(ValueError, make_plan, ["raw.h264"], None, Options(sheet="sheet.png"))
    assert "nowhere.mp4" in refused(FileNotFoundError, make_plan, ["nowhere.mp4"])
    assert "a.mkv" in refused(ValueError, make_plan, ["one.png", "a.mkv"])
    assert "--audio" in refused(ValueError, make_plan, ["a.mkv"], "clip.gif", Options(audio="keep"))
    assert "aac" in refused(ValueError, make_plan, ["a.mkv"], "clip.webm")


def test_a_name_of_the_work_changes_with_inputs_and_what_changes_frames(photos):
    def job(**options) -> str:
        return make_plan(photos, "clip.mp4", Options(**options)).job

    assert job() == job(resume=True, memory="2GB", batch=2) == job(sheet="sheet.png")
    assert len({job(), job(times=2), job(ensemble=True), job(size="8")}) == 4
    before = job()
    write_image(photos[0], read_image(photos[1]), overwrite=True)
    assert job() != before


def test_numbers_may_be_texts_or_numbers(photos):
    plan = make_plan(photos, "clip.mp4", Options(size=12, memory=4e9, flow_scale=2, fps=25))
    assert (plan.size, plan.memory, plan.flow_scale, plan.rate) == ((12, 8), 4e9, 2, 25)
    for text, factor in {"4": "4", "2.5": "5/2", "5/2": "5/2", 3: "3", 0.5: "1/2", Fraction(7, 3): "7/3"}.items():
        assert parse_factor(text) == Fraction(factor)
    assert [parse_memory(text) for text in ("2GB", "1.5g", "800 MB", 4e9, 7)] == [2e9, 1.5e9, 8e8, 4e9, 7]
    assert [parse_scale(text) for text in ("1", "1/4", "16", 2)] == [1, 4, 16, 2]
    for parse, text in ((parse_factor, "1/0"), (parse_factor, "-2"), (parse_memory, "2"), (parse_scale, "1/3")):
        refused(ValueError, parse, text)


@pytest.mark.parametrize("cache", [film.io.sources.MAX_CACHE, 1500])
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
    monkeypatch.setattr(film.io.sources, "MAX_CACHE", cache)
    monkeypatch.setattr(film.io.sources, "read_image", decode)
    plan = make_plan(photos, "frames.gif", Options(times=1))
    assert not decoded
    frames = list(plan.source.frames(plan.timeline.step))
    running = False
    assert decoded == dict.fromkeys(photos, 1)
    assert [opened[name] for name in photos] == ([1] * 4 if cache > 1500 else [1, 2, 2, 2])
    np.testing.assert_array_equal(frames[2].image, read_image(photos[2]))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_photo_without_its_end_is_found_at_once(photos, suffix):
    names = [f"{number}.{suffix}" for number in range(4)]
    for name in names:
        write_image(name, read_image(photos[0]), overwrite=True)
    with Path(names[1]).open("ab") as file:
        file.write(b"appended by a phone")  # which is harmless
    for name in names[2:]:
        Path(name).write_bytes(Path(name).read_bytes()[:-30])
    refused(ValueError, make_plan, names, "clip.mp4", Options(times=1), match=names[2])
    assert make_plan(names[:2], "clip.mp4", Options(times=1)).frames == 3


@pytest.mark.parametrize(("limit", "value", "output"), [
    ("MAX_GIF_BYTES", 24 * 16 * 3 * 100, "clip.gif"),
    ("shutil.disk_usage", lambda place: Usage(10**9, 0, 97 * 24 * 16 * 3 // 4), "new/frames"),
])  # fmt: skip
def test_what_a_format_or_the_disk_cannot_hold_is_refused_beforehand(photos, monkeypatch, limit, value, output):
    """97 frames fit, 193 do not."""
    monkeypatch.setattr(f"common.io.clip_limits.{limit}", value)
    assert make_plan(photos, output, Options(times=5)).frames == 97
    refused((ValueError, OSError), make_plan, photos, output, Options(times=6), match=Path(output).name)
    assert make_plan(photos, "clip.mp4", Options(times=6)).frames == 193
    monkeypatch.setattr("common.io.clip_limits.shutil.disk_usage", lambda place: Usage(0, 0, 0))
    assert make_plan(photos, "new/frames", Options(times=6)).frames == 193  # a file system that does not know


def test_outputs_beside_the_inputs_are_fine_and_names_with_brackets_are_names_first(photos):
    Path(photos[0]).rename("scan[1].png")
    assert find_inputs(["scan[1].png", photos[1]]) == [Path("scan[1].png"), Path(photos[1])]
    assert "scan[1].png" in refused(ValueError, find_inputs, ["scan[1].png"])
    Path("photos").mkdir()
    for name in photos[1:]:
        Path(name).rename(f"photos/{name}")
    for output in ("photos/clip.mp4", "photos/frames", "photos.mp4", "dotted.folder/"):
        assert make_plan(["photos"], output, Options(times=1, sheet="photos/sheet.jpg")).output == output
