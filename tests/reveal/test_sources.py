"""Sources as command-line arguments; each reader reads a small file of its format and counts what cannot be read."""

import gzip
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from own_files import items, json_file, json_lines, picture, questions, read, tar, wit_table
from PIL import Image
from refusal import refused

from common.data.stored import decode_picture, picture_bytes
from common.data.text import open_text
from common.io.json_text import parse_json
from common.io.tensor_files import read_json
from reveal.build import memory_build
from reveal.build.memory_build import expected, numbered, shrunk
from reveal.memory import Item
from reveal.memory.items import pack
from reveal.sources import Items, Question, Skips, coco, pairs, wit
from reveal.sources.images import ImageFolder
from reveal.sources.jsonl import lines_of
from reveal.sources.records import MISSING, UNREADABLE
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
    monkeypatch.setattr(memory_build, "UNORDERED", ("jsonl",))
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


URL, LOST = "https://x.org/a/Gull%20one.jpg?size=1", "https://x.org/lost.jpg"


@pytest.fixture
def birds(tmp_path) -> Path:
    """A folder of two images of COCO's names and one whose name is in an address."""
    folder = tmp_path / "birds"
    picture(folder / "train2014" / "COCO_train2014_000000000007.jpg", 7)
    picture(folder / "000000000009.jpg", 9)
    picture(folder / "Gull one.jpg", 1)
    return folder


def test_images_are_found_by_all_their_names(birds, tmp_path):
    hashed = picture(birds / f"{hashlib.md5(b'https://x.org/b').hexdigest()}.png")
    flag = picture(birds / "Flag_of_France.png", 1)
    blank = picture(birds / "a b.png", 2)
    coco7, coco9 = birds / "train2014" / "COCO_train2014_000000000007.jpg", birds / "000000000009.jpg"
    expected = {7: coco7, coco7.name: coco7, 9: coco9, "000000000009": coco9, URL: birds / "Gull one.jpg"}
    expected |= {"https://x.org/b": hashed, 8: None, "https://x.org/c.jpg": None}
    expected |= {"Flag of France.png": flag, "Flag of France": flag, "a_b.png": blank, "https://x.org/a_b.png": blank}
    folder = ImageFolder(birds)
    assert {name: folder.find(name) for name in expected} == expected
    same = picture(birds / "z" / "a_b.png", 3)
    assert ImageFolder(birds).find("a_b.png") == same and ImageFolder(birds).find("a b.png") == blank
    refused(FileNotFoundError, lambda: ImageFolder(birds / "nowhere").find(1))


def test_the_general_format(tmp_path):
    picture(tmp_path / "a.png")
    entries = [
        {"id": 7, "source": "wiki", "image": "a.png", "title": "Gull", "text": "A seabird"},
        {"source": "graph", "image": None, "text": "gull eats fish"},
        {"image": "a.png"},
        {"id": None, "source": None, "image": "", "text": "a"},
        {"id": (1 << 62) - 1, "text": "b"},
        {"id": 1 << 62, "text": "c"},
        {"id": "seven", "text": "x"},
        {"image": "lost.png", "text": "x"},
        {"image": "x" * 5000},
        {"image": None},
        ["no object"],
        {"id": 4, "text": "d", "size": float("nan")},
        {"id": 5, "text": "e", "sizes": [float("inf")]},
    ]
    path = json_lines(tmp_path / "items.jsonl", entries)
    with path.open("a") as file:
        file.write('{"text": "f", "size": 1e999}\n' + "[" * 100_000 + "\n")
    found, counts = items("jsonl", path)
    known = [(7, "wiki", {"title": "Gull", "text": "A seabird"}), (1, "graph", {"text": "gull eats fish"})]
    known += [(2, "own", {}), (3, "own", {"text": "a"}), ((1 << 62) - 1, "own", {"text": "b"})]
    assert [(item.id, item.source, dict(item.fields)) for item in found] == known
    assert found[0].picture == (tmp_path / "a.png").read_bytes() and found[1].picture is None
    assert sorted(counts.values()) == [1, 2, 2, 5] and counts[MISSING] == 2 and all(map(pack, found))
    refused(ValueError, items, "jsonl", path, strict=True, match=r"items\.jsonl line 6")


