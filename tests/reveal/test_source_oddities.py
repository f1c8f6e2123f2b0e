"""What real files have and no format promises: one odd record costs itself, is counted, and stops nothing."""

import gzip
import json
from pathlib import Path

import pytest
from own_files import json_file, json_lines, picture, tar, wit_table

from common.data.text import open_text, parse_json
from reveal.memory.items import pack
from reveal.sources import Items, Questions, Skips, coco, jsonl, pairs, wit
from reveal.sources.image_names import Pictures
from reveal.sources.texts import lines_of

GONE, UNREADABLE = "whose picture is not there", "whose picture cannot be read"


def read(source: Items | Questions) -> tuple[list, dict[str, int]]:
    skips = Skips()
    return list(source.read(skips)), dict(skips.counts)


def test_null_is_nothing_and_odd_items_are_counted(tmp_path):
    lines = [
        {"id": None, "source": None, "image": "", "text": "a"},
        {"id": (1 << 62) - 1, "text": "b"},
        {"id": 1 << 62, "text": "c"},
        {"id": 4, "text": "d", "size": float("nan")},
        {"id": 5, "text": "e", "sizes": [float("inf")]},
        {"id": 6, "image": "x" * 5000},
    ]
    path = json_lines(tmp_path / "items.jsonl", lines)
    with path.open("a") as file:
        file.write('{"text": "f", "size": 1e999}\n' + "[" * 100_000 + "\n")
    found, counts = read(Items("jsonl", str(path)))
    assert [(item.id, item.source, item.picture) for item in found] == [(0, "own", None), ((1 << 62) - 1, "own", None)]
    reason = "whose id is no whole number from 0 to 2^62 - 1, or whose source is no text"
    assert counts == {reason: 1, "that is no JSON object": 4, GONE: 1}
    assert all(pack(item) for item in found)


def test_odd_questions_are_counted(tmp_path):
    picture(tmp_path / "q.png")
    odd = [{"answer": 3}, {"answers": {"a": 1}}, {"answer": "a", "negatives": 7}, {"answer": "a", "group": 5}]
    odd += [{"answer": "a", "negatives": [1 << 62]}, {"answer": "a", "gold": True}]
    fine = {"id": None, "answers": None, "answer": "a", "gold": None, "negatives": None, "text": None}
    path = json_lines(tmp_path / "q.jsonl", [{"image": "q.png", **one} for one in [*odd, fine]])
    (only,), counts = read(Questions("jsonl", str(path)))
    assert (only.id, only.answers, only.gold, only.negatives, only.text) == (6, ("a",), None, (), "")
    texts, numbers = (
        "text, answers or group are no texts",
        "id, gold or negatives are no whole numbers from 0 to 2^62 - 1",
    )
    assert counts == {f"whose {texts}": 3, f"whose {numbers}": 3}


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    line = r'{"text": "a \ud83d b", "\uDE00": ["\ud83d\ude00 \\ud83d"]}'
    told = {"text": "a \ufffd b", "\ufffd": ["\U0001f600 \\ud83d"]}
    (tmp_path / "i.jsonl").write_text(line)
    assert parse_json(line) == coco.read_json(tmp_path / "i.jsonl") == told
    (item,) = jsonl.items(tmp_path / "i.jsonl")
    assert (
        pack(item) and item.fields == told and list(lines_of([tmp_path / "i.jsonl"])) == ["a \ufffd b", *told["\ufffd"]]
    )
    entity = {"type": "item", "id": "Q1", "labels": {"en": {"value": "a\ud83d"}}}
    claim = {"mainsnak": {"snaktype": "value", "datavalue": {"type": "string", "value": "x"}}}
    dump = json_file(tmp_path / "d.json", [])
    dump.write_text("[\n" + json.dumps(entity | {"claims": {"P1": [claim]}}) + "\n]")
    (item,) = Items("wikidata_dump", str(dump))
    assert item.fields == {"text": "a\ufffd, P1: x"}
    data = picture(tmp_path / "p.png").read_bytes()
    (item,) = Items("webdataset", str(tar(tmp_path / "w.tar", {"0.png": data, "0.json": b'{"caption": "a\\ud83d"}'})))
    assert item.fields == {"text": "a\ufffd"}


@pytest.fixture
def images(tmp_path) -> Path:
    """A picture, an empty one, and one of COCO's number 9."""
    picture(tmp_path / "images" / "000000000007.jpg", 7)
    (tmp_path / "images" / "000000000008.jpg").touch()
    picture(tmp_path / "images" / "000000000009.jpg", 9)
    return tmp_path / "images"


