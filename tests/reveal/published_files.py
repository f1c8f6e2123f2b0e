"""Published sets as tiny files in exactly their formats, with the oddities that real ones have."""

from __future__ import annotations

import csv
from pathlib import Path

from own_files import json_file, json_lines, picture

from reveal.evaluation import benchmarks
from reveal.evaluation.memory_evaluation import once
from reveal.sources import Skips, evqa

COLUMNS = (*evqa.NEEDED, "dataset_name", "wikipedia_url", "wikipedia_url_used_in_train", "evidence")


def rows_of_evqa(path: Path, rows: list[dict]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows({"question_type": "templated", "question": "what is it", **row} for row in rows)
    return str(path)


def write(folder: Path) -> Path:
    """Every set, with images of which one is damaged and some are missing."""
    images = folder / "images"
    for number in (7, 9, 11):
        picture(images / f"COCO_val2014_{number:012d}.jpg", number)
    picture(images / "a" / "4f1e2d3c4b5a6978.jpg", 1)
    picture(images / "inat" / "heron.jpg", 2)
    picture(images / "00" / "oven_00000001.jpg", 3)
    (images / "oven_00000002.jpg").write_bytes(b"no picture")
    rows = [(1, 7, "food ?"), (2, 9, "how many ?"), (3, 8, "lost ?"), (4, 11, "who ?"), (1, 9, "again ?")]
    questions = [dict(question_id=q, image_id=i, question=text) for q, i, text in rows]
    given = {1: ["surf"] * 3 + ["sea"] * 2, 2: ["two"] * 4 + ["zwei"], 3: ["x"] * 5, 4: ["one"]}
    types = {1: "other", 2: "number", 3: "other", 4: "other"}
    answers = [dict(question_id=q, answer_type=types[q], answers=[dict(answer=a) for a in given[q]]) for q in given]
    json_file(folder / "questions.json", {"questions": questions})
    json_file(folder / "annotations.json", {"annotations": answers})
    choices = dict(choices=["surf board", "kite", "boat", "sled"], correct_choice_idx=1)
    aokvqa = [
        dict(question_id="a", image_id=7, question="what", direct_answers=["kite"] * 2 + ["Kite"] * 8, **choices),
        dict(question_id="b", image_id=9, question="why", direct_answers=["fun"] * 10, **choices),
        dict(question_id="c", image_id=9, question="how", direct_answers=["so"] * 10, **choices),
        dict(question_id="d", image_id=9, question="when"),
        dict(question_id="b", image_id=11, question="twice", direct_answers=["x"] * 10, **choices),
    ]
    aokvqa[2]["difficult_direct_answer"] = True
    json_file(folder / "aokvqa.json", aokvqa)
    pictures = [
        dict(id=7, file_name="COCO_val2014_000000000007.jpg", domain="in-domain"),
        dict(id=9, file_name="COCO_val2014_000000000009.jpg", domain="near-domain"),
        dict(id=11, file_name="COCO_val2014_000000000011.jpg"),
        dict(id=12, file_name="lost.jpg", domain="out-domain"),
    ]
    notes = {7: ["Two giraffes by a tree.", "giraffes, standing"], 9: ["a red bus", " "], 11: [" "], 12: ["x"]}
    captions = [dict(image_id=i, caption=text) for i, texts in notes.items() for text in texts]
    json_file(folder / "captions.json", dict(images=pictures, annotations=captions))
    split = [
        dict(cocoid=7, split="test", filename="x", sentences=[dict(raw="a gull")]),
        dict(cocoid=9, split="train", filename="x", sentences=[dict(raw="a gull")]),
    ]
    json_file(folder / "dataset_coco.json", dict(images=split))
    known, new = dict(wikipedia_url_used_in_train="True"), dict(wikipedia_url_used_in_train="False")
    quoted = dict(question='what does "it"\neat', evidence='said, "so"', dataset_image_ids="4f1e2d3c4b5a6978|2697")
    rows_of_evqa(folder / "test.csv", [
        known | dict(answer="Ardea|grey, big heron", dataset_image_ids="2697|lost"),
        new | quoted | dict(answer="fish && seeds&&worms|moss", question_type="multi_answer"),
        dict(answer="", dataset_image_ids="2697"),
        dict(answer="The", question_type="2_hop", dataset_image_ids="2697"),
        dict(answer="Köln|Кёльн", question_type="automatic", dataset_image_ids="2697", question="wo liegt das"),
        dict(answer="x", question_type="trick", dataset_image_ids="2697"),
        dict(answer="x", dataset_image_ids=""),
    ])  # fmt: skip
    json_file(folder / "val.json", {"images": [dict(id=2697, file_name="inat/heron.jpg", width=1)]})
    line = dict(image_id="oven_00000001", question="how tall ?", data_split="val_unseen_question")
    unseen = dict(data_split="val_unseen_entity")
    json_lines(folder / "infoseek.jsonl", [
        line | dict(data_id="v0", answer=["61"], answer_eval=[{"wikidata": 61.0, "range": [54.9, 67.1]}]),
        line | dict(data_id="v1", answer=["東京"], answer_eval=["東京", "Tokyo"], question="food ?") | unseen,
        line | dict(data_id="v2", answer=["1889"], answer_eval=["1889", "in 1889"]),
        line | dict(data_id="v2", answer=["1"], answer_eval=["1"]),
        line | dict(data_id="v3"),
        line | dict(data_id="v4", image_id="oven_00000009", answer_eval=["x"]),
        line | dict(data_id="v5", image_id="oven_00000002", answer=["x"], answer_eval=["x"]),
        line | dict(data_id="v6", answer=["x"], answer_eval=["x"], question="food " * 40),
        dict(data_id="v7"),
    ])  # fmt: skip
    types = {"v0": "Numerical", "v1": "String", "v2": "Time"}
    json_lines(folder / "qtype.jsonl", [dict(data_id=name, question_type=kind) for name, kind in types.items()])
    json_lines(folder / "withkb.jsonl", [dict(data_id="v1", entity_id="Q1490", entity_text="Tokyo")])
    return folder


def sets(files: Path) -> dict:
    """All of them, by name."""
    images = str(files / "images")

    def at(name: str) -> str:
        return str(files / name)

    more = dict(types=at("qtype.jsonl"), entities=at("withkb.jsonl"))
    return {
        "okvqa": benchmarks.Vqa(path=at("questions.json"), annotations=at("annotations.json"), images=images),
        "aokvqa": benchmarks.AOkVqa(path=at("aokvqa.json"), images=images),
        "coco": benchmarks.Captions(path=at("captions.json"), images=images),
        "nocaps": benchmarks.NoCaps(path=at("captions.json"), images=images),
        "evqa": benchmarks.EncyclopedicVqa(path=at("test.csv"), images=images, names=[at("val.json")]),
        "infoseek": benchmarks.InfoSeek(path=at("infoseek.jsonl"), images=images, **more),
    }


def examples_of(benchmark: benchmarks.Benchmark) -> tuple[list[benchmarks.Example], dict[str, int]]:
    """The questions of a benchmark, and what it skips."""
    skips = Skips()
    return list(once(benchmark.examples(skips), skips)), dict(skips.counts)


NO_PICTURE = "whose picture is not there"
BY_HAND = {  # name: predictions, what is left out, metric, its value, parts
    "okvqa": (
        ["the surf", "2"],
        {NO_PICTURE: 1, "with fewer than 4 answers": 1, "whose id came before": 1},
        ("VQA accuracy", 1.0),
        {"other": 1.0, "number": 1.0},
    ),
    "aokvqa": (
        ["kite", "surf", "no"],
        {"without an answer": 1, "whose id came before": 1},
        ("direct answer", (2 / 3 + 0) / 2),  # the third is difficult
        {"multiple choice": 1 / 3},
    ),
    "coco": (
        ["nothing", "a red bus"],
        {NO_PICTURE: 1, "without a caption": 1},
        ("CIDEr-D", (0 + 10 * 3 / 4) / 2),  # no n-grams of four words
        {"ROUGE-L": 0.5},
    ),
    "nocaps": (
        ["nothing", "a red bus"],
        {NO_PICTURE: 1, "without a caption": 1},
        ("CIDEr-D", 3.75),
        {"in": 0, "near": 0},  # of a single picture each
    ),
    "evqa": (
        ["GREY big heron", "worms, fish and moss", "fish", "cologne"],
        {NO_PICTURE: 1, "without an answer": 2, "of an unknown question_type": 1, "without a picture": 1},
        ("exact match", 2 / 4),
        {"templated": 1, "single hop": 0.5, "multi_answer": 0.5, "automatic": 0, "page not in training": 0.5},
    ),
    "infoseek": (
        ["58 to 68", "tokyo", "the 1889", "", ""],
        {NO_PICTURE: 1, "without an answer": 1, "whose data_id came before": 1, "without image_id": 1},
        ("harmonic mean", 2 / (1 / 0.5 + 1 / 1)),
        {"unseen_question": 0.5, "unseen_entity": 1, "numerical": 1, "time": 1, "string": 1 / 3, "all alike": 0.6},
    ),
}
