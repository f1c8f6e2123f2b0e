"""Encyclopedic-VQA and InfoSeek: their files, and their evaluators' rules."""

import pytest
from own_files import json_file
from published_files import write

from reveal.metrics import evqa as evqa_metrics
from reveal.metrics import infoseek as infoseek_metrics
from reveal.sources import Questions, Skips, evqa, infoseek


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sets"))


def test_encyclopedic_vqa_is_read(files):
    skips, names = Skips(), str(files / "val.json")
    found = list(evqa.entries(files / "test.csv", files / "images", names, skips=skips))
    assert [(one.question.id, one.kind, one.seen, one.image) for one in found] == [
        (0, "templated", True, "2697"),
        (10, "multi_answer", False, "4f1e2d3c4b5a6978"),
        (11, "multi_answer", False, "2697"),
        (30, "2_hop", None, "2697"),
        (40, "automatic", None, "2697"),
    ]
    assert found[0].references == ("Ardea", "grey, big heron") and found[0].question.image.name == "heron.jpg"
    assert found[1].question.text == 'what does "it"\neat'
    assert found[1].references == ("fish && seeds&&worms", "moss")
    assert found[1].question.answers == ("fish, seeds, worms", "moss")
    assert found[4].references == ("Köln", "Кёльн")
    assert skips.counts == {
        "whose picture is not there": 1,
        "without an answer": 1,
        "of an unknown question_type": 1,
        "without a picture": 1,
    }
    options = {"images": str(files / "images"), "names": names, "kinds": ["multi_answer"], "most": 1}
    assert [one.id for one in Questions("evqa", str(files / "test.csv"), options)] == [10]
    options = {"images": str(files / "images")}
    assert [one.id for one in Questions("evqa", str(files / "test.csv"), options)] == [10]  # names are needed
    plain = json_file(files / "id2name.json", {"2697": "inat/heron.jpg"})
    assert evqa.names_of([plain, names]) == {"2697": "inat/heron.jpg"}


def test_invalid_tables_are_refused(files, tmp_path):
    texts = ("question,answer\nx,y\n", f'{",".join(evqa.NEEDED)}\nq,a,templated,1\n"q,a,templated,1\nq,a,templated,1\n')
    for text, value in zip(texts, ("question_type", "row 3"), strict=True):
        (tmp_path / "broken.csv").write_text(text)
        with pytest.raises(ValueError, match=value):
            list(evqa.entries(tmp_path / "broken.csv", files / "images"))
    with pytest.raises(ValueError, match=r"x\.json"):
        evqa.names_of([json_file(tmp_path / "x.json", [1])])
    with pytest.raises(ValueError, match="x"):
        list(evqa.entries(files / "test.csv", files / "images", kinds=["x"]))
    with pytest.raises(ValueError, match="row 4"):
        list(evqa.entries(files / "test.csv", files / "images", str(files / "val.json"), most=1, skips=Skips(True)))


def test_infoseek_is_read(files):
    skips, options = Skips(), (files / "qtype.jsonl", files / "withkb.jsonl")
    found = list(infoseek.entries(files / "infoseek.jsonl", files / "images", *options, skips=skips))
    assert [(one.name, one.question.id, one.kind, one.split) for one in found[:3]] == [
        ("v0", 0, "numerical", "unseen_question"),
        ("v1", 1, "string", "unseen_entity"),
        ("v2", 2, "time", "unseen_question"),
    ]
    assert found[0].span == (54.9, 67.1) and found[0].references == () and found[0].question.answers == ("61",)
    assert found[1].references == ("東京", "Tokyo") and found[1].entity == "Q1490" and found[1].span is None
    assert found[3].references == () and found[3].question.answers == ()
    assert skips.counts == {"whose data_id came before": 1, "whose picture is not there": 1, "without image_id": 1}
    alone = list(infoseek.entries(files / "infoseek.jsonl", files / "images"))
    assert [one.kind for one in alone[:3]] == ["numerical", "string", "string"]
    asked = Questions("infoseek", str(files / "infoseek.jsonl"), {"images": str(files / "images")})
    assert [one.answers for one in asked][:2] == [("61",), ("東京",)]


