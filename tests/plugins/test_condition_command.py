"""`plugins condition` as a user meets it: pictures are decoded again, what goes wrong is one line and no file."""

from pathlib import Path

import astronaut
import numpy as np
import pytest

from common.io.images import read_image, write_image
from plugins import conditions
from plugins.cli import condition
from plugins.cli.main import main
from plugins.conditions.landmarks import Landmarks, write_landmarks
from recipes.captioned_pictures.scenes import scene


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working folder with three pictures in it, one of them in a folder below, and a file that is none."""
    monkeypatch.chdir(tmp_path)
    write_image("in/a.jpg", picture(0))
    write_image("in/b.png", picture(1))
    write_image("in/sub/c.v2.webp", picture(2))
    Path("in/notes.txt").write_text("no picture")
    return tmp_path


def picture(seed: int) -> np.ndarray:
    return scene(np.random.default_rng(seed), (48, 64)).image


def tree(folder: str = ".") -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in Path(folder).rglob("*")}


def make(*words: str) -> None:
    main(["condition", *words])


def refused(*words: str, capsys) -> str:
    """What the command says when it refuses; one line, and nothing written."""
    before = tree()
    with pytest.raises(SystemExit) as stop:
        make(*words)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and tree() == before, said
    return said


def test_edges_of_one_picture(here, capsys):
    make("canny", "in/b.png", "-o", "out/edges.png", "--low", "20", "--high", "50")
    said = capsys.readouterr()
    assert said.out == "" and said.err == ""
    expected = conditions.make("canny", read_image("in/b.png"), low=20, high=50)
    np.testing.assert_array_equal(read_image("out/edges.png"), expected)
    assert "out/edges.png exists" in refused("canny", "in/b.png", "-o", "out/edges.png", capsys=capsys)
    make("canny", "in/b.png", "-o", "out/edges.png", "--overwrite")
    np.testing.assert_array_equal(read_image("out/edges.png"), conditions.make("canny", read_image("in/b.png")))


def test_a_folder_and_the_rest_of_it_later(here, capsys):
    make("canny", "in", "-o", "out")
    assert capsys.readouterr().out == "3 made, 0 failed -> out\n"
    assert sorted(tree("out")) == ["a.png", "b.png", "sub", "sub/c.v2.png"]
    for name, source in (("a.png", "a.jpg"), ("sub/c.v2.png", "sub/c.v2.webp")):
        expected = conditions.make("canny", read_image(Path("in") / source))
        np.testing.assert_array_equal(read_image(Path("out") / name), expected)

    mine = np.ones((2, 2, 3), np.float32)
    Path("out/a.png").unlink()
    write_image("out/b.png", mine, overwrite=True)
    make("canny", "in", "-o", "out")
    assert capsys.readouterr().out == "1 made, 2 there before, 0 failed -> out\n"
    np.testing.assert_array_equal(read_image("out/b.png"), mine)
    make("canny", "in", "-o", "out", "--overwrite", "--quiet")
    assert capsys.readouterr().out == "" and read_image("out/b.png").shape == (48, 64, 3)


def test_a_mask_is_found_or_given(here):
    make("mask", "in/b.png", "-o", "out/found.png", "--threshold", "0.2")
    np.testing.assert_array_equal(
        read_image("out/found.png"), conditions.make("mask", read_image("in/b.png"), threshold=0.2)
    )
    half = np.zeros((48, 64, 3), np.float32)
    half[:24] = 1
    write_image("half.png", half)
    make("mask", "in/b.png", "-o", "out/given.png", "--mask", "half.png")
    np.testing.assert_array_equal(read_image("out/given.png"), half)


def test_results_inside_the_folder_of_pictures_are_not_taken_for_pictures(here, capsys):
    for _ in range(2):
        make("canny", "in", "-o", "in/edges")
    assert capsys.readouterr().out.splitlines()[1] == "0 made, 3 there before, 0 failed -> in/edges"
    assert "is no folder of its own" in refused("canny", "in", "-o", "in", capsys=capsys)
    assert "is no folder of its own" in refused("canny", "in", "-o", "in/b.png", capsys=capsys)


def test_pictures_that_fail_are_told_and_the_others_made(here, capsys):
    Path("in/damaged.png").write_bytes(Path("in/b.png").read_bytes()[:200])
    Path("in/empty.jpg").touch()
    make("canny", "in", "-o", "out")
    said = capsys.readouterr()
    assert said.out == "3 made, 2 failed -> out\n" and said.err.count("\n") == 2
    assert said.err.startswith("damaged.png: in/damaged.png is damaged or cut short")
    report = Path("out/failures.txt").read_text().splitlines()
    assert report[0] == "# plugins condition: pictures it could not make"
    assert report[2].startswith("empty.jpg: in/empty.jpg is empty (0 bytes)") and len(report) == 3
    for name in ("damaged.png", "empty.jpg"):
        Path("in", name).unlink()
    make("canny", "in", "-o", "out")
    assert not Path("out/failures.txt").exists()


def test_many_failures_are_cut_short_on_the_terminal(here, capsys):
    for number in range(25):
        Path(f"in/empty{number}.png").touch()
    make("canny", "in", "-o", "out")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 21 and said[-1] == "and 5 more, all in out/failures.txt"
    assert len(Path("out/failures.txt").read_text().splitlines()) == 26


def test_if_all_fail_so_does_the_command(here, capsys):
    Path("none").mkdir()
    Path("none/a.png").touch()
    with pytest.raises(SystemExit) as stop:
        make("canny", "none", "-o", "out")
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "0 made, 1 failed -> out\n"
    assert sorted(tree("out")) == ["failures.txt"]


def test_a_report_that_is_not_ours_is_left_alone(here, capsys):
    Path("out").mkdir()
    Path("out/failures.txt").write_text("my own list")
    assert "out/failures.txt exists and is not this command's" in refused("canny", "in", "-o", "out", capsys=capsys)


def test_a_disk_that_cannot_be_written_ends_the_run(here, capsys, monkeypatch):
    def fail(*_):
        raise OSError("cannot write out/a.png: No space left on device; give a place where you may write")

    monkeypatch.setattr(condition, "write_image", fail)
    assert "No space left on device" in refused("canny", "in", "-o", "out", capsys=capsys)


def test_landmarks_of_a_folder_by_name(here, capsys):
    write_landmarks("marks/a.json", Landmarks(faces=astronaut.faces_of((0.1, 0.1, 0.3, 0.3), (0.5, 0.4, 0.4, 0.4))))
    write_landmarks("marks/sub/c.v2.npz", astronaut.face())
    Path("marks/b.json").write_text('{"faces": [[1, 2]]}')
    make("face", "in", "-o", "out", "--landmarks", "marks")
    said = capsys.readouterr()
    assert said.out == "2 made, 1 failed -> out\n"
    assert said.err.splitlines() == [
        "a.jpg: 2 faces, the largest is drawn; --faces 2 draws all",
        "b.png: marks/b.json: faces has shape [1, 1, 2], expected [n, 478, 3]",
    ]
    drawn = read_image("out/sub/c.v2.png")
    np.testing.assert_array_equal(drawn, conditions.draw_face(astronaut.face(), (48, 64)))
    one = read_image("out/a.png").any(-1).sum()
    make("face", "in", "-o", "out2", "--landmarks", "marks", "--faces", "2", "--quiet")
    assert read_image("out2/a.png").any(-1).sum() > one
    Path("marks/b.json").unlink()
    make("holistic", "in", "-o", "out3", "--landmarks", "marks")
    assert "b.png: --landmarks: there is no marks/b with a suffix of .json .npz" in capsys.readouterr().err


def test_landmarks_of_one_picture(here):
    write_landmarks("a.npz", astronaut.person())
    make("holistic", "in/a.jpg", "-o", "a.png", "--landmarks", "a.npz")
    drawn = conditions.draw_holistic(astronaut.person(), (48, 64))
    np.testing.assert_allclose(read_image("a.png"), drawn, atol=1e-6)


def test_faces_are_found(here, capsys, monkeypatch):
    astronaut.fake_mediapipe(monkeypatch)
    image = np.full((100, 200, 3), 0.5, np.float32)
    for left, side in ((10, 30), (60, 50), (140, 40)):
        image[20 : 20 + side, left : left + side] = [1, 0, 0]
    write_image("in/faces.png", image)
    make("face", "in", "-o", "out")
    said = capsys.readouterr()
    assert said.out == "1 made, 3 failed -> out\n"
    assert "a.jpg: no face was found; give a picture that shows one larger, or its landmarks\n" in said.err
    assert "faces.png: 3 faces, the largest is drawn; --faces 3 draws all\n" in said.err
    drawn = read_image("out/faces.png").any(-1)
    assert drawn[:, 58:112].any() and not drawn[:, :58].any() and not drawn[:, 112:].any()
    said = refused("face", "in/a.jpg", "-o", "face.png", capsys=capsys)
    assert said.startswith("plugins: no face was found")
    astronaut.forget()


def test_without_mediapipe_the_first_picture_ends_it(here, capsys, monkeypatch):
    astronaut.forget()
    monkeypatch.setitem(__import__("sys").modules, "mediapipe", None)
    for source, target in (("in", "out"), ("in/a.jpg", "a.png")):
        said = refused("face", source, "-o", target, capsys=capsys)
        assert "install the extra 'landmarks'" in said and "--landmarks FILE.json|.npz" in said


def test_depth_of_files(here, capsys):
    ramp = np.tile(np.arange(1, 65, dtype=np.float32), (48, 1))
    Path("maps/sub").mkdir(parents=True)
    np.save("maps/a.npy", ramp)
    np.savez("maps/sub/c.v2.npz", depth=np.ones((48, 64)))
    np.save("maps/b.npy", ramp[:10])
    make("depth", "in", "-o", "out", "--depth", "maps", "--near", "low")
    said = capsys.readouterr()
    assert said.out == "1 made, 2 failed -> out\n" and said.err.splitlines() == [
        "b.png: the depth map is 64x10, the picture 64x48; resize one to the other's size",
        "sub/c.v2.webp: the depth is 1 everywhere: nothing is nearer; give another map",
    ]
    shown = read_image("out/a.png")[0, :, 0]
    assert shown[0] == 1 and shown[-1] == 0
    make("depth", "in/a.jpg", "-o", "a.png", "--depth", "maps/a.npy")
    assert read_image("a.png")[0, -1, 0] == 1


def test_depth_by_a_model_that_is_loaded_once(here, monkeypatch):
    loaded = []

    def load(path):
        loaded.append(path)
        return lambda image: image[..., 1]

    monkeypatch.setattr("plugins.conditions.onnx_depth.OnnxDepth", load)
    make("depth", "in", "-o", "out", "--model", "midas.onnx")
    assert loaded == ["midas.onnx"] and len(tree("out")) == 4
    make("depth", "in", "-o", "out", "--model", "midas.onnx")  # nothing to do: nothing to load
    assert loaded == ["midas.onnx"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["canny", "none.png", "-o", "a.png"], "none.png does not exist"),
        (["canny", "in/a.jpg", "-o", "a.gif"], "suffix '.gif' is not one of"),
        (["canny", "in/a.jpg", "-o", "folder"], "suffix '' is not one of"),
        (["canny", "in/notes.txt", "-o", "a.png"], "in/notes.txt is not a picture of a known kind"),
        (["canny", "empty", "-o", "out"], "no pictures found in empty; known suffixes"),
        (["canny", "in/a.jpg", "-o", "a.png", "--low", "300"], "thresholds 300 and 200"),
        (["mask", "in/a.jpg", "-o", "a.png", "--threshold", "2"], "threshold 2 is not between 0 and 1"),
        (["canny", "in/a.jpg", "-o", "a.png", "--mask", "in/b.png"], "--mask is an option of mask, not of canny"),
        (["canny", "in", "-o", "out", "--faces", "2"], "--faces is an option of face, not of canny; leave it out"),
        (["depth", "in", "-o", "out", "--landmarks", "x"], "--landmarks is an option of face and holistic, not of d"),
        (["face", "in", "-o", "out", "--faces", "0"], "--faces 0: one face or more"),
        (["depth", "in", "-o", "out"], "read from --depth MAPS or estimated by --model FILE.onnx: give one of them"),
        (["depth", "in", "-o", "out", "--depth", "empty", "--model", "a"], "give one of them"),
        (["depth", "in", "-o", "out", "--depth", "in/a.jpg"], "--depth in/a.jpg is no folder"),
        (["depth", "in/a.jpg", "-o", "a.png", "--depth", "in"], "--depth in is a folder; for one picture give one"),
        (["depth", "in/a.jpg", "-o", "a.png", "--depth", "none.npy"], "none.npy does not exist"),
        (["depth", "in", "-o", "out", "--model", "none.onnx"], "none.onnx does not exist"),
        (["face", "in/a.jpg", "-o", "a.png", "--landmarks", "in/notes.txt"], "suffix '.txt' is not one of .json .npz"),
        (["canny", "twice", "-o", "out"], "twice/a.jpg and twice/a.png would both become out/a.png; rename one"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(here, capsys, words, said):
    Path("empty").mkdir()
    write_image("twice/a.jpg", picture(0))
    write_image("twice/a.png", picture(0))
    assert said in refused(*words, capsys=capsys)


@pytest.mark.parametrize("kind, told", [("canny", "no edge was found"), ("mask", "nothing stands out")])
def test_an_empty_condition_is_made_and_told(kind, told, here, capsys):
    write_image("white.png", np.ones((32, 32, 3), np.float32))
    make(kind, "white.png", "-o", "k.png")
    assert f"white.png: {told}" in capsys.readouterr().err and not read_image("k.png").any()
    make(kind, "white.png", "-o", "quiet.png", "--quiet")
    assert not capsys.readouterr().err
    make(kind, "in/b.png", "-o", "b.png")
    assert told not in capsys.readouterr().err
