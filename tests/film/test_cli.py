"""The `film` command as a user meets it: what comes out is decoded again, what goes wrong is one line and no file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import recipe
from PIL import Image
from toy import CONFIG, assert_same_parameters, parameters, toy

import film
from common.images import read_image, to_uint8, write_image
from common.video import probe, read_frames
from common.weights import save_weights
from film.cli import main
from film.loading import load_with_metadata

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
    "no rate": ([*GOOD, "--fps", "fast"], "--fps fast"),
    "rate of zero": ([*GOOD, "--fps", "0"], "--fps 0"),
    "no batch": ([*GOOD, "--batch", "0"], "batch=0"),
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


def test_stopping_by_hand_leaves_nothing(here, weights, capsys, monkeypatch):
    def stop_now(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("film.recursion.Interpolator.midpoints", stop_now)
    before = tree(here)
    with pytest.raises(SystemExit) as stop:
        main([*GOOD, "--weights", weights])
    assert stop.value.code == 130 and capsys.readouterr().err.count("\n") == 1
    assert tree(here) == before


def test_info_prints_what_the_file_says(weights, capsys):
    main(["info", weights])
    path, count, *rest = capsys.readouterr().out.splitlines()
    said = json.loads("\n".join(rest))
    assert path == weights and count == f"{sum(v.size for v in parameters(toy()).values()):,} parameters"
    assert said["kind"] == "film" and said["config"]["filters"] == CONFIG.filters


def test_convert_makes_weights_that_load(here, capsys):
    Path("tiny.json").write_text(json.dumps(recipe.manifest("tiny")["config"]))
    main(["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--model", "tiny.json"])
    assert_same_parameters(film.load("ours.safetensors"), recipe.model("tiny"))
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
        (["convert", str(recipe.DATA / "dajes_tiny.pth"), "photos/p1.png"], "exists"),
        (["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--model", "large"], "large"),
        (["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--dtype", "int8"], "int8"),
        (["info", "nowhere"], "nowhere"),
        (["info", "photos/p1.png"], "p1.png"),
    ],
)
def test_bad_words_of_the_other_commands(here, capsys, words, said):
    before = tree(here)
    if "int8" in words:
        Path("tiny.json").write_text(json.dumps(recipe.manifest("tiny")["config"]))
        words, before = [*words, "--model", "tiny.json"], tree(here)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and said in errors
    assert tree(here) == before


def test_convert_with_the_wrong_size_names_what_does_not_fit(here, capsys):
    before = tree(here)
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(recipe.DATA / "dajes_tiny.pth"), "ours.safetensors", "--model", "small"])
    assert stop.value.code == 2 and "right file and model size" in capsys.readouterr().err.splitlines()[0]
    assert tree(here) == before


def test_python_m_film(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "film", "--help"], cwd=Path(film.__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
    for word in ("--times", "--fps", "--weights", "--overwrite", "--quiet", "film info", "film convert"):
        assert word in done.stdout