def test_ranges_of_infoseek():
    assert infoseek.span_of({"wikidata": -10, "range": [-9, -11]}) == (-11, -9)
    assert infoseek.span_of([{"wikidata": 10}]) == pytest.approx((9, 11))
    assert infoseek.span_of([{"wikidata": 10, "range": ["x"]}]) == pytest.approx((9, 11))
    assert all(infoseek.span_of(given) is None for given in (None, [], ["10"], {"range": [1]}, {"wikidata": True}))


@pytest.mark.parametrize(
    ("prediction", "references", "kind", "right"),
    [
        ("The answer is two.", ["2"], "templated", True),
        ("Two", ["a pair", "2"], "2_hop", True),
        ("t-shirt", ["tshirt"], "automatic", True),
        ("dont", ["don't"], "automatic", True),
        ("false", ["no"], "templated", True),
        ("<extra_id_0> heron", ["Heron"], "templated", True),
        ("КЁЛЬН", ["Кёльн"], "templated", True),
        ("", ["heron"], "templated", False),
        ("fish, seeds", ["fish&&seeds"], "automatic", False),
        ("fish, seeds and moss", ["Seeds && fish && worms"], "multi_answer", True),
        ("fish & moss", ["seeds&&fish&&worms"], "multi_answer", False),
        ("fish", ["fish&&seeds&&"], "multi_answer", True),
        ("", ["fish"], "multi_answer", False),
    ],
)
def test_exact_match_of_encyclopedic_vqa(prediction, references, kind, right):
    assert evqa_metrics.exact_match(prediction, references, kind) is right


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: evqa_metrics.exact_match("x", [], "2_hop"), r"\[\]"),
        (lambda: evqa_metrics.exact_match("x", ["The"], "2_hop"), "The"),
        (lambda: evqa_metrics.exact_match("x", ["x"], "y"), "'y'"),
        (lambda: infoseek_metrics.exact_match("x", []), r"\[\]"),
        (lambda: infoseek_metrics.relaxed("1", (2.0, 1.0)), r"2\.0, 1\.0"),
        (lambda: infoseek_metrics.scores([], [], []), "0 questions"),
    ],
)
def test_refusals(call, value):
    with pytest.raises(ValueError, match=value):
        call()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("about 1,234.5 m", (1234.5, 1234.5)),
        ("9-10", (9, 10)),
        ("from -3 to 4", (-3, 4)),
        ("10 to 9", (10, 10)),
        ("1 2 3", (1, 2)),
        ("1e3", (1000, 1000)),
        (".5", (5, 5)),
        ("-.5.2", (-5.2, -5.2)),
        ("none", (0, 0)),
        ("٣", (3, 3)),
    ],
)
def test_numbers_as_infoseek_reads_them(text, found):
    assert infoseek_metrics.numbers(text) == found


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        ("61", True),
        ("54.9 metres", True),
        ("67.2", False),
        ("55 - 60", True),
        ("50 to 65", True),  # 10.1 of 17.1
        ("40 to 65", False),  # 10.1 of 27.1
        ("no idea", False),
    ],
)
def test_relaxed_accuracy_of_infoseek(text, correct):
    assert infoseek_metrics.relaxed(text, (54.9, 67.1)) is correct
    assert infoseek_metrics.relaxed("no idea", (-1.0, 1.0))  # 0, as in the evaluator


def test_exact_match_of_infoseek():
    assert infoseek_metrics.exact_match("the Alps!", ["alps"]) and not infoseek_metrics.exact_match("alp", ["alps"])


def test_the_score_of_infoseek():
    splits = ["unseen_question"] * 2 + ["unseen_entity"] * 4
    found = infoseek_metrics.scores([True, False, True, False, False, False], splits, ["time"] * 5 + ["string"])
    assert found.score == pytest.approx(2 / (1 / 0.5 + 1 / 0.25)) and found.accuracy == pytest.approx(1 / 3)
    assert found.by_split == {"unseen_question": 0.5, "unseen_entity": 0.25} and found.by_kind["string"] == 0
    assert infoseek_metrics.scores([True], splits[:1], ["time"]).score is None
    assert infoseek_metrics.scores([True, False], [splits[0], splits[2]], ["time"] * 2).score < 1e-12
