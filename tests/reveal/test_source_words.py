"""Sources as command-line arguments, folders of images and texts, ids of items, and their stored images."""

import io

import numpy as np
from own_files import json_lines, picture
from PIL import Image
from reading import items, read
from refusal import refused

from reveal.build import stored_items
from reveal.build.stored_items import expected, numbered, shrunk
from reveal.memory import Item
from reveal.sources import Items, Skips
from reveal.sources.records import UNREADABLE
from reveal.sources.registry import items_of


def test_a_folder_of_images_and_texts(tmp_path):
    birds = tmp_path / "birds"
    (birds / "gulls").mkdir(parents=True)
    for name in ("gulls/b10.png", "tern.png", "tern.webp", "unread.png"):
        picture(birds / name)
    texts = {"gulls/b10.txt": "a gull\n", "gulls/b9.txt": "moult", "void.txt": " \n", ".hidden.txt": "x", "a.csv": "b"}
    for name, text in texts.items():
        (birds / name).write_text(text)
    (birds / "gone.jpg").touch()
    for name in ("lost.png", "lost2.txt", "unread.txt"):
        (birds / name).symlink_to(tmp_path / "nowhere")
    found, counts = read(items_of(str(birds)))
    kept = [(1, {"text": "moult"}, False), (2, {"text": "a gull"}, True), (5, {}, True)]
    assert [(item.id, item.fields, item.picture is not None) for item in found] == kept
    # a.csv is of a kind that no reader knows
    assert counts[UNREADABLE] == 1 and sorted(counts.values()) == [1, 1, 1, 2, 2]
    assert {item.source for item in found} == {"own"} and expected(items_of(str(birds))) == 8
    named, _ = read(items_of(f"folder:{birds},first_id=7", "wiki"))
    assert [(item.id, item.source) for item in named] == [(8, "wiki"), (9, "wiki"), (12, "wiki")]
    (birds / "empty").mkdir()
    for folder in (birds / "empty", birds / "none"):
        refused(FileNotFoundError, items, "folder", folder, match=folder.name)


def test_an_argument_becomes_a_reader(tmp_path):
    file = json_lines(tmp_path / "items.jsonl", [{"text": "a"}])
    assert items_of(str(tmp_path)) == items_of(str(file)) == Items("jsonl", str(file))
    argument = "wit:a,b.tsv.gz,images=pictures,captions=false,first_id=9,leave_out=x.json,leave_out=y.json,strict=true"
    options = {"images": "pictures", "captions": False, "first_id": 9}
    assert items_of(argument) == Items("wit", "a,b.tsv.gz", options, ("x.json", "y.json"), True)
    assert items_of(argument, "web").options["source"] == "web"
    assert items_of("wit:t.tsv,source=wiki", "web").options == {"source": "wiki"}


def test_ids_rise_over_all_sources(tmp_path, monkeypatch):
    def lines(name: str, *ids: int) -> Items:
        return Items("jsonl", str(json_lines(tmp_path / name, [{"id": n, "text": "x"} for n in ids])))

    def ids(*sources: Items, renumber: bool = False) -> list[int | None]:
        return [item.id for item in numbered(sources, Skips(), renumber)]

    first, again, later, mixed = lines("a", 3, 7), lines("b", 0, 5), lines("c", 90, 91), lines("d", 2, 1)
    assert ids(first, again, later) == [3, 7, 8, 13, 90, 91]
    assert ids(first, again, mixed, renumber=True) == [0, 1, 2, 3, 4, 5]
    for read_ids in (ids, expected):
        refused(ValueError, read_ids, mixed, match="id 1 comes after 2")
    assert expected(mixed, renumber=True) == expected(first) == 2 and expected(Items("wikidata", "x")) is None
    monkeypatch.setattr(stored_items, "UNORDERED", ("jsonl",))
    assert ids(mixed, later) == [0, 1, 2, 3]


def test_large_images_shrink_and_others_stay_to_the_byte(tmp_path):
    large, small = picture(tmp_path / "l.png", 0, (60, 90)), picture(tmp_path / "s.png", 0, (30, 20))
    data = shrunk(Item("wiki", {}, large.read_bytes()), 30).picture
    assert isinstance(data, bytes)
    with Image.open(io.BytesIO(data)) as image, Image.open(large) as before:
        assert image.size == (30, 20) and image.format == "JPEG"
        halves = [np.asarray(one.convert("RGB"), float).mean((0, 2)) for one in (image, before)]
    assert abs(halves[0][5] - halves[1][15]) < 6 and abs(halves[0][25] - halves[1][75]) < 6
    cut = large.read_bytes()[: large.stat().st_size // 2]
    for stays, side in ((small.read_bytes(), 30), (large.read_bytes(), 0), (b"no picture", 30), (None, 30), (cut, 30)):
        item = Item("wiki", {"text": "a"}, stays)
        assert shrunk(item, side) is item
