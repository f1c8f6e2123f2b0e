"""The leak rule: pictures of an evaluation set stay out of the memory, whatever a file calls them."""

import json
import shutil

from own_files import json_file, json_lines, picture, tar, wit_table

from reveal.sources import Items, Skips
from reveal.sources.records import coco_names


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


def test_names_of_coco():
    names = coco_names("a/COCO_val2014_000000000042.jpg")
    assert {"42", "000000000042", "COCO_train2014_000000000042"} <= names and names == coco_names("42")
    assert not coco_names("q/42.jpg") and not coco_names("gull") and not coco_names("1234567890123")
