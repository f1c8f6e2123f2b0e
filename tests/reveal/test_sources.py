"""Each reader reads a small file of its format, leaves out and counts what cannot be read, and keeps pictures apart."""

import gzip
import hashlib
import json

import numpy as np
import pytest
from own_files import json_file, json_lines, picture, tar, wit_table
from reveal_networks import one_line

from reveal.sources import Items, Question, Questions, Skips, coco, held_out, jsonl, pairs, wikidata, wit
from reveal.sources.image_names import Pictures
from reveal.sources.records import decode_picture, picture_bytes

URL = "https://x.org/a/Gull%20one.jpg?size=1"


@pytest.fixture
def birds(tmp_path):
    """A folder of two pictures of COCO's names and one whose name is in an address."""
    folder = tmp_path / "birds"
    picture(folder / "train2014" / "COCO_train2014_000000000007.jpg", 7)
    picture(folder / "000000000009.jpg", 9)
    picture(folder / "Gull one.jpg", 1)
    return folder


def test_pictures_are_found_by_whatever_they_are_called(birds):
    hashed = picture(birds / f"{hashlib.md5(b'https://x.org/b').hexdigest()}.png")
    pictures = Pictures(birds)
    assert (
        pictures.find(7)
        == pictures.find("COCO_train2014_000000000007.jpg")
        == birds / "train2014" / ("COCO_train2014_000000000007.jpg")
    )
    assert pictures.find(9) == pictures.find("000000000009") == birds / "000000000009.jpg"
    assert pictures.find(URL) == birds / "Gull one.jpg"
    assert pictures.find("https://x.org/b") == hashed
    assert pictures.find(8) is None and pictures.find("https://x.org/c.jpg") is None
    with pytest.raises(FileNotFoundError, match="no such folder"):
        Pictures(birds / "nowhere").find(1)


def test_the_general_format(tmp_path):
    picture(tmp_path / "a.png")
    entries = [
        {"id": 7, "source": "wiki", "image": "a.png", "title": "Gull", "text": "A seabird"},
        {"source": "graph", "image": None, "text": "gull eats fish"},
        {"image": "a.png"},
        {"image": "lost.png", "text": "x"},
        {"id": "seven", "text": "x"},
        {"image": None},
        ["no object"],
    ]
    path, skips = json_lines(tmp_path / "items.jsonl", entries), Skips()
    found = list(jsonl.items(path, skips=skips))
    assert [(item.id, item.source, dict(item.fields)) for item in found] == [
        (7, "wiki", {"title": "Gull", "text": "A seabird"}),
        (1, "graph", {"text": "gull eats fish"}),
        (2, "own", {}),
    ]
    assert found[0].picture == (tmp_path / "a.png").read_bytes() and found[1].picture is None
    assert skips.counts.total() == 4 and "1 whose picture is not there" in str(skips)
    with pytest.raises(ValueError, match="line 4: whose picture is not there") as caught:
        list(jsonl.items(path, skips=Skips(strict=True)))
    one_line(caught)
    assert [item.id for item in jsonl.items(path, without={"a.png"})] == [1]


def test_questions_of_the_general_format(tmp_path):
    picture(tmp_path / "pictures" / "q.png")
    entries = [
        {"id": 3, "image": "q.png", "text": "what", "answers": ["a", "a", "b"], "gold": 8, "negatives": [7, 9]},
        {"image": "q.png", "answer": "a gull", "group": "near", "image_id": 44},
        {"image": "q.png", "answer": "a gull", "gold": "8"},
        {"image": "q.png", "answers": [1]},
        {"text": "no picture", "answer": "a"},
    ]
    path = tmp_path / "questions.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(entry) + "\n" for entry in entries).encode()))
    skips, image = Skips(), tmp_path / "pictures" / "q.png"
    assert list(jsonl.questions(path, tmp_path / "pictures", skips=skips)) == [
        Question(3, image, "what", ("a", "a", "b"), "", 8, (7, 9)),
        Question(1, image, "", ("a gull",), "near"),
    ]
    assert skips.counts.total() == 3
    assert [one.id for one in jsonl.questions(path, tmp_path / "pictures", without={"44"})] == [3]


