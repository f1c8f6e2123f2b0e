"""Changes of a memory by the `reveal` command: whole or not at all, told in words that are true."""

import json
import shutil
from pathlib import Path

import pytest
from assistants import items, workplace
from own_files import json_lines
from reveal.memory.memory import Memory as Stored

from recipes.small_world.vocabulary import WorldVocabulary
from reveal.build import memory_build
from reveal.cli.main import main
from reveal.memory import Memory
from reveal.memory.builder import Builder
from reveal.processing.vocabulary import Vocabulary


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    place = workplace(tmp_path_factory.mktemp("changes") / "made")
    items(place, 20)
    main(["build", str(place / "items.jsonl"), "-o", str(place / "facts"), "--weights", str(place), "--quiet"])
    return place


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights, items.jsonl and the memory `facts` of 20 items."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def with_weights(*words: str) -> list[str]:
    return [*words, "--weights", "weights.safetensors", "--quiet"]


def told(capsys, *words: str) -> dict:
    capsys.readouterr()
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and said.startswith("reveal: ")
    return said


def many(path: Path, ids) -> None:
    json_lines(path, [{"id": number, "source": "graph", "text": "home attic"} for number in ids])


def test_an_addition_is_whole_or_not_at_all(here, capsys, monkeypatch):
    monkeypatch.setattr(memory_build, "CHANGE", memory_build.BATCH)
    many(here / "more.jsonl", range(100, 300))
    (here / "strange.jsonl").write_text('{"id": 50, "source": "web", "text": "home"}\n')
    before = Memory("facts").manifest
    said = refused(capsys, *with_weights("add", "facts", "more.jsonl", "strange.jsonl"))
    assert "is of source 'web'" in said
    assert Memory("facts").manifest == before and not list(Path("facts").glob("v00002-*"))
    with monkeypatch.context() as patch:
        patch.setattr(Stored, "_commit", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        said = refused(capsys, *with_weights("add", "facts", "more.jsonl"))
    assert "this change was not made; make room and try again" in said and Memory("facts").manifest == before
    report = told(capsys, *with_weights("add", "facts", "more.jsonl"))
    assert (report["added"], report["items"], report["version"], report["ids"]) == (200, 220, 2, [100, 299])
    Memory("facts").verify()


@pytest.mark.parametrize("options", [[], ["--edit"]])
def test_an_id_that_is_there_twice_is_told_before_anything_is_done(here, capsys, monkeypatch, options):
    monkeypatch.setattr(memory_build, "encoded", None)
    many(here / "twice.jsonl", [*range(100, 110), 105])
    said = refused(capsys, *with_weights("add", "facts", "twice.jsonl", *options))
    assert "1 ids of twice.jsonl are there twice in what is to be added, 105 first" in said
    many(here / "one.jsonl", [100])
    many(here / "other.jsonl", [100])
    assert "100 first" in refused(capsys, *with_weights("add", "facts", "one.jsonl", "other.jsonl", *options))


def test_a_text_takes_the_place_of_all_texts(here, capsys):
    json_lines(here / "page.jsonl", [{"id": 50, "source": "graph", "title": "home", "page": "attic", "year": 7}])
    told(capsys, *with_weights("add", "facts", "page.jsonl"))
    told(capsys, *with_weights("add", "facts", "--edit", "--id", "50", "--text", "friend cat"))
    assert Memory("facts").items([50])[0].fields == {"year": 7, "text": "friend cat"}
    with pytest.raises(SystemExit):
        main(["add", "--help"])
    assert "--text replaces all texts" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_numbers_that_no_item_can_have(here, capsys):
    huge = "99999999999999999999"
    assert f"id {huge} is no item's" in refused(capsys, "remove", "facts", huge)
    for options in ([], ["--edit"]):
        words = with_weights("add", "facts", "--id", huge, "--text", "home", "--source", "graph", *options)
        assert f"id {huge} is no item's" in refused(capsys, *words)
    many(here / "huge.jsonl", [int(huge)])
    report = told(capsys, *with_weights("add", "facts", "huge.jsonl"))
    assert report["version"] == 1 and sum(report["left_out"].values()) == 1


def test_what_cannot_be_shown_is_json_all_the_same(here, capsys):
    text = "home\x85attic \u2028 \x1b[31m Łódź"
    added = told(capsys, *with_weights("add", "facts", "--source", "graph", "--text", text))
    found = told(capsys, *with_weights("search", "facts", "--text", "home ?", "-k", "21")[:-1])["items"]
    assert [item["fields"]["text"] for item in found if item["id"] == added["ids"][0]] == [text]


def test_an_item_without_anything_is_refused_in_words_for_it(here, capsys):
    said = refused(capsys, *with_weights("add", "facts", "--source", "graph", "--text", " "))
    assert "an item with neither text nor picture: give it a text, or another picture" in said


def test_a_source_that_is_named_twice_counts_once(here, capsys):
    words = ["search", "facts", "--text", "home ?", "--weights", "weights.safetensors", "--sources", "graph,graph"]
    assert len(told(capsys, *words, "-k", "5")["items"]) == 5
    assert "the memory has 5 items of graph: ask for 1 to 5" in refused(capsys, *words, "-k", "6")


def test_a_memory_is_compacted(here, capsys):
    told(capsys, "remove", "facts", "3", "4")
    kept = Memory("facts").items([5, 19])
    report = told(capsys, "compact", "facts")
    assert (report["items"], report["removed"], report["version"]) == (18, 2, 3)
    about = told(capsys, "info", "facts")
    assert about["dead"] == 0 and about["bytes"] == report["bytes"]
    assert [item.fields for item in Memory("facts").items([5, 19])] == [item.fields for item in kept]
    main(["compact", "facts"])
    said = capsys.readouterr().out
    assert said.startswith("0 rows of deleted and edited items removed") and said.endswith("18 items, version 4\n")


def test_a_build_does_not_go_on_with_another_tokenizer(here, capsys, monkeypatch):
    words = with_weights("build", "items.jsonl", "-o", "m", "--shard", "5")
    with monkeypatch.context() as patch:
        patch.setattr(Builder, "finish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            main(words)
    known = WorldVocabulary.of_world().words
    Vocabulary((*known[:-2], *known[:-3:-1])).save("turned.json")
    assert "or another tokenizer" in refused(capsys, *words, "--tokenizer", "turned.json")
    assert told(capsys, *words)["resumed"] > 0


def test_a_second_build_into_a_folder_leaves_the_first_alone(here, capsys):
    from reveal.memory import Layout

    layout = Layout("e", ("kg",), 2, (1, 1))
    for target in ("m", "facts.building"):
        first = Builder(target, layout)
        words = with_weights("build", "items.jsonl", "-o", target.removesuffix(".building"), "--overwrite")
        assert f"another program is building {target}; try again when it is done" in refused(capsys, *words)
        assert first.finish().version == 1


def test_a_memory_that_was_to_replace_another_does_not_stand_in_the_way(here, capsys, monkeypatch):
    words = with_weights("build", "items.jsonl", "-o", "facts", "--overwrite")
    with monkeypatch.context() as patch:
        patch.setattr("reveal.cli.changes.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            main(words)
    assert (here / "facts.building" / "manifest.json").is_file()
    items(here, 8)
    assert told(capsys, *words)["items"] == 8 and not (here / "facts.building").exists()


def test_a_memory_that_one_is_in_is_not_replaced(here, capsys, monkeypatch):
    monkeypatch.chdir(here / "facts")
    words = ["build", "../items.jsonl", "-o", ".", "--weights", "../weights.safetensors", "--overwrite"]
    assert "-o . is to be replaced: go out of it, and give the folder by its name" in refused(capsys, *words)
