"""Changes of a memory by the `reveal` command: whole or not at all, and the report is true."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from assistants import WEIGHTS, files, items, network, output_of, refused, save, with_memory
from own_files import json_lines, picture

from reveal.build import memory_build
from reveal.cli.main import main
from reveal.memory import Memory

HUGE = "99999999999999999999"


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return with_memory(tmp_path_factory.mktemp("changes") / "made", 20)


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights, items.jsonl and the memory `facts` of 20 items."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def add(*words: str) -> list[str]:
    return ["add", "facts", *words, *WEIGHTS, "--quiet"]


def many(name: str, ids) -> str:
    return str(json_lines(Path(name), [{"id": number, "source": "graph", "text": "home attic"} for number in ids]))


def test_single_items(here, capsys):
    words = add("--text", "home attic", "--source", "graph")
    added = output_of(capsys, *words)
    assert (added["ids"], added["items"], added["version"]) == ([20, 20], 21, 2)
    assert "id 20 " in refused(capsys, *words, "--id", "20")
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
    assert "3 first" in refused(capsys, "remove", "facts", "3")
    about = output_of(capsys, "info", "facts")
    assert (about["items"], about["version"], about["dead"], about["sources"]["vqa"]) == (19, 5, 4, 4)
    assert about["bytes"] == sum(map(len, files(Path("facts")).values()))
    main(["info", "facts"])
    shown = capsys.readouterr().out
    assert "facts: 19 items, version 5" in shown and about["hash"] in shown


def test_a_text_takes_the_place_of_all_texts(here, capsys):
    json_lines(here / "page.jsonl", [{"id": 50, "source": "graph", "title": "home", "page": "attic", "year": 7}])
    output_of(capsys, *add("page.jsonl"))
    output_of(capsys, *add("--edit", "--id", "50", "--text", "friend cat"))
    assert Memory("facts").items([50])[0].fields == {"year": 7, "text": "friend cat"}


def test_files_are_added(here, capsys):
    assert "0 first" in refused(capsys, *add("items.jsonl"))
    assert output_of(capsys, *add("items.jsonl", "--renumber"))["items"] == 40
    items(here, 22)
    report = output_of(capsys, *add("items.jsonl", "--edit"))
    assert report["added"] == 22 and report["edited"] == 22 and report["items"] == 40
    picture(here / "birds" / "gull.png")
    (here / "birds" / "gull.txt").write_text("owner anna")
    report = output_of(capsys, *add("birds", "--source", "captions"))
    assert report["ids"] == [40, 40] and Memory("facts").items([40])[0].fields == {"text": "owner anna"}


def test_an_addition_is_whole_or_not_at_all(here, capsys, monkeypatch):
    monkeypatch.setattr(memory_build, "CHANGE", memory_build.BATCH)
    many("more.jsonl", range(100, 300))
    (here / "strange.jsonl").write_text('{"id": 50, "source": "web", "text": "home"}\n')
    before = Memory("facts").manifest
    assert "'web'" in refused(capsys, *add("more.jsonl", "strange.jsonl"))
    assert Memory("facts").manifest == before and not list(Path("facts").glob("v00002-*"))
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "_commit", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "for facts (No space left on device)" in refused(capsys, *add("more.jsonl"))
    assert Memory("facts").manifest == before
    report = output_of(capsys, *add("more.jsonl"))
    assert (report["added"], report["items"], report["version"], report["ids"]) == (200, 220, 2, [100, 299])
    Memory("facts").verify()


@pytest.mark.parametrize("options", [[], ["--edit"]])
def test_an_id_that_is_there_twice_is_refused_before_anything_is_done(here, capsys, monkeypatch, options):
    monkeypatch.setattr(memory_build.Encoder, "batches", None)
    twice, one, other = many("twice.jsonl", [*range(100, 110), 105]), many("one.jsonl", [100]), many("o.jsonl", [100])
    assert "105 first" in refused(capsys, *add(twice, *options))
    assert "100 first" in refused(capsys, *add(one, other, *options))


def test_ids_that_no_item_can_have(here, capsys):
    assert HUGE in refused(capsys, "remove", "facts", HUGE)
    assert HUGE in refused(capsys, *add("--id", HUGE, "--text", "home", "--source", "graph", "--edit"))
    report = output_of(capsys, *add(many("huge.jsonl", [int(HUGE)])))
    assert report["version"] == 1 and sum(report["left_out"].values()) == 1


def test_texts_that_no_terminal_shows_are_json_all_the_same(here, capsys):
    text = "home\x85attic \u2028 \x1b[31m Łódź"
    added = output_of(capsys, *add("--source", "graph", "--text", text))
    found = output_of(capsys, "search", "facts", "--text", "home ?", "-k", "21", *WEIGHTS)["items"]
    assert [item["fields"]["text"] for item in found if item["id"] == added["ids"][0]] == [text]


def test_a_memory_is_compacted(here, capsys):
    output_of(capsys, "remove", "facts", "3", "4")
    kept = Memory("facts").items([5, 19])
    report = output_of(capsys, "compact", "facts")
    assert (report["items"], report["removed"], report["version"]) == (18, 2, 3)
    about = output_of(capsys, "info", "facts")
    assert about["dead"] == 0 and about["bytes"] == report["bytes"]
    assert [item.fields for item in Memory("facts").items([5, 19])] == [item.fields for item in kept]
    main(["compact", "facts"])
    shown = capsys.readouterr().out
    assert shown.startswith("0 rows") and shown.endswith("18 items, version 4\n")


def test_other_weights_are_refused_and_encode_a_memory_anew(here, capsys):
    (here / "other").mkdir()
    save(here / "other", network(5, key_dim=6))
    before = Memory("facts")
    for words in (
        ["ask", "asked.png", "food ?", "--memory", "facts"],
        ["search", "facts", "--text", "food ?"],
        ["add", "facts", "--source", "vqa", "--text", "home"],
    ):
        assert before.layout.encoder in refused(capsys, *words, "--weights", "other")
    ids = range(20)
    texts, keys = [item.fields for item in before.items(ids)], before.keys(ids)
    report = output_of(capsys, "refresh", "facts", "--weights", "other", "--quiet")
    after = Memory("facts")
    assert report["added"] == report["edited"] == 20 and report["version"] == 2
    assert after.layout.key_dim == 6 and after.layout.encoder != before.layout.encoder
    assert [item.fields for item in after.items(ids)] == texts
    assert after.layout.encoder in refused(capsys, "search", "facts", "--text", "food ?", *WEIGHTS)
    output_of(capsys, "refresh", "facts", *WEIGHTS, "--quiet")
    np.testing.assert_allclose(Memory("facts").keys(ids), keys, atol=1e-6)
