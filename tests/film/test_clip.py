"""Clips, made and decoded again: number, time and content of frames, sound, cuts, stops and damage.

Most tests put the plain cross-fade in the place of the network. Its frames are known, so each frame of a clip tells
its moment.
"""

import itertools
from fractions import Fraction
from functools import partialmethod
from pathlib import Path

import av
import jax
import numpy as np
import pytest
from decoded_clips import packets
from drawn_clips import NTSC, encoded
from refusal import refused
from toy import network, toy

import film
from common.io.images import read_image, write_image
from common.io.video_reader import probe, read_video
from film.cli import main
from film.interpolator import Interpolator
from film.shots import is_still

HEIGHT, WIDTH = 48, 64
CODEC_ERROR = 0.02  # mean absolute difference of a frame that was encoded twice


@pytest.fixture
def fades(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def between(self, x0, x1, moments):
        return (x0 + np.float32(moment) * (x1 - x0) for moment in moments)

    monkeypatch.setattr(Interpolator, "_tasks", between)


def ramp(value: float) -> np.ndarray:
    """A gradient to the right under brightness `value` in [0, 1]; uint8."""
    image = np.broadcast_to(np.linspace(0, 60, WIDTH)[None, :, None], (HEIGHT, WIDTH, 3))
    return np.rint(20 + image + 160 * value).astype(np.uint8)


def values(path) -> np.ndarray:
    """Of each frame the `value` of its `ramp`."""
    return np.array([(255 * float(frame.image.mean()) - 50) / 160 for frame in read_video(path)])


def brightening(path: str, count: int = 13, rate: Fraction = NTSC, **options) -> Path:
    """A clip whose brightness is its time, from 0 at the first frame to 1 at the last."""
    times = options.get("times", range(count))
    return encoded(Path(path), [ramp(time / times[-1]) for time in times], rate, **options)


def test_a_clip_with_sound_is_doubled_exactly(tmp_path):
    source = brightening(str(tmp_path / "a.mp4"), 60, sound=2.5)
    film.convert(source, tmp_path / "b.mp4", network())
    before, after = probe(source), probe(tmp_path / "b.mp4")
    assert (after.frames, after.rate, after.variable) == (120, 2 * NTSC, False)
    assert after.duration == before.duration == 60 / NTSC
    heard = packets(source, "audio")
    assert packets(tmp_path / "b.mp4", "audio") == heard and len(heard) > 100
    frames = [frame.image for frame in read_video(tmp_path / "b.mp4")]
    for number, frame in enumerate(read_video(source)):
        assert np.abs(frames[2 * number] - frame.image).mean() < CODEC_ERROR
    np.testing.assert_array_equal(frames[118].round(1), frames[119].round(1))  # the last one stays
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize(("options", "rate", "stretch"), [
    ({"factor": "2.5"}, NTSC * Fraction(5, 2), 1),
    ({"factor": "1/2"}, NTSC / 2, 1),
    ({"fps": 60}, Fraction(60), 1),
    ({"factor": 3, "slow_motion": True}, NTSC, 3),
    ({"factor": 3, "slow_motion": True, "fps": 50}, Fraction(50), 3),
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_any_rate(fades, suffix, options, rate, stretch):
    """Each frame shows its time, to the millisecond that a .mkv rounds to."""
    source = brightening(f"a.{suffix}")
    plan = film.convert(source, f"b.{suffix}", network(), **options)
    found, info = values(f"b.{suffix}"), probe(f"b.{suffix}")
    assert len(found) == plan.frames == np.ceil(13 / NTSC * rate * stretch)
    assert info.rate == rate and abs(info.duration - 13 * stretch / NTSC) <= 1 / rate + Fraction(1, 1000)
    times = np.arange(len(found)) / float(rate * stretch) * float(NTSC) / 12
    np.testing.assert_allclose(found, np.minimum(times, 1), atol=0.012)


def test_a_variable_rate_becomes_constant(fades):
    times = [0, 1, 2, 6, 7, 20, 21]
    film.convert(brightening("a.mp4", rate=Fraction(30), times=times), "b.mp4", network(), fps=60)
    found = values("b.mp4")
    last = list(read_video("a.mp4"))[-1].duration
    assert probe("b.mp4").variable is False and len(found) == 2 * 21 + round(60 * last)
    np.testing.assert_allclose(found[:43], np.arange(43) / 42, atol=0.012)


def scene(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).random((6, 8, 3))
    return (255 * noise * np.random.default_rng(seed + 9).uniform(0.4, 1, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)


@pytest.mark.parametrize("factor", [2, 3.5])
def test_a_hard_cut_is_not_morphed(fades, factor):
    """Every frame equals one of the two sides; the one before the cut is held."""
    a, b = scene(0), scene(1)
    encoded(Path("a.mp4"), [a] * 5 + [b] * 5)
    film.convert("a.mp4", "b.mp4", network(), factor=factor)
    sides = [next(iter(read_video("a.mp4"))).image, list(read_video("a.mp4"))[-1].image]
    nearest = []
    for frame in read_video("b.mp4"):
        distances = [np.abs(frame.image - side).mean() for side in sides]
        assert min(distances) < 0.04 and max(distances) > 0.2  # a mixture is far from both
        nearest.append(int(np.argmin(distances)))
    assert nearest == [0] * int(np.ceil(5 * factor)) + [1] * (int(10 * factor) - int(np.ceil(5 * factor)))


def test_motion_goes_on_through_repeated_frames(fades):
    images = [ramp(number // 2 / 6) for number in range(14)]  # drawn on twos
    encoded(Path("a.mp4"), images)
    film.convert("a.mp4", "plain.mp4", network())
    film.convert("a.mp4", "b.mp4", network(), retime=True)
    plain, found = values("plain.mp4"), values("b.mp4")
    assert len(plain) == len(found) == 28
    steps = np.diff(found[:25])
    assert np.abs(steps - 1 / 24).max() < 0.012 and np.diff(plain[:25]).min() < 0.005


@pytest.mark.parametrize(("options", "expected"), [
    ({"frames": 2}, [0, 0.2, 0.4, 0.6, 0.5, 0.4, 0.3]),
    ({"times": 1}, [0, 0.3, 0.6, 0.45, 0.3]),
    ({"frames": 0}, [0, 0.6, 0.3]),
    ({"frames": 2, "loop": True}, [0, 0.2, 0.4, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
    ({"frames": 3, "ease": True}, [0, 0.09375, 0.3, 0.50625, 0.6, 0.553125, 0.45, 0.346875, 0.3]),
])  # fmt: skip
def test_frames_between_photos(fades, options, expected):
    for number, value in enumerate((0.0, 0.6, 0.3)):
        write_image(f"{number}.png", ramp(value).astype(np.float32) / 255)
    plan = film.convert(["0.png", "1.png", "2.png"], "b.mp4", network(), **options)
    found = values("b.mp4")
    assert len(found) == plan.frames == len(expected)
    np.testing.assert_allclose(found, expected, atol=0.012)


@pytest.mark.parametrize("given", [["a.png", "b.png"], ["a.png", "a.png", "b.png"]], ids=len)
def test_a_full_device_gets_half_of_the_plan_once(fades, monkeypatch, capsys, given):
    """Where the plan did not do for the first frame of the network, before which a still gap is faded; another failure
    is the error."""
    big = np.float32(ramp(0.5) / 255).repeat(10, 0).repeat(10, 1)
    for name in ("a.png", "b.png"):
        write_image(name, big * np.float32(name == "a.png"))
    plans, fade, error = [], Interpolator._tasks, jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    def fails(self, x0, x1, moments, times=1):
        if not is_still(x0, x1):
            plans.append(self.plan)
            if len(plans) <= times:
                raise error
        return fade(self, x0, x1, moments)

    monkeypatch.setattr("film.planning.BASE", 0)
    monkeypatch.setattr(Interpolator, "_tasks", fails)
    film.convert(given, "out", network(), frames=3)
    first, second = plans
    assert second != first and second.memory <= first.memory / 2
    means = [read_image(path).mean() for path in sorted(Path("out").iterdir())]
    np.testing.assert_allclose(means[-5:], np.linspace(1, 0, 5) * means[0], atol=0.01)
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "640x480" in line
    plans.clear()
    monkeypatch.setattr(Interpolator, "_tasks", partialmethod(fails, times=2))
    refused(MemoryError, film.convert, given, "again", network(), frames=3, match="640x480")
    assert len(plans) == 2


def test_what_is_there_to_look_at(tmp_path, monkeypatch):
    """With the network itself; sheet, inspection and comparison leave the frames alone."""
    monkeypatch.chdir(tmp_path)
    source, weights = brightening("a.mp4", 4), "toy.safetensors"
    film.save_model(weights, network())
    main([str(source), "-o", "b", "--sheet", "sheet.png", "--inspect", "look.jpg", "--weights", weights, "--quiet"])
    main([str(source), "-o", "compared", "--compare", "--weights", weights, "--quiet"])
    frames, compared = ([read_image(path) for path in sorted(Path(name).iterdir())] for name in ("b", "compared"))
    assert len(frames) == len(compared) == 8
    for frame, both in zip(frames, compared, strict=True):
        assert both.shape == (HEIGHT, 2 * WIDTH + 2, 3)
        np.testing.assert_array_equal(frame[36:], both[36:, WIDTH + 2 :])  # below the titles
    np.testing.assert_allclose(compared[1][36:, :WIDTH], (frames[0] + frames[2])[36:] / 2, atol=0.01)
    assert read_image("sheet.png").shape[0] > 3 * HEIGHT and read_image("look.jpg").shape[1] > 3 * 480


class Killed(BaseException):
    """In the place of SIGKILL: nothing is tidied up."""


def test_a_killed_job_goes_on_and_gives_the_packets_of_an_uninterrupted_one(fades, monkeypatch):
    source = brightening("a.mp4", 40, Fraction(4), sound=10)  # long enough to seek in
    film.convert(source, "whole.mp4", network(), factor=3)
    counter, original = itertools.count(), Interpolator._tasks

    def between(self, *arguments):
        if next(counter) == 20:
            raise Killed
        return original(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Interpolator, "_tasks", between)
        film.convert(source, "b.mp4", network(), factor=3)
    assert Path(".b.mp4.part").is_dir() and not Path("b.mp4").exists()
    for other in (dict(factor=2), dict(factor=3, model=toy(seed=1))):
        with pytest.raises(ValueError, match="other inputs or options"):
            film.convert(source, "b.mp4", **{"model": network()} | other, resume=True)
    made = []

    def counted(self, x0, x1, moments):
        made.append(len(moments))
        return original(self, x0, x1, moments)

    monkeypatch.setattr(Interpolator, "_tasks", counted)
    starts = []
    seek = lambda path, start, **more: starts.append(start) or read_video(path, start, **more)  # noqa: E731
    monkeypatch.setattr("film.io.sources.read_video", seek)
    monkeypatch.setattr("film.clip.make_compute_plan", lambda *_, **__: pytest.fail("another plan"))
    refused(MemoryError, film.convert, source, "b.mp4", network(), factor=3, resume=True, memory="1MB", match=r"b\.mp4")
    film.convert(source, "b.mp4", network(), factor=3, resume=True)
    assert 0 < sum(made) < 80 - 24 * 2 // 3  # at least one segment was not computed again
    assert starts == [2]  # 48 of 120 frames were there: 4 seconds, less those before
    for stream in ("video", "audio"):
        found = packets("b.mp4", stream)
        assert found == packets("whole.mp4", stream) and len(found) > 10
    assert not Path(".b.mp4.part").exists()


def captioned(path: Path, source: Path) -> Path:
    """The clip with two subtitles and a chapter."""
    Path("a.srt").write_text("1\n00:00:00,100 --> 00:00:00,200\none\n\n2\n00:00:00,300 --> 00:00:00,400\ntwo\n\n")
    with av.open(str(source)) as clip, av.open("a.srt") as texts, av.open(str(path), "w") as output:
        pictures = output.add_stream_from_template(clip.streams.video[0])
        lines = output.add_stream_from_template(texts.streams.subtitles[0])
        lines.metadata["language"] = "ger"
        tick = Fraction(1, 1000)
        output.set_chapters([{"id": 1, "start": 0, "end": 250, "time_base": tick, "metadata": {"title": "A"}}])
        for container, stream in ((clip, pictures), (texts, lines)):
            for packet in container.demux():
                if packet.dts is not None:
                    packet.stream = stream
                    output.mux(packet)
    return path


def captions(path: str) -> tuple[list, list]:
    """Text, seconds and language of subtitles; title and seconds of chapters."""
    with av.open(path) as clip:
        texts = clip.demux(*clip.streams.subtitles) if clip.streams.subtitles else ()
        lines = [(bytes(p), float(p.pts * p.time_base), p.stream.language) for p in texts if p.size]
        return lines, [(c["metadata"]["title"], float(c["end"] * c["time_base"])) for c in clip.chapters()]


def test_subtitles_and_chapters_stay_while_the_duration_does(fades):
    source = captioned(Path("b.mkv"), brightening("a.mkv"))
    lines, chapters = [(b"one", 0.1, "ger"), (b"two", 0.3, "ger")], [("A", 0.25)]
    for output, options, expected, note in (
        ("c.mkv", {}, (lines, chapters), "subtitles and chapters copied"),
        ("c.mp4", {"fps": 60}, ([], chapters), "chapters copied, subtitles (subrip) that .mp4 cannot hold left out"),
        ("d.mkv", {"factor": 2, "slow_motion": True}, ([], []), "subtitles and chapters left out"),
        ("c.gif", {"size": "32"}, ([], []), "subtitles and chapters left out"),
    ):
        assert film.convert(source, output, network(), **options).note == note
        if not output.endswith("gif"):
            assert captions(output) == expected


def test_odd_sizes_depth_alpha_and_rotation(fades):
    images = [ramp(number / 3)[:47, :63] for number in range(4)]
    rgba = [np.dstack([image, np.full(image.shape[:2], 255, np.uint8)]) for image in images]
    deep = [ramp(number / 3).astype(np.uint16) * 257 for number in range(4)]

    def turn(stream):
        stream.set_display_rotation(90)

    for source, size, bits in (
        (encoded(Path("odd.mkv"), images, codec="ffv1", pixels="yuv444p"), (64, 48), 8),
        (encoded(Path("alpha.mov"), rgba, codec="qtrle", pixels="argb"), (64, 48), 8),
        (encoded(Path("deep.mp4"), deep, pixels="yuv420p10le"), (64, 48), 10),
        (encoded(Path("turned.mp4"), [ramp(number / 3) for number in range(4)], prepare=turn), (48, 64), 8),
    ):
        film.convert(source, "b.mp4", network(), overwrite=True)
        info = probe("b.mp4")
        assert (info.width, info.height, info.bits, info.frames, info.audio) == (*size, bits, 8, ())
        np.testing.assert_allclose(values("b.mp4")[:7], np.arange(7) / 6, atol=0.02)


def test_a_clip_that_was_cut_short(fades, capsys):
    """Of an mp4 without its index nothing can be read; of a mkv what is there, with a line."""
    sizes = [ramp(number / 99) + np.random.default_rng(number).integers(0, 9, (48, 64, 3)) for number in range(100)]
    for name in ("a.mp4", "a.mkv"):
        encoded(Path(name), [image.astype(np.uint8) for image in sizes], Fraction(25))
        Path(name).write_bytes(Path(name).read_bytes()[: Path(name).stat().st_size // 2])
    before = sorted(Path().iterdir())
    refused(ValueError, film.convert, "a.mp4", "b.mp4", network(), match=r"a\.mp4")
    assert sorted(Path().iterdir()) == before
    film.convert("a.mkv", "b.mp4", network())
    line = capsys.readouterr().err
    assert "a.mkv" in line and line.count("\n") == 1 and 40 < probe("b.mp4").frames < 160