def test_odd_answers_and_captions_of_coco(tmp_path, images):
    asked = [{"question_id": n, "image_id": n, "question": "what"} for n in (7, 8, 9)]
    questions = json_file(tmp_path / "q.json", {"questions": asked})
    notes = [
        {"question_id": n, "answers": told} for n, told in ((7, [{"answer": "a"}]), (8, [{"answer": "b"}]), (9, None))
    ]
    annotations = json_file(tmp_path / "a.json", {"annotations": [*notes, {"question_id": [], "answers": 5}]})
    found, counts = read(Items("vqa", str(questions), {"annotations": str(annotations), "images": str(images)}))
    assert [item.id for item in found] == [7] and counts == {UNREADABLE: 1, "without an answer": 1}
    captions = [{"image_id": 7, "caption": " a "}, {"image_id": 7, "caption": None}, {"image_id": [], "caption": "b"}]
    path = json_file(tmp_path / "c.json", {"images": [{"id": n} for n in (7, 8)], "annotations": captions})
    (item,), counts = read(Items("coco", str(path), {"images": str(images)}))
    assert item.fields == {"text": "a"} and counts == {UNREADABLE: 1}
    choices = [{"image_id": 7, "question": "what", "direct_answers": "kite"}]
    (only,) = coco.aokvqa_questions(json_file(tmp_path / "k.json", choices), images)
    assert only.answers == ()


def test_a_picture_of_another_set_is_not_that_of_cocos_number(tmp_path, images):
    rows = [{"id": 9, "file_name": "0013ea20.jpg"}, {"id": 7, "file_name": "val/COCO_val2014_000000000007.jpg"}]
    skips = Skips()
    (only,) = coco.captions(json_file(tmp_path / "c.json", {"images": rows}), images, skips=skips)
    assert only.image == images / "000000000007.jpg" and skips.counts == {GONE: 1}


def test_karpathys_split_becomes_items(tmp_path, images):
    says = [{"raw": "a gull "}, {"raw": "a bird"}, "no sentence", {"raw": None}]
    rows = [
        {"cocoid": 9, "split": "restval", "filename": "x", "sentences": None},
        {"cocoid": 7, "split": "train", "filename": "x", "sentences": says},
        {"cocoid": 8, "split": "train", "sentences": says},
        {"cocoid": 10, "split": "test", "sentences": says},
    ]
    path = str(json_file(tmp_path / "dataset_coco.json", {"images": rows}))
    found, counts = read(Items("karpathy", path, {"images": str(images), "first_id": 100}))
    assert [(item.id, item.source, item.fields) for item in found] == [
        (107, "coco", {"text": "a gull a bird"}),
        (109, "coco", {}),
    ]
    assert counts == {UNREADABLE: 1}
    out = json_lines(tmp_path / "e.jsonl", [{"image_id": 9}])
    options = {"images": str(images), "splits": "train,restval"}
    assert [item.id for item in Items("karpathy", path, options, leave_out=[str(out)])] == [7]