def test_wit(tmp_path, birds):
    rows = [
        dict(image_url=URL, hierarchical_section_title="Gull / Food", context_page_description='A "sea"\tbird'),
        dict(image_url=URL, language="de", context_page_description="Eine Möwe"),
        dict(image_url=URL, context_section_description="It eats.", caption_alt_text_description="a gull"),
        dict(image_url="https://x.org/lost.jpg", context_page_description="x"),
        dict(image_url=URL),
    ]
    path, skips = wit_table(tmp_path / "wit_v1.train-00000-of-00010.tsv.gz", rows), Skips()
    found = list(wit.items(path, birds, skips=skips))
    assert [item.id for item in found] == [0, 2] and all(item.picture for item in found)
    assert found[0].fields == {"title": "Gull / Food", "page": 'A "sea"\tbird'}
    assert found[1].fields == {"section": "It eats.", "alt": "a gull"}
    assert str(skips) == "2 records left out (1 whose picture is not there, 1 without text)"
    assert [item.fields for item in wit.items(path, birds, captions=False)][1] == {"section": "It eats."}
    assert [(item.id, item.picture) for item in wit.items(tmp_path, first_id=100)][2] == (103, None)
    asked = list(wit.questions(path, birds, first_id=100))
    assert [(one.id, one.gold, one.answers) for one in asked] == [(102, 102, ("a gull",))]
    assert list(wit.items(path, birds, without={URL})) == []
    path.write_bytes(gzip.compress(b"en\tonly two\n"))
    with pytest.raises(ValueError, match="row 1: that have not 17 columns"):
        list(wit.items(path, skips=Skips(strict=True)))


def test_cc12m(tmp_path, birds):
    path = tmp_path / "cc12m.tsv"
    path.write_text(f"{URL}\ta gull over the sea\nhttps://x.org/lost.jpg\tx\n{URL}\t\n", "utf-8")
    skips = Skips()
    (item,) = pairs.table_items(path, birds, first_id=5, skips=skips)
    assert (item.id, item.source, item.fields) == (5, "cc12m", {"text": "a gull over the sea"})
    assert skips.counts == {"whose picture is not there": 1, "without caption": 1}
    (asked,) = pairs.table_questions(path, birds)
    assert asked == Question(0, birds / "Gull one.jpg", "", ("a gull over the sea",))
    assert list(pairs.table_questions(path, birds, without={URL})) == []


