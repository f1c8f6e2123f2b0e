"""The `film` command as a user meets it: what comes out is decoded again, what goes wrong is one line and no file."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import recipe
import safetensors.numpy
from decoded_clips import probe, read_frames
from PIL import Image
from toy import CONFIG, assert_same_parameters, parameters, toy

import film
from common.io.images import read_image, to_uint8, write_image
from common.weights.model_file import save_weights
from film.cli import main
from film.io.weights import load_with_metadata
from film.porting import to_torch

SIZE = (16, 24)
PLAN = "3 photos 24x16 -> 17 frames at 30 fps, 0.57 s -> "


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("weights") / "toy.safetensors"
    film.save_model(path, toy())
    return str(path)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Three photos in the working folder; the second sorts after the tenth as text."""
    monkeypatch.chdir(tmp_path)
    for name, pixels in zip(("p1", "p2", "p10"), np.random.default_rng(3).random((3, *SIZE, 3)), strict=True):
        write_image(f"photos/{name}.png", pixels.astype(np.float32))
    return tmp_path


PHOTOS = ["photos/p1.png", "photos/p2.png", "photos/p10.png"]


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is on disk, to the byte."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(words: list[str], capsys, code: int = 2) -> str:
    """What the command says when it ends with this code; one line."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr().err
    assert stop.value.code == code and said.count("\n") == 1
    return said


def frames_of(output: str) -> list[np.ndarray]:
    if Path(output).is_dir():
        return [read_image(path) for path in sorted(Path(output).iterdir())]
    return list(read_frames(output))


@pytest.mark.parametrize("output", ["clip.mp4", "clip.gif", "frames"])
def test_three_photos_three_times_are_17_frames(here, weights, capsys, output):
    main([*PHOTOS, "-o", output, "--times", "3", "--weights", weights])
    captured = capsys.readouterr()
    assert captured.out == f"{PLAN}{output}\n"
    frames = frames_of(output)
    assert len(frames) == 17 and frames[0].shape == (*SIZE, 3)
    if output == "frames":
        for frame, photo in zip(frames[::8], PHOTOS, strict=True):
            np.testing.assert_array_equal(to_uint8(frame), to_uint8(read_image(photo)))
    assert {p.name for p in here.iterdir()} == {"photos", output}


@pytest.mark.parametrize("given", ["photos", "photos/", "photos/*.png"])
def test_a_folder_and_a_pattern_are_sorted_by_number(here, weights, given):
    main([given, "-o", "frames", "--times", "0", "--weights", weights, "--quiet"])
    for frame, photo in zip(frames_of("frames"), PHOTOS, strict=True):
        np.testing.assert_array_equal(to_uint8(frame), to_uint8(read_image(photo)))


def test_files_come_in_the_order_given(here, weights):
    main([PHOTOS[2], PHOTOS[0], "-o", "frames", "--times", "0", "--weights", weights])
    np.testing.assert_array_equal(to_uint8(frames_of("frames")[0]), to_uint8(read_image(PHOTOS[2])))


def test_frames_are_those_of_the_library(here, weights):
    main([*PHOTOS, "-o", "frames", "--times", "2", "--weights", weights])
    expected = film.interpolate(film.load(weights), map(read_image, PHOTOS), times=2)
    for frame, wanted in zip(frames_of("frames"), expected, strict=True):
        np.testing.assert_array_equal(to_uint8(frame), to_uint8(wanted))


def test_quiet_says_nothing(here, weights, capsys):
    main([*PHOTOS, "-o", "clip.mp4", "--times", "1", "--weights", weights, "--quiet"])
    assert tuple(capsys.readouterr()) == ("", "")


@pytest.mark.parametrize(("fps", "exact"), [("12", "12"), ("30000/1001", "30000/1001"), ("23.976", "24000/1001")])
def test_rates_reach_the_file(here, weights, fps, exact):
    main([*PHOTOS, "-o", "clip.mp4", "--times", "0", "--fps", fps, "--weights", weights])
    assert str(probe("clip.mp4").fps) == exact


def test_a_contact_sheet_beside_the_clip(here, weights):
    main([*PHOTOS, "-o", "clip.mp4", "--times", "3", "--sheet", "sheet.png", "--weights", weights])
    sheet = read_image("sheet.png")
    assert sheet.shape[0] > 3 * SIZE[0] and sheet.shape[1] > 3 * SIZE[1]
    assert probe("clip.mp4").frames == 17


def test_overwrite_replaces(here, weights):
    Path("clip.gif").write_text("old")
    main([*PHOTOS, "-o", "clip.gif", "--times", "1", "--weights", weights, "--overwrite"])
    with Image.open("clip.gif") as clip:
        assert clip.n_frames == 5


def bad_files() -> None:
    """Everything that the bad calls below name."""
    Path("text.png").write_text("not a picture")
    write_image("photo.jpg", read_image(PHOTOS[0]))
    Path("cut.jpg").write_bytes(Path("photo.jpg").read_bytes()[:-200])
    write_image("wide.png", np.zeros((16, 25, 3), np.float32))
    for name in ("dot0.png", "dot1.png"):
        write_image(name, np.zeros((1, 1, 3), np.float32))
    Path("taken.mp4").write_text("precious")
    Path("taken.png").write_text("precious")
    Path("home").mkdir()
    Path("home/letter.txt").write_text("precious")
    Path("empty").mkdir()
    for name in ("frame_00000.png", "frame_00001.png"):
        write_image(f"clip/{name}", read_image(PHOTOS[0]))
    Path("link").symlink_to("clip")
    os.mkfifo("pipe.png")
    save_weights("reveal.safetensors", {"a": np.zeros(2, np.float32)}, kind="reveal", config={})
    save_weights("later.safetensors", {"a": np.zeros(2, np.float32)}, kind="film", config={"width": 1})


GOOD = [*PHOTOS, "-o", "clip.mp4", "--times", "1"]
BAD = {
    "missing file": ([PHOTOS[0], "nowhere.png", "-o", "clip.mp4"], "nowhere.png"),
    "missing file first": (["nowhere.png", PHOTOS[0], "-o", "clip.mp4"], "nowhere.png"),
    "text named png": ([PHOTOS[0], "text.png", "-o", "clip.mp4"], "text.png"),
    "truncated jpeg": ([PHOTOS[0], "cut.jpg", "-o", "clip.mp4"], "cut.jpg"),
    "truncated jpeg to pngs": ([PHOTOS[0], "cut.jpg", "-o", "frames"], "cut.jpg"),
    "two sizes": ([PHOTOS[0], "wide.png", "-o", "clip.mp4"], "25x16"),
    "one pixel": (["dot0.png", "dot1.png", "-o", "clip.mp4"], "1x1"),
    "one picture": ([PHOTOS[0], "-o", "clip.mp4"], "at least two"),
    "no picture": (["-o", "clip.mp4"], "no pictures"),
    "empty folder": (["empty", "-o", "clip.mp4"], "empty"),
    "no match": (["photos/*.webp", "-o", "clip.mp4"], "photos/*.webp"),
    "output below a file": ([*PHOTOS, "-o", "taken.mp4/clip.mp4"], "taken.mp4"),
    "output nowhere": ([*PHOTOS, "-o", "/proc/clip.mp4"], "/proc/clip.mp4"),
    "output exists": ([*PHOTOS, "-o", "taken.mp4"], "--overwrite"),
    "output folder of others": ([*PHOTOS, "-o", "home", "--overwrite"], "letter.txt"),
    "output of unknown kind": ([*PHOTOS, "-o", "clip.avi"], ".avi"),
    "sheet of unknown kind": ([*GOOD, "--sheet", "sheet.txt"], ".txt"),
    "sheet exists": ([*GOOD, "--sheet", "taken.png"], "taken.png"),
    "weights of another model": ([*GOOD, "--weights", "reveal.safetensors"], "reveal"),
    "weights of another version": ([*GOOD, "--weights", "later.safetensors"], "width"),
    "no weights": ([*GOOD, "--weights", "film-huge"], "film-huge"),
    "weights are no weights": ([*GOOD, "--weights", PHOTOS[0]], "safetensors"),
    "negative times": ([*PHOTOS, "-o", "clip.mp4", "--times", "-1"], "--times -1"),
    "too many times": ([*PHOTOS, "-o", "clip.mp4", "--times", "30"], "--times 30: each gap is halved 0 to 16 times"),
    "times past all numbers": ([*PHOTOS, "-o", "clip.mp4", "--times", "9" * 400], "0 to 16 times"),
    "clip over its inputs": (["clip", "-o", "clip", "--overwrite"], "among its inputs, with clip/frame_00000.png"),
    "clip over linked inputs": (["clip/*.png", "-o", "link/", "--overwrite"], "link/: the clip would lie among"),
    "sheet over an input": ([*GOOD, "--sheet", PHOTOS[1], "--overwrite"], "photos/p2.png is an input"),
    "sheet over an input, linked": (["link", "-o", "c.gif", "--sheet", "clip/frame_00001.png", "--overwrite"], "input"),
    "sheet among the frames": ([*PHOTOS, "-o", "frames", "--sheet", "frames/frame_00000.png"], "cannot lie in frames"),
    "sheet and clip of one name": ([*PHOTOS, "-o", "a.png/", "--sheet", "a.png"], "cannot lie in a.png/"),
    "a suffix for a name": ([*PHOTOS, "-o", ".mp4"], "such as clip.mp4"),
    "no name": ([*PHOTOS, "-o", ""], "no output name"),
    "no name of a picture": (["", "-o", "clip.mp4"], "a variable of the shell"),
    "a pipe": ([PHOTOS[0], "pipe.png", "-o", "clip.mp4"], "pipe.png is a pipe"),
    "a line break in a name": ([PHOTOS[0], "no\nwhere.png", "-o", "clip.mp4"], "no\\nwhere.png"),
    "no rate": ([*GOOD, "--fps", "fast"], "--fps fast"),
    "rate of zero": ([*GOOD, "--fps", "0"], "--fps 0"),
    "rate of many digits": ([*GOOD, "--fps", "1e999999999"], "--fps 1e999999999"),
    "rate of hours a frame": ([*GOOD, "--fps", "1e-7"], "from 0.01 to 1000"),
    "no batch": ([*GOOD, "--batch", "0"], "--batch 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(here, weights, capsys, case):
    words, said = BAD[case]
    bad_files()
    before = tree(here)
    with pytest.raises(SystemExit) as stop:
        main([*words, *([] if "--weights" in words else ["--weights", weights])])
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and errors.endswith("\n") and errors.startswith("film: ")
    assert said in errors
    assert tree(here) == before


def test_a_network_that_fails_half_way_leaves_nothing(here, weights, capsys, monkeypatch):
    """The second photo is read when frames have been written already."""

    def explode(*_):
        raise MemoryError("no memory left for this size")

    monkeypatch.setattr("film.recursion.Interpolator.midpoints", explode)
    before = tree(here)
    with pytest.raises(SystemExit) as stop:
        main([*GOOD, "--weights", weights])
    assert stop.value.code == 2 and "no memory" in capsys.readouterr().err
    assert tree(here) == before


@pytest.mark.parametrize(
    ("output", "name", "code"),
    [("clip.mp4", "SIGINT", 130), ("clip.gif", "SIGTERM", 143), ("new/frames", "SIGHUP", 129)],
)
def test_being_stopped_leaves_nothing(here, weights, capsys, monkeypatch, output, name, code):
    """Ctrl-C, `kill` and a closed window, when the first photo has been written."""
    number = getattr(signal, name)
    handler = signal.getsignal(number)
    monkeypatch.setattr("film.recursion.Interpolator.midpoints", lambda *_: signal.raise_signal(number))
    before = tree(here)
    assert "stopped" in refused([*PHOTOS, "-o", output, "--weights", weights], capsys, code)
    assert tree(here) == before
    assert signal.getsignal(number) is handler


def test_a_cut_photo_is_found_before_anything_is_computed(here, weights, capsys, monkeypatch):
    """Its header is whole, and it would come last."""
    for number in range(20):
        write_image(f"long/{number}.jpg", read_image(PHOTOS[0]))
    Path("long/19.jpg").write_bytes(Path("long/19.jpg").read_bytes()[:-20])
    monkeypatch.setattr("film.io.weights.load", lambda *_: pytest.fail("the network was loaded"))
    before = tree(here)
    assert "long/19.jpg is damaged or cut short" in refused(["long", "-o", "clip.mp4", "--weights", weights], capsys)
    assert tree(here) == before


def test_damage_inside_a_photo_leaves_nothing(here, weights, capsys):
    """Both its ends are whole: it is found when the first photo has been written already."""
    content = bytearray(Path(PHOTOS[1]).read_bytes())
    content[len(content) // 2] ^= 0xFF
    Path(PHOTOS[1]).write_bytes(content)
    before = tree(here)
    for output in ("clip.mp4", "frames"):
        assert PHOTOS[1] in refused([*PHOTOS, "-o", output, "--weights", weights, "--quiet"], capsys)
    assert tree(here) == before


def test_a_device_without_memory_is_one_line(here, weights, capsys, monkeypatch):
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.")

    monkeypatch.setattr("film.recursion.Interpolator.encode", full)
    before = tree(here)
    said = refused([*GOOD, "--weights", weights], capsys)
    assert "24x16 need more memory" in said and "--batch 1" in said
    assert tree(here) == before


def test_nobody_reads_what_we_say(here, weights, capsys, monkeypatch):
    """`film ... | true`: no traceback, nothing computed; the exit code is that of a program killed by SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    before = tree(here)
    with os.fdopen(writer, "w") as closed, monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "stdout", closed)
        main([*GOOD, "--weights", weights])
    assert stop.value.code == 141 and capsys.readouterr().err == ""
    assert tree(here) == before