def test_questions_of_the_general_format(tmp_path):
    image = picture(tmp_path / "pictures" / "q.png")
    entries = [
        {"id": 3, "image": "q.png", "text": "what", "answers": ["a", "a", "b"], "gold": 8, "negatives": [7, 9]},
        {"image": "q.png", "answer": "a gull", "group": "near", "image_id": 44},
        dict.fromkeys(["id", "answers", "gold", "negatives", "text"]) | {"image": "q.png", "answer": "a"},
        {"text": "no picture", "answer": "a"},
    ]
    wrong = [{"answer": 3}, {"answers": {"a": 1}}, {"answer": "a", "group": 5}, {"answers": [1]}]
    wrong += [{"answer": "a", "negatives": 7}, {"answer": "a", "negatives": [1 << 62]}, {"answer": "a", "gold": True}]
    entries += [{"image": "q.png", **one} for one in [*wrong, {"answer": "a", "gold": "8"}]]
    path = tmp_path / "questions.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(entry) + "\n" for entry in entries).encode()))
    found, counts = questions("jsonl", path, images=image.parent)
    asked = (3, image, "what", ("a", "a", "b"), "", 8, (7, 9)), (1, image, "", ("a gull",), "near")
    assert found == [*(Question(*one) for one in asked), Question(2, image, "", ("a",))]
    assert counts[MISSING] == 1 and sorted(counts.values()) == [1, 4, 4]


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    line = r'{"text": "a \ud83d b", "\uDE00": ["\ud83d\ude00 \\ud83d"]}'
    fields = {"text": "a \ufffd b", "\ufffd": ["\U0001f600 \\ud83d"]}
    path = tmp_path / "i.jsonl"
    path.write_text(line)
    assert parse_json(line) == read_json(path) == fields
    ((item,), _) = items("jsonl", path)
    assert pack(item) and item.fields == fields and list(lines_of([path])) == ["a \ufffd b", *fields["\ufffd"]]


def test_wit(tmp_path, birds):
    rows = [
        dict(image_url=URL, hierarchical_section_title="Gull / Food", context_page_description='A "sea"\tbird'),
        dict(image_url=URL, language="de", context_page_description="Eine Möwe"),
        dict(image_url=URL, context_section_description="It eats.", caption_alt_text_description="a gull"),
        dict(image_url=LOST, context_page_description="x"),
        dict(image_url=URL),
    ]
    path = wit_table(tmp_path / "wit_v1.train-00000-of-00010.tsv.gz", rows)
    found, counts = items("wit", path, images=birds)
    assert [item.id for item in found] == [0, 2] and all(item.picture for item in found)
    assert found[0].fields == {"title": "Gull / Food", "page": 'A "sea"\tbird'}
    assert found[1].fields == {"section": "It eats.", "alt": "a gull"}
    assert counts == {MISSING: 1, "without text": 1}
    assert items("wit", path, images=birds, captions=False)[0][1].fields == {"section": "It eats."}
    assert [(item.id, item.picture) for item in items("wit", tmp_path, first_id=100)[0]][2] == (103, None)
    asked, _ = questions("wit", path, images=birds, first_id=100)
    assert [(one.id, one.gold, one.answers) for one in asked] == [(102, 102, ("a gull",))]
    path.write_bytes(gzip.compress(b"en\tonly two\n"))
    refused(ValueError, items, "wit", path, strict=True, match=r"tsv\.gz row 1")


def test_quotes_and_lines_of_a_table():
    full = "\t".join("abcdefghijklmnopq")
    tail = "\t".join("bcdefghijklmnopq")
    cases = {
        full: [17],
        f"\n{full}\r\n": [17],
        f'"a"\t{tail}': [17],
        f'x\t"a\nb"\t{tail[2:]}': [17],
        f'"a\t{tail}\n{full}': [17, 17],
        f'"a\nb\n{full}': [1, 1, 17],
        f'{full[:-1]}"q\n{full}': [17, 17],
        f'{full[:-1]}"q\nr"': [17],
    }
    for text, counts in cases.items():
        assert [len(row) for row in wit.cells(text.splitlines(keepends=True))] == counts, text


def test_cc12m(tmp_path, birds):
    path = tmp_path / "cc12m.tsv"
    path.write_text(f"{URL}\ta gull over the sea\n{LOST}\tx\n{URL}\t\n", "utf-8")
    (item,), counts = items("cc12m", path, images=birds, first_id=5)
    assert (item.id, item.source, item.fields) == (5, "cc12m", {"text": "a gull over the sea"})
    assert counts == {MISSING: 1, pairs.NO_CAPTION: 1}
    ((asked,), _) = questions("cc12m", path, images=birds)
    assert asked == Question(0, birds / "Gull one.jpg", "", ("a gull over the sea",))


