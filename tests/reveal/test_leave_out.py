"""The leak rule: pictures of an evaluation set stay out of the memory, whatever a file calls them."""

import json
import shutil

import pytest
from own_files import json_file, json_lines, picture, tar, wit_table
from published_files import rows_of_evqa, write
from reveal_networks import one_line

from reveal.sources import Items, Question, Questions, Skips, held_out
from reveal.sources.image_names import all_names, coco_names, contents, picture_hash
from reveal.sources.records import HELD_OUT


def test_evaluation_pictures_stay_out_whatever_they_are_called(tmp_path):
    """COCO's picture 42 is in the evaluation; each format has it by another name, and has one that may stay."""
    names = {42: "COCO_val2014_000000000042", 7: "COCO_train2014_000000000007"}
    for number, name in names.items():
        picture(tmp_path / "coco" / f"{name}.jpg", number)
    asked = [{"question_id": n, "image_id": n, "question": "what"} for n in names]
    questions = json_file(tmp_path / "q.json", {"questions": asked})
    answers = [{"question_id": n, "answers": [{"answer": "gull"}]} for n in names]
    notes = json_file(tmp_path / "a.json", {"annotations": answers})
    captions = json_file(
        tmp_path / "c.json",
        {"images": [{"id": n} for n in names], "annotations": [{"image_id": n, "caption": "a"} for n in names]},
    )
    general = json_lines(tmp_path / "i.jsonl", [{"id": n, "image": f"coco/{names[n]}.jpg"} for n in names])
    images = str(tmp_path / "coco")
    every = {
        "vqa": (str(questions), {"annotations": str(notes), "images": images}),
        "coco": (str(captions), {"images": images}),
        "jsonl": (str(general), {}),
        "folder": (images, {}),
    }
    held = [
        json_file(tmp_path / "okvqa.json", {"questions": asked[:1]}),
        json_lines(tmp_path / "e.jsonl", [{"image": f"{names[42]}.jpg"}]),
        json_file(tmp_path / "k.json", {"images": [{"cocoid": 42}]}),
        tmp_path / "evaluation",
    ]
    (held[-1] / "other").mkdir(parents=True)
    shutil.copy(tmp_path / "coco" / f"{names[42]}.jpg", held[-1] / "other" / "renamed.jpg")
    for reader, (path, options) in every.items():
        for out in held:
            skips = Skips(strict=True)
            (kept,) = Items(reader, path, options, leave_out=[str(out)]).read(skips)
            assert kept.picture == (tmp_path / "coco" / f"{names[7]}.jpg").read_bytes(), (reader, out.name)
            assert skips.counts == {"whose picture is in an evaluation set": 1}


def test_addresses_keys_and_contents_of_the_web_stay_out(tmp_path):
    address, data = "https://x.org/gull.jpg", picture(tmp_path / "p" / "gull.jpg", 1).read_bytes()
    other = picture(tmp_path / "p" / "tern.jpg", 2).read_bytes()
    rows = [{"image_url": f"https://x.org/{name}.jpg", "context_page_description": "A"} for name in ("gull", "tern")]
    table = wit_table(tmp_path / "wit.tsv.gz", rows)
    (tmp_path / "cc.tsv").write_text(f"{address}\ta\nhttps://x.org/tern.jpg\tb\n")
    about = json.dumps({"url": address}).encode()
    web = tar(tmp_path / "w.tar", {"0.jpg": data, "0.json": about, "0.txt": b"a", "1.jpg": other, "1.txt": b"b"})
    named = json_lines(tmp_path / "e.jsonl", [{"image": address}])
    picture(tmp_path / "held" / "x.jpg", 1)
    images = {"images": str(tmp_path / "p")}
    for reader, path, options in (
        ("wit", table, images),
        ("cc12m", tmp_path / "cc.tsv", images),
        ("webdataset", web, {}),
    ):
        for out in (named, tmp_path / "held"):
            (kept,) = Items(reader, str(path), options, leave_out=[str(out)])
            assert kept.picture == other, (reader, out.name)


def test_pictures_of_cocos_by_their_address_stay_out(tmp_path):
    """The evaluation has COCO's number, the web's tables have the address."""
    name = "COCO_val2014_000000000042.jpg"
    data, other = (picture(tmp_path / "p" / one, n).read_bytes() for n, one in enumerate((name, "tern.jpg")))
    addresses = [f"http://images.cocodataset.org/val2014/{name}", "https://x.org/tern.jpg"]
    table = wit_table(
        tmp_path / "wit.tsv.gz", [{"image_url": one, "context_page_description": "A"} for one in addresses]
    )
    (tmp_path / "cc.tsv").write_text("".join(f"{one}\ta\n" for one in addresses))
    about = [json.dumps({"url": one}).encode() for one in addresses]
    members = {"000000042.jpg": other, "000000042.json": about[1], "000000042.txt": b"b"}  # a running number
    web = tar(tmp_path / "w.tar", {"0.jpg": data, "0.json": about[0], "0.txt": b"a"} | members)
    held = json_file(tmp_path / "okvqa.json", {"questions": [{"question_id": 1, "image_id": 42, "question": "what"}]})
    images = {"images": str(tmp_path / "p")}
    for reader, path, options in (
        ("wit", table, images),
        ("cc12m", tmp_path / "cc.tsv", images),
        ("webdataset", web, {}),
    ):
        (kept,) = Items(reader, str(path), options, leave_out=[str(held)])
        assert kept.picture == other, reader


def test_names_of_coco():
    names = coco_names("a/COCO_val2014_000000000042.jpg")
    assert {"42", "000000000042", "COCO_train2014_000000000042"} <= names and names == coco_names("42")
    assert not coco_names("q/42.jpg") and not coco_names("gull") and not coco_names("1234567890123")