def test_tars_of_img2dataset(tmp_path, birds):
    data = (birds / "000000000009.jpg").read_bytes()
    members = {
        "0.jpg": data,
        "0.txt": b"a gull",
        "0.json": json.dumps({"caption": "other", "url": URL}).encode(),
        "1.json": b'{"caption": "from json"}',
        "1.jpg": data,
        "2.txt": b"no picture",
        "3.jpg": data,
    }
    path, skips = tar(tmp_path / "00000.tar", members), Skips()
    found = list(pairs.tar_items(path, skips=skips))
    assert [(item.id, item.fields["text"], item.picture) for item in found] == [
        (0, "a gull", data),
        (1, "from json", data),
    ]
    assert skips.counts == {"whose picture is not there": 1, "without caption": 1}
    asked = list(pairs.tar_questions(tmp_path))
    assert [(one.id, one.answers) for one in asked] == [(0, ("a gull",)), (1, ("from json",))]
    assert picture_bytes(asked[1].image) == data
    np.testing.assert_array_equal(decode_picture(asked[0].image, "x"), decode_picture(birds / "000000000009.jpg", "x"))
    assert [one.id for one in pairs.tar_questions(path, without={URL})] == [1]
    whole = bytearray(path.read_bytes())
    header = whole.index(b"0.txt")
    whole[header : header + 64] = b"?" * 64
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="damaged"):
        list(pairs.tar_questions(path))
    path.write_bytes(whole[: len(data) // 2])
    with pytest.raises(ValueError, match="cut short") as caught:
        list(pairs.tar_questions(path))
    one_line(caught)


def test_wikidata(tmp_path):
    lines = ["Q1\tP1\tQ9", "Q2\tP1\tQ9", "Q3\tP1\tQ9", "Q1\tP2\tQ2", "Q2\tP2\tQ5", "no triple"]
    path = tmp_path / "triples.tsv"
    path.write_text("\n".join(lines), "utf-8")
    (tmp_path / "names.txt").write_text("Q1\tgull\tgulls\nQ2\tfish\nQ9\tanimal\n", "utf-8")
    (tmp_path / "relations.txt").write_text("P2\teats\n", "utf-8")
    skips = Skips()
    found = list(wikidata.items(path, tmp_path / "names.txt", tmp_path / "relations.txt", most=2, skips=skips))
    assert [(item.id, item.fields["text"]) for item in found] == [(0, "gull eats fish ."), (1, "fish eats Q5 .")]
    assert skips.counts == {"that are no triples": 1, "of which only frequent objects are told": 1}
    (first, *_) = wikidata.items(path)
    assert first.fields["text"] == "Q1 P1 Q9 . Q1 P2 Q2 ." and first.picture is None


@pytest.fixture
def vqa(tmp_path):
    asked = [(1, 7, "what is it"), (2, 7, "how many"), (3, 9, "where"), (4, 8, "lost"), (5, 9, "nobody knows")]
    told = {1: ["gull", "bird", "gull"], 2: ["two"], 3: ["sea"], 4: ["x"]}
    questions = [dict(question_id=q, image_id=i, question=text) for q, i, text in asked]
    answers = [
        dict(question_id=q, answers=[dict(answer=a, raw_answer=a + "s", answer_id=n) for n, a in enumerate(given)])
        for q, given in told.items()
    ]
    return (
        json_file(tmp_path / "questions.json", {"questions": questions}),
        json_file(tmp_path / "annotations.json", {"annotations": answers}),
    )


def test_vqa_and_okvqa(vqa, birds):
    questions, annotations = vqa
    skips = Skips()
    found = list(coco.vqa_questions(questions, birds, annotations, skips=skips))
    assert [(one.id, one.text, one.answers) for one in found] == [
        (1, "what is it", ("gull", "bird", "gull")),
        (2, "how many", ("two",)),
        (3, "where", ("sea",)),
    ]
    assert skips.counts == {"whose picture is not there": 1, "without an answer": 1}
    assert next(coco.vqa_questions(questions, birds, annotations, answer="raw_answer")).answers[0] == "gulls"
    assert next(coco.vqa_questions(questions, birds)).answers == ()


def test_vqa_is_knowledge_without_the_pictures_of_the_evaluation(vqa, birds, tmp_path):
    questions, annotations = vqa
    found = list(coco.vqa_items(questions, annotations, birds, first_id=1000))
    assert [(item.id, item.fields["text"]) for item in found] == [
        (1007, "Question: what is it Answer: gull, bird Question: how many Answer: two"),
        (1009, "Question: where Answer: sea"),
    ]
    held_out = json_file(tmp_path / "val.json", {"questions": [dict(question_id=9, image_id=7, question="x")]})
    options = {"annotations": str(annotations), "images": str(birds)}
    safe = Items("vqa", str(questions), options, leave_out=[str(held_out)])
    assert [item.id for item in safe] == [9] == [item.id for item in safe]


def test_aokvqa(tmp_path, birds):
    rows = [
        dict(question_id="22Mex", image_id=7, question="what", direct_answers=["a"] * 10, difficult_direct_answer=True),
        dict(question_id="23Mex", image_id=9, question="why"),
        dict(question_id="24Mex", image_id=None),
    ]
    path, skips = json_file(tmp_path / "aokvqa.json", rows), Skips()
    first, second = coco.aokvqa_questions(path, birds, skips=skips)
    assert (first.id, len(first.answers), first.group) == (0, 10, "difficult")
    assert (second.id, second.answers, second.group) == (1, (), "")
    assert skips.counts == {"without image_id": 1} and held_out.image_ids(path) == {"7", "9"}


def test_captions_of_coco_nocaps_and_karpathys_split(tmp_path, birds):
    images = [dict(id=7, file_name="COCO_train2014_000000000007.jpg"), dict(id=9, domain="near-domain")]
    notes = [dict(image_id=7, caption=" a gull "), dict(image_id=7, caption="a bird"), dict(image_id=9, caption="c")]
    path = json_file(tmp_path / "captions.json", dict(images=images, annotations=notes))
    first, second = Questions("nocaps", str(path), {"images": str(birds)})
    assert (first.id, first.answers, first.group) == (7, ("a gull", "a bird"), "")
    assert (second.answers, second.group) == (("c",), "near-domain")
    assert held_out.image_ids(path) == {"7", "9", "COCO_train2014_000000000007.jpg"}
    rows = [
        dict(cocoid=7, split="restval", filename="COCO_train2014_000000000007.jpg", sentences=[dict(raw="a gull")]),
        dict(cocoid=9, split="test", filename="x", sentences=[]),
    ]
    split = json_file(tmp_path / "dataset_coco.json", dict(images=rows))
    (only,) = coco.karpathy(split, birds)
    assert (only.id, only.answers, only.group) == (7, ("a gull",), "restval")
    assert [one.id for one in coco.karpathy(split, birds, splits=["test"])] == [9]
    assert list(coco.karpathy(split, birds, splits="val,restvals")) == []


def test_what_no_reader_reads_is_refused_in_a_line(tmp_path):
    for change, said in {
        ("parquet", "x"): "choose one of jsonl, folder, wit",
        ("wit", "x", (("image", "y"),)): "image is no option; it has images, language",
        ("cc12m", "x"): "images is missing in options",
    }.items():
        reader, path, *options = change
        with pytest.raises(ValueError, match=said) as caught:
            Items(reader, path, dict(*options))
        one_line(caught)
    with pytest.raises(ValueError, match=r"leave_out=\[\]"):
        Items("wikidata", "x", leave_out=["y"])
    with pytest.raises(FileNotFoundError, match="no such file"):
        list(Items("wikidata", str(tmp_path / "x.tsv")))
    with pytest.raises(ValueError, match="no list of questions"):
        list(coco.vqa_questions(json_file(tmp_path / "x.json", {}), tmp_path))