def test_tars_of_img2dataset(tmp_path, birds):
    data = (birds / "000000000009.jpg").read_bytes()
    members = {"0.jpg": data, "0.txt": b"a gull", "0.json": json.dumps({"caption": "other", "url": URL}).encode()}
    members |= {"1.json": b'{"caption": "from json \\ud83d"}', "1.jpg": data, "2.txt": b"no picture"}
    members |= {"3.jpg": data, "4.jpg": data, "4.json": b"no JSON"}
    path = tar(tmp_path / "00000.tar", members)
    found, counts = items("webdataset", path)
    texts = [(0, "a gull"), (1, "from json \ufffd")]
    assert [(item.id, item.fields["text"], item.picture) for item in found] == [(*text, data) for text in texts]
    assert counts == {MISSING: 1, pairs.NO_CAPTION: 2}
    asked, _ = questions("webdataset", tmp_path)
    assert [(one.id, *one.answers) for one in asked] == texts and picture_bytes(asked[1].image) == data
    np.testing.assert_array_equal(decode_picture(asked[0].image, "x"), decode_picture(birds / "000000000009.jpg", "x"))
    whole = bytearray(path.read_bytes())
    header = whole.index(b"0.txt")
    whole[header : header + 64] = b"?" * 64
    for broken in (whole, whole[: len(data) // 2]):
        path.write_bytes(broken)
        refused(ValueError, questions, "webdataset", path, match=r"00000\.tar")


@pytest.fixture
def vqa(tmp_path) -> tuple[Path, Path]:
    """Questions and annotations, some of them odd."""
    asked = [(1, 7, "what is it"), (2, 7, "how many"), (3, 9, "where"), (4, 8, "lost"), (5, 9, "nobody knows")]
    given = {1: ["gull", "bird", "gull"], 2: ["two"], 3: ["sea"], 4: ["x"]}
    rows = [dict(question_id=q, image_id=i, question=text) for q, i, text in asked]
    answers = [
        dict(question_id=q, answers=[dict(answer=a, raw_answer=a + "s", answer_id=n) for n, a in enumerate(texts)])
        for q, texts in given.items()
    ]
    answers += [{"question_id": 5, "answers": None}, {"question_id": [], "answers": 5}]
    return json_file(tmp_path / "q.json", {"questions": rows}), json_file(tmp_path / "a.json", {"annotations": answers})


def test_vqa_and_okvqa(vqa, birds):
    path, options = vqa[0], {"images": birds, "annotations": vqa[1]}
    found, counts = questions("vqa", path, **options)
    texts = [(1, "what is it", ("gull", "bird", "gull")), (2, "how many", ("two",)), (3, "where", ("sea",))]
    assert [(one.id, one.text, one.answers) for one in found] == texts
    assert counts == {MISSING: 1, coco.NO_ANSWER: 1}
    assert questions("vqa", path, **options, answer="raw_answer")[0][0].answers[0] == "gulls"
    assert questions("vqa", path, images=birds)[0][0].answers == ()


def test_vqa_is_knowledge(vqa, birds):
    (birds / "000000000008.jpg").touch()
    found, counts = items("vqa", vqa[0], annotations=vqa[1], images=birds, first_id=1000)
    text = "Question: what is it Answer: gull, bird Question: how many Answer: two"
    assert {item.id: item.fields["text"] for item in found} == {1007: text, 1009: "Question: where Answer: sea"}
    assert counts == {UNREADABLE: 1, coco.NO_ANSWER: 1}
    assert len(items("vqa", vqa[0], annotations=vqa[1])[0]) == 3  # texts alone


def test_captions_of_coco_and_nocaps(tmp_path, birds):
    rows = [
        dict(id=7, file_name="val/COCO_train2014_000000000007.jpg"),
        dict(id=9, domain="near-domain"),
        dict(id=9, file_name="0013ea20.jpg"),  # of another set, not COCO's 9
    ]
    notes = [(7, " a gull "), (7, "a bird"), (7, None), (9, "c"), ([], "b")]
    notes = [dict(image_id=number, caption=text) for number, text in notes]
    path = json_file(tmp_path / "captions.json", dict(images=rows, annotations=notes))
    (first, second), counts = questions("nocaps", path, images=birds)
    assert (first.id, first.answers, first.group) == (7, ("a gull", "a bird"), "")
    assert (second.answers, second.group) == (("c",), "near-domain") and counts == {MISSING: 1}
    assert [item.fields for item in items("coco", path, images=birds)[0]] == [{"text": "a gull a bird"}, {"text": "c"}]


def test_karpathys_split(tmp_path, birds):
    (birds / "000000000008.jpg").touch()
    sentences = [{"raw": "a gull "}, {"raw": "a bird"}, "no sentence", {"raw": None}]
    rows = [
        {"cocoid": 9, "split": "restval", "filename": "x", "sentences": None},
        {"cocoid": 7, "split": "train", "filename": "x", "sentences": sentences},
        {"cocoid": 8, "split": "train", "sentences": sentences},
        {"cocoid": 10, "split": "test", "sentences": sentences},
    ]
    path = json_file(tmp_path / "dataset_coco.json", {"images": rows})
    found, counts = items("karpathy", path, images=birds, first_id=100)
    known = [(item.id, item.source, item.fields) for item in found]
    assert known == [(107, "coco", {"text": "a gull a bird"}), (109, "coco", {})] and counts == {UNREADABLE: 1}
    asked, _ = questions("karpathy", path, images=birds)
    assert [(one.id, one.group) for one in asked] == [(9, "restval"), (7, "train"), (8, "train")]
    for splits, ids in ("train,val", [7, 8]), (["restval"], [9]), ("val,restvals", []):
        assert [one.id for one in questions("karpathy", path, images=birds, splits=splits)[0]] == ids


def test_a_carriage_return_ends_no_line(tmp_path):
    folder = tmp_path / "p"
    picture(folder / "gull.jpg")
    url = "https://x.org/gull.jpg"
    (tmp_path / "cc.tsv").write_bytes(f"{url}\ta gull\rover the sea\r\n{url}\tb\n".encode())
    asked, _ = questions("cc12m", tmp_path / "cc.tsv", images=folder)
    assert [one.answers for one in asked] == [("a gull\rover the sea",), ("b",)]
    row = {"language": "en", "image_url": url, "page_title": "x", "context_page_description": "a\rb"}
    plain = "\t".join(row.get(column, "") for column in wit.COLUMNS)
    quoted = "\t".join('"q"' if column == "page_title" else row.get(column, "") for column in wit.COLUMNS)
    path = tmp_path / "wit.tsv.gz"
    path.write_bytes(gzip.compress(f"{plain}\r\n{quoted}\n{plain}\r\n".encode()))
    assert [item.fields["page"] for item in items("wit", path, strict=True)[0]] == ["a\rb", "a b", "a\rb"]
    with open_text(path) as lines:
        assert len(list(lines)) == 3


def test_lines_are_counted_for_each_file_and_ids_over_all(tmp_path):
    (tmp_path / "a.tsv").write_text(f"{URL}\ta\n{URL}\tb\n")
    (tmp_path / "b.tsv").write_text(f"{URL}\t\n{URL}\td\n")
    wit_table(tmp_path / "wit-0.tsv.gz", [{"page_title": "x", "context_page_description": "a"}] * 3)
    wit_table(tmp_path / "wit-1.tsv.gz", [{"context_page_description": "a"}, {"page_title": "no text"}])
    picture(tmp_path / "p" / "Gull one.jpg")
    images = {"images": tmp_path / "p"}
    for reader, pattern, options, fault, ids in (
        ("cc12m", "*.tsv", images, r"b\.tsv line 1", [0, 1, 3]),
        ("wit", "wit-*.tsv.gz", {}, r"wit-1\.tsv\.gz row 2", [0, 1, 2, 3]),
    ):
        refused(ValueError, items, reader, tmp_path / pattern, strict=True, **options, match=fault)
        assert [item.id for item in items(reader, tmp_path / pattern, **options)[0]] == ids


def test_arguments_that_no_reader_takes_are_refused(tmp_path):
    for reader, options, value in (
        ("parquet", {}, "parquet"),
        ("wit", {"image": "y"}, "image is .* language"),
        ("cc12m", {}, "images"),
        ("jsonl", {"first_id": 3}, "first_id"),
    ):
        refused(ValueError, Items, reader, "x", options, match=value)
    refused(ValueError, Items, "wikidata", "x", leave_out=["y"], match="wikidata")
    refused(FileNotFoundError, items, "wikidata", tmp_path / "x.tsv", match=r"x\.tsv")
    refused(ValueError, questions, "vqa", json_file(tmp_path / "x.json", {}), images=tmp_path, match=r"x\.json")
    assert str(Skips()).startswith("0 ")
