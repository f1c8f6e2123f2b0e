"""`plugins condition`: images are decoded again, a mistake is one line and no file."""

import json
from pathlib import Path
from unittest.mock import Mock

import astronaut
import commands
import numpy as np
import pytest
from command import tree

from common.io.images import read_image, write_image
from plugins import conditions
from plugins.cli import condition
from plugins.cli.main import main
from plugins.conditions.landmarks import Landmarks, write_landmarks

RAMP = np.tile(np.arange(1, 65, dtype=np.float32), (48, 1))


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working folder with three images in it, one of them in a folder below, and a file that is none."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a.jpg", "b.png", "sub/c.v2.webp")):
        blocks = np.random.default_rng(seed).random((6, 8, 3), np.float32)
        write_image(f"in/{name}", np.kron(blocks, np.ones((8, 8, 1), np.float32)))
    Path("in/notes.txt").write_text("no image")
    return tmp_path


def run(words: str) -> None:
    main(["condition", *words.split()])


def mistake(words: str, capsys) -> str:
    return commands.mistake(f"condition {words}", capsys)


def test_edges_of_one_image(here, capsys):
    run("canny in/b.png -o out/edges.png --low 20 --high 50")
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == ""
    expected = conditions.make("canny", read_image("in/b.png"), low=20, high=50)
    np.testing.assert_array_equal(read_image("out/edges.png"), expected)
    assert "out/edges.png" in mistake("canny in/b.png -o out/edges.png", capsys)
    run("canny in/b.png -o out/edges.png --overwrite")
    np.testing.assert_array_equal(read_image("out/edges.png"), conditions.make("canny", read_image("in/b.png")))


def test_a_folder_and_the_rest_of_it_later(here, capsys):
    run("canny in -o out")
    assert capsys.readouterr().out == "3 made, 0 failed -> out\n"
    assert sorted(tree("out")) == ["a.png", "b.png", "sub", "sub/c.v2.png"]
    for name, source in (("a.png", "a.jpg"), ("sub/c.v2.png", "sub/c.v2.webp")):
        expected = conditions.make("canny", read_image(Path("in") / source))
        np.testing.assert_array_equal(read_image(Path("out") / name), expected)
    mine = np.ones((2, 2, 3), np.float32)
    Path("out/a.png").unlink()
    write_image("out/b.png", mine, overwrite=True)
    run("canny in -o out")
    assert capsys.readouterr().out == "1 made, 2 there before, 0 failed -> out\n"
    np.testing.assert_array_equal(read_image("out/b.png"), mine)
    run("canny in -o out --overwrite --quiet")
    assert capsys.readouterr().out == "" and read_image("out/b.png").shape == (48, 64, 3)


def test_json_is_one_object(here, capsys):
    Path("in/damaged.png").write_bytes(b"")
    run("canny in -o out --json")
    found = json.loads(capsys.readouterr().out)
    assert (found["made"], found["kept"], list(found["failed"])) == (3, 0, ["damaged.png"])
    run("canny in/b.png -o one.png --json")
    assert json.loads(capsys.readouterr().out)["output"] == "one.png"


def test_results_inside_the_folder_are_no_input(here, capsys):
    for _ in range(2):
        run("canny in -o in/edges")
    assert capsys.readouterr().out.splitlines()[1] == "0 made, 3 there before, 0 failed -> in/edges"
    for target in ("in", "in/b.png"):
        assert mistake(f"canny in -o {target}", capsys).startswith(f"plugins: {target} ")


def test_a_mask_is_found_or_given(here):
    run("mask in/b.png -o out/found.png --threshold 0.2")
    expected = conditions.make("mask", read_image("in/b.png"), threshold=0.2)
    np.testing.assert_array_equal(read_image("out/found.png"), expected)
    half = np.zeros((48, 64, 3), np.float32)
    half[:24] = 1
    write_image("half.png", half)
    run("mask in/b.png -o out/given.png --mask half.png")
    np.testing.assert_array_equal(read_image("out/given.png"), half)