@pytest.mark.parametrize("name", ["-dash", "sp ace", "größe 日本", "\udcff byte", "tab\t"])
def test_any_name_will_do(here, weights, capsys, name):
    for photo in PHOTOS[:2]:
        Path(photo).rename(f"{name}{Path(photo).name}")
    words = ["-o", f"{name}.mp4", "--times", "1", "--weights", weights]
    main([f"-o={name}.mp4", *words[2:], "--", f"{name}p1.png", f"{name}p2.png"])
    assert probe(f"{name}.mp4").frames == 3
    assert capsys.readouterr().out.count("\n") == 1


def test_a_sheet_of_large_pictures_is_an_overview(here, weights, monkeypatch):
    monkeypatch.setattr("film.clip.SHEET_SIDE", 12)
    main([*PHOTOS, "-o", "clip.mp4", "--times", "3", "--sheet", "sheet.webp", "--weights", weights])
    assert read_image("sheet.webp").shape == (3 * (8 + 4) + 4, 3 * (12 + 4) + 4, 3)


def test_info_prints_what_the_file_says(weights, capsys):
    main(["info", weights])
    path, count, *rest = capsys.readouterr().out.splitlines()
    said = json.loads("\n".join(rest))
    assert path == weights and count == f"{sum(v.size for v in parameters(toy()).values()):,} parameters"
    assert said["kind"] == "film" and said["config"]["filters"] == CONFIG.filters


