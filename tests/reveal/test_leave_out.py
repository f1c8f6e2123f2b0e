"""The leak rule: images of an evaluation set stay out of the memory, whatever a file calls them."""

import json
import shutil

import pytest
from own_files import items, json_file, json_lines, picture, questions, tar, wit_table
from published_files import rows_of_evqa, write
from refusal import refused

from reveal.sources import Question, held_out
from reveal.sources.images import all_names, coco_names
from reveal.sources.records import HELD_OUT


def test_images_of_coco_stay_out_by_all_their_names(tmp_path):
    """COCO's image 42 is in the evaluation; each format has it by another name, and has one that may stay."""
    names = {42: "COCO_val2014_000000000042", 7: "COCO_train2014_000000000007"}
    images = tmp_path / "coco"
    for number, name in names.items():
        picture(images / f"{name}.jpg", number)
    asked = [{"question_id": n, "image_id": n, "question": "what"} for n in names]
    answers = [{"question_id": n, "answers": [{"answer": "gull"}]} for n in names]
    notes = [{"image_id": n, "caption": "a"} for n in names]
    captions = json_file(tmp_path / "c.json", {"images": [{"id": n} for n in names], "annotations": notes})
    annotations = json_file(tmp_path / "a.json", {"annotations": answers})
    every = (
        ("vqa", json_file(tmp_path / "q.json", {"questions": asked}), {"annotations": annotations, "images": images}),
        ("coco", captions, {"images": images}),
        ("jsonl", json_lines(tmp_path / "i.jsonl", [{"id": n, "image": f"coco/{names[n]}.jpg"} for n in names]), {}),
        ("folder", images, {}),
    )
    held = [
        json_file(tmp_path / "okvqa.json", {"questions": asked[:1]}),
        json_lines(tmp_path / "e.jsonl", [{"image": f"{names[42]}.jpg"}]),
        json_file(tmp_path / "k.json", {"images": [{"cocoid": 42}]}),
        tmp_path / "evaluation",
    ]
    (held[-1] / "other").mkdir(parents=True)
    shutil.copy(images / f"{names[42]}.jpg", held[-1] / "other" / "renamed.jpg")
    for reader, path, options in every:
        for out in held:
            (kept,), counts = items(reader, path, [out], strict=True, **options)
            assert kept.picture == (images / f"{names[7]}.jpg").read_bytes(), (reader, out.name)
            assert counts == {HELD_OUT: 1}


def test_images_of_the_web_stay_out_by_address_number_and_content(tmp_path):
    """The evaluation has an address, a file's bytes, or COCO's number at the end of an address."""
    name = "COCO_val2014_000000000042.jpg"
    addresses = [f"http://images.cocodataset.org/val2014/{name}", "https://x.org/tern.jpg"]
    data, other = (picture(tmp_path / "p" / one, n).read_bytes() for n, one in enumerate((name, "tern.jpg")))
    picture(tmp_path / "held" / "x.jpg", 0)
    texts = {"context_page_description": "A", "caption_alt_text_description": "a"}
    table = wit_table(tmp_path / "wit.tsv.gz", [{"image_url": one} | texts for one in addresses])
    (tmp_path / "cc.tsv").write_text("".join(f"{one}\ta\n" for one in addresses))
    about = [json.dumps({"url": one}).encode() for one in addresses]
    running = {"000000042.jpg": other, "000000042.json": about[1], "000000042.txt": b"b"}  # no number of COCO's
    web = tar(tmp_path / "w.tar", {"0.jpg": data, "0.json": about[0], "0.txt": b"a"} | running)
    question = {"question_id": 1, "image_id": 42, "question": "what"}
    by_number = json_file(tmp_path / "okvqa.json", {"questions": [question]})
    by_address = json_lines(tmp_path / "e.jsonl", [{"image": addresses[0]}])
    images = {"images": tmp_path / "p"}
    sources = ("wit", table, images), ("cc12m", tmp_path / "cc.tsv", images), ("webdataset", web, {})
    for reader, path, options in sources:
        for out in (by_number, by_address, tmp_path / "held"):
            ((kept,), _), ((asked,), _) = (read(reader, path, [out], **options) for read in (items, questions))
            assert kept.picture == other and asked.id == 1, (reader, out.name)
    key = json_lines(tmp_path / "k.jsonl", [{"image": "0.png"}])
    assert [item.id for item in items("webdataset", web, [key])[0]] == [1]


@pytest.mark.parametrize(("reader", "name", "held", "options"), [
    ("karpathy", "dataset_coco.json", 7, {"splits": ["train", "test"]}),
    ("evqa", "test.csv", 2697, {"names": "val.json"}),
    ("infoseek", "infoseek.jsonl", "oven_00000001", {}),
])  # fmt: skip
def test_questions_about_held_out_images_are_counted(tmp_path, reader, name, held, options):
    files = write(tmp_path)
    options = {key: files / value if key == "names" else value for key, value in options.items()}
    out = json_lines(tmp_path / "held.jsonl", [{"image": f"{held}.jpg"}])
    found, counts = questions(reader, files / name, [out], images=files / "images", **options)
    every, before = questions(reader, files / name, images=files / "images", **options)
    assert len(found) == 1 and counts.pop(HELD_OUT) == len(every) - 1 > 0 and counts == before