def test_failures_are_reported_and_the_others_made(here, capsys):
    Path("in/damaged.png").write_bytes(Path("in/b.png").read_bytes()[:200])
    for number in range(24):
        Path(f"in/empty{number}.png").touch()
    run("canny in -o out")
    shown = capsys.readouterr()
    assert shown.out == "3 made, 25 failed -> out\n"
    lines, report = shown.err.splitlines(), Path("out/failures.txt").read_text().splitlines()
    assert len(lines) == 21 and "out/failures.txt" in lines[-1]  # the rest is in the report
    assert lines[0].startswith("damaged.png: in/damaged.png ") and len(report) == 26
    assert report[1] == lines[0] and report[2].startswith("empty0.png: in/empty0.png ")
    for path in Path("in").glob("*e*.png"):
        path.unlink()
    run("canny in -o out")
    assert not Path("out/failures.txt").exists()
    Path("none").mkdir()
    Path("none/a.png").touch()
    with pytest.raises(SystemExit, match=r"^2$"):  # if all fail, so does the command
        run("canny none -o out2")
    assert capsys.readouterr().out.endswith("0 made, 1 failed -> out2\n")
    assert [*tree("out2")] == ["failures.txt"]


def test_a_run_that_fails_beside_earlier_outputs_is_no_failure(here, capsys):
    run("canny in -o out")
    for path in ("in/a.jpg", "in/b.png", "in/sub/c.v2.webp"):
        Path(path).write_bytes(b"")
    run("canny in -o out --overwrite")
    assert capsys.readouterr().out.endswith("0 made, 3 failed -> out\n")
    assert read_image("out/a.png").shape == (48, 64, 3)


def test_no_input_is_replaced(here, capsys):
    write_image("half.png", np.zeros((48, 64, 3), np.float32))
    Path("maps").mkdir()
    targets = {"in/b.png": "canny in/b.png", "half.png": "mask in/b.png --mask half.png"}
    targets["maps"] = "depth in --depth maps"
    for target, words in targets.items():
        assert target in mistake(f"{words} -o {target} --overwrite", capsys)


def test_a_foreign_report_and_a_full_disk_end_the_run(here, capsys, monkeypatch):
    Path("out").mkdir()
    Path("out/failures.txt").write_text("my own list")
    assert "out/failures.txt" in mistake("canny in -o out", capsys)
    monkeypatch.setattr(condition, "write_image", Mock(side_effect=OSError("new/a.png: No space left on device")))
    assert "No space left" in mistake("canny in -o new", capsys)


def test_landmarks_from_files(here, capsys):
    write_landmarks("marks/a.json", Landmarks(faces=astronaut.faces_of((0.1, 0.1, 0.3, 0.3), (0.5, 0.4, 0.4, 0.4))))
    write_landmarks("marks/sub/c.v2.npz", astronaut.face())
    Path("marks/b.json").write_text('{"faces": [[1, 2]]}')
    run("face in -o out --landmarks marks")
    shown = capsys.readouterr()
    assert shown.out == "2 made, 1 failed -> out\n"
    note, failure = shown.err.splitlines()
    assert note.startswith("a.jpg: 2 faces") and failure.startswith("b.png: marks/b.json: faces")
    np.testing.assert_array_equal(read_image("out/sub/c.v2.png"), conditions.draw_face(astronaut.face(), (48, 64)))
    one = read_image("out/a.png").any(-1).sum()
    run("face in -o out2 --landmarks marks --faces 2 --quiet")
    assert read_image("out2/a.png").any(-1).sum() > one
    Path("marks/b.json").unlink()
    run("holistic in -o out3 --landmarks marks")
    assert "b.png: --landmarks" in capsys.readouterr().err
    write_landmarks("a.npz", astronaut.person())
    run("holistic in/a.jpg -o a.png --landmarks a.npz")
    np.testing.assert_allclose(read_image("a.png"), conditions.draw_holistic(astronaut.person(), (48, 64)), atol=1e-6)


def test_faces_are_found(here, capsys, monkeypatch):
    astronaut.fake_mediapipe(monkeypatch)
    write_image("in/faces.png", astronaut.marked((100, 200), (10, 20, 30, 30), (60, 20, 50, 50), (140, 20, 40, 40)))
    run("face in -o out")
    shown = capsys.readouterr()
    assert shown.out == "1 made, 3 failed -> out\n" and "faces.png: 3 faces" in shown.err and "a.jpg: " in shown.err
    drawn = read_image("out/faces.png").any(-1)
    assert drawn[:, 58:112].any() and not drawn[:, :58].any() and not drawn[:, 112:].any()
    assert "face" in mistake("face in/a.jpg -o face.png", capsys)
    astronaut.forget()


