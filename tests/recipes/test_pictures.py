"""Names, captions, splits and the folder made of them are what `recipes.captioned_pictures` says."""

import json
import sys
import types

import numpy as np
import pytest
from made_archives import write_deb, write_npm
from shelf import (
    BLUE,
    FRUIT,
    GREEN,
    NOTES,
    RED,
    fill,
    names_archive,
    png,
    svg_to_bytes,
    write_stamps,
)

from plugins.diffusion.io.tokenizer import Tokenizer
from recipes.captioned_pictures import clipart, emoji, splits, stamps
from recipes.captioned_pictures.prepare import Settings, prepare
from recipes.captioned_pictures.thumbnails import Picture


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with a small archive of every package; the renderer stands in for that of the extra `pictures`."""
    monkeypatch.setitem(sys.modules, "resvg_py", types.SimpleNamespace(svg_to_bytes=svg_to_bytes))
    folder = tmp_path / "archives"
    folder.mkdir()
    fill(folder)
    return folder


def test_emoji_names_leave_out_skin_tones_parts_and_flags(tmp_path):
    path = names_archive(tmp_path)
    names = emoji.read_names(path)
    assert [name.label for name in names.values()] == [*FRUIT.values(), "keycap, 7", "woman's here button"]
    assert names["1f34e"] == emoji.Emoji("red apple", ("fruit",), "food-drink")
    assert emoji.read_names(path, flags=True)["1f1e6-1f1fd"].group == "flags"


def test_emoji_are_found_whatever_their_file_is_called(tmp_path):
    names = emoji.read_names(names_archive(tmp_path))
    noto = emoji.SETS[0]
    files = {f"{noto.folder}/37-20e3.png": png(RED), f"{noto.folder}/1f34e.png": png(GREEN)}
    files |= {f"{noto.folder}/0037-fe0f-20e3.png": png(RED), f"{noto.folder}/1f34e-1f3ff.png": png(BLUE)}
    found = list(emoji.pictures(noto, write_npm(tmp_path, noto.package, files), names, 64))
    assert [(p.label, p.style, p.mirror) for p in found] == [
        ("red apple", "noto emoji", True),
        ("keycap, 7", "noto emoji", False),
    ]


def test_an_archive_of_something_else(tmp_path):
    path = write_npm(tmp_path, emoji.NAMES, {"package/index.js": b""})
    with pytest.raises(ValueError, match=r"lacks package/en/data\.json"):
        emoji.read_names(path)
    with pytest.raises(ValueError, match="holds no stamps"):
        stamps.pictures(write_deb(tmp_path, clipart.PIXELS, {"a": b""}), 64)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("AfricanDrum_02 (B and W)", "african drum"),
        ("Clipart by Nicu Buculei - pear", "pear"),
        ("mouth - body part", "mouth"),
        ("Trumpet B Flat (colour)", "trumpet flat"),
        ("crème brûlée #3", "creme brulee"),
        ("cup_icon", "cup"),
    ],
)
def test_titles_are_cleaned(title, expected):
    assert clipart.clean(title) == expected


def test_a_title_that_many_drawings_share_gives_way_to_the_file_name():
    notes = {f"a/{name}": clipart.Notes("Various Things", ()) for name in ("dog_ganson_01", "cat2", "cavallo", "owl")}
    notes |= {"b/x1": clipart.Notes("stick man", ()), "b/bw": clipart.Notes("a dog", ())}
    known = {"dog", "cat", "owl", "man"}
    assert clipart.labels(notes, known) == {
        "a/dog_ganson_01": "dog",
        "a/cat2": "cat",
        "a/owl": "owl",
        "b/x1": "stick man",
        "b/bw": "dog",
    }


def test_only_words_of_several_drawings_are_known():
    notes = {str(i): clipart.Notes("", ("fruit", "hash(0x1)", "rollandin")) for i in range(3)}
    notes["last"] = clipart.Notes("", ("mela",))
    assert clipart.known_words(notes, ["Red apple"]) == {"red", "apple", "fruit"}


def test_clip_art_is_named_by_what_its_titles_tell(shelf):
    notes = clipart.read_notes(next(shelf.glob("openclipart-svg*")))
    assert set(notes) == set(NOTES) - {"shapes/stars/star_01"}
    known = {"red", "apple", "pear", "fruit", "food", "lady"}
    found = {p.label: p for p in clipart.pictures(next(shelf.glob("openclipart-png*")), notes, known, 64)}
    assert {label: p.style for label, p in found.items()} == {
        "red apple": "black and white clip art",
        "pear": "clip art",
    }
    assert found["pear"].tags == ("food", "fruit")


def test_stamps_have_sentences(tmp_path):
    cow, zebra = stamps.pictures(write_stamps(tmp_path), 64)
    assert (cow.label, cow.style, cow.mirror, cow.group, cow.tags) == ("A cow.", "", True, "animals", ("mammals",))
    assert (zebra.label, zebra.mirror) == ("A zebra.", False)


def made(label, style, shade, source="s", group="food-drink") -> Picture:
    return Picture(np.full((64, 64, 3), shade, np.uint8), label, style, (), group, source)


def test_alike_pictures_of_one_source_are_kept_once():
    pictures = [made("a", "x", 8), made("b", "x", 9), made("c", "x", 32), made("d", "x", 8, source="other")]
    assert [p.label for p in splits.distinct(pictures)] == ["a", "c", "d"]


def test_labels_are_held_back():
    styles = ["x", "y", "z"]
    pictures = [made(f"label {i}", style, 0) for i in range(20) for style in styles]
    pictures += [made(f"label {i}", "clip art", 0, source="clips", group="food") for i in range(20)]
    pictures += [
        made("label 3", "", 0, source="stamps"),
        made("rare", "x", 0),
        made("OK button", "x", 0, group="symbols"),
    ]
    parts = splits.assign(pictures, "stamps", styles, 5, 4)
    split = {(p.label, p.style, p.source): part for p, part in zip(pictures, parts, strict=True)}
    unseen = {label for (label, *_), part in split.items() if part == "unseen"}
    partly = [(label, style) for (label, style, _), part in split.items() if part == "unseen_style"]
    assert len(unseen) == 5
    assert all(part == "unseen" for (label, _, source), part in split.items() if label in unseen and source != "stamps")
    assert len(partly) == len({label for label, _ in partly} - unseen) == 4
    assert {style for _, style in partly} == set(styles)
    assert [key[2] for key, part in split.items() if part == "test"] == ["stamps"]
    assert split["rare", "x", "s"] == split["OK button", "x", "s"] == "train"
    again = splits.assign(pictures[::-1], "stamps", styles, 5, 4)[::-1]
    assert parts == again  # whatever the order


def test_a_prepared_folder_holds_what_the_archives_held(shelf, tmp_path):
    folder = tmp_path / "out"
    counts = prepare(folder, shelf, Settings(unseen=1, unseen_style=1, tokens=540))
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    index = json.loads((folder / "index.json").read_text("utf-8"))
    entries = index["pictures"]
    assert images.shape == (len(entries), 64, 64, 3)
    assert images.dtype == np.uint8
    held = min(("red apple", "banana", "grapes"), key=splits.digest)  # two of the line emoji are alike
    unseen = 4 if held == "red apple" else 3  # a clip art has that label too; of the pear nothing is known here
    assert counts == {"train": 11 - unseen, "unseen": unseen, "unseen_style": 1, "test": 2}
    assert {entry["label"] for entry in entries if entry["split"] == "unseen"} == {held}
    red = next(i for i, e in enumerate(entries) if (e["label"], e["style"]) == ("red apple", "line emoji"))
    np.testing.assert_array_equal(images[red, 32, 32], RED)
    np.testing.assert_array_equal(images[red, 0, 0], 255)
    assert [source["package"] for source in index["sources"]][-1] == stamps.STAMPS.name
    assert all(len(source["sha256"]) == 64 and source["licence"] for source in index["sources"])
    tokenizer = Tokenizer.from_folder(folder)
    assert len(tokenizer.vocab) == 540
    assert tokenizer.decode(tokenizer.encode("banana, 3d emoji")) == "banana , 3 d emoji"


def test_the_same_archives_give_the_same_folder_and_an_old_one_is_kept(shelf, tmp_path):
    for name in ("one", "two"):
        prepare(tmp_path / name, shelf, Settings(tokens=520))
    for path in sorted((tmp_path / "one").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path
    with pytest.raises(FileExistsError):
        prepare(tmp_path / "one", shelf)


def test_a_missing_package_leaves_nothing_behind(shelf, tmp_path, monkeypatch):
    next(shelf.glob("tuxpaint*")).unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConnectionError, match="tuxpaint-stamps-default"):
        prepare(tmp_path / "new" / "out", shelf)
    assert not (tmp_path / "new").exists()


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="unseen -1"):
        Settings(unseen=-1)