def test_convert_makes_weights_that_load(here, capsys):
    Path("narrow.json").write_text(json.dumps(dataclasses.asdict(recipe.narrow().config)))
    main(["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--model", "narrow.json"])
    assert_same_parameters(film.load("ours.safetensors"), recipe.narrow())
    assert "ours.safetensors" in capsys.readouterr().out


def test_convert_writes_ours_again_in_half_the_bytes(here, weights):
    film.save_model("run/weights.safetensors", film.load(weights), {"steps": 7})
    main(["convert", "run", "half.safetensors", "--dtype", "float16"])
    model, header = load_with_metadata("half.safetensors")
    assert header.dtype == "float16" and header.metadata == {"steps": 7}
    for name, value in parameters(film.load(weights)).items():
        np.testing.assert_allclose(parameters(model)[name], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["convert", "nowhere.pth", "ours.safetensors"], "nowhere.pth"),
        (["convert", "nowhere", "ours.safetensors"], "nowhere"),
        (["convert", "photos/p1.png", "ours.safetensors"], "p1.png"),
        (["convert", str(recipe.DATA / "dajes_tiny.pth"), "reveal.safetensors"], "exists"),
        (["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--model", "large"], "large"),
        (["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--dtype", "int8"], "int8"),
        (["convert", "notes.txt", "ours.safetensors"], "notes.txt"),
        (["convert", "notes.safetensors", "ours.safetensors"], "notes.safetensors"),
        (["convert", "notes.pth", "ours.safetensors", "--model", "small"], "notes.pth"),
        (["convert", "reveal.safetensors", "ours.safetensors"], "kind is 'reveal'"),
        (["convert", "reveal.safetensors", "ours.txt"], "as .safetensors"),
        (["convert", "notes.pth", "ours.safetensors", "--model", "negative.json"], "negative.json"),
        (["convert", "notes.pth", "ours.safetensors", "--model", "photos/p1.png"], "--model photos/p1.png"),
        (["info", "nowhere"], "nowhere"),
        (["info", "photos/p1.png"], "p1.png"),
        (["info", "notes.txt"], "notes.txt"),
        (["info", "photos"], "photos"),
        (["info", "reveal.safetensors"], "kind is 'reveal'"),
        (["info", "negative.safetensors"], "negative.safetensors"),
    ],
)
def test_bad_words_of_the_other_commands(here, capsys, words, said):
    for name in ("notes.txt", "notes.safetensors", "notes.pth"):
        Path(name).write_text("no weights, but some words\n")
    for name, kind in (("reveal", "reveal"), ("negative", "film")):
        save_weights(f"{name}.safetensors", {"a": np.zeros(2, np.float32)}, kind=kind, config={"filters": -3})
    Path("negative.json").write_text('{"filters": -3}')
    if "int8" in words:
        Path("tiny.json").write_text(json.dumps(dataclasses.asdict(recipe.narrow().config)))
        words = [*words, "--model", "tiny.json"]
    before = tree(here)
    assert said in refused(words, capsys)
    assert tree(here) == before


