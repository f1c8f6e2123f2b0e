"""Jobs that are stopped, killed or fail leave a playable clip or parts to resume from, and nothing else."""

import shutil
from collections import namedtuple
from fractions import Fraction

import av
import pytest
from decoded_clips import packets
from drawn_clips import BLACK, NTSC, filmed, moving
from PIL import Image
from refusal import refused

from common.io import movies
from common.io.clip_limits import check_output
from common.io.files import finished_parts, unfinished_job
from common.io.movies import SEGMENT
from common.io.video import Audio, open_clip, write_clip
from common.io.video_reader import read_video


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "frames"])
def test_a_resumed_job_gives_the_same_as_an_uninterrupted_one(tmp_path, name):
    """A kill is what the hidden folder looks like after some frames."""
    images = list(moving(2 * SEGMENT + 5, 48, 250))
    write_clip(tmp_path / "whole" / name, images, NTSC)
    path, hidden, saved = tmp_path / name, tmp_path / f".{name}.part", tmp_path / "saved"
    with open_clip(path, (250, 48), NTSC, job="key") as clip:
        for image in images[: SEGMENT + 9]:
            clip.write(image)
        clip._flush()
        shutil.copytree(hidden, saved)
    assert not hidden.exists()
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    saved.rename(hidden)

    with pytest.raises(ValueError, match=name), open_clip(path, (250, 48), NTSC, resume=True, job="another"):
        pytest.fail("it was opened")
    with open_clip(path, (250, 48), NTSC, resume=True, job="key") as clip:
        assert clip.done == (SEGMENT + 9 if name == "frames" else SEGMENT)
        for image in images[clip.done :]:
            clip.write(image)
    if name == "frames":
        whole = {file.name: file.read_bytes() for file in (tmp_path / "whole" / name).iterdir()}
        assert {file.name: file.read_bytes() for file in path.iterdir()} == whole
    else:
        assert packets(path) == packets(tmp_path / "whole" / name)
    assert not hidden.exists()