def test_without_mediapipe_the_first_image_ends_it(here, capsys, monkeypatch):
    astronaut.forget()
    monkeypatch.setitem(__import__("sys").modules, "mediapipe", None)
    for words in ("face in -o out", "face in/a.jpg -o a.png"):
        message = mistake(words, capsys)
        assert "'landmarks'" in message and "--landmarks" in message


def test_depth_from_files(here, capsys):
    Path("maps/sub").mkdir(parents=True)
    np.save("maps/a.npy", RAMP)
    np.savez("maps/sub/c.v2.npz", depth=np.ones((48, 64)))
    np.save("maps/b.npy", RAMP[:10])
    run("depth in -o out --depth maps --near low")
    shown = capsys.readouterr()
    assert shown.out == "1 made, 2 failed -> out\n"
    assert [line.partition(": ")[0] for line in shown.err.splitlines()] == ["b.png", "sub/c.v2.webp"]
    row = read_image("out/a.png")[0, :, 0]
    assert row[0] == 1 and row[-1] == 0
    run("depth in/a.jpg -o a.png --depth maps/a.npy")
    assert read_image("a.png")[0, -1, 0] == 1
    write_image("disc.png", np.pad(np.zeros((20, 20, 3), np.float32), ((9, 9), (9, 9), (0, 0)), constant_values=1))
    run("depth disc.png -o inflated.png --inflate")
    assert read_image("inflated.png")[19, 19, 0] > read_image("inflated.png")[9, 9, 0] > 0


def test_a_depth_model_is_loaded_once(here, monkeypatch):
    load = Mock(return_value=lambda image: image[..., 1])
    monkeypatch.setattr("plugins.conditions.depth.OnnxDepth", load)
    for _ in range(2):  # the second run has nothing to do, so nothing to load
        run("depth in -o out --model midas.onnx")
        load.assert_called_once_with("midas.onnx")
        assert len(tree("out")) == 4


MISTAKES = {  # words -> a value in the error
    "canny none.png -o a.png": "none.png",
    "canny in/a.jpg -o a.gif": "'.gif'",
    "canny in/a.jpg -o folder": "''",
    "canny in/notes.txt -o a.png": "in/notes.txt",
    "canny empty -o out": "empty",
    "canny in/a.jpg -o a.png --low 300": "300 and 200",
    "mask in/a.jpg -o a.png --threshold 2": "threshold 2",
    "mask in/a.jpg -o a.png --threshold 0": "threshold 0",
    "canny in/a.jpg -o a.png --threshold 0": "--threshold",
    "canny in/a.jpg -o a.png --mask in/b.png": "--mask",
    "canny in -o out --faces 2": "--faces",
    "depth in -o out --landmarks x": "face and holistic",
    "face in/a.jpg -o a.png --faces 0": "most is 0",
    "depth in -o out": "--depth",
    "depth in -o out --depth empty --model a": "--model",
    "depth in -o out --inflate --model a": "--inflate",
    "depth in -o out --inflate --near low": "--near",
    "mask in -o out --inflate": "--inflate",
    "depth in -o out --depth in/a.jpg": "in/a.jpg",
    "depth in/a.jpg -o a.png --depth in": "--depth in",
    "depth in/a.jpg -o a.png --depth none.npy": "none.npy",
    "depth in -o out --model none.onnx": "none.onnx",
    "face in/a.jpg -o a.png --landmarks in/notes.txt": "'.txt'",
    "canny twice -o out": "twice/a.jpg and twice/a.png",
}


def test_mistakes_are_one_line_and_write_nothing(here, capsys):
    Path("empty").mkdir()
    for name in ("a.jpg", "a.png"):
        write_image(f"twice/{name}", read_image("in/b.png"))
    for words, value in MISTAKES.items():
        assert value in mistake(words, capsys), words


@pytest.mark.parametrize("kind", ["canny", "mask"])
def test_an_empty_condition_is_made_with_a_warning(kind, here, capsys):
    write_image("white.png", np.ones((32, 32, 3), np.float32))
    calls = {"white.png -o k.png": True, "white.png -o q.png --quiet": False, "in/b.png -o b.png": False}
    for words, warned in calls.items():
        run(f"{kind} {words}")
        assert ("empty" in capsys.readouterr().err) == warned
    assert not read_image("k.png").any()