def test_a_folder_with_links_to_nothing(tmp_path):
    for name in ("a.png", "b.txt", "c.png", "c.txt"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    (tmp_path / "c.png").unlink()
    picture(tmp_path / "c.png")
    (tmp_path / "d.txt").write_text("fine")
    (only,), counts = read(Items("folder", str(tmp_path)))
    assert (only.id, only.fields) == (3, {"text": "fine"}) and counts == {UNREADABLE: 1, "whose text cannot be read": 2}


def test_pictures_of_commons_have_underscores(tmp_path):
    flag = picture(tmp_path / "p" / "Flag_of_France.png", 1)
    other = picture(tmp_path / "p" / "a b.png", 2)
    pictures = Pictures(tmp_path / "p")
    assert pictures.find("Flag of France.png") == pictures.find("Flag of France") == flag
    assert pictures.find("a_b.png") == pictures.find("https://x.org/a_b.png") == other
    same = picture(tmp_path / "p" / "z" / "a_b.png", 3)
    assert Pictures(tmp_path / "p").find("a_b.png") == same and Pictures(tmp_path / "p").find("a b.png") == other


def test_pictures_of_a_dump_that_are_missing_are_counted(tmp_path):
    def entity(number: int, name: str) -> dict:
        def claim(value: str, kind: str) -> dict:
            return {
                "mainsnak": {"snaktype": "value", "datatype": kind, "datavalue": {"type": "string", "value": value}}
            }

        claims = {"P18": [claim(name, "commonsMedia")], "P1": [claim("x", "string")]}
        return {"type": "item", "id": f"Q{number}", "labels": {"en": {"value": "a"}}, "claims": claims}

    picture(tmp_path / "p" / "Flag_of_France.png", 1)
    (tmp_path / "p" / "void.png").touch()
    names = ("Flag of France.png", "lost.png", "void.png")
    lines = ",\n".join(json.dumps(entity(number, name)) for number, name in enumerate(names))
    (tmp_path / "d.json").write_text(f"[\n{lines}\n]")
    path, options = str(tmp_path / "d.json"), {"images": str(tmp_path / "p")}
    found, counts = read(Items("wikidata_dump", path, options))
    assert [item.picture is not None for item in found] == [True, False, False]
    assert counts == {f"{GONE} and that stay as texts": 1, f"{UNREADABLE} and that stay as texts": 1}
    for said in ("Flag_of_France.png", "x/Flag of France.jpg"):
        out = json_lines(tmp_path / "e.jsonl", [{"image": said}])
        assert len(list(Items("wikidata_dump", path, options, leave_out=[str(out)]))) == 2, said


def test_a_carriage_return_ends_no_line(tmp_path):
    folder = tmp_path / "p"
    picture(folder / "gull.jpg")
    url = "https://x.org/gull.jpg"
    (tmp_path / "cc.tsv").write_bytes(f"{url}\ta gull\rover the sea\r\n{url}\tb\n".encode())
    assert [one.answers for one in pairs.table_questions(tmp_path / "cc.tsv", folder)] == [
        ("a gull\rover the sea",),
        ("b",),
    ]
    row = {"language": "en", "image_url": url, "page_title": "x", "context_page_description": "a\rb"}
    plain = "\t".join(row.get(column, "") for column in wit.COLUMNS)
    quoted = "\t".join('"q"' if column == "page_title" else row.get(column, "") for column in wit.COLUMNS)
    path = tmp_path / "wit.tsv.gz"
    path.write_bytes(gzip.compress(f"{plain}\r\n{quoted}\n{plain}\r\n".encode()))
    skips = Skips(strict=True)
    assert [item.fields["page"] for item in wit.items(path, skips=skips)] == ["a\rb", "a b", "a\rb"]
    with open_text(path) as lines:
        assert len(list(lines)) == 3


def test_lines_are_counted_for_each_file(tmp_path):
    (tmp_path / "a.tsv").write_text("https://x.org/1.jpg\ta\nhttps://x.org/2.jpg\tb\n")
    (tmp_path / "b.tsv").write_text("https://x.org/gull.jpg\tc\nhttps://x.org/4.jpg\td\n")
    picture(tmp_path / "p" / "1.jpg")
    (tmp_path / "p" / "gull.jpg").touch()
    with pytest.raises(ValueError, match=r"b\.tsv line 1 .*: whose picture cannot be read"):
        list(pairs.table_items(tmp_path / "b.tsv", tmp_path / "p", skips=Skips(strict=True)))
    picture(tmp_path / "p" / "2.jpg")
    with pytest.raises(ValueError, match=r"b\.tsv line 1 .*: whose picture cannot be read"):
        list(pairs.table_items(tmp_path / "*.tsv", tmp_path / "p", skips=Skips(strict=True)))
    for name in ("gull", "4"):
        (tmp_path / "p" / f"{name}.jpg").write_bytes((tmp_path / "p" / "1.jpg").read_bytes())
    assert [item.id for item in pairs.table_items(tmp_path / "*.tsv", tmp_path / "p")] == [0, 1, 2, 3]
    wit_table(tmp_path / "wit-0.tsv.gz", [{"page_title": "x", "context_page_description": "a"}] * 3)
    wit_table(tmp_path / "wit-1.tsv.gz", [{"context_page_description": "a"}, {"page_title": "no text"}])
    with pytest.raises(ValueError, match=r"wit-1\.tsv\.gz row 2: without text"):
        list(wit.items(tmp_path / "wit-*.tsv.gz", skips=Skips(strict=True)))
    assert [item.id for item in wit.items(tmp_path / "wit-*.tsv.gz")] == [0, 1, 2, 3]