def test_questions_about_held_out_pictures_are_counted(tmp_path):
    files = write(tmp_path)
    images = str(files / "images")
    for reader, name, held, options, kept in (
        ("karpathy", "dataset_coco.json", 7, {"splits": ["train", "test"]}, 1),
        ("evqa", "test.csv", 2697, {"names": str(files / "val.json")}, 1),
        ("infoseek", "infoseek.jsonl", "oven_00000001", {}, 1),
    ):
        out = json_lines(tmp_path / "held.jsonl", [{"image": f"{held}.jpg"}])
        skips, before = Skips(), Skips()
        found = list(Questions(reader, str(files / name), {"images": images, **options}, [str(out)]).read(skips))
        every = list(Questions(reader, str(files / name), {"images": images, **options}).read(before))
        assert len(found) == kept, reader
        left = {reason: count for reason, count in skips.counts.items() if reason != HELD_OUT}
        assert skips.counts[HELD_OUT] == len(every) - kept > 0 and left == before.counts, reader


NOCAPS = {"id": 9, "file_name": "0013ea20.jpg", "open_images_id": "0013ea20", "coco_url": "https://x.org/0013ea20.jpg"}


def test_a_question_of_the_general_format_has_the_picture_and_not_the_number(tmp_path):
    lines = [{"id": 0, "image": "q1.jpg"}, {"id": 1, "image": "q2.jpg", "image_id": 44}, {"id": 2, "text": "none"}, 5]
    text = "\ufeff" + "".join(json.dumps(line) + "\n" for line in lines) + '{"image": "a\u2028b.jpg"}\n'
    path = tmp_path / "e.jsonl"
    path.write_text(text, "utf-8")
    assert held_out.image_ids(path) == {"q1.jpg", "44", "a\u2028b.jpg"}


def test_pictures_of_coco_and_nocaps_are_called_by_all_their_names(tmp_path):
    url = "http://images.x.org/000000000042.jpg"
    rows = [NOCAPS, {"id": 42, "file_name": "000000000042.jpg", "flickr_url": url}, {"id": 3, "file_name": "3.jpg"}]
    path = json_file(tmp_path / "c.json", {"images": rows})
    numbers = {"42", "000000000042.jpg", url}
    assert held_out.image_ids(path) == {"0013ea20.jpg", "0013ea20", NOCAPS["coco_url"], "3.jpg", *numbers}
    for number in (9, 42):
        picture(tmp_path / "p" / f"{number:012d}.jpg", number)
    other = {"images": [{"id": 9, "file_name": "000000000009.jpg"}, {"id": 42}]}
    coco = json_file(tmp_path / "o.json", other)
    options = {"images": str(tmp_path / "p")}
    assert [item.id for item in Items("coco", str(coco), options, leave_out=[str(path)])] == [9]
    picture(tmp_path / "n" / NOCAPS["file_name"], 1)
    own = json_lines(tmp_path / "own.jsonl", [{"image": "birds/0013ea20.png"}])
    assert list(Items("coco", str(path), {"images": str(tmp_path / "n")}, leave_out=[str(own)])) == []


def test_files_that_name_no_picture_are_refused_and_encyclopedic_vqa_is_read(tmp_path):
    table = rows_of_evqa(tmp_path / "t.csv", [{"answer": "x", "dataset_image_ids": "2697|4f1e"}])
    assert held_out.image_ids(table) == {"2697", "4f1e"}
    (tmp_path / "t.txt").write_text("no json")
    none = json_lines(tmp_path / "n.jsonl", [{"id": 0, "text": "x"}])
    for path in (none, tmp_path / "t.txt", json_file(tmp_path / "n.json", {"images": [{"width": 1}]})):
        with pytest.raises(ValueError, match=r"names no pictures|to leave out its pictures, give a") as caught:
            held_out.image_ids(path)
        assert str(path) in one_line(caught)
    with pytest.raises(ValueError, match="no list of questions"):
        held_out.image_ids(json_file(tmp_path / "5.json", 5))


def test_folders_suffixes_and_underscores_are_no_difference(tmp_path):
    for name in ("1.png", "birds/gull.png", "Flag of France.png", "stays.png"):
        picture(tmp_path / "p" / name, len(name))
    memory = json_lines(tmp_path / "p" / "i.jsonl", [{"image": name} for name in ("birds/gull.png", "stays.png")])
    asked = json_lines(tmp_path / "e.jsonl", [{"image": f"{n}.jpg"} for n in ("q/1", "gull", "q/Flag_of_France")])
    (kept,) = Items("jsonl", str(memory), leave_out=[str(asked)])
    (same,) = Items("folder", str(tmp_path / "p"), leave_out=[str(asked)])
    assert kept.picture == same.picture == (tmp_path / "p" / "stays.png").read_bytes()
    assert all_names("https://x.org/a b.jpg") == {"https://x.org/a b.jpg"}
    assert all_names("St. Mary") == {"St. Mary", "St._Mary"}


def test_what_has_no_content_is_no_picture_of_an_evaluation(tmp_path):
    kept = picture(tmp_path / "p" / "a.png")
    (tmp_path / "p" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert len(contents([tmp_path / "p"])) == 1
    assert picture_hash(Question(0, tmp_path / "p" / "gone.png")) is None
    assert picture_hash(Question(0, kept)) in contents([tmp_path / "p"])
    (tmp_path / "p" / "loop.png").symlink_to("loop.png")
    with pytest.raises(OSError, match=r"loop\.png"):
        contents([tmp_path / "p"])