def test_names_of_images_in_a_file(tmp_path):
    lines = [{"id": 0, "image": "q1.jpg"}, {"id": 1, "image": "q2.jpg", "image_id": 44}, {"id": 2, "text": "none"}, 5]
    text = "\ufeff" + "".join(json.dumps(line) + "\n" for line in lines) + '{"image": "a\u2028b.jpg"}\n'
    (tmp_path / "e.jsonl").write_text(text, "utf-8")
    name = "0013ea20"
    nocaps = {"id": 9, "file_name": f"{name}.jpg", "open_images_id": name, "coco_url": f"https://x.org/{name}.jpg"}
    url = "http://images.x.org/000000000042.jpg"
    rows = [nocaps, {"id": 42, "file_name": "000000000042.jpg", "flickr_url": url}, {"id": 3, "file_name": "3.jpg"}]
    others = {"3.jpg", "42", "000000000042.jpg", url}
    captions = json_file(tmp_path / "c.json", {"images": rows})
    for path, names in {
        tmp_path / "e.jsonl": {"q1.jpg", "44", "a\u2028b.jpg"},
        captions: {"0013ea20.jpg", "0013ea20", nocaps["coco_url"]} | others,
        json_file(tmp_path / "a.json", [{"image_id": 7}, {"image_id": None}]): {"7"},
        rows_of_evqa(tmp_path / "t.csv", [{"answer": "x", "dataset_image_ids": "2697|4f1e"}]): {"2697", "4f1e"},
    }.items():
        assert held_out.image_ids(path) == names
    for number in (9, 42):
        picture(tmp_path / "p" / f"{number:012d}.jpg", number)
    coco = json_file(tmp_path / "o.json", {"images": [{"id": 9, "file_name": "000000000009.jpg"}, {"id": 42}]})
    assert [item.id for item in items("coco", coco, [captions], images=tmp_path / "p")[0]] == [9]  # NoCaps' 9 is not it
    picture(tmp_path / "n" / nocaps["file_name"], 1)
    own = json_lines(tmp_path / "own.jsonl", [{"image": "birds/0013ea20.png"}])
    assert items("coco", captions, [own], images=tmp_path / "n")[0] == []


def test_files_that_name_no_image_are_refused(tmp_path):
    (tmp_path / "t.txt").write_text("no json")
    none = json_lines(tmp_path / "n.jsonl", [{"id": 0, "text": "x"}])
    no_list = json_file(tmp_path / "5.json", 5)
    for path in (none, tmp_path / "t.txt", json_file(tmp_path / "n.json", {"images": [{"width": 1}]}), no_list):
        refused(ValueError, held_out.image_ids, path, match=str(path))


def test_folders_suffixes_and_underscores_are_no_difference(tmp_path):
    for name in ("1.png", "birds/gull.png", "Flag of France.png", "stays.png"):
        picture(tmp_path / "p" / name, len(name))
    memory = json_lines(tmp_path / "p" / "i.jsonl", [{"image": name} for name in ("birds/gull.png", "stays.png")])
    asked = json_lines(tmp_path / "e.jsonl", [{"image": f"{n}.jpg"} for n in ("q/1", "gull", "q/Flag_of_France")])
    ((kept,), _), ((same,), _) = items("jsonl", memory, [asked]), items("folder", tmp_path / "p", [asked])
    assert kept.picture == same.picture == (tmp_path / "p" / "stays.png").read_bytes()
    assert all_names("https://x.org/a b.jpg") == {"https://x.org/a b.jpg"}
    assert all_names("St. Mary") == {"St. Mary", "St._Mary"}
    names = coco_names("a/COCO_val2014_000000000042.jpg")
    assert {"42", "000000000042", "COCO_train2014_000000000042"} <= names and names == coco_names("42")
    assert not coco_names("q/42.jpg") and not coco_names("gull") and not coco_names("1234567890123")


def test_a_link_to_nothing_has_no_content(tmp_path):
    kept = picture(tmp_path / "p" / "a.png")
    (tmp_path / "p" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert len(held_out.contents([tmp_path / "p"])) == 1
    assert held_out.image_hash(Question(0, tmp_path / "p" / "gone.png")) is None
    assert held_out.image_hash(Question(0, kept)) in held_out.contents([tmp_path / "p"])
    (tmp_path / "p" / "loop.png").symlink_to("loop.png")
    refused(OSError, held_out.contents, [tmp_path / "p"], match=r"loop\.png")
