"""Sources in a word, folders of pictures and texts, numbers of items, and what becomes of their pictures."""

import io
from pathlib import Path

import numpy as np
import pytest
from own_files import json_lines, picture
from PIL import Image
from reveal_networks import one_line

from reveal.build.stored_items import expected, kept, numbered
from reveal.memory import Item
from reveal.sources import Items, Skips
from reveal.sources.registry import items_of


@pytest.fixture
def birds(tmp_path) -> Path:
    folder = tmp_path / "birds"
    (folder / "gulls").mkdir(parents=True)
    picture(folder / "gulls" / "b10.png")
    (folder / "gulls" / "b10.txt").write_text("a gull\n")
    (folder / "gulls" / "b9.txt").write_text("moult")
    picture(folder / "tern.png", 1)
    picture(folder / "tern.webp", 1)
    (folder / "void.txt").write_text(" \n")
    (folder / "gone.jpg").touch()
    (folder / ".hidden.txt").write_text("nothing")
    (folder / "table.csv").write_text("a,b")
    return folder


def test_a_folder_of_pictures_and_texts(birds):
    skips = Skips()
    found = list(items_of(str(birds)).read(skips))
    assert [(item.id, item.fields, item.picture is not None) for item in found] == [
        (1, {"text": "moult"}, False),
        (2, {"text": "a gull"}, True),
        (3, {}, True),
    ]
    assert skips.counts == {"that are empty": 2, "that share their name with another picture": 1}
    assert {item.source for item in found} == {"own"} and expected(items_of(str(birds))) == 5
    words = items_of(f"folder:{birds},first_id=7", "wiki")
    assert [(item.id, item.source) for item in words.read(Skips())] == [(8, "wiki"), (9, "wiki"), (10, "wiki")]
    with pytest.raises(FileNotFoundError, match=r"has no \.txt and no \.png"):
        (birds / "gulls" / "empty").mkdir()
        list(Items("folder", str(birds / "gulls" / "empty")))


def test_a_word_becomes_a_reader(tmp_path, birds):
    file = json_lines(tmp_path / "items.jsonl", [{"text": "a"}])
    assert items_of(str(tmp_path)) == items_of(str(file)) == Items("jsonl", str(file))
    word = "wit:a,b.tsv.gz,images=pictures,captions=false,first_id=9,leave_out=x.json,leave_out=y.json,strict=true"
    options = {"images": "pictures", "captions": False, "first_id": 9}
    assert items_of(word) == Items("wit", "a,b.tsv.gz", options, ("x.json", "y.json"), True)
    assert items_of(word, "web").options["source"] == "web"
    assert items_of("wit:t.tsv,source=wiki", "web").options == {"source": "wiki"}
    with pytest.raises(FileNotFoundError, match=r"witt:t\.tsv does not exist; give a folder"):
        items_of("witt:t.tsv")


def test_numbers_rise_over_all_sources(tmp_path):
    def lines(name: str, *ids: int) -> Items:
        return Items("jsonl", str(json_lines(tmp_path / name, [{"id": n, "text": "x"} for n in ids])))

    def ids(*sources: Items, anew: bool = False) -> list[int | None]:
        return [item.id for item in numbered(sources, Skips(), anew)]

    first, again, later, mixed = lines("a", 3, 7), lines("b", 0, 5), lines("c", 90, 91), lines("d", 2, 1)
    assert ids(first, again, later) == [3, 7, 8, 13, 90, 91]
    assert ids(first, again, mixed, anew=True) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError) as caught:
        ids(mixed)
    assert "id 1 comes after 2; in a build they rise" in one_line(caught)
    with pytest.raises(ValueError, match="id 1 comes after 2"):
        expected(mixed)
    assert expected(mixed, anew=True) == expected(first) == 2


def test_large_pictures_shrink_and_others_stay_to_the_byte(tmp_path):
    large, small = picture(tmp_path / "l.png", 0, (60, 90)), picture(tmp_path / "s.png", 0, (30, 20))
    shrunk = kept(Item("wiki", {}, large.read_bytes()), 30).picture
    assert isinstance(shrunk, bytes)
    with Image.open(io.BytesIO(shrunk)) as image, Image.open(large) as before:
        assert image.size == (30, 20) and image.format == "JPEG"
        halves = [np.asarray(one.convert("RGB"), float).mean((0, 2)) for one in (image, before)]
    assert abs(halves[0][5] - halves[1][15]) < 6 and abs(halves[0][25] - halves[1][75]) < 6
    for item, side in (
        (Item("wiki", {}, small.read_bytes()), 30),
        (Item("wiki", {}, large.read_bytes()), 0),
        (Item("wiki", {}, b"no picture"), 30),
        (Item("wiki", {"text": "a"}), 30),
    ):
        assert kept(item, side) is item
    cut = large.read_bytes()[: large.stat().st_size // 2]
    assert kept(Item("wiki", {}, cut), 30).picture == cut
