"""The `reveal` command as a user meets it: its output is read again, a mistake is one line and changes nothing, and a
change of a memory is whole or not at all."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from assistants import WEIGHTS, items, mistake, network, output_of, save, with_memory
from command import tree
from own_files import json_lines, picture

from common.io.images import image_size, read_image
from reveal.assistant import Assistant, Evidence, RetrievedItem
from reveal.build import memory_build
from reveal.cli.main import main
from reveal.memory import Item, Memory

HUGE = "99999999999999999999"
BUILD, SEARCH = ["build", "-o", "m"], ["search", "facts"]
ASK = ["ask", "asked.png", "food ?", "--memory", "facts"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return with_memory(tmp_path_factory.mktemp("cli") / "made", 20)


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights, items.jsonl, asked.png and the memory `facts` of 20 items; and nothing shipped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reveal.pretrained.DATA", tmp_path / "nothing")
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def add(*words: str) -> list[str]:
    return ["add", "facts", *words, *WEIGHTS, "--quiet"]


def many(name: str, ids) -> str:
    return str(json_lines(Path(name), [{"id": number, "source": "graph", "text": "home attic"} for number in ids]))


@pytest.mark.long
def test_asking_shows_the_items_of_the_answer(here, capsys):
    words = [*ASK, *WEIGHTS]
    answer = output_of(capsys, *words, "-k", "3", "--sheet", "sheet.png")
    assert answer["question"] == "food ?" and answer["answer"] and answer["log_probability"] < 0
    entries = {"id", "source", "fields", "picture", "score", "prior", "attention", "effect"}
    assert [set(item) for item in answer["items"]] == 3 * [entries]
    main([*words, "-k", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == answer["answer"] and lines[2].split()[:5] == ["id", "source", "score", "prior", "attention"]
    assert [int(line.split()[0]) for line in lines[3:]] == [item["id"] for item in answer["items"]]
    assert image_size("sheet.png")[0] == 960 and read_image("sheet.png").std() > 0
    assert "sheet.png" in mistake(capsys, *words, "--sheet", "sheet.png")
    alone = output_of(capsys, "ask", "-", "food ?", *WEIGHTS, "--no-memory", "--beams", "1")
    assert alone["items"] == [] and alone["memory"] is None and alone["log_probability"] < 0


def test_both_hops_are_shown(here, capsys, monkeypatch):
    item = RetrievedItem(Item("graph", {"text": "a flag"}, id=7), 0.5, 1.0, 0.25, -2.0)
    first = Evidence("which country ?", "Chad", -0.5, (item,), {"graph": 1.0}, 3)
    monkeypatch.setattr(Assistant, "ask", lambda *_: Evidence("which language ?", "", -1.5, (), {}, 0, first))
    words = ["ask", "asked.png", "which language ?", "--no-memory", *WEIGHTS]
    assert output_of(capsys, *words)["first_hop"] == first.as_json()
    main(words)
    assert capsys.readouterr().out == "(nothing)\n\nwhich country ? Chad (items 7)\n"


def test_searching(here, capsys):
    words = [*SEARCH, "--text", "food ?", *WEIGHTS]
    exact = output_of(capsys, *words)["items"]
    found = output_of(capsys, *words, "--engine", "faiss")["items"]
    assert [item["id"] for item in found] == [item["id"] for item in exact]
    assert [item["score"] for item in found] == pytest.approx([item["score"] for item in exact], abs=1e-5)
    main([*words, "-k", "2"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    twice = [*words, "--sources", "graph,graph"]  # is one source, of 5 items
    assert len(output_of(capsys, *twice, "-k", "5")["items"]) == 5
    assert "1 to 5" in mistake(capsys, *twice, "-k", "6")


@pytest.mark.parametrize(("words", "value"), [
    (BUILD, "READER:PATH"),
    ([*BUILD, "none"], "none"),
    ([*BUILD, "asked.png"], "asked.png"),
    ([*BUILD, "wit:t.tsv,captions=no"], "captions=no"),
    ([*BUILD, "wit:t.tsv,first_id=x"], "first_id=x"),
    ([*BUILD, "wit:none.tsv.gz"], "none.tsv.gz"),
    ([*BUILD, "foreign.jsonl"], "'own'"),
    ([*BUILD, "empty.jsonl"], "empty.jsonl"),
    ([*BUILD, "items.jsonl", "--names", "a,b"], "(a, b)"),
    ([*BUILD, "items.jsonl", "--picture-side", "-1"], "--picture-side -1"),
    (["add", "facts"], "--text"),
    (["add", "facts", "items.jsonl", "--text", "home"], "--text"),
    (["add", "facts", "--text", "home"], "--source"),
    (["add", "facts", "--text", "home", "--source", "web"], "'web'"),
    (["add", "facts", "--text", " ", "--source", "graph"], "item"),
    (["add", "facts", "--text", "home", "--edit"], "--id"),
    (["add", "facts", "--text", "home", "--edit", "--id", "999"], "999 first"),
    (["add", "facts", "--text", "home", "--edit", "--id", HUGE, "--source", "graph"], HUGE),
    (["add", "facts", "--image", "none.png", "--source", "vqa"], "none.png"),
    (["add", "nowhere", "--text", "home"], "nowhere"),
    (SEARCH, "text"),
    ([*SEARCH, "--text", "home ?", "-k", "21"], "1 to 20"),
    ([*SEARCH, "--text", "home ?", "--sources", "web"], "'web'"),
    ([*SEARCH, "--text", "home ?", "--sources", ""], "no source"),
    ([*SEARCH, "--text", "home", "--engine", "milvus"], "--milvus"),
    ([*SEARCH, "--text", "home ?", "--tokenizer", "none.json"], "none.json"),
    ([*SEARCH, "--image", "none.png"], "none.png"),
    (["ask", "none.png", "food ?", "--memory", "facts"], "none.png"),
    (["ask", "asked.png", "food food food", "--memory", "facts"], "3 tokens"),
    ([*ASK, "--sheet", "a.mp4"], "'.mp4'"),
    ([*ASK, "--beams", "0"], "--beams 0"),
    (["ask", "asked.png", "food ?", "--no-memory", "-k", "3"], "--no-memory"),
    (["ask", "-", "--memory", "facts"], "question"),
    (["ask", "asked.png", "food ?"], "--memory"),
])  # fmt: skip
def test_mistakes_are_one_line_and_change_nothing(here, capsys, words, value):
    json_lines(Path("foreign.jsonl"), [{"text": "home"}])
    Path("empty.jsonl").write_text("\n")
    before = tree()
    assert value in mistake(capsys, *words, *WEIGHTS)
    assert {name: data for name, data in tree().items() if name not in ("m", "m/build.json")} == before


def test_missing_defaults_are_named(here, capsys):
    for words, value in (
        ([*SEARCH, "--text", "home ?"], "--weights"),
        (["draw"], "'draw'"),
        (["info", "more"], "more"),
        (["remove", "facts", HUGE], HUGE),
        (["info"], "--memory"),
        (["ask", "asked.png", "?", "--weights", "other", "--no-memory"], "other"),
    ):
        assert value in mistake(capsys, *words)


def test_help_does_not_wait_for_jax():
    script = (
        "import contextlib, sys\nfrom reveal.cli.main import main\nmain(['--help'])\n"
        "with contextlib.suppress(SystemExit):\n    main(['ask', '--help'])\n"
        "with contextlib.suppress(SystemExit):\n    main(['ask', 'none.png', 'what?'])\n"
        "print('jax' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "  build  " in result.stdout and "--no-memory" in result.stdout
    assert "none.png" in result.stderr and result.stdout.endswith("False\n")


def test_single_items_are_added_edited_removed_and_compacted(here, capsys):
    words = add("--text", "home attic", "--source", "graph")
    added = output_of(capsys, *words)
    assert (added["ids"], added["items"], added["version"]) == ([20, 20], 21, 2)
    assert "id 20 " in mistake(capsys, *words, "--id", "20")
    edited = output_of(capsys, *add("--edit", "--id", "3", "--text", "friend cat"))
    item = Memory("facts").items([3])[0]
    assert edited["edited"] == 1 and edited["items"] == 21
    assert item.fields == {"text": "friend cat"} and item.source == "vqa" and item.picture is not None
    picture(here / "new.png", 3)
    output_of(capsys, *add("--edit", "--id", "3", "--image", "new.png"))
    after = Memory("facts").items([3])[0]
    assert after.fields == item.fields and after.picture == (here / "new.png").read_bytes()
    removed = output_of(capsys, "remove", "facts", "20", "3", "3")
    assert removed == {"memory": "facts", "removed": 2, "items": 19, "version": 5}
    assert "3 first" in mistake(capsys, "remove", "facts", "3")
    about = output_of(capsys, "info", "facts")
    assert (about["items"], about["version"], about["dead"], about["sources"]["vqa"]) == (19, 5, 4, 4)
    assert about["bytes"] == sum(len(data) for data in tree("facts").values() if data)
    main(["info", "facts"])
    shown = capsys.readouterr().out
    assert "facts: 19 items, version 5" in shown and about["hash"] in shown
    report = output_of(capsys, "compact", "facts")
    assert (report["items"], report["removed"], report["version"]) == (19, 4, 6)
    about = output_of(capsys, "info", "facts")
    assert about["dead"] == 0 and about["bytes"] == report["bytes"]
    main(["compact", "facts"])
    shown = capsys.readouterr().out
    assert shown.startswith("0 rows") and shown.endswith("19 items, version 7\n")


def test_files_are_added(here, capsys):
    assert "0 first" in mistake(capsys, *add("items.jsonl"))
    report = output_of(capsys, *add(many("huge.jsonl", [int(HUGE)])))
    assert report["version"] == 1 and report["ids"] is None and sum(report["left_out"].values()) == 1
    assert output_of(capsys, *add("items.jsonl", "--renumber"))["items"] == 40
    items(here, 22)
    report = output_of(capsys, *add("items.jsonl", "--edit"))
    assert report["added"] == 22 and report["edited"] == 22 and report["items"] == 40
    picture(here / "birds" / "gull.png")
    (here / "birds" / "gull.txt").write_text("owner anna")
    report = output_of(capsys, *add("birds", "--source", "captions"))
    assert report["ids"] == [40, 40] and Memory("facts").items([40])[0].fields == {"text": "owner anna"}
    json_lines(here / "page.jsonl", [{"id": 50, "source": "graph", "title": "home", "page": "attic", "year": 7}])
    output_of(capsys, *add("page.jsonl"))
    output_of(capsys, *add("--edit", "--id", "50", "--text", "friend cat"))  # takes the place of all texts
    assert Memory("facts").items([50])[0].fields == {"year": 7, "text": "friend cat"}


def test_an_addition_is_whole_or_not_at_all(here, capsys, monkeypatch):
    monkeypatch.setattr(memory_build, "CHANGE", memory_build.BATCH)
    many("more.jsonl", range(100, 300))
    (here / "strange.jsonl").write_text('{"id": 50, "source": "web", "text": "home"}\n')
    before = Memory("facts").manifest
    assert "'web'" in mistake(capsys, *add("more.jsonl", "strange.jsonl"))
    assert Memory("facts").manifest == before and not list(Path("facts").glob("v00002-*"))
    with monkeypatch.context() as patch:
        full = OSError(28, "No space left on device")
        patch.setattr("reveal.memory.memory.write_manifest", lambda *_: (_ for _ in ()).throw(full))
        assert "for facts (No space left on device)" in mistake(capsys, *add("more.jsonl"))
    assert Memory("facts").manifest == before
    report = output_of(capsys, *add("more.jsonl"))
    assert (report["added"], report["items"], report["version"], report["ids"]) == (200, 220, 2, [100, 299])
    Memory("facts").verify()


@pytest.mark.parametrize("options", [[], ["--edit"]])
def test_an_id_that_is_there_twice_is_refused_before_anything_is_done(here, capsys, monkeypatch, options):
    monkeypatch.setattr(memory_build.Encoder, "batches", None)
    twice, one, other = many("twice.jsonl", [*range(100, 110), 105]), many("one.jsonl", [100]), many("o.jsonl", [100])
    assert "105 first" in mistake(capsys, *add(twice, *options))
    assert "100 first" in mistake(capsys, *add(one, other, *options))


def test_other_weights_are_refused_and_encode_a_memory_anew(here, capsys):
    (here / "other").mkdir()
    save(here / "other", network(5, key_dim=6))
    before = Memory("facts")
    for words in (ASK, [*SEARCH, "--text", "food ?"], ["add", "facts", "--source", "vqa", "--text", "home"]):
        assert before.layout.encoder in mistake(capsys, *words, "--weights", "other")
    ids = range(20)
    texts, keys = [item.fields for item in before.items(ids)], before.keys(ids)
    report = output_of(capsys, "refresh", "facts", "--weights", "other", "--quiet")
    after = Memory("facts")
    assert report["added"] == report["edited"] == 20 and report["version"] == 2
    assert after.layout.key_dim == 6 and after.layout.encoder != before.layout.encoder
    assert [item.fields for item in after.items(ids)] == texts
    assert after.layout.encoder in mistake(capsys, "search", "facts", "--text", "food ?", *WEIGHTS)
    output_of(capsys, "refresh", "facts", *WEIGHTS, "--quiet")
    np.testing.assert_allclose(Memory("facts").keys(ids), keys, atol=1e-6)
