"""The `film` command as a user meets it: outputs are decoded again; a user's mistake is one line and no file."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import recipe
import safetensors.numpy
from command import mistake, printed
from decoded_clips import probe, read_frames
from PIL import Image
from toy import CONFIG, assert_same_parameters, foreign, parameters, toy

import film
from common.io.images import read_image, to_uint8, write_image
from common.weights.model_file import save_weights
from film.cli import main
from film.io.options import Options
from film.io.weights import load_with_metadata

SIZE = (16, 24)
PHOTOS = ["photos/p1.png", "photos/p2.png", "photos/p10.png"]  # the second sorts after the third as text
CLIP = [*PHOTOS, "-o", "clip.mp4", "--times", "1"]
TORCH = str(recipe.DATA / "dajes_tiny.pth")


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("common.runtime.setup", lambda **_: None)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("weights") / "toy.safetensors"
    film.save_model(path, toy())
    return str(path)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Three photos in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, pixels in zip(PHOTOS, np.random.default_rng(3).random((3, *SIZE, 3)), strict=True):
        write_image(name, pixels.astype(np.float32))
    return tmp_path


@pytest.fixture
def refusal(here, weights, capsys):
    """Runs a command that has to end with this code, one line on stderr, and no change on disk; returns the line."""

    def run(words: list[str], code: int = 2) -> str:
        own = words[:1] in (["convert"], ["info"]) or "--weights" in words
        lines = None if "small" in words else 1  # which lists every variable that does not fit
        given = [] if own else ["--weights", weights]
        line = mistake(capsys, main, [*words, *given], code=code, lines=lines, folder=here)
        assert line.startswith("film: ") and line.endswith("\n")
        return line

    return run


def frames_of(output: str) -> list[np.ndarray]:
    if Path(output).is_dir():
        return [read_image(path) for path in sorted(Path(output).iterdir())]
    return list(read_frames(output))


def same(frames, others) -> bool:
    """The same 8-bit images."""
    return all(np.array_equal(to_uint8(a), to_uint8(b)) for a, b in zip(frames, others, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("output", ["clip.mp4", "clip.gif", "frames"])
def test_three_photos_two_times_are_nine_frames(here, weights, capsys, output):
    main([*PHOTOS, "-o", output, "--times", "2", "--fps", "23.976", "--weights", weights])
    plan, compute = capsys.readouterr().out.splitlines()
    assert plan == f"3 photos -> 9 frames 24x16 at 23.976 fps, 0.38 s -> {output}" and "GB" in compute
    frames = frames_of(output)
    assert len(frames) == 9 and frames[0].shape == (*SIZE, 3)
    if output == "frames":
        assert same(frames, film.interpolate(film.load(weights), map(read_image, PHOTOS), times=2))
    if output == "clip.mp4":
        assert str(probe(output).fps) == "24000/1001"
    assert {p.name for p in here.iterdir()} == {"photos", output}


@pytest.mark.parametrize("inputs", [["photos"], ["photos/"], ["photos/*.png"], [PHOTOS[2], PHOTOS[0]]], ids=str)
def test_folders_and_patterns_are_sorted_by_number_and_names_as_given(here, weights, capsys, inputs):
    main([*inputs, "-o", "frames", "--times", "0", "--weights", weights, "--quiet"])
    expected = PHOTOS if len(inputs) == 1 else inputs
    assert same(frames_of("frames"), map(read_image, expected)) and tuple(capsys.readouterr()) == ("", "")


def test_a_contact_sheet_beside_the_clip_and_overwriting(here, weights, monkeypatch):
    """Of large images the sheet is an overview: three columns of shrunken frames, 4 pixels apart."""
    monkeypatch.setattr("film.clip.SHEET_SIDE", 12)
    Path("clip.gif").write_text("old")
    main([*PHOTOS, "-o", "clip.gif", "--times", "3", "--sheet", "sheet.webp", "--weights", weights, "--overwrite"])
    assert read_image("sheet.webp").shape == (3 * (8 + 4) + 4, 3 * (12 + 4) + 4, 3)
    with Image.open("clip.gif") as clip:
        assert clip.n_frames == 17


@pytest.mark.parametrize("name", ["-da sh", "größe 日本\t", "\udcff byte"])
def test_any_name_will_do(here, weights, capsys, name):
    for photo in PHOTOS[:2]:
        Path(photo).rename(f"{name}{Path(photo).name}")
    main([f"-o={name}.mp4", "--times", "1", "--weights", weights, "--", f"{name}p1.png", f"{name}p2.png"])
    assert probe(f"{name}.mp4").frames == 3
    assert capsys.readouterr().out.count("\n") == 2


def bad_files() -> None:
    """All files that the bad commands below name."""
    write_image("photo.jpg", read_image(PHOTOS[0]))
    Path("cut.jpg").write_bytes(Path("photo.jpg").read_bytes()[:-200])
    write_image("wide.png", np.zeros((16, 25, 3), np.float32))
    for name in ("dot0.png", "dot1.png"):
        write_image(name, np.zeros((1, 1, 3), np.float32))
    for name in ("taken.mp4", "notes.safetensors"):
        Path(name).write_text("precious")
    for name in ("page.safetensors", "page.pth", "page.txt"):
        Path(name).write_text("<!DOCTYPE html><title>Sign in</title>")
    for name in ("frame_00000.png", "frame_00001.png"):
        write_image(f"clip/{name}", read_image(PHOTOS[0]))
    Path("link").symlink_to("clip")
    os.mkfifo("pipe.png")
    for name, kind in (("reveal", "reveal"), ("negative", "film")):
        save_weights(f"{name}.safetensors", {"a": np.zeros(2, np.float32)}, kind=kind, config={"filters": -3})
    Path("narrow.json").write_text(json.dumps(dataclasses.asdict(recipe.narrow().config)))


BAD = [  # words, and what the line names
    ([PHOTOS[0], "nowhere.png", "-o", "clip.mp4"], "nowhere.png"),
    ([PHOTOS[0], "cut.jpg", "-o", "frames"], "cut.jpg"),
    ([PHOTOS[0], "wide.png", "-o", "clip.mp4"], "25x16"),
    (["dot0.png", "dot1.png", "-o", "clip.mp4"], "1x1"),
    (["-o", "clip.mp4"], "no images"),
    (["", "-o", "clip.mp4"], "''"),
    ([*PHOTOS, "-o", "clip.mp4", "--weights", ""], "''"),
    (["inof"], "`film info`"),
    (["https://host/a.jpg", PHOTOS[0]], "https://host/a.jpg"),
    ([*CLIP, "--weights", "photos"], "weights.safetensors"),
    ([*CLIP, "--weights", "page.safetensors"], "web page"),
    ([*CLIP, "--weights", "page.txt"], "page.txt"),
    ([*PHOTOS, "-o", ""], "output"),
    (["photos/*.webp", "-o", "clip.mp4"], "photos/*.webp"),
    ([PHOTOS[0], "pipe.png", "-o", "clip.mp4"], "pipe.png"),
    ([PHOTOS[0], "no\nwhere.png", "-o", "clip.mp4"], "no\\nwhere.png"),
    ([*PHOTOS, "-o", "taken.mp4"], "--overwrite"),
    ([*CLIP, "--sheet", "sheet.txt"], ".txt"),
    (["clip", "-o", "clip", "--overwrite"], "clip/frame_00000.png"),
    ([*CLIP, "--sheet", PHOTOS[1], "--overwrite"], PHOTOS[1]),
    (["link", "-o", "c.gif", "--sheet", "clip/frame_00001.png", "--overwrite"], "frame_00001.png"),
    ([*PHOTOS, "-o", "a.png/", "--sheet", "a.png"], "a.png"),
    ([*CLIP, "--weights", "reveal.safetensors"], "reveal"),
    ([*PHOTOS, "-o", "clip.mp4", "--times", "9" * 400], "times is 999"),
    ([*CLIP, "--fps", "fast"], "fast"),
    ([*CLIP, "--batch", "0"], "--batch 0"),
    ([*CLIP, "--memory", "1MB"], "0.0 GB"),
    ([*CLIP, "--frames", "3"], "--frames 3"),
    ([*CLIP, "--audio", "none"], "--audio"),
    ([*CLIP, "--matching", "on"], "matching"),
    (["clip.mov"], "clip.mov"),
    ([*CLIP, "--resume", "-o", "clip.gif"], "resume"),
    (["convert", "photos/p1.png", "ours.safetensors"], "p1.png"),
    (["convert", TORCH, "reveal.safetensors"], "reveal.safetensors"),
    (["convert", TORCH, "ours.txt"], "ours.txt"),
    (["convert", TORCH, "ours.safetensors", "--model", "large"], "large"),
    (["convert", TORCH, "ours.safetensors", "--model", "small"], "extractor"),
    (["convert", TORCH, "ours.safetensors", "--model", "narrow.json", "--dtype", "int8"], "int8"),
    (["convert", "notes.safetensors", "ours.safetensors"], "notes.safetensors"),
    (["convert", "film-small", "ours.safetensors", "--model", "small"], "--model small"),
    (["info", "negative.safetensors"], "negative.safetensors"),
]


@pytest.mark.parametrize(("words", "value"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(refusal, words, value):
    bad_files()
    assert value in refusal(words)


def test_choices_are_those_of_the_option(refusal):
    line = refusal([*CLIP, "--fit", "maybe"])
    assert all(f"'{choice}'" in line for choice in ("crop", "pad", "resize")) and "None" not in line


@pytest.mark.parametrize("output", ["clip.mp4", "frames"])
def test_failures_half_way_leave_nothing(refusal, monkeypatch, output):
    """The second photo is damaged inside, or computed, when the first has been written already."""
    for error, value in (
        (MemoryError("no memory left for this size"), "no memory"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."), "24x16"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("film.interpolator.Interpolator._tasks", lambda *_, error=error: (_ for _ in ()).throw(error))
            assert value in refusal(CLIP)
    content = bytearray(Path(PHOTOS[1]).read_bytes())
    content[len(content) // 2] ^= 0xFF
    Path(PHOTOS[1]).write_bytes(content)
    assert PHOTOS[1] in refusal([*PHOTOS, "-o", output, "--quiet"])


def test_a_stop_before_the_first_frame_leaves_nothing(refusal, monkeypatch):
    monkeypatch.setattr("film.io.sources.Photos.frames", lambda *_: signal.raise_signal(signal.SIGINT))
    assert "nothing" in refusal(CLIP, 130)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_leaves_a_playable_clip_and_does_not_wait_for_the_network(here, weights, monkeypatch, capsys, name):
    """A call of the network takes minutes where nothing is compiled yet. The next run goes on, or removes the parts."""
    number, free, sent = getattr(signal, name), threading.Event(), []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    def between(interpolator, x0, x1, moments):
        yield x0
        threading.Timer(0.3, send).start()
        free.wait(60)

    monkeypatch.setattr("film.interpolator.Interpolator._tasks", between)
    with pytest.raises(SystemExit) as stop:
        main([*CLIP, "--times", "2", "--weights", weights])
    assert stop.value.code == 128 + number and time.monotonic() - sent[0] < 2
    free.set()
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "clip.mp4" in line and "--resume" in line
    assert probe("clip.mp4").frames == 2
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert {path.name for path in here.iterdir()} == {"photos", "clip.mp4", ".clip.mp4.part"}
    film.convert("photos", "clip.mp4", film.load(weights), times=1, overwrite=True)
    assert {path.name for path in here.iterdir()} == {"photos", "clip.mp4"} and probe("clip.mp4").frames == 5


def test_an_error_does_not_wait_for_the_network(refusal, monkeypatch):
    """The thread that computes would be joined when Python exits."""
    codes = []
    monkeypatch.setattr("film.cli.os._exit", codes.append)
    for words, code in ((["nothing.mp4"], 2), (["photos", "-o", "photos"], 2)):
        monkeypatch.setattr("film.cli.sys.argv", ["film", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == code == codes.pop() and not codes


def test_json_is_one_object(here, weights, capsys):
    words = [*PHOTOS, "-o", "clip.gif", "--times", "1", "--sheet", "sheet.png", "--weights", weights]
    found = printed(capsys, main, *words)
    assert (found["output"], found["frames"], found["sheets"]) == ("clip.gif", 5, ["sheet.png"])


def test_info_prints_the_header(weights, capsys):
    main(["info", weights])
    path, count, *rest = capsys.readouterr().out.splitlines()
    header = json.loads("\n".join(rest))
    assert path == weights and count == f"{sum(v.size for v in parameters(toy()).values()):,} parameters"
    assert header["kind"] == "film" and header["config"]["filters"] == CONFIG.filters
    main(["info"])
    assert json.loads(capsys.readouterr().out.partition("parameters\n")[2])["kind"] == "film"


def test_convert_reads_every_kind_of_weights(here, weights):
    Path("narrow.json").write_text(json.dumps(dataclasses.asdict(recipe.narrow().config)))
    main(["convert", TORCH, "torch.safetensors", "--model", "narrow.json"])
    assert_same_parameters(film.load("torch.safetensors"), recipe.narrow())
    safetensors.numpy.save_file(foreign(recipe.narrow(), "torch"), "port.safetensors")
    main(["convert", "port.safetensors", "ours.safetensors", "--model", "narrow.json"])
    assert_same_parameters(film.load("ours.safetensors"), recipe.narrow())
    film.save_model("run/weights.safetensors", film.load(weights), {"steps": 7})
    main(["convert", "run", "half.safetensors", "--dtype", "float16"])
    model, header = load_with_metadata("half.safetensors")
    assert header.dtype == "float16" and header.metadata == {"steps": 7}
    for name, value in parameters(film.load(weights)).items():
        np.testing.assert_allclose(parameters(model)[name], value, rtol=1e-3, atol=1e-6)


def test_help_and_mistakes_come_without_jax(tmp_path):
    """In a process of its own: here JAX has long been imported."""
    program = """if True:
        import contextlib, runpy, sys
        from film.cli import main
        import film
        assert "interpolate" in dir(film) and not hasattr(film, "nonsense")
        bad = ["a.png", "b.png", "-o", "c.mp4"]
        for words in (["a.png"], bad, [*bad, "--weights", "x"]):
            with contextlib.suppress(SystemExit):
                main(words)
        sys.argv[1:] = ["--help"]
        with contextlib.suppress(SystemExit):
            runpy.run_module("film", run_name="__main__")
        print(sorted({"jax", "flax"} & set(sys.modules)), file=sys.stderr)
        from film import *
        assert film.load is load and film.flow.FlowEstimator and film.warp is warp and "jax" in sys.modules
        from film.losses import l1, style, vgg
        assert film.losses.l1 is l1
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]" and done.stderr.count("film: ") == 3
    names = {field.name.replace("_", "-") for field in dataclasses.fields(Options)} | {"weights", "output", "quiet"}
    for word in (*(f"--{name}" for name in names), "film info", "film convert", "photo options", "video options"):
        assert word in done.stdout
    for word in ("None", "(default: )", "--no-", "STR"):
        assert word not in done.stdout