def test_convert_takes_a_state_dict_of_another_programs_safetensors(here):
    safetensors.numpy.save_file(to_torch(recipe.model("tiny")), "port.safetensors")
    Path("tiny.json").write_text(json.dumps(recipe.manifest("tiny")["config"]))
    main(["convert", "port.safetensors", "ours.safetensors", "--model", "tiny.json"])
    assert_same_parameters(film.load("ours.safetensors"), recipe.model("tiny"))


def test_convert_with_the_wrong_size_names_what_does_not_fit(here, capsys):
    before = tree(here)
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--model", "small"])
    assert stop.value.code == 2 and "right file and model size" in capsys.readouterr().err.splitlines()[0]
    assert tree(here) == before


def test_help_and_mistakes_come_without_jax(tmp_path):
    """In a process of its own: here JAX has long been imported."""
    program = """if True:
        import sys
        from film.cli import main
        import film
        assert "interpolate" in dir(film) and not hasattr(film, "nonsense")
        bad = ["a.png", "b.png", "-o", "c.mp4"]
        for words in (["--help"], ["a.png"], bad, [*bad, "--weights", "x"]):
            try:
                main(words)
            except SystemExit as stop:
                print(words, stop.code, file=sys.stderr)
        print(sorted({"jax", "flax", "av"} & set(sys.modules)), file=sys.stderr)
        from film import *
        assert film.load is load and film.flow.FlowEstimator and film.warp is warp and "jax" in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert "film: a.png does not exist" in done.stderr and "['--help'] 0" in done.stderr


def test_python_m_film(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "film", "--help"], cwd=Path(film.__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
    for word in ("--times", "--fps", "--weights", "--overwrite", "--quiet", "film info", "film convert"):
        assert word in done.stdout