@pytest.mark.parametrize("name", ["a.mp4", "frames", "a.gif", "a.webp"])
def test_ctrl_c_leaves_a_playable_clip(tmp_path, name):
    path, source = tmp_path / name, filmed(tmp_path / "source.mp4")
    audio = Audio(source) if name == "a.mp4" else None
    with pytest.raises(KeyboardInterrupt) as stop, open_clip(path, (250, 48), NTSC, audio=audio, job="key") as clip:
        for index, image in enumerate(moving(60, 48, 250)):
            clip.write(image)
            if index == 35:
                raise KeyboardInterrupt(15)
    assert stop.value.args[0] == 15 and name in stop.value.args[1]
    if name == "frames":
        assert 34 <= len(list(path.iterdir())) <= 36
    elif name == "a.mp4":
        frames = list(read_video(path))
        assert 34 <= len(frames) <= 36
        sound = packets(path, "audio")
        assert sound[-1][0] / 48000 < len(frames) / NTSC <= (sound[-1][0] + 1024) / 48000 + Fraction(1, 10)
    else:
        with Image.open(path) as picture:
            assert 33 <= picture.n_frames <= 36
        with pytest.raises(ValueError, match=name), open_clip(path, (250, 48), NTSC, resume=True, job="key"):
            pytest.fail("it was opened")
        return
    check_output(path, resume=True)
    refused(FileExistsError, check_output, path)
    with open_clip(path, (250, 48), NTSC, audio=audio, resume=True, job="key") as clip:
        assert 0 < clip.done <= 36
        for image in list(moving(60, 48, 250))[clip.done :]:
            clip.write(image)
    assert clip.count == 60 and [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    refused(FileExistsError, check_output, path, resume=True)


@pytest.mark.parametrize("name", ["a.mp4", "frames"])
def test_a_stop_while_the_output_is_put_together_keeps_the_parts(tmp_path, monkeypatch, name):
    """The line does not say that nothing is left."""
    path, images = tmp_path / name, list(moving(SEGMENT + 2))

    def stopped(*_):
        raise KeyboardInterrupt(15)

    kind = "common.io.movies.Movie" if name == "a.mp4" else "common.io.video.Pictures"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stop:
        patch.setattr(f"{kind}.finish", stopped)
        with open_clip(path, (64, 48), NTSC, job="key") as clip:
            for image in images:
                clip.write(image)
    assert stop.value.args[0] == 15 and name in stop.value.args[1] and not path.exists()
    assert unfinished_job(path).startswith("key\n") and finished_parts(path) >= 1
    with open_clip(path, (64, 48), NTSC, job="key", resume=True) as clip:
        for image in images[clip.done :]:
            clip.write(image)
    assert clip.count == len(images) and unfinished_job(path) == "" and finished_parts(path) == 0


def test_a_slow_encoder_is_not_waited_for(tmp_path, monkeypatch):
    """After Ctrl-C the open segment is dropped, unless there is no other."""
    monkeypatch.setattr(movies, "PATIENCE", -1)
    for written, kept in ((2 * SEGMENT + 5, 2 * SEGMENT), (5, 5)):
        path, stopped = tmp_path / f"{written}.mp4", pytest.raises(KeyboardInterrupt, match=f"first {kept} frames")
        with stopped, open_clip(path, (64, 48), NTSC, job="key") as clip:
            for image in moving(written):
                clip.write(image)
            clip._flush()
            raise KeyboardInterrupt
        assert len(list(read_video(path))) == kept


def test_pictures_that_are_there_need_no_more_space(tmp_path, monkeypatch):
    needed = 30 * 64 * 48 * 3 // 4
    usage = namedtuple("Usage", "total used free")(10**9, 0, needed // 2)
    monkeypatch.setattr("common.io.clip_limits.shutil.disk_usage", lambda _: usage)
    with pytest.raises(MemoryError), open_clip(tmp_path / "frames", (64, 48), NTSC, job="key") as clip:
        for image in moving(20):
            clip.write(image)
        clip._flush()
        raise MemoryError
    check_output(tmp_path / "frames", size=(64, 48), frames=30, resume=True)
    refused(ValueError, check_output, tmp_path / "frames", size=(64, 48), frames=30)


def test_what_an_earlier_run_left_is_removed_unless_it_is_resumed(tmp_path):
    path, hidden = tmp_path / "a.mp4", tmp_path / ".a.mp4.part"
    for _ in range(2):
        with pytest.raises(MemoryError), open_clip(path, (8, 8), NTSC, job="key") as clip:
            assert clip.done == 0
            for _ in range(SEGMENT + 5):
                clip.write(BLACK)
            clip._flush()
            raise MemoryError
        assert hidden.is_dir() and not path.exists()
    first, second = (open_clip(path, (8, 8), NTSC, resume=True, job="key") for _ in range(2))
    with pytest.raises(FileExistsError), first, second:
        pytest.fail("two at once")
    write_clip(path, [BLACK], NTSC)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
    hidden.mkdir()
    (hidden / "mine").touch()
    assert "a.mp4" in refused(FileExistsError, write_clip, path, [BLACK], NTSC, overwrite=True)
    assert (hidden / "mine").exists()


def test_a_frame_that_fails_is_not_replaced_by_the_next(tmp_path, monkeypatch):
    """The parts that stay for `resume` hold the first frames, without a gap."""
    add, calls = movies.Movie.add, []

    def failing(movie, image):
        calls.append(1)
        if len(calls) == SEGMENT + 2:
            raise av.error.ExternalError(1, "no space")
        add(movie, image)

    monkeypatch.setattr(movies.Movie, "add", failing)
    with pytest.raises(OSError, match="no space"), open_clip(tmp_path / "a.mp4", (8, 8), NTSC, job="key") as clip:
        for _ in range(3 * SEGMENT):
            clip.write(BLACK)
    assert len(calls) == SEGMENT + 2
    assert [p.name for p in (tmp_path / ".a.mp4.part").iterdir() if p.name[0] != "."] == ["000000.mp4"]
